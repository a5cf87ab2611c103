package file

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"gatehouse/internal/files/extract"
	"gatehouse/tool"
)

// sniffed is how much of a file decides whether it is text.
const sniffed = 8 << 10

// mustBeText refuses a binary file and says what it is.
func (s *source) mustBeText(path string) error {
	head := s.head[:min(len(s.head), sniffed)]
	kind := binaryKind(head)
	if kind == "" {
		return nil
	}
	return &tool.Refusal{
		Code:    "binary",
		Message: fmt.Sprintf("%s is not text: %s, %s bytes, begins % x", path, kind, commas(s.size), head[:min(len(head), 24)]),
		Next:    "The file tools show and edit UTF-8 text only.",
	}
}

// binaryKind says what a file that begins like this is, or nothing if it can
// be shown as text. Text in an 8-bit encoding counts as text.
func binaryKind(head []byte) string {
	if w, ok := extract.WideOf(head); ok {
		return w.Name + " text"
	}
	switch {
	case bytes.IndexByte(head, 0) >= 0, controls(head) > len(head)/10:
		return http.DetectContentType(head)
	case !utf8.Valid(head):
		// Signatures are short: only where the rest is not plain text either.
		kind := http.DetectContentType(head)
		if !strings.HasPrefix(kind, "text/") && kind != "application/octet-stream" {
			return kind
		}
	}
	return ""
}

// controls counts the control characters that text does not use.
func controls(b []byte) (n int) {
	for _, c := range b {
		if c < ' ' && c != '\t' && c != '\n' && c != '\r' && c != '\f' && c != '\b' && c != 0x1b {
			n++
		}
	}
	return n
}

const bom = "\xEF\xBB\xBF"

// show makes a string of a page: bytes that are not UTF-8 and NULs become \xNN.
// The note says what the eye would miss.
func show(b []byte, atStart bool) (text, note string) {
	var notes []string
	if atStart && bytes.HasPrefix(b, []byte(bom)) {
		notes = append(notes, "begins with a byte order mark")
	}
	if all, crlf := bytes.Count(b, newline), bytes.Count(b, []byte("\r\n")); crlf > 0 {
		if crlf == all {
			notes = append(notes, "CRLF line endings")
		} else {
			notes = append(notes, "mixed line endings")
		}
	}
	text = string(b)
	if bytes.IndexByte(b, 0) >= 0 || !utf8.Valid(b) {
		var n int
		text, n = escape(b)
		notes = append(notes, fmt.Sprintf(`%d bytes that are not UTF-8 text are shown as \xNN`, n))
	}
	return text, strings.Join(notes, "; ")
}

func escape(b []byte) (string, int) {
	var s strings.Builder
	n := 0
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r == 0 || (r == utf8.RuneError && size == 1) {
			fmt.Fprintf(&s, `\x%02x`, b[0])
			n++
		} else {
			s.Write(b[:size])
		}
		b = b[size:]
	}
	return s.String(), n
}
