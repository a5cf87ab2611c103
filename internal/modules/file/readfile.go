package file

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"gatehouse/internal/files/extract"
	"gatehouse/internal/files/language"
	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// opened is a file that is being read.
type opened struct {
	p    roots.Place
	f    *os.File
	info fs.FileInfo
	s    *source
}

func (m *files) readOne(ctx context.Context, c *tool.Call, in readIn) (readOut, error) {
	p, err := findFile(c, in.Path)
	if err != nil {
		return readOut{}, err
	}
	f, info, err := p.Regular()
	if err != nil {
		return readOut{}, err
	}
	defer f.Close()
	if in.As == "unsaved" {
		return m.readUnsaved(ctx, c, p, &in)
	}
	s, err := newSource(ctx, f, info.Size())
	if err != nil {
		return readOut{}, p.Refuse(err)
	}
	o := opened{p, f, info, s}
	out := readOut{Path: in.Path, Size: s.size, ETag: o.etag()}
	// Two kilobytes decide most cases; detecting on more would cost more than reading the file.
	out.Language, _ = language.Detect(p.Name, s.head[:min(len(s.head), 2<<10)])
	shown, err := m.showContent(ctx, &o, &in, &out)
	if err == nil {
		out.Note = joinNotes(out.Note, m.unsavedNote(ctx, c, p))
	}
	if shown || err != nil {
		return out, err
	}
	if err := out.readPage(ctx, &o, &in); err != nil {
		return readOut{}, p.Refuse(err)
	}
	return out, nil
}

// etag returns the tag of the file, or "" if the file changed while it was read.
func (o *opened) etag() string {
	if o.info.Size() <= roots.ETagWhole && int64(len(o.s.head)) == o.info.Size() {
		return roots.ETag(o.info, o.s.head)
	}
	tag, err := roots.ETagOf(o.f, o.info)
	if err != nil {
		return ""
	}
	return tag
}

// readPage sets the requested part of the text.
func (out *readOut) readPage(ctx context.Context, o *opened, in *readIn) error {
	switch {
	case in.Ranges != "":
		return out.readRanges(o.s, in)
	case in.Around != "":
		if err := in.resolveAround(ctx, o.s); err != nil {
			return err
		}
	}
	pg, err := o.s.page(*in)
	if err != nil {
		return err
	}
	out.FirstLine, out.TotalLines = pg.firstLine, pg.totalLines
	out.NextOffset, out.NextByte, out.Truncated = pg.nextOffset, pg.nextByte, pg.truncated
	text, note := printable(pg.text, pg.start == 0)
	out.Content = text
	out.addNote(note)
	out.addNote(pg.note)
	if pg.start == 0 {
		out.format = style(pg.text)
	}
	if in.LineNumbers {
		if pg.firstLine == 0 {
			out.addNote("the line numbers of this page are not known")
			return nil
		}
		out.Content = numberedLines(text, pg.firstLine)
	}
	return nil
}

func (out *readOut) addNote(note string) {
	if note != "" && out.Note != "" {
		out.Note += "; "
	}
	out.Note += note
}

// numberedLines prefixes each line with its number, beginning with n.
func numberedLines(text string, n int) string {
	var b strings.Builder
	b.Grow(len(text) + len(text)/4)
	for line := range strings.Lines(text) {
		b.WriteString(strconv.Itoa(n))
		b.WriteString(": ")
		b.WriteString(line)
		n++
	}
	return b.String()
}

// styleBytes is the length of the text from which style detects the indentation.
const styleBytes = 4 << 10

// style returns the line endings and indentation of a text: "LF, tabs".
func style(text []byte) string {
	text = text[:min(len(text), styleBytes)]
	all := bytes.Count(text, newline)
	if all == 0 {
		return ""
	}
	ends := "LF"
	if bytes.Contains(text, []byte("\r\n")) {
		ends = "CRLF"
	}
	tabs, spaces, least := 0, 0, 0
	for line := range bytes.Lines(text) {
		n := len(line) - len(bytes.TrimLeft(line, " "))
		switch {
		case line[0] == '\t':
			tabs++
		case n > 1 && n < len(line)-1 && line[n] != '*': // not the aligned stars of a block comment
			if spaces++; least == 0 || n < least {
				least = n
			}
		}
	}
	switch {
	case tabs > spaces:
		return ends + ", tabs"
	case spaces > 0:
		return fmt.Sprintf("%s, %d spaces", ends, least)
	}
	return ends
}

// showContent handles everything but plain text: outlines, documents, images, audio. It
// reports true if out is complete; otherwise the source has the text to read.
func (m *files) showContent(ctx context.Context, o *opened, in *readIn, out *readOut) (bool, error) {
	kind := extract.KindOf(o.p.Name, o.s.head)
	converts := kind.Converted() || kind != "" && in.As == "text"
	switch {
	case converts && in.As != "raw":
		return false, o.convert(ctx, kind, out)
	case extract.IsWide(o.s.head):
		if err := o.decodeWide(out); err != nil {
			return false, err
		}
	case binaryKind(o.s.head[:min(len(o.s.head), sniffBytes)]) != "":
		if media, err := o.media(out); media || err != nil {
			return media, err
		}
		return false, o.s.mustBeText(in.Path)
	case kind == extract.Page && in.As == "":
		out.addNote("as=text removes the markup")
	case kind == extract.Mail && in.As == "":
		out.addNote("as=text decodes the parts")
	}
	if in.As == "outline" {
		return false, o.outline(out)
	}
	return false, nil
}
