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
	chunkSize   = 128 << 10 // bytes held in memory while searching for a line
	maxCount    = 16 << 20  // bytes that are read only to count lines
	maxLineScan = 64 << 20  // bytes that are read backwards to find the beginning of a line
)

// source is an open file that is read in pages. Its size is the size at the
// time of opening, so that the pages of one call agree; the next call sees what
// was appended since.
type source struct {
	ctx  context.Context // of the call: a source lives no longer, and reads check it
	f    io.ReaderAt
	size int64
	head []byte // the first bytes; the whole file up to chunkSize, so that it is read once
}

func newSource(ctx context.Context, f io.ReaderAt, size int64) (*source, error) {
	s := &source{ctx: ctx, f: f, size: size}
	want := size + 1 // one more byte shows whether the file is larger than its size says
	if size > chunkSize {
		want = sniffBytes
	}
	head := make([]byte, want)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if size == 0 && n > 0 {
		// A virtual file such as those in /proc has size 0 and yet content;
		// reading it may block or have effects.
		return nil, &tool.Refusal{Code: tool.CodeNotAFile,
			Message: "it is a virtual file of the system, not a regular file"}
	}
	s.head = head[:min(int64(n), size)]
	if int64(n) < size && n < len(head) {
		s.size = int64(n) // truncated since it was opened
	}
	return s, nil
}

// readAt reads up to len(b) bytes at off. It returns fewer only at the end of
// the file. The result may share memory with the source.
func (s *source) readAt(b []byte, off int64) ([]byte, error) {
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

// readPart is readAt without a buffer: it allocates one if it needs one.
func (s *source) readPart(off, n int64) ([]byte, error) {
	if end := off + n; end <= int64(len(s.head)) {
		return s.head[off:end], nil
	}
	return s.readAt(make([]byte, n), off)
}

// page is one page of a file. A line number of 0 is not known.
type page struct {
	text       []byte
	start      int64 // offset of the text in bytes
	firstLine  int
	totalLines int
	nextOffset int
	nextByte   int64
	truncated  bool
	note       string
}

func (s *source) page(in readIn) (page, error) {
	start, line, err := s.seekStart(in)
	note := ""
	if long, ok := errors.AsType[*longLine](err); ok {
		start, err = s.runeStart(min(s.size-int64(in.MaxBytes), long.end-int64(in.MaxBytes)/2) + utf8.UTFMax - 1)
		note = fmt.Sprintf(
			"the first line here begins more than %d MiB earlier; read it with from_byte", maxLineScan>>20,
		)
	}
	if err != nil {
		return page{}, err
	}
	buf, err := s.readPart(start, min(int64(in.MaxBytes), s.size-start))
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

// seekStart returns the offset at which a page begins, and its line number or 0.
func (s *source) seekStart(in readIn) (at int64, line int, err error) {
	switch {
	case in.FromByte > 0 && in.Offset != 0:
		return 0, 0, tool.Refuse(tool.CodeInvalidArguments, "offset and from_byte exclude each other")
	case in.FromByte >= s.size && in.FromByte > 0:
		return 0, 0, tool.Refuse(
			tool.CodeInvalidArguments, "from_byte %d is past the end of the file, which has %d bytes", in.FromByte,
			s.size,
		)
	case in.FromByte > 0:
		at, err = s.runeStart(in.FromByte)
		return at, 0, err
	case in.Offset < 0:
		return s.fromEnd(-in.Offset)
	}
	return s.seekLine(max(in.Offset, 1))
}

// seekLine returns the offset of line n, and n.
func (s *source) seekLine(n int) (int64, int, error) {
	if n == 1 {
		return 0, 1, nil
	}
	buf := make([]byte, min(s.size, chunkSize))
	var at int64
	for seen := 1; seen < n; {
		b, err := s.readAt(buf, at)
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
	return &tool.Refusal{
		Code:    tool.CodeInvalidArguments,
		Message: fmt.Sprintf("offset %d is past the end of the file, which has %d lines", n, seen),
	}
}

// endsInLine reports whether nothing follows the last newline.
func (s *source) endsInLine() bool {
	if s.size == 0 {
		return true
	}
	var last [1]byte
	b, err := s.readAt(last[:], s.size-1)
	return err == nil && len(b) == 1 && b[0] == '\n'
}

// longLine is the error of a line that is longer than maxLineScan. Its
// beginning is not searched, because a page shows only a small part of it.
type longLine struct{ end int64 } // of the line, without its newline

func (*longLine) Error() string { return "the beginning of a line is too far from its end" }

// fromEnd returns the offset of the last n lines. The line number is 0 unless it
// is the first line or the lines before it are few enough to count. The error
// may be a *longLine.
func (s *source) fromEnd(n int) (at int64, line int, err error) {
	buf := make([]byte, min(s.size, chunkSize))
	end := s.size
	if s.size > 0 && s.endsInLine() {
		end--
	}
	for lineEnd := end; end > 0; {
		if lineEnd-end >= maxLineScan {
			return 0, 0, &longLine{lineEnd}
		}
		from := max(end-int64(len(buf)), 0)
		b, err := s.readAt(buf[:end-from], from)
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
		return s.withLineNumber(from + int64(len(b)) + 1)
	}
	return 0, 1, nil
}

func (s *source) withLineNumber(at int64) (int64, int, error) {
	if at > maxCount {
		return at, 0, nil
	}
	n, err := s.newlines(0, at)
	return at, n + 1, err
}

// newlines counts the newlines in [from, to).
func (s *source) newlines(from, to int64) (n int, err error) {
	buf := make([]byte, min(to-from, chunkSize))
	for from < to {
		b, err := s.readAt(buf[:min(to-from, int64(len(buf)))], from)
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

// total sets the number of lines of the file if the page ends with the last
// line, or if at most maxCount bytes follow it.
func (s *source) total(pg *page, end int64, lines int) error {
	if pg.firstLine == 0 || s.size-end > maxCount {
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
		n-- // the first of them ends the last line of the page
	}
	pg.totalLines += n
	return nil
}

// runeStart returns the offset of the character that contains the byte at at.
func (s *source) runeStart(at int64) (int64, error) {
	from := max(at-utf8.UTFMax+1, 0)
	b, err := s.readAt(make([]byte, at-from+1), from)
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

// cut ends a page after limit lines or after its last whole line. If the page
// has no whole line, cut ends it between two characters and whole is false.
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

// countLines counts the lines of b, including a last line without a newline.
func countLines(b []byte) int {
	n := bytes.Count(b, newline)
	if len(b) > 0 && b[len(b)-1] != '\n' {
		n++
	}
	return n
}

// readAll reads a whole file into memory. It returns errTooLarge if the file has
// more than limit bytes.
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
