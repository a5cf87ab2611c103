package file

import (
	"bytes"
	"context"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/files/edit"
	"gatehouse/internal/files/extract"
	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// encoding is how the text of a file is written in it.
type encoding struct {
	wide  extract.Wide // zero for one byte a unit
	bytes bool         // it is no UTF-8: Latin-1 or another encoding of one byte
}

// decoded is the text of a file as edits see it, and how to write it again.
func decoded(p roots.Place, content []byte) (text []byte, e encoding, err error) {
	w, ok := extract.WideOf(content)
	if !ok {
		return content, encoding{bytes: !utf8.Valid(content)}, nil
	}
	text, lost := w.Decode(content[len(w.Mark):])
	if lost > 0 {
		return nil, e, damaged(p, w)
	}
	return text, encoding{wide: w}, nil
}

func damaged(p roots.Place, w extract.Wide) error {
	return &tool.Refusal{
		Code: "unsupported", Message: p.Path + " is " + w.Name + " text with units or odd bytes that are no characters; it cannot be written again as it is",
		Next: "Write the whole file anew with file_write, which makes it UTF-8.",
	}
}

// encoded writes a text as the file has it.
func (e encoding) encoded(text []byte) []byte {
	if e.wide.Unit == 0 {
		return text
	}
	return append([]byte(e.wide.Mark), e.wide.Encode(text)...)
}

// otherBytes are bytes that are no UTF-8, as file_read shows them.
var otherBytes = regexp.MustCompile(`\\x[89a-fA-F][0-9a-fA-F]`)

// asRead makes edits of a file in an encoding of one byte mean its bytes where
// they have \xNN, as it was shown. A file that has such text itself is taken at
// its word. Other characters than ASCII are refused: which bytes they are there
// is not known.
func (e encoding) asRead(p roots.Place, content []byte, edits []edit.Edit) ([]edit.Edit, error) {
	if !e.bytes {
		return edits, nil
	}
	out := make([]edit.Edit, len(edits))
	for i, one := range edits {
		if !ascii(one.New) {
			return nil, otherEncoding(p, "new_string")
		}
		if !otherBytes.Match(content) {
			one.Old, one.New = unshown(one.Old), unshown(one.New)
		}
		out[i] = one
	}
	return out, nil
}

func unshown(s string) string {
	return otherBytes.ReplaceAllStringFunc(s, func(x string) string {
		n, _ := strconv.ParseUint(x[2:], 16, 8) // two hex digits
		return string([]byte{byte(n)})
	})
}

func ascii(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0
}

func otherEncoding(p roots.Place, field string) error {
	return &tool.Refusal{
		Code: "unsupported", Message: p.Path + " is not in UTF-8, and " + field + " has characters that are not ASCII; nothing was written",
		Next: `Use ASCII; file_edit takes other bytes as \xNN, as file_read shows them. Or write the whole file anew, which makes it UTF-8.`,
	}
}

// added is content in the encoding of the file it is added to, and how many bytes
// of mark the file begins with.
func added(ctx context.Context, p roots.Place, there *seen, content string) (b []byte, mark int, err error) {
	head := make([]byte, 4)
	n, err := there.f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return nil, 0, p.Refuse(err)
	}
	head = head[:n]
	if w, ok := extract.WideOf(head); ok {
		if there.info.Size()%int64(w.Unit) != 0 {
			return nil, 0, damaged(p, w)
		}
		return w.Encode([]byte(strings.TrimPrefix(content, bom))), len(w.Mark), nil
	}
	if !ascii(content) {
		valid, err := isUTF8(ctx, there.content())
		if err != nil {
			return nil, 0, err
		}
		if !valid {
			return nil, 0, otherEncoding(p, "content")
		}
	}
	if bytes.HasPrefix(head, []byte(bom)) {
		return []byte(strings.TrimPrefix(content, bom)), len(bom), nil
	}
	return []byte(content), 0, nil
}

// isUTF8 reads a file through.
func isUTF8(ctx context.Context, r io.Reader) (bool, error) {
	buf := make([]byte, chunkSize)
	kept := 0
	for {
		if err := context.Cause(ctx); err != nil {
			return false, err
		}
		n, err := r.Read(buf[kept:])
		b := buf[:kept+n]
		whole := displaytext.Whole(b)
		if !utf8.Valid(b[:whole]) {
			return false, nil
		}
		kept = copy(buf, b[whole:])
		if err == io.EOF {
			return kept == 0, nil
		}
		if err != nil {
			return false, err
		}
	}
}
