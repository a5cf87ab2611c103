package extract

import (
	"archive/zip"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// archive is a document whose parts are files of a ZIP archive.
type archive struct {
	w     *writer
	guard *guarded
	parts map[string]*zip.File
}

// mostParts is the number of parts of a document that are known; the others do not exist for it.
const mostParts = 20_000

func openArchive(w *writer, f *guarded) (*archive, error) {
	z, err := zip.NewReader(f, f.size)
	if err != nil {
		return nil, fmt.Errorf("the document is damaged: %w", err)
	}
	a := &archive{w, f, map[string]*zip.File{}}
	for _, part := range z.File[:min(len(z.File), mostParts)] {
		a.parts[part.Name] = part
	}
	return a, nil
}

var errNoPart = errors.New("the document has no text part")

// open opens a part, of which no more than mostXML bytes are read.
func (a *archive) open(name string) (*tokenReader, io.Closer, error) {
	part := a.parts[name]
	if part == nil {
		return nil, nil, errNoPart
	}
	r, err := part.Open()
	if err != nil {
		return nil, nil, fmt.Errorf("the document is damaged: %w", err)
	}
	return &tokenReader{r: r, guard: a.guard, left: mostXML}, r, nil
}

// tokens calls f with each token of a part.
func (a *archive) tokens(name string, f func(xml.Token) error) error {
	r, c, err := a.open(name)
	if err != nil {
		return err
	}
	defer c.Close()
	inText := false
	return eachToken(a.w, r, &inText, f)
}

// elements calls f with each start of an element of a part.
func (a *archive) elements(name string, f func(xml.StartElement)) error {
	return a.tokens(name, func(t xml.Token) error {
		if t, ok := t.(xml.StartElement); ok {
			f(t)
		}
		return nil
	})
}

// attribute returns an attribute by its local name. space selects one of several with that name by the end of its
// namespace; "" takes one without a namespace.
func attribute(t xml.StartElement, space, name string) string {
	for _, a := range t.Attr {
		if a.Name.Local == name && (a.Name.Space == space || space != "" && strings.HasSuffix(a.Name.Space, space)) {
			return a.Value
		}
	}
	return ""
}

// child is a part that the main part of a document names, in its order.
type child struct{ title, part string }

// children returns the parts that elements of the main part refer to by an r:id.
func (a *archive) children(main, element string) (list []child, err error) {
	targets := map[string]string{}
	rels := path.Join(path.Dir(main), "_rels", path.Base(main)+".rels")
	err = a.elements(rels, func(t xml.StartElement) {
		if t.Name.Local == "Relationship" && attribute(t, "", "TargetMode") != "External" {
			to := attribute(t, "", "Target")
			if !strings.HasPrefix(to, "/") {
				to = path.Join("/", path.Dir(main), to)
			}
			targets[attribute(t, "", "Id")] = strings.TrimPrefix(path.Clean(to), "/")
		}
	})
	if err != nil {
		return nil, err
	}
	err = a.elements(main, func(t xml.StartElement) {
		to, ok := targets[attribute(t, "relationships", "id")]
		if t.Name.Local == element && ok && a.parts[to] != nil {
			list = append(list, child{attribute(t, "", "name"), to})
		}
	})
	return list, err
}

// fromSlides writes the text of each slide, in their order, after its number.
func fromSlides(w *writer, f *guarded) error {
	a, err := openArchive(w, f)
	if err != nil {
		return err
	}
	slides, err := a.children("ppt/presentation.xml", "sldId")
	if err != nil {
		return err
	}
	for i, s := range slides {
		w.paragraph()
		if err := w.raw(fmt.Sprintf("[page %d]", i+1)); err != nil {
			return err
		}
		w.newLine()
		inText := false
		err := a.tokens(s.part, func(t xml.Token) error {
			switch t := t.(type) {
			case xml.StartElement:
				switch t.Name.Local {
				case "t":
					inText = true
				case "p", "br":
					w.newLine()
				case "sp", "tbl":
					w.paragraph()
				}
			case xml.EndElement:
				inText = inText && t.Name.Local != "t"
			case xml.CharData:
				if inText {
					return w.raw(string(t))
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// mostGap is the number of empty cells that are written between two others.
const mostGap = 20

// fromSheets writes each sheet of a workbook as a heading and a line for each row.
func fromSheets(w *writer, f *guarded) error {
	a, err := openArchive(w, f)
	if err != nil {
		return err
	}
	sheets, err := a.children("xl/workbook.xml", "sheet")
	if err != nil {
		return err
	}
	texts, err := a.sharedStrings()
	if err != nil && !errors.Is(err, errNoPart) {
		return err
	}
	for _, s := range sheets {
		w.paragraph()
		if err := w.raw("# " + s.title); err != nil {
			return err
		}
		w.paragraph()
		if err := a.sheet(s.part, texts); err != nil {
			return err
		}
	}
	return nil
}

// Shared strings are held until the last sheet, so that they have limits of their own.
const (
	mostShared = 24 << 20 // bytes
	sharedCost = 48       // bytes of a string besides its text: the string, its place in memory, and the growth of the list
)

// sharedStrings returns the texts that cells refer to by their numbers.
func (a *archive) sharedStrings() (texts []string, err error) {
	var b strings.Builder
	inText, phonetic := false, false
	size := 0
	err = a.tokens("xl/sharedStrings.xml", func(t xml.Token) error {
		switch t := t.(type) {
		case xml.StartElement:
			switch t.Name.Local {
			case "si":
				b.Reset()
			case "rPh":
				phonetic = true
			case "t":
				inText = !phonetic
			}
		case xml.EndElement:
			switch t.Name.Local {
			case "si":
				if size += sharedCost; size > mostShared {
					return errBomb
				}
				texts = append(texts, b.String())
			case "rPh":
				phonetic = false
			case "t":
				inText = false
			}
		case xml.CharData:
			if inText {
				if size += len(t); size > mostShared {
					return errBomb
				}
				b.Write(t)
			}
		}
		return nil
	})
	return texts, err
}

// sheet writes the rows of a sheet.
func (a *archive) sheet(part string, texts []string) error {
	w := a.w
	var kind string
	var value strings.Builder
	column, last, inValue := 0, 0, false
	return a.tokens(part, func(t xml.Token) error {
		switch t := t.(type) {
		case xml.StartElement:
			switch t.Name.Local {
			case "row":
				w.newLine()
				column, last = 0, 0
			case "c":
				kind = attribute(t, "", "t")
				value.Reset()
				if column++; attribute(t, "", "r") != "" {
					column = columnOf(attribute(t, "", "r"))
				}
			case "v", "t":
				inValue = true
			}
		case xml.CharData:
			if inValue {
				value.Write(t)
			}
		case xml.EndElement:
			switch t.Name.Local {
			case "v", "t":
				inValue = false
			case "c":
				text := cellText(kind, value.String(), texts)
				if text == "" {
					return nil
				}
				if last > 0 {
					text = strings.Repeat(" |", min(max(column-last, 1), mostGap)) + " " + text
				}
				last = column
				return w.raw(text)
			}
		}
		return nil
	})
}

// columnOf returns the number of the column of a cell such as B7, from 1.
func columnOf(cell string) (n int) {
	for _, r := range strings.ToUpper(cell) {
		if r < 'A' || r > 'Z' || n > 1<<20 {
			break
		}
		n = n*26 + int(r-'A') + 1
	}
	return n
}

func cellText(kind, value string, texts []string) string {
	value = strings.TrimSpace(value)
	switch kind {
	case "s":
		i, err := strconv.Atoi(value)
		if err != nil || i < 0 || i >= len(texts) {
			return ""
		}
		return strings.Join(strings.Fields(texts[i]), " ")
	case "b":
		return map[string]string{"0": "FALSE", "1": "TRUE"}[value]
	}
	return strings.Join(strings.Fields(value), " ")
}

// fromBook writes the chapters of a book in their order.
func fromBook(w *writer, f *guarded) error {
	a, err := openArchive(w, f)
	if err != nil {
		return err
	}
	main := ""
	err = a.elements("META-INF/container.xml", func(t xml.StartElement) {
		if t.Name.Local == "rootfile" && main == "" {
			main = attribute(t, "", "full-path")
		}
	})
	if err != nil {
		return err
	}
	files := map[string]string{}
	var chapters []string
	err = a.elements(main, func(t xml.StartElement) {
		switch t.Name.Local {
		case "item":
			name, err := url.PathUnescape(attribute(t, "", "href"))
			kind := attribute(t, "", "media-type")
			if err == nil && (kind == "application/xhtml+xml" || kind == "text/html") {
				files[attribute(t, "", "id")] = path.Join(path.Dir(main), name)
			}
		case "itemref":
			chapters = append(chapters, attribute(t, "", "idref"))
		}
	})
	if err != nil {
		return err
	}
	for _, id := range chapters {
		r, c, err := a.open(files[id])
		if errors.Is(err, errNoPart) {
			continue
		}
		if err != nil {
			return err
		}
		w.paragraph()
		err = fromHTML(w, &chapter{r})
		c.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// chapter reads a part whose tokens another decoder limits.
type chapter struct{ r *tokenReader }

func (c *chapter) Read(b []byte) (int, error) {
	c.r.token = 0
	return c.r.Read(b)
}
