package extract

import (
	"archive/zip"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"path"
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
	return a.tokensAndText(name, new(bool), f)
}

// tokensAndText does the same for a part of which a text that is too long ends the conversion without an error.
func (a *archive) tokensAndText(name string, inText *bool, f func(xml.Token) error) error {
	r, c, err := a.open(name)
	if err != nil {
		return err
	}
	defer c.Close()
	return eachToken(a.w, r, inText, f)
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

// anyAttribute returns an attribute by its local name.
func anyAttribute(t xml.StartElement, name string) string {
	for _, a := range t.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// relation is what a part refers to by an id: another part, or an address outside.
type relation struct{ kind, part, external string }

// mostRelations is the number of relations of a part that are known.
const mostRelations = 50_000

// relations returns what a part refers to, by id.
func (a *archive) relations(of string) (map[string]relation, error) {
	all := map[string]relation{}
	name := path.Join(path.Dir(of), "_rels", path.Base(of)+".rels")
	err := a.elements(name, func(t xml.StartElement) {
		if t.Name.Local != "Relationship" || len(all) >= mostRelations {
			return
		}
		r := relation{kind: path.Base(attribute(t, "", "Type"))}
		switch to := attribute(t, "", "Target"); {
		case attribute(t, "", "TargetMode") == "External":
			r.external = to
		default:
			if !strings.HasPrefix(to, "/") {
				to = path.Join("/", path.Dir(of), to)
			}
			r.part = strings.TrimPrefix(path.Clean(to), "/")
		}
		all[attribute(t, "", "Id")] = r
	})
	return all, err
}

// mainPart returns the part that the archive names as its document, or else the usual one.
func (a *archive) mainPart(usual string) string {
	if a.parts[usual] != nil {
		return usual
	}
	all, err := a.relations("")
	if err != nil {
		return usual
	}
	for _, r := range all {
		if r.kind == "officeDocument" && a.parts[r.part] != nil {
			return r.part
		}
	}
	return usual
}

// child is a part that the main part of a document names, in its order.
type child struct{ title, part string }

// children returns the parts that elements of the main part refer to by an r:id.
func (a *archive) children(main, element string) (list []child, err error) {
	targets, err := a.relations(main)
	if err != nil {
		return nil, err
	}
	err = a.elements(main, func(t xml.StartElement) {
		to := targets[attribute(t, "relationships", "id")].part
		if t.Name.Local == element && to != "" && a.parts[to] != nil {
			list = append(list, child{attribute(t, "", "name"), to})
		}
	})
	return list, err
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
