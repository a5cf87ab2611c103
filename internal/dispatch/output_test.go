package dispatch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestTailOfAnOutput(t *testing.T) {
	all := []byte(strings.Repeat("0123456789é", 2000))
	for _, size := range []int{1, 7, 1000, tailBytes - 1, tailBytes, tailBytes + 1, len(all)} {
		var o output
		for rest := all; len(rest) > 0; {
			n := min(size, len(rest))
			o.keepTail(rest[:n])
			rest = rest[n:]
		}
		if !bytes.Equal(o.tail, all[len(all)-tailBytes:]) {
			t.Errorf("in chunks of %d: %d bytes, ending %q", size, len(o.tail), o.tail[len(o.tail)-20:])
		}
		if s := printableText(o.tail); !utf8.ValidString(s) || len(s) < tailBytes-utf8.UTFMax {
			t.Errorf("in chunks of %d: %d bytes of text, valid %t", size, len(s), utf8.ValidString(s))
		}
	}
}

// Progress contains only output that was not sent yet, in whole characters, so that a client receives the output
// once.
func TestProgressTellsOutputOnce(t *testing.T) {
	var told []string
	o := output{failed: true, req: &Request{Notes: notesFunc(func(note string) { told = append(told, note) })}}
	for _, chunk := range []string{"one é", " two \xc3", "\xa9 three", "\xe2\x82", "\xac end"} {
		o.sentAt = time.Time{} // as if the last notification were long ago
		o.Output([]byte(chunk))
	}
	if got, want := fmt.Sprintf("%q", told), `["one é" " two " "é three" "€ end"]`; got != want {
		t.Errorf("told %s, want %s", got, want)
	}
}

// notesFunc receives the text of progress.
type notesFunc func(string)

func (f notesFunc) Progress(_, _ float64, note string) { f(note) }
func (notesFunc) Log(slog.Level, json.RawMessage)      {}
func (notesFunc) Output([]byte)                        {}
func (notesFunc) Detach()                              {}
func (notesFunc) Keep(map[string]json.RawMessage) bool { return false }

func TestWhereATextIsCut(t *testing.T) {
	for _, c := range []struct {
		text   string
		budget int
		want   string
	}{
		{"one\ntwo\nthree", 9, "one\ntwo\n"},
		{"one\ntwo\nthree", 8, "one\ntwo\n"},
		{"a\nbbbbbbbbbbbbbbb", 10, "a\nbbbbbbbb"}, // the line end is too far back
		{"éééé", 3, "é"},
		{"éééé", 4, "éé"},
		{"abcdef", 0, ""},
		{"\xff\xff\xff", 2, "\xff\xff"},
	} {
		if got := c.text[:lineEnd(c.text, c.budget)]; got != c.want {
			t.Errorf("%q within %d: got %q, want %q", c.text, c.budget, got, c.want)
		}
	}
}
