// Package extract turns documents into plain text: PDF, Word, web pages,
// notebooks and text in UTF-16.
//
// Documents come from strangers. Each conversion ends when its context does,
// holds no more than Most bytes of what it makes, and turns a panic of a
// decoder into an error. Layout is kept where it carries meaning: headings,
// lists, tables, paragraphs.
package extract

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime/metrics"
	"strings"
)

// Limits of one conversion.
const (
	MostIn  = 32 << 20 // bytes of a document
	MostOut = 8 << 20  // bytes of the text made of it; the rest is cut off
)

// Kind is a kind of document. The zero value is none.
type Kind string

const (
	PDF      Kind = "PDF"
	Word     Kind = "Word document"
	Page     Kind = "HTML"
	Notebook Kind = "notebook"
)

// KindOf tells the kind of a document from its name and its first bytes.
func KindOf(name string, head []byte) Kind {
	ext := strings.ToLower(path.Ext(name))
	switch {
	case bytes.HasPrefix(head, []byte("%PDF-")):
		return PDF
	case ext == ".docx" && bytes.HasPrefix(head, []byte("PK\x03\x04")):
		return Word
	case ext == ".html", ext == ".htm", ext == ".xhtml":
		return Page
	case ext == ".ipynb" && bytes.HasPrefix(bytes.TrimLeft(head, " \t\r\n"), []byte("{")):
		return Notebook
	}
	return ""
}

// ErrTooLarge is the error for a document of more than MostIn bytes.
var ErrTooLarge = errors.New("the document is too large to be converted")

// Text converts a document. cut says that the text is only the beginning.
func Text(ctx context.Context, k Kind, f io.ReaderAt, size int64) (text string, cut bool, err error) {
	if size > MostIn {
		return "", false, ErrTooLarge
	}
	out := &writer{ctx: ctx}
	r := &guarded{ctx: ctx, f: f, size: size}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the document is damaged: %v", p)
		}
		if errors.Is(err, errFull) {
			err, cut = nil, true
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		text = out.text()
	}()
	switch k {
	case PDF:
		err = fromPDF(out, r)
	case Word:
		err = fromWord(out, r)
	case Page:
		err = fromHTML(out, io.NewSectionReader(r, 0, size))
	case Notebook:
		err = fromNotebook(out, io.NewSectionReader(r, 0, size))
	default:
		err = fmt.Errorf("%q is no kind of document", k)
	}
	return "", false, err
}

// guarded ends a decoder that reads, however it got lost, when its time is up
// or when it has made the heap grow too much: a few bytes of a document can
// stand for gigabytes.
type guarded struct {
	ctx   context.Context
	f     io.ReaderAt
	size  int64
	reads int
	heap  uint64 // bytes when it began
}

// mostHeap is how many bytes the heap of the process may grow by while a
// document is converted.
const mostHeap = 256 << 20

var errBomb = errors.New("the document takes too much memory")

func (g *guarded) ReadAt(b []byte, off int64) (int, error) {
	if err := g.stop(); err != nil {
		return 0, err
	}
	return g.f.ReadAt(b, off)
}

func (g *guarded) stop() error {
	if err := context.Cause(g.ctx); err != nil {
		return err
	}
	if g.reads++; g.reads%16 == 1 {
		now := heapBytes()
		if g.heap == 0 {
			g.heap = now
		}
		if now > g.heap+mostHeap {
			return errBomb
		}
	}
	return nil
}

func heapBytes() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return s[0].Value.Uint64()
}

// errFull ends a conversion that has made enough.
var errFull = errors.New("the text is full")

// writer collects text. Blank lines come one at a time, and spaces never end a
// line.
type writer struct {
	ctx   context.Context
	b     strings.Builder
	gap   int  // newlines that are due before the next word
	space bool // a space is due
	pre   bool // text is taken as it is
}

// words adds running text, its white space folded.
func (w *writer) words(s string) error {
	if w.pre {
		return w.raw(s)
	}
	for i, word := range strings.Fields(s) {
		if i > 0 || startsBlank(s) {
			w.space = true
		}
		if err := w.raw(word); err != nil {
			return err
		}
	}
	if endsBlank(s) {
		w.space = true
	}
	return nil
}

func startsBlank(s string) bool { return s != "" && strings.TrimLeft(s[:1], " \t\r\n") == "" }
func endsBlank(s string) bool {
	return s != "" && strings.TrimLeft(s[len(s)-1:], " \t\r\n") == ""
}

// raw adds text as it is, after the line breaks that are due.
func (w *writer) raw(s string) error {
	if s == "" {
		return nil
	}
	switch {
	case w.gap > 0 && w.b.Len() > 0:
		w.b.WriteString("\n\n"[:w.gap])
	case w.space && w.b.Len() > 0 && w.gap == 0:
		w.b.WriteByte(' ')
	}
	w.gap, w.space = 0, false
	w.b.WriteString(s[:min(len(s), max(MostOut-w.b.Len(), 0))])
	if w.b.Len() >= MostOut {
		return errFull
	}
	return context.Cause(w.ctx)
}

// line ends the line, paragraph leaves a blank one.
func (w *writer) line()      { w.gap = max(w.gap, 1) }
func (w *writer) paragraph() { w.gap = 2 }

func (w *writer) text() string {
	s := strings.ToValidUTF8(w.b.String(), "\uFFFD")
	if s != "" && !strings.HasSuffix(s, "\n") {
		s += "\n"
	}
	return s
}
