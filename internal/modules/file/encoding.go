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

// encoding is the character encoding of a file.
type encoding struct {
	wide  extract.Wide // UTF-16 or UTF-32; zero for encodings with units of one byte
	bytes bool         // not UTF-8: Latin-1 or another single-byte encoding
}

// decodeText returns the text of a file as UTF-8, on which edits work, and the
// encoding in which to write it back.
func decodeText(p roots.Place, content []byte) (text []byte, e encoding, err error) {
	w, ok := extract.WideOf(content)
	if !ok {
		return content, encoding{bytes: !utf8.Valid(content)}, nil
	}
	text, lost := w.Decode(content[len(w.Mark):])
	if lost > 0 {
		return nil, e, errDamaged(p, w)
	}
	return text, encoding{wide: w}, nil
}

func errDamaged(p roots.Place, w extract.Wide) error {
	return &tool.Refusal{
		Code:    tool.CodeUnsupported,
		Message: p.Path + " is " + w.Name + " text with invalid characters; writing it back would change them",
		Next:    "Write the whole file with file_write, which makes it UTF-8.",
	}
}

// encodeText converts text to the encoding of the file.
func (e encoding) encodeText(text []byte) []byte {
	if e.wide.Unit == 0 {
		return text
	}
	return append([]byte(e.wide.Mark), e.wide.Encode(text)...)
}

// byteEscape matches the escape that file_read shows for a byte that is not
// UTF-8.
var byteEscape = regexp.MustCompile(`\\x[89a-fA-F][0-9a-fA-F]`)

// parseEscapes replaces \xNN in the edits of a file in a single-byte encoding
// by the byte it stands for, because file_read shows the byte that way. If the
// file itself contains such an escape as text, the edits are left as they are.
// New text with characters outside of ASCII is refused, because their bytes in
// that encoding are not known.
func (e encoding) parseEscapes(p roots.Place, content []byte, edits []edit.Edit) ([]edit.Edit, error) {
	if !e.bytes {
		return edits, nil
	}
	out := make([]edit.Edit, len(edits))
	for i, one := range edits {
		if !ascii(one.New) {
			return nil, errEncoding(p, "new_string")
		}
		if !byteEscape.Match(content) {
			one.Old, one.New = parseEscape(one.Old), parseEscape(one.New)
		}
		out[i] = one
	}
	return out, nil
}

func parseEscape(s string) string {
	return byteEscape.ReplaceAllStringFunc(s, func(x string) string {
		n, _ := strconv.ParseUint(x[2:], 16, 8) // two hex digits
		return string([]byte{byte(n)})
	})
}

func ascii(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0
}

func errEncoding(p roots.Place, field string) error {
	return &tool.Refusal{
		Code:    tool.CodeUnsupported,
		Message: p.Path + " is not UTF-8, and " + field + " has characters that are not ASCII; nothing was written",
		Next:    `Use ASCII; file_edit accepts \xNN for other bytes, as file_read shows them. Or write the whole file, which makes it UTF-8.`,
	}
}

// encodeAddition converts content to the encoding of the file to which it is
// added. mark is the length of the file's byte order mark.
func encodeAddition(
	ctx context.Context, p roots.Place, there *original, content string,
) (b []byte, mark int, err error) {
	head := make([]byte, 4)
	n, err := there.f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return nil, 0, p.Refuse(err)
	}
	head = head[:n]
	if w, ok := extract.WideOf(head); ok {
		if there.info.Size()%int64(w.Unit) != 0 {
			return nil, 0, errDamaged(p, w)
		}
		return w.Encode([]byte(strings.TrimPrefix(content, bom))), len(w.Mark), nil
	}
	if !ascii(content) {
		valid, err := isUTF8(ctx, there.content())
		if err != nil {
			return nil, 0, err
		}
		if !valid {
			return nil, 0, errEncoding(p, "content")
		}
	}
	if bytes.HasPrefix(head, []byte(bom)) {
		return []byte(strings.TrimPrefix(content, bom)), len(bom), nil
	}
	return []byte(content), 0, nil
}

// isUTF8 reads r to the end and reports whether all of it is UTF-8.
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
