package packages

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/displaytext"
)

const (
	segmentSize = 256 << 10 // bytes of one file of a journal
	segments    = 4         // files that are kept
	longestLine = 4 << 10   // bytes of one message
)

// journal keeps the newest log lines of a server and its host, in files named after the
// offset they begin at. It is safe for concurrent use.
type journal struct {
	dir string

	mu   sync.Mutex
	file *os.File
	from int64 // where the open file begins
	end  int64
	err  error // of the last write; nothing is written until it works again
}

// Line is one line of a journal.
type Line struct {
	Time    string
	Message string
	At, End int64 // offsets
}

// offsets returns the offsets at which the journal's files begin, in order.
func (j *journal) offsets() (all []int64) {
	entries, err := os.ReadDir(j.dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if n, err := strconv.ParseInt(e.Name(), 10, 64); err == nil && e.Type().IsRegular() && n >= 0 {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all
}

func (j *journal) fileName(start int64) string {
	return filepath.Join(j.dir, fmt.Sprintf("%016d", start))
}

// openFiles opens the newest file; j.mu is held.
func (j *journal) openFiles() error {
	if j.file != nil {
		return nil
	}
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return err
	}
	if all := j.offsets(); len(all) > 0 {
		j.from = all[len(all)-1]
	}
	return j.append()
}

func (j *journal) append() error {
	f, err := os.OpenFile(j.fileName(j.from), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	j.file, j.end = f, j.from+info.Size()
	return nil
}

// writeLine adds one line.
func (j *journal) writeLine(message string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err = j.openFiles(); j.err != nil {
		return
	}
	if j.end-j.from >= segmentSize {
		j.file.Close()
		j.file, j.from = nil, j.end
		if j.err = j.append(); j.err != nil {
			return
		}
		for all := j.offsets(); len(all) > segments; all = all[1:] {
			os.Remove(j.fileName(all[0]))
		}
	}
	text := strings.ToValidUTF8(strings.TrimRight(message, "\r"), "\uFFFD")
	text = displaytext.Cut(text, longestLine, " [cut]")
	n, err := j.file.WriteString(
		time.Now().UTC().Format(time.RFC3339Nano) + " " + strings.ReplaceAll(text, "\n", " ") + "\n",
	)
	j.end += int64(n)
	j.err = err
}

// readLines returns up to limit lines: the oldest that end after cursor or, with before, the
// newest that end at or before it. A negative cursor means the end.
func (j *journal) readLines(cursor int64, before bool, limit int) (lines []Line, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if cursor < 0 {
		before = true
	}
	for _, start := range j.offsets() {
		text, err := os.ReadFile(j.fileName(start))
		if err != nil {
			return nil, err
		}
		at := start
		for line := range bytes.Lines(text) {
			l := Line{At: at, End: at + int64(len(line))}
			at = l.End
			l.Time, l.Message, _ = strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
			switch {
			case !before && l.End > cursor && len(lines) < limit, before && (cursor < 0 || l.End <= cursor):
				lines = append(lines, l)
			}
			if before && len(lines) > limit {
				lines = lines[1:]
			}
		}
	}
	return lines, nil
}

// tail returns at most n of the newest lines since an offset, for an error.
func (j *journal) tail(since int64, n int) string {
	lines, err := j.readLines(-1, true, n)
	if err != nil {
		return ""
	}
	var said []string
	for _, l := range lines {
		if l.At >= since {
			said = append(said, l.Message)
		}
	}
	return strings.Join(said, "\n")
}

func (j *journal) endOffset() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.err = j.openFiles()
	return j.end
}

func (j *journal) closeFiles() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file != nil {
		j.file.Close()
		j.file = nil
	}
}

// lineWriter splits a program's output into lines of the journal.
type lineWriter struct {
	journal *journal

	mu  sync.Mutex // both outputs of a program may be written to it at once
	buf []byte
}

// Write implements io.Writer.
func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(p)
	for len(p) > 0 {
		line, rest, ended := bytes.Cut(p, []byte{'\n'})
		w.buf = append(w.buf, line[:min(len(line), longestLine+1-min(len(w.buf), longestLine+1))]...)
		if ended {
			w.journal.writeLine(string(w.buf))
			w.buf = w.buf[:0]
		}
		p = rest
	}
	return n, nil
}

// Flush writes an incomplete last line.
func (w *lineWriter) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.buf) > 0 {
		w.journal.writeLine(string(w.buf))
		w.buf = w.buf[:0]
	}
	return nil
}
