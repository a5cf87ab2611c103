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

// sniffBytes is the length of the head of a file that decides whether it is text.
const sniffBytes = 8 << 10

// mustBeText refuses a binary file with its type and first bytes.
func (s *source) mustBeText(path string) error {
	head := s.head[:min(len(s.head), sniffBytes)]
	kind := binaryKind(head)
	if kind == "" {
		return nil
	}
	return &tool.Refusal{
		Code: tool.CodeBinary,
		Message: fmt.Sprintf(
			"%s is not text: %s, %s bytes, begins % x", path, kind, groupDigits(s.size), head[:min(len(head), 24)],
		),
		Next: "The file tools read and edit text only.",
	}
}

// binaryKind returns the type of a binary file with this head, or "" if it can
// be shown as text. Text in an 8-bit encoding counts as text.
func binaryKind(head []byte) string {
	if w, ok := extract.WideOf(head); ok {
		return w.Name + " text"
	}
	switch {
	case bytes.IndexByte(head, 0) >= 0, controls(head) > len(head)/10:
		return http.DetectContentType(head)
	case !utf8.Valid(head):
		// A type is believed only if it is specific, because text in an 8-bit
		// encoding may begin like a short signature.
		kind := http.DetectContentType(head)
		if !strings.HasPrefix(kind, "text/") && kind != "application/octet-stream" {
			return kind
		}
	}
	return ""
}

// controls counts the control characters that do not occur in text.
func controls(b []byte) (n int) {
	for _, c := range b {
		if c < ' ' && c != '\t' && c != '\n' && c != '\r' && c != '\f' && c != '\b' && c != 0x1b {
			n++
		}
	}
	return n
}

const bom = "\xEF\xBB\xBF"

// printable returns a page as a string, with each NUL and each byte that is not
// UTF-8 as \xNN. The note mentions what cannot be seen in the text.
func printable(b []byte, atStart bool) (text, note string) {
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
