package displaytext

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestCut(t *testing.T) {
	for _, c := range []struct {
		text string
		most int
		want string
	}{
		{"", 0, ""},
		{"abc", 3, "abc"},
		{"abcd", 3, "abc..."},
		{"aé", 3, "aé"},
		{"aéb", 2, "a..."},
		{"aéb", 3, "aé..."},
		{"€", 2, "..."},
		{"a😀", 4, "a..."},
		{"a\x80\x80\x80\x80\x80b", 5, "a\x80\x80\x80\x80..."}, // not UTF-8: no character to keep whole
		{"ab", 0, "..."},
		{"ab", -1, "..."},
	} {
		if got := Cut(c.text, c.most, "..."); got != c.want {
			t.Errorf("%q to %d bytes: %q, want %q", c.text, c.most, got, c.want)
		}
	}
}

func TestWhole(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "ab": 2, "aé": 3, "a\xc3": 1, "a\xe2\x82": 1, "€": 3, "\xf0\x9f\x98": 0, "a\xf0\x9f\x98": 1, "a\x80": 2,
		"\x80\x80\x80\x80": 4, "a\xff": 2,
	} {
		if got := Whole([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func FuzzCut(f *testing.F) {
	f.Add("aéb", 2)
	f.Fuzz(func(t *testing.T, s string, most int) {
		got := Cut(s, most, "")
		if !strings.HasPrefix(s, got) || len(got) > max(most, 0) && len(s) > most {
			t.Errorf("%q to %d bytes: %q", s, most, got)
		}
		if utf8.ValidString(s) && !utf8.ValidString(got) {
			t.Errorf("%q to %d bytes cuts a character: %q", s, most, got)
		}
	})
}
