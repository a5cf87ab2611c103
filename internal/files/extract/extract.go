// Package extract turns documents into plain text with the headings of Markdown: PDF, Word, PowerPoint, Excel, EPUB,
// mail, web pages, notebooks and text in UTF-16.
//
// Documents may be hostile. Each conversion ends when its context is done, returns
// at most MostOut bytes, and returns a panic of a decoder as an error. Headings,
// lists, tables and paragraphs are kept; other layout is not.
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
	"time"
)

// Limits of one conversion.
const (
	MostIn  = 32 << 20 // bytes of a document
	MostOut = 8 << 20  // bytes of its text; the rest is cut off
)

// Kind is a kind of document. The zero value means that the kind is unknown.
type Kind string

const (
	PDF      Kind = "PDF"
	Word     Kind = "Word document"
	Page     Kind = "HTML"
	Notebook Kind = "notebook"
	Slides   Kind = "PowerPoint presentation"
	Sheets   Kind = "Excel workbook"
	Book     Kind = "EPUB"
	Mail     Kind = "mail"
)

// KindOf returns the kind of a document by its name and its first bytes.
func KindOf(name string, head []byte) Kind {
	ext := strings.ToLower(path.Ext(name))
	switch {
	case bytes.HasPrefix(head, []byte("%PDF-")):
		return PDF
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		return zipped[ext]
	case ext == ".eml" && bytes.IndexByte(head, 0) < 0:
		return Mail
	case ext == ".html", ext == ".htm", ext == ".xhtml":
		return Page
	case ext == ".ipynb" && bytes.HasPrefix(bytes.TrimLeft(head, " \t\r\n"), []byte("{")):
		return Notebook
	}
	return ""
}

// zipped are the documents that are archives, by their extensions.
var zipped = map[string]Kind{
	".docx": Word, ".docm": Word,
	".pptx": Slides, ".pptm": Slides,
	".xlsx": Sheets, ".xlsm": Sheets,
	".epub": Book,
}

// Converted reports whether a document of a kind can be read only when it is converted.
func (k Kind) Converted() bool { return k != "" && k != Page && k != Mail }

// Marked reports whether the text of a document of a kind has the headings of Markdown.
func (k Kind) Marked() bool { return k != "" && k != Mail }

// turn holds one value while a document is decoded. One document of the whole process is decoded at a time, because
// a decoder of a hostile document may use a processor until its ctx is done, and because the memory that it may take is
// measured for the process.
var turn = make(chan struct{}, 1)

// ErrBusy is returned if ctx was done before the document's turn came.
var ErrBusy = errors.New("another document is being converted")

// ErrTooLarge is returned for a document of more than MostIn bytes.
var ErrTooLarge = errors.New("the document is too large to be converted")

// Text returns the text of a document. It waits until no other document is decoded, and then takes at most limit.
// cut reports whether the text was cut off at MostOut. If err is not nil, text is what was read before it.
func Text(
	ctx context.Context,
	limit time.Duration,
	k Kind,
	f io.ReaderAt,
	size int64,
) (text string, cut bool, err error) {
	if size > MostIn {
		return "", false, ErrTooLarge
	}
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return "", false, fmt.Errorf("%w: %w", ErrBusy, context.Cause(ctx))
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
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
		text = out.String()
	}()
	switch k {
	case PDF:
		err = fromPDF(out, r)
	case Word:
		err = fromWord(out, r)
	case Slides:
		err = fromSlides(out, r)
	case Sheets:
		err = fromSheets(out, r)
	case Book:
		err = fromBook(out, r)
	case Mail:
		err = fromMail(out, io.NewSectionReader(r, 0, size))
	case Page:
		err = fromPage(out, io.NewSectionReader(r, 0, size))
	case Notebook:
		err = fromNotebook(out, io.NewSectionReader(r, 0, size))
	default:
		err = fmt.Errorf("unknown kind of document %q", k)
	}
	return "", false, err
}

// guarded fails reads when ctx is done or the heap has grown too much, so that any
// decoder that reads will end: a few compressed bytes can stand for gigabytes.
type guarded struct {
	// ctx is that of one Extract, because io.ReaderAt has none.
	ctx   context.Context
	f     io.ReaderAt
	size  int64
	reads int
	heap  uint64 // bytes at the first read
}

// mostHeap is the number of bytes by which the heap of the process may grow while
// a document is converted.
const mostHeap = 256 << 20

var errBomb = errors.New("the document takes too much memory")

func (g *guarded) ReadAt(b []byte, off int64) (int, error) {
	if err := g.stopReading(); err != nil {
		return 0, err
	}
	return g.f.ReadAt(b, off)
}

func (g *guarded) stopReading() error {
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

// errFull ends a conversion whose text has reached MostOut.
var errFull = errors.New("the text is full")

// writer collects text. It writes at most one blank line in a row, and no spaces at
// the end of a line.
type writer struct {
	// ctx is that of one Extract, whose writers have no other way to see that it ended.
	ctx   context.Context
	b     strings.Builder
	gap   int  // newlines to write before the next word
	space bool // write a space before the next word
	pre   bool // keep white space
	open  bool // a mark with a space at its end was written last
}

// writeWords adds text and folds its white space.
func (w *writer) writeWords(s string) error {
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

// raw adds text unchanged, after the line breaks or the space to write before it.
func (w *writer) raw(s string) error {
	if s == "" {
		return nil
	}
	switch {
	case w.gap > 0 && w.b.Len() > 0:
		w.b.WriteString("\n\n"[:w.gap])
	case w.space && w.b.Len() > 0 && w.gap == 0 && !w.open && !startsBlank(s):
		w.b.WriteByte(' ')
	}
	w.gap, w.space, w.open = 0, false, false
	w.b.WriteString(s[:min(len(s), max(MostOut-w.b.Len(), 0))])
	if w.b.Len() >= MostOut {
		return errFull
	}
	return context.Cause(w.ctx)
}

// mark writes the mark of a heading or list item, which the next word follows without another space.
func (w *writer) mark(s string) error {
	err := w.raw(s)
	w.space, w.open = false, true
	return err
}

// newLine ends the line. paragraph also leaves a blank line.
func (w *writer) newLine()   { w.gap = max(w.gap, 1) }
func (w *writer) paragraph() { w.gap = 2 }

func (w *writer) String() string {
	s := strings.ToValidUTF8(w.b.String(), "\uFFFD")
	if s != "" && !strings.HasSuffix(s, "\n") {
		s += "\n"
	}
	return s
}
