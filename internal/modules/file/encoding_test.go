package file

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// What is added to a file or changed in it has the encoding of the rest.
func TestEncodingsAreKept(t *testing.T) {
	h := newFixture(t)
	le := func(s string) string {
		return strings.NewReplacer("ä", "\xe4\x00", "b", "b\x00", "c", "c\x00", "\n", "\n\x00", "😀",
			"\x3d\xd8\x00\xde").
			Replace(s)
	}
	for _, c := range []struct {
		name, was string
		args      []any
		want      string // "" for a refusal that changes nothing
	}{
		{"UTF-16", "\xFF\xFE" + le("b\n"), []any{"mode", "append", "content", "cä😀\n"}, "\xFF\xFE" + le("b\ncä😀\n")},
		{"UTF-16", "\xFF\xFE" + le("b\n"), []any{"mode", "prepend", "content", "cä\n"}, "\xFF\xFE" + le("cä\nb\n")},
		{"big end", "\xFE\xFF\x00b", []any{"mode", "append", "content", "ä"}, "\xFE\xFF\x00b\x00\xe4"},
		{
			"UTF-32", "\xFF\xFE\x00\x00b\x00\x00\x00", []any{"mode", "append", "content", "ä"},
			"\xFF\xFE\x00\x00b\x00\x00\x00\xe4\x00\x00\x00",
		},
		{"an odd byte", "\xFF\xFEb\x00x", []any{"mode", "append", "content", "c"}, ""},
		{"Latin-1", "caf\xe9\n", []any{"mode", "append", "content", "more\n"}, "caf\xe9\nmore\n"},
		{"Latin-1", "caf\xe9\n", []any{"mode", "append", "content", "thé\n"}, ""},
		{"Latin-1", strings.Repeat("x", chunkSize) + "\xe9", []any{"mode", "prepend", "content", "é"}, ""},
		{
			"UTF-8", strings.Repeat("x", chunkSize-1) + "é", []any{"mode", "append", "content", "é"},
			strings.Repeat("x", chunkSize-1) + "éé",
		},
		{"marked", "\xEF\xBB\xBFb", []any{"mode", "prepend", "content", "é"}, "\xEF\xBB\xBFéb"},
		{
			"UTF-16", "\xFF\xFE" + le("b\nc\n"), []any{"old_string", "c\n", "new_string", "cä\n"},
			"\xFF\xFE" + le("b\ncä\n"),
		},
		{"a lone surrogate", "\xFF\xFE" + le("b\n") + "\x00\xde", []any{"old_string", "b", "new_string", "c"}, ""},
		{"Latin-1", "caf\xe9 au lait\n", []any{"old_string", "au", "new_string", "with"}, "caf\xe9 with lait\n"},
		{
			"Latin-1", "caf\xe9 au lait\n", []any{"old_string", `caf\xe9 au`, "new_string", `th\xe9 au`},
			"th\xe9 au lait\n",
		},
		{"Latin-1", "caf\xe9\n", []any{"old_string", "caf", "new_string", "thé"}, ""},
		{
			"Latin-1 that says so", "s = '\\xe9' # \xe9\n", []any{"old_string", `'\xe9'`, "new_string", `'\xea'`},
			"s = '\\xea' # \xe9\n",
		},
	} {
		h.put("f", c.was)
		name := "file_write"
		if c.args[0] == "old_string" {
			name = "file_edit"
		}
		out := h.call(name, append([]any{"path", "f"}, c.args...)...)
		want := c.want
		if want == "" {
			want = c.was
			h.want(out, map[string]any{"error": "!unsupported"})
		} else if out["error"] != nil {
			t.Errorf("%s %v: %v", c.name, c.args, out)
		}
		if got := h.get("f"); got != want {
			t.Errorf("%s %v: got %q, want %q", c.name, c.args, got, want)
		}
		if diff := fmt.Sprint(out["diff"]); !utf8.ValidString(diff) {
			t.Errorf("%s: the diff is %q", c.name, diff)
		}
		if c.want != "" {
			if h.call("file_undo"); h.get("f") != c.was {
				t.Errorf("%s: undone it is %q", c.name, h.get("f"))
			}
		}
	}
}

// What is no character in a wide encoding is noted.
func TestReadWide(t *testing.T) {
	h := newFixture(t)
	for content, want := range map[string][2]string{
		"\xFF\xFE\x00\x00a\x00\x00\x00\n\x00\x00\x00": {"a\n", "UTF-32, shown as UTF-8"},
		"\xFF\xFEa\x00b":                {"a\uFFFD", "1 unit or bytes that are not characters"},
		"\xFF\xFE\x00\xdea\x00":         {"\uFFFDa", "1 unit or bytes that are not characters"},
		"\x00\x00\xFE\xFF\x00\x00\x00a": {"a", "UTF-32"},
	} {
		h.put("f", content)
		if out := h.call("file_read", "path", "f"); out["content"] != want[0] ||
			!strings.Contains(fmt.Sprint(out["note"]), want[1]) {
			t.Errorf("%q: got %v, want %v", content, out, want)
		}
	}
}
