package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A daemon's log is one endless text. Each file of it is named after the position in that text at which
// it begins, so that a position stays valid after older files are removed.
const (
	logPrefix = "daemon-"
	logSuffix = ".log"

	// LogFile is the size after which a new file of the log is started; LogFiles is the number of files
	// that are kept.
	LogFile  = 8 << 20
	LogFiles = 2
)

// Log writes a daemon's log. It is safe for concurrent use.
type Log struct {
	dir   string
	limit int64

	mu   sync.Mutex
	f    *os.File
	base int64 // of the file
	size int64
}

// OpenLog opens the log in a folder, which it creates if necessary, and continues at its end.
func OpenLog(dir string) (*Log, error) { return openLog(dir, LogFile) }

func openLog(dir string, limit int64) (*Log, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the daemon's log: %w", err)
	}
	files, err := logFiles(dir)
	if err != nil {
		return nil, err
	}
	base := int64(0)
	if len(files) > 0 {
		base = files[len(files)-1]
	}
	l := &Log{dir: dir, limit: limit}
	if err := l.openFile(base); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Log) openFile(base int64) error {
	f, err := os.OpenFile(logPath(l.dir, base), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the daemon's log: %w", err)
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		f.Close()
		return fmt.Errorf("open the daemon's log: %w", err)
	}
	if l.f != nil {
		l.f.Close()
		debug.SetCrashOutput(f, debug.CrashOptions{}) // standard error still refers to the file before
	}
	l.f, l.base, l.size = f, base, size
	return nil
}

// File returns the file that is written now.
func (l *Log) File() *os.File {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f
}

// Position returns the position of the end of the log.
func (l *Log) Position() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.base + l.size
}

// Write appends to the log. If the next file cannot be created, it continues with the present one.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(p)) > l.limit {
		l.rotate()
	}
	n, err := l.f.Write(p)
	l.size += int64(n)
	return n, err
}

// rotate starts the next file and removes those that are too old.
func (l *Log) rotate() {
	if info, err := l.f.Stat(); err == nil {
		l.size = info.Size() // other processes may have written as well
	}
	if l.openFile(l.base+l.size) != nil {
		return
	}
	files, err := logFiles(l.dir)
	for err == nil && len(files) > LogFiles {
		err = os.Remove(logPath(l.dir, files[0]))
		files = files[1:]
	}
}

// Close closes the file.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Close()
}

func logPath(dir string, base int64) string {
	return filepath.Join(dir, fmt.Sprintf("%s%016d%s", logPrefix, base, logSuffix))
}

// logFiles returns the positions at which the log's files begin, oldest first.
func logFiles(dir string) (bases []int64, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the daemon's log: %w", err)
	}
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), logPrefix)
		digits, ok2 := strings.CutSuffix(digits, logSuffix)
		base, err := strconv.ParseInt(digits, 10, 64)
		if ok && ok2 && err == nil && base >= 0 && len(digits) == 16 {
			bases = append(bases, base)
		}
	}
	slices.Sort(bases)
	return bases, nil
}

// LogReader reads a daemon's log, also while it is written.
type LogReader struct {
	dir string
	pos int64 // of the next byte to read
}

// ReadLog reads the log from a position on. A position before the oldest file becomes its beginning;
// one after the end becomes the end.
func ReadLog(dir string, from int64) (*LogReader, error) {
	files, err := logFiles(dir)
	if err != nil {
		return nil, err
	}
	r := &LogReader{dir: dir}
	if len(files) == 0 {
		return r, nil
	}
	end, err := logEnd(dir, files)
	r.pos = min(max(from, files[0]), end)
	return r, err
}

// Tail reads the last lines of the log.
func Tail(dir string, lines int) (*LogReader, error) {
	files, err := logFiles(dir)
	if err != nil || len(files) == 0 {
		return &LogReader{dir: dir}, err
	}
	end, err := logEnd(dir, files)
	if err != nil {
		return nil, err
	}
	r := &LogReader{dir: dir, pos: files[0]}
	const most = 1 << 20 // bytes to search; lines longer than that are cut
	r.pos = max(r.pos, end-most)
	var text strings.Builder
	if err := r.Copy(&text); err != nil {
		return nil, err
	}
	kept := text.String()
	r.pos -= int64(len(kept) - lastLines(kept, lines))
	return r, nil
}

// lastLines returns where the last n lines of a text begin.
func lastLines(text string, n int) int {
	if n <= 0 {
		return len(text)
	}
	at := len(strings.TrimSuffix(text, "\n"))
	for range n {
		if at = strings.LastIndexByte(text[:at], '\n'); at < 0 {
			break
		}
	}
	return at + 1
}

func logEnd(dir string, files []int64) (int64, error) {
	last := files[len(files)-1]
	info, err := os.Stat(logPath(dir, last))
	if err != nil {
		return 0, fmt.Errorf("read the daemon's log: %w", err)
	}
	return last + info.Size(), nil
}

// Position returns the position of the next byte to read.
func (r *LogReader) Position() int64 { return r.pos }

// Copy writes the log from the position to its present end.
func (r *LogReader) Copy(w io.Writer) error {
	for {
		more, err := r.copyFile(w)
		if err != nil || !more {
			return err
		}
	}
}

// copyFile copies from the file that holds the position, and reports whether another file follows.
func (r *LogReader) copyFile(w io.Writer) (more bool, err error) {
	files, err := logFiles(r.dir)
	if err != nil || len(files) == 0 {
		return false, err
	}
	r.pos = max(r.pos, files[0]) // older files were removed
	at, exact := slices.BinarySearch(files, r.pos)
	if !exact {
		at--
	}
	f, err := os.Open(logPath(r.dir, files[at]))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // the file was removed just now
	}
	if err != nil {
		return false, fmt.Errorf("read the daemon's log: %w", err)
	}
	defer f.Close()
	left := int64(1<<63 - 1)
	if more = at+1 < len(files); more {
		left = files[at+1] - r.pos
	}
	n, err := io.Copy(w, io.NewSectionReader(f, r.pos-files[at], left))
	r.pos += n
	if more && n < left && err == nil {
		r.pos = files[at+1] // the file was truncated
	}
	return more, err
}

// Follow copies the log, now and as it grows, until ctx is done. It checks for new text at the given
// interval.
func (r *LogReader) Follow(ctx context.Context, w io.Writer, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := r.Copy(w); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
