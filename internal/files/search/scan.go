package search

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"unicode/utf8"

	"gatehouse/internal/files/extract"
	"gatehouse/internal/files/roots"
)

const (
	windowSize = 1 << 20  // bytes of a file in memory; longer lines are searched in pieces
	overlap    = 4 << 10  // bytes that two pieces of one line share
	sniffed    = 8 << 10  // a NUL byte within these makes a file binary
	wholeMost  = 32 << 20 // bytes of a file that is searched across lines
	wideMost   = 16 << 20 // bytes of a file in UTF-16
)

// Hit is one match, or several within one line.
type Hit struct {
	Line   int    // from 1
	Text   string // the line, or the part of a long one around the match; more lines if it spans them
	Def    bool   // the line looks like the definition of what matched
	Before []string
	After  []string
}

// found is the result of scanning one file.
type found struct {
	hits  []Hit
	count int  // of matching lines, of matches when they may span lines
	more  bool // there are hits beyond the most that were wanted

	defined bool // one of the first hits looks like a definition
	binary  bool
	large   bool // too large for a search across lines
}

// scanner searches files one after the other. It is not safe for concurrent use.
type scanner struct {
	m       *matcher
	context int // lines before and after
	most    int // hits per file; 0 counts without keeping any
	only1   bool
	skip    int // the number of hits that are skipped
	until   int // the last hit that is kept, by number; 0 for no such limit
	after   int // hits up to this line are skipped
	defines func(line []byte, at int) bool
	buf     []byte
	held    []byte // the whole content of the last file, if it was in memory; part of buf
}

// scan searches the content of r. size is its length in bytes, or -1 if unknown.
func (s *scanner) scan(ctx context.Context, r io.Reader, size int64) (found, error) {
	w := window{r: r, size: size, line: 1}
	w.b = s.grow(size)[:0]
	if err := w.refill(ctx); err != nil {
		return found{}, err
	}
	s.held = nil
	if w.read == size && !w.nul {
		s.held = w.b
	}
	switch {
	case w.utf16:
		return s.wide(ctx, &w)
	case w.nul && len(w.b) < sniffed:
		return found{binary: true}, nil
	case s.m.p.multiline:
		return s.searchAcrossLines(ctx, &w)
	}
	return s.lines(ctx, &w)
}

// etag returns the tag of the last file.
func (s *scanner) etag(f io.ReaderAt, info fs.FileInfo) (string, error) {
	if int64(len(s.held)) == info.Size() {
		return roots.ETag(info, s.held), nil
	}
	return roots.ETagOf(f, info)
}

// First returns the number of the first matching line in r, or 0 if there is none. size is the length of the
// content in bytes, or -1 if unknown.
func First(ctx context.Context, p *Pattern, r io.Reader, size int64) (line int, err error) {
	s := scanner{m: p.matcher(), most: 1, only1: true}
	got, err := s.scan(ctx, r, size)
	if err != nil || len(got.hits) == 0 {
		return 0, err
	}
	return got.hits[0].Line, nil
}

// grow returns a buffer for a file, which is reused for later files.
func (s *scanner) grow(size int64) []byte {
	want := windowSize
	if size >= 0 && size < windowSize {
		want = max(int(size)+1, 64<<10)
	}
	if cap(s.buf) < want {
		s.buf = make([]byte, want)
	}
	return s.buf[:cap(s.buf)]
}

// window is the part of a file that is in memory.
type window struct {
	r     io.Reader
	size  int64 // of the file; -1 if not known
	b     []byte
	read  int64
	line  int // number of the line at b[0]
	end   bool
	nul   bool // it ended at a NUL byte
	utf16 bool
}

