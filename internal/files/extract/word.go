package extract

import (
	"archive/zip"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

func itoa(n int) string { return strconv.Itoa(n) }

// Limits of the main part of a document in bytes, because a few compressed
// megabytes can stand for gigabytes.
const (
	mostXML   = 64 << 20 // of decoded XML; the rest is cut off
	mostToken = 4 << 20  // of one tag or one run of text, which the decoder holds in memory
)

// tokenReader returns an error if a token is longer than mostToken.
type tokenReader struct {
	r     io.Reader
	guard *guarded
	left  int // that may still be read
	token int // bytes read since the last token
}

func (t *tokenReader) Read(b []byte) (int, error) {
	if err := t.guard.stopReading(); err != nil {
		return 0, err
	}
	if t.left <= 0 {
		return 0, errFull
	}
	if t.token > mostToken {
		return 0, errBomb
	}
	n, err := t.r.Read(b[:min(len(b), t.left)])
	t.left -= n
	t.token += n
	return n, err
}

// fromWord writes the text of the main part of a document.
func fromWord(w *writer, f *guarded) error {
	z, err := zip.NewReader(f, f.size)
	if err != nil {
		return fmt.Errorf("the document is damaged: %w", err)
	}
	for _, part := range z.File {
		if part.Name != "word/document.xml" {
			continue
		}
		r, err := part.Open()
		if err != nil {
			return fmt.Errorf("the document is damaged: %w", err)
		}
		defer r.Close()
		return wordXML(w, &tokenReader{r: r, guard: f, left: mostXML})
	}
	return errors.New("the document has no text part")
}

// wordXML reads WordprocessingML. It ignores the namespaces of elements.
func wordXML(w *writer, r *tokenReader) error {
	p := &wordWriter{writer: w}
	return eachToken(w, r, &p.inText, func(t xml.Token) error {
		switch t := t.(type) {
		case xml.StartElement:
			return p.startElement(t)
		case xml.EndElement:
			p.endElement(t.Name.Local)
		case xml.CharData:
			if p.inText {
				return p.raw(string(t))
			}
		}
		return nil
	})
}

// eachToken calls f with each token of a part. What follows damage is left out, if there is text before it. inText says
// whether the decoder is inside of text, of which a run that is too long ends the conversion without an error.
func eachToken(w *writer, r *tokenReader, inText *bool, f func(xml.Token) error) error {
	d := xml.NewDecoder(r)
	d.Strict = false
	for depth := 0; ; {
		t, err := d.Token()
		r.token = 0
		if errors.Is(err, io.EOF) {
			return nil
		}
		if errors.Is(err, errBomb) && *inText {
			return errFull
		}
		if errors.Is(err, errFull) || errors.Is(err, errBomb) {
			return err
		}
		if err != nil {
			if w.b.Len() > 0 {
				return w.raw("\n[the rest is damaged]")
			}
			return fmt.Errorf("the document is damaged: %w", err)
		}
		switch t.(type) {
		case xml.StartElement:
			if depth++; depth > 1000 {
				return errors.New("the document is nested too deeply")
			}
		case xml.EndElement:
			depth--
		}
		if err := f(t); err != nil {
			return err
		}
	}
}

type wordWriter struct {
	*writer
	inText bool
	table  int
	cell   bool
	deep   int // level of the list item
}

func (p *wordWriter) startElement(t xml.StartElement) error {
	switch t.Name.Local {
	case "t":
		p.inText = true
	case "tab":
		return p.raw("\t")
	case "br", "cr":
		p.newLine()
	case "p":
		if p.table == 0 {
			p.paragraph()
		}
	case "pStyle":
		return p.style(attributeValue(t))
	case "ilvl":
		p.deep, _ = strconv.Atoi(attributeValue(t))
	case "numId":
		p.newLine()
		return p.raw(strings.Repeat("  ", min(max(p.deep, 0), mostNested)) + "- ")
	case "tbl":
		p.table++
		p.paragraph()
	case "tr":
		p.newLine()
		p.cell = false
	case "tc":
		if p.cell {
			return p.raw(" | ")
		}
		p.cell = true
	}
	return nil
}

// style writes the mark of a heading.
func (p *wordWriter) style(name string) error {
	name = strings.ToLower(name)
	if name == "title" {
		return p.raw("# ")
	}
	level, ok := strings.CutPrefix(name, "heading")
	if n, err := strconv.Atoi(level); ok && err == nil && n >= 1 && n <= 9 {
		return p.raw(strings.Repeat("#", n) + " ")
	}
	return nil
}

func attributeValue(t xml.StartElement) string {
	for _, a := range t.Attr {
		if a.Name.Local == "val" {
			return a.Value
		}
	}
	return ""
}

func (p *wordWriter) endElement(name string) {
	switch name {
	case "t":
		p.inText = false
	case "tbl":
		if p.table--; p.table < 0 {
			p.table = 0
		}
		p.paragraph()
	}
}
