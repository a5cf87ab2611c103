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
	s, err := newSource(ctx, f, info.Size())
	if err != nil {
		return readOut{}, p.Refuse(err)
	}
	o := opened{p, f, info, s}
	out := readOut{Path: in.Path, Size: s.size, ETag: o.etag()}
	// Two kilobytes settle most ties, and looking at more would cost more than reading did.
	out.Language, _ = language.Detect(p.Name, s.head[:min(len(s.head), 2<<10)])
	if shown, err := m.show(ctx, &o, &in, &out); shown || err != nil {
		return out, err
	}
	if err := out.read(ctx, &o, &in); err != nil {
		return readOut{}, p.Refuse(err)
	}
	return out, nil
}

// etag is empty if the file changed while it was read.
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

// read fills in the part of the text that was asked for.
func (out *readOut) read(ctx context.Context, o *opened, in *readIn) error {
	switch {
	case in.Ranges != "":
		return out.ranges(o.s, in)
	case in.Around != "":
		if err := in.near(ctx, o.s); err != nil {
			return err
		}
	}
	pg, err := o.s.page(*in)
	if err != nil {
		return err
	}
	out.FirstLine, out.TotalLines = pg.firstLine, pg.totalLines
	out.NextOffset, out.NextByte, out.Truncated = pg.nextOffset, pg.nextByte, pg.truncated
	text, note := show(pg.text, pg.start == 0)
	out.Content = text
	out.say(note)
	out.say(pg.note)
	if pg.start == 0 {
		out.format = style(pg.text)
	}
	if in.LineNumbers {
		if pg.firstLine == 0 {
			out.say("line numbers are not known here")
			return nil
		}
		out.Content = numberedLines(text, pg.firstLine)
	}
	return nil
}

func (out *readOut) say(note string) {
	if note != "" && out.Note != "" {
		out.Note += "; "
	}
	out.Note += note
}

// numberedLines puts the number before each line.
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

// styled is how much of a text is looked at to tell how it is indented.
const styled = 4 << 10

// style says how lines end and are indented: "LF, tabs".
func style(text []byte) string {
	text = text[:min(len(text), styled)]
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
		case n > 1 && n < len(line)-1 && line[n] != '*': // not the stars of a comment
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

// show makes what is no plain text: outlines, documents, pictures, sounds. It
// reports whether that was all there is to show; else the source holds text.
func (m *files) show(ctx context.Context, o *opened, in *readIn, out *readOut) (bool, error) {
	kind := extract.KindOf(o.p.Name, o.s.head)
	converts := kind == extract.PDF || kind == extract.Word || kind == extract.Notebook || kind == extract.Page && in.As == "text"
	switch {
	case converts && in.As != "raw":
		return false, m.convert(ctx, o, kind, out)
	case extract.IsWide(o.s.head):
		if err := o.decode(out); err != nil {
			return false, err
		}
	case binaryKind(o.s.head[:min(len(o.s.head), sniffed)]) != "":
		if media, err := o.media(out); media || err != nil {
			return media, err
		}
		return false, o.s.mustBeText(in.Path)
	case kind == extract.Page && in.As == "":
		out.say("as=text shows it without markup")
	}
	if in.As == "outline" {
		return false, o.outline(out)
	}
	return false, nil
}