// refill reads until the window is full or the file ends. A NUL byte counts as the end, unless the file is in
// UTF-16.
func (w *window) refill(ctx context.Context) error {
	for !w.end && len(w.b) < cap(w.b) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		from := len(w.b)
		n, err := w.r.Read(w.b[from:cap(w.b)])
		w.b = w.b[:from+n]
		if w.read == 0 {
			w.utf16 = extract.IsWide(w.b)
		}
		w.read += int64(n)
		w.end = err != nil || w.read == w.size
		if i := bytes.IndexByte(w.b[from:], 0); i >= 0 && !w.utf16 {
			w.b = w.b[:from+i]
			w.nul, w.end = true, true
			return nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	return nil
}

// lines searches line by line.
func (s *scanner) lines(ctx context.Context, w *window) (f found, err error) {
	done, last := 0, 0 // bytes of w.b that were searched; the line of the last hit
	for {
		limit, whole := w.limit(done, s.context)
		s.m.reset()
		at, n := 0, w.line // line n begins at offset at
		for from := done; from < limit; {
			begin, end, next, ok := s.m.matchLine(w.b[:limit], from)
			if !ok {
				break
			}
			from = next
			n += bytes.Count(w.b[at:begin], newline)
			at = begin
			if n == last {
				continue // a further piece of the same line
			}
			last = n
			f.count++
			if s.most > 0 {
				f.addHit(s, n, func() Hit { return s.hit(w.b, begin, end, n) })
			}
			if s.only1 {
				return f, nil
			}
		}
		if w.end && limit == len(w.b) {
			f.binary = w.nul && f.count == 0
			return f, nil
		}
		done = w.shift(limit, whole, s.context)
		if err := w.refill(ctx); err != nil {
			return f, err
		}
	}
}

var newline = []byte{'\n'}

// limit returns the end of the part of the window that can be searched: the end of a complete line that is followed
// by the context of any hit before it. whole is false if one line fills the window.
func (w *window) limit(done, context int) (limit int, whole bool) {
	if w.end {
		return len(w.b), true
	}
	last := bytes.LastIndexByte(w.b[done:], '\n')
	if last < 0 {
		return len(w.b), false
	}
	limit = done + last + 1
	held := limit
	for range context {
		i := bytes.LastIndexByte(w.b[done:held-1], '\n')
		if i < 0 {
			return limit, true // the context is cut, because the alternative is to find nothing
		}
		held = done + i + 1
	}
	return held, true
}

// shift drops searched content and returns where the search continues.
func (w *window) shift(limit int, whole bool, context int) (done int) {
	keep := limit
	if !whole {
		keep = max(limit-overlap, 0)
	}
	for range context {
		if keep < 2 || !whole {
			break
		}
		i := bytes.LastIndexByte(w.b[:keep-1], '\n')
		if i < 0 || limit-i > cap(w.b)/2 {
			break
		}
		keep = i + 1
	}
	w.line += bytes.Count(w.b[:keep], newline)
	n := copy(w.b[:cap(w.b)], w.b[keep:])
	w.b = w.b[:n]
	if !whole {
		return 0
	}
	return limit - keep
}

// hit returns the hit in the line from begin to end.
func (s *scanner) hit(b []byte, begin, end, n int) Hit {
	line := b[begin:end]
	at := 0
	if len(line) > longLine || s.defines != nil {
		if span := s.m.p.re.FindIndex(line); span != nil {
			at = span[0]
		}
	}
	shown := line
	if s.m.p.returns {
		shown = trimCR(line)
	}
	h := Hit{Line: n, Text: excerpt(shown, at), Def: s.defines != nil && s.defines(line, at)}
	for i, from := 0, begin; i < s.context && from > 0; i++ {
		prev := bytes.LastIndexByte(b[:from-1], '\n') + 1
		h.Before = append([]string{excerpt(trimCR(b[prev:from-1]), 0)}, h.Before...)
		from = prev
	}
	h.After = linesAfter(b, end, s.context)
	return h
}

// linesAfter returns the lines after the one that ends at end.
func linesAfter(b []byte, end, n int) (after []string) {
	for range n {
		i := bytes.IndexByte(b[end:], '\n')
		if i < 0 || end+i+1 >= len(b) {
			break
		}
		from := end + i + 1
		to := len(b)
		if j := bytes.IndexByte(b[from:], '\n'); j >= 0 {
			to = from + j
		}
		after = append(after, excerpt(trimCR(b[from:to]), 0))
		end = to
	}
	return after
}

func trimCR(line []byte) []byte { return bytes.TrimSuffix(line, []byte("\r")) }

// longLine is how many bytes of a line are shown.
const longLine = 240

// excerpt returns a line, or the part of a long one around a position.
func excerpt(line []byte, at int) string {
	if len(line) <= longLine {
		return string(line)
	}
	from := max(min(at-longLine/3, len(line)-longLine), 0)
	to := from + longLine
	for from > 0 && from < at && !utf8.RuneStart(line[from]) {
		from++
	}
	for to < len(line) && !utf8.RuneStart(line[to]) {
		to--
	}
	text := string(line[from:to])
	if from > 0 {
		text = "..." + text
	}
	if to < len(line) {
		text += "..."
	}
	return text
}

// all reads the rest of a file, or reports that it is too large.
func (s *scanner) all(ctx context.Context, w *window, most int) (b []byte, large bool, err error) {
	for !w.end {
		if len(w.b) >= most {
			return nil, true, nil
		}
		bigger := make([]byte, len(w.b), min(max(2*cap(w.b), windowSize), most+1))
		copy(bigger, w.b)
		w.b = bigger
		if err := w.refill(ctx); err != nil {
			return nil, false, err
		}
	}
	return w.b, len(w.b) > most, nil
}

// searchAcrossLines finds matches that may span lines.
func (s *scanner) searchAcrossLines(ctx context.Context, w *window) (f found, err error) {
	b, large, err := s.all(ctx, w, wholeMost)
	if err != nil || large {
		return found{large: large}, err
	}
	s.m.reset()
	if s.m.find != nil && s.m.find.findFrom(b, 0) < 0 {
		return found{}, nil
	}
	most := -1
	if s.only1 {
		most = 1
	}
	at, n := 0, 1
	for _, span := range s.m.p.re.FindAllIndex(b, most) {
		f.count++
		if s.most == 0 || f.more {
			continue
		}
		begin := bytes.LastIndexByte(b[:span[0]], '\n') + 1
		n += bytes.Count(b[at:begin], newline)
		at = begin
		f.addHit(s, n, func() Hit { return s.spanning(b, begin, span, n) })
	}
	return f, nil
}

// definesMost is the number of hits of a file that determine whether it has a definition. It is independent of the
// page, so that the order of files is too.
const definesMost = 20

// addHit keeps a hit on line n if the query wants it.
func (f *found) addHit(s *scanner, n int, hit func() Hit) {
	wanted := f.count > s.skip && n > s.after
	if wanted && (len(f.hits) >= s.most || s.until > 0 && f.count > s.until) {
		f.more = true
		wanted = false
	}
	if !wanted && (f.defined || f.count > definesMost || s.defines == nil) {
		return
	}
	h := hit()
	if f.count <= definesMost {
		f.defined = f.defined || h.Def
	}
	if wanted {
		f.hits = append(f.hits, h)
	}
}

// spanMost is how many lines of one match are shown.
const spanMost = 10

// spanning returns the hit of a match that begins in the line at begin.
func (s *scanner) spanning(b []byte, begin int, span []int, n int) Hit {
	end := max(span[1], begin)
	if end > span[0] && b[end-1] == '\n' {
		end--
	}
	first := lineEnd(b, begin)
	h := s.hit(b, begin, first, n)
	for from, shown := first, 1; from < end; shown++ {
		if shown == spanMost {
			h.Text += "\n..."
			break
		}
		from++
		to := lineEnd(b, from)
		h.Text += "\n" + excerpt(trimCR(b[from:to]), 0)
		from = to
	}
	h.After = linesAfter(b, lineEnd(b, end), s.context)
	return h
}

func lineEnd(b []byte, from int) int {
	if i := bytes.IndexByte(b[from:], '\n'); i >= 0 {
		return from + i
	}
	return len(b)
}

// wide searches a file in UTF-16.
func (s *scanner) wide(ctx context.Context, w *window) (found, error) {
	b, large, err := s.all(ctx, w, wideMost)
	if err != nil || large {
		return found{large: large}, err
	}
	text := extract.Narrow(b)
	s.buf = nil // w.b may share its memory
	defer func() { s.held = nil }()
	return s.scan(ctx, bytes.NewReader(text), int64(len(text)))
}
