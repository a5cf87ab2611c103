package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"gatehouse/internal/access/displaytext"
	"gatehouse/tool"
)

const (
	chunkSize = 128 << 10 // what is held while looking for a line
	countMost = 16 << 20  // bytes that are read only to tell line numbers
	lineMost  = 64 << 20  // bytes that are read back from a line's end to find its beginning
)

// source is an open file as the pager sees it. Its size is that of the moment
// it was opened: what is appended meanwhile belongs to the next read.
type source struct {
	ctx  context.Context
	f    io.ReaderAt
	size int64
	head []byte // the beginning; of a file up to chunkSize all of it, so that it is read once
}

func newSource(ctx context.Context, f io.ReaderAt, size int64) (*source, error) {
	s := &source{ctx: ctx, f: f, size: size}
	want := size + 1 // one more tells whether the size is true
	if size > chunkSize {
		want = sniffed
	}
	head := make([]byte, want)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if size == 0 && n > 0 {
		// Files that make themselves up as they are read say they are empty;
		// reading one may block or have effects.
		return nil, &tool.Refusal{Code: "not_a_file", Message: "it is a virtual file of the system, not a regular one"}
	}
	s.head = head[:min(int64(n), size)]
	if int64(n) < size && n < len(head) {
		s.size = int64(n) // it was truncated meanwhile
	}
	return s, nil
}

// at reads up to len(b) bytes at off. Fewer come at the end of the file only.
func (s *source) at(b []byte, off int64) ([]byte, error) {
	if err := context.Cause(s.ctx); err != nil {
		return nil, err
	}
	b = b[:min(int64(len(b)), max(s.size-off, 0))]
	if off+int64(len(b)) <= int64(len(s.head)) {
		return s.head[off : off+int64(len(b))], nil
	}
	n, err := s.f.ReadAt(b, off)
	if err == io.EOF {
		err = nil
	}
	return b[:n], err
}

// part is at with memory of its own where that is needed.
func (s *source) part(off, n int64) ([]byte, error) {
	if end := off + n; end <= int64(len(s.head)) {
		return s.head[off:end], nil
	}
	return s.at(make([]byte, n), off)
}

// page is one page of a file. Zero line numbers are not known.
type page struct {
	text       []byte
	start      int64 // byte the text starts at
	firstLine  int
	totalLines int
	nextOffset int
	nextByte   int64
	truncated  bool
	note       string
}

func (s *source) page(in readIn) (page, error) {
	start, line, err := s.start(in)
	note := ""
	if long, ok := errors.AsType[*longLine](err); ok {
		start, err = s.runeStart(min(s.size-int64(in.MaxBytes), long.end-int64(in.MaxBytes)/2) + utf8.UTFMax - 1)
		note = fmt.Sprintf("the first line here begins more than %d MiB before; from_byte reads what is there", lineMost>>20)
	}
	if err != nil {
		return page{}, err
	}
	buf, err := s.part(start, min(int64(in.MaxBytes), s.size-start))
	if err != nil {
		return page{}, err
	}
	more := start+int64(len(buf)) < s.size
	text, whole := cut(buf, in.Limit, more)
	end := start + int64(len(text))
	pg := page{text: text, start: start, firstLine: line, note: note}
	lines := countLines(text)
	if end < s.size {
		pg.truncated = in.Limit == 0 || lines < in.Limit || !whole
		switch {
		case in.Offset < 0 && line == 0:
			pg.nextOffset = min(in.Offset+lines, -1)
		case line > 0:
			pg.nextOffset = line + lines
		}
		if !whole || in.FromByte > 0 {
			pg.nextByte = end
		}
	}
	return pg, s.total(&pg, end, lines)
}

// start finds the byte a page begins at, and its line if that is known.
func (s *source) start(in readIn) (at int64, line int, err error) {
	switch {
	case in.FromByte > 0 && in.Offset != 0:
		return 0, 0, tool.Refuse("invalid_arguments", "offset and from_byte exclude each other")
	case in.FromByte >= s.size && in.FromByte > 0:
		return 0, 0, tool.Refuse("invalid_arguments", "from_byte %d is past the end: the file has %d bytes", in.FromByte, s.size)
	case in.FromByte > 0:
		at, err = s.runeStart(in.FromByte)
		return at, 0, err
	case in.Offset < 0:
		return s.fromEnd(-in.Offset)
	}
	return s.line(max(in.Offset, 1))
}

// line finds where line n starts.
func (s *source) line(n int) (int64, int, error) {
	if n == 1 {
		return 0, 1, nil
	}
	buf := make([]byte, min(s.size, chunkSize))
	var at int64
	for seen := 1; seen < n; {
		b, err := s.at(buf, at)
		if err != nil {
			return 0, 0, err
		}
		if len(b) == 0 {
			return 0, 0, pastEnd(n, seen, s.endsInLine())
		}
		if got := bytes.Count(b, newline); seen+got < n {
			seen += got
			at += int64(len(b))
			continue
		}
		for ; seen < n; seen++ {
			i := bytes.IndexByte(b, '\n') + 1
			at += int64(i)
			b = b[i:]
		}
	}
	if n > 1 && at == s.size {
		return 0, 0, pastEnd(n, n, true)
	}
	return at, n, nil
}

func pastEnd(n, seen int, ended bool) error {
	if ended {
		seen-- // nothing follows the last newline
	}
	return &tool.Refusal{Code: "invalid_arguments", Message: fmt.Sprintf("offset %d is past the end: the file has %d lines", n, seen)}
}

// endsInLine reports whether nothing follows the last newline.
func (s *source) endsInLine() bool {
	if s.size == 0 {
		return true
	}
	var last [1]byte
	b, err := s.at(last[:], s.size-1)
	return err == nil && len(b) == 1 && b[0] == '\n'
}

// longLine says that the beginning of a line was not found: a page shows so
// little of such a line that finding it is not worth reading it.
type longLine struct{ end int64 } // of the line, without its newline

func (*longLine) Error() string { return "the beginning of a line is too far from its end" }

// fromEnd finds where the last n lines start. The line number is known only
// if that is the first line or the file is small enough to count. The error
// may be a *longLine.
func (s *source) fromEnd(n int) (at int64, line int, err error) {
	buf := make([]byte, min(s.size, chunkSize))
	end := s.size
	if s.size > 0 && s.endsInLine() {
		end--
	}
	for lineEnd := end; end > 0; {
		if lineEnd-end >= lineMost {
			return 0, 0, &longLine{lineEnd}
		}
		from := max(end-int64(len(buf)), 0)
		b, err := s.at(buf[:end-from], from)
		if err != nil {
			return 0, 0, err
		}
		if got := bytes.Count(b, newline); got < n {
			if got > 0 {
				lineEnd = from + int64(bytes.IndexByte(b, '\n'))
			}
			n, end = n-got, from
			continue
		}
		for range n {
			b = b[:bytes.LastIndexByte(b, '\n')]
		}
		return s.numbered(from + int64(len(b)) + 1)
	}
	return 0, 1, nil
}

func (s *source) numbered(at int64) (int64, int, error) {
	if at > countMost {
		return at, 0, nil
	}
	n, err := s.newlines(0, at)
	return at, n + 1, err
}

// newlines counts those in [from, to).
func (s *source) newlines(from, to int64) (n int, err error) {
	buf := make([]byte, min(to-from, chunkSize))
	for from < to {
		b, err := s.at(buf[:min(to-from, int64(len(buf)))], from)
		if err != nil {
			return 0, err
		}
		if len(b) == 0 {
			return n, nil
		}
		n += bytes.Count(b, newline)
		from += int64(len(b))
	}
	return n, nil
}

// total tells how many lines there are if the page ends at the last one, or if
// what follows is small enough to count.
func (s *source) total(pg *page, end int64, lines int) error {
	if pg.firstLine == 0 || s.size-end > countMost {
		return nil
	}
	pg.totalLines = pg.firstLine - 1 + lines
	if end == s.size {
		return nil
	}
	n, err := s.newlines(end, s.size)
	if err != nil {
		return err
	}
	if !s.endsInLine() {
		n++
	}
	if len(pg.text) > 0 && pg.text[len(pg.text)-1] != '\n' {
		n-- // the rest of the page's last line
	}
	pg.totalLines += n
	return nil
}

// runeStart steps back from the middle of a character.
func (s *source) runeStart(at int64) (int64, error) {
	from := max(at-utf8.UTFMax+1, 0)
	b, err := s.at(make([]byte, at-from+1), from)
	if err != nil {
		return 0, err
	}
	for i := len(b) - 1; i >= 0; i-- {
		if utf8.RuneStart(b[i]) {
			return from + int64(i), nil
		}
	}
	return at, nil
}

var newline = []byte{'\n'}

// cut ends a page at limit lines or at its last line. whole is false if it had
// to cut inside a line, which it then does between two characters.
func cut(b []byte, limit int, more bool) (text []byte, whole bool) {
	if limit > 0 {
		for i, n := 0, 0; ; {
			j := bytes.IndexByte(b[i:], '\n')
			if j < 0 {
				break
			}
			i += j + 1
			if n++; n == limit {
				return b[:i], true
			}
		}
	}
	if !more {
		return b, true
	}
	if i := bytes.LastIndexByte(b, '\n'); i >= 0 {
		return b[:i+1], true
	}
	if n := displaytext.Whole(b); n > 0 {
		b = b[:n]
	}
	return b, false
}

// countLines counts a last line without a newline too.
func countLines(b []byte) int {
	n := bytes.Count(b, newline)
	if len(b) > 0 && b[len(b)-1] != '\n' {
		n++
	}
	return n
}

// readAll reads a whole file that the tool has to hold, at most limit bytes.
func readAll(f io.Reader, size, limit int64) ([]byte, error) {
	if size > limit {
		return nil, errTooLarge
	}
	buf := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
	n, err := buf.ReadFrom(io.LimitReader(f, limit+1))
	if err == nil && n > limit {
		err = errTooLarge
	}
	return buf.Bytes(), err
}

var errTooLarge = errors.New("too large")
