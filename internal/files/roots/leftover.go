package roots

import (
	"crypto/rand"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"gatehouse/internal/files/filelock"
)

const (
	leftAge     = 5 * time.Minute  // a younger file may belong to a process that has not claimed it yet
	sweepPause  = 10 * time.Minute // between two looks at one directory
	sweepMost   = 20_000           // entries that one look goes through; more would be felt
	sweptMost   = 1000             // directories that are remembered
	sweepAtOnce = 512              // entries read at once
)

// Writer puts files in place, and clears away what writers that were killed
// left beside them. The zero value is ready. It is safe for
// concurrent use.
type Writer struct {
	mu    sync.Mutex
	swept map[string]time.Time // directories, and when they were looked at
}

// tempName is that of a file which is being filled.
func tempName() string { return ".gatehouse-" + rand.Text() + ".tmp" }

func isTemp(name string) bool {
	middle, begins := strings.CutPrefix(name, ".gatehouse-")
	middle, ends := strings.CutSuffix(middle, ".tmp")
	return begins && ends && len(middle) == len(rand.Text()) &&
		strings.Trim(middle, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// due reports whether it is time to look at a directory, and notes that it is
// being done.
func (w *Writer) due(dir string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if last, ok := w.swept[dir]; ok && now.Sub(last) < sweepPause {
		return false
	}
	if w.swept == nil || len(w.swept) >= sweptMost {
		w.swept = make(map[string]time.Time)
	}
	w.swept[dir] = now
	return true
}

// clearLeftovers clears a directory that a file was just put in. What cannot be cleared
// stays; it does no harm.
func (w *Writer) clearLeftovers(p Place, parent *os.Root) {
	if !w.due(filepath.Join(p.Root.Name(), filepath.Dir(p.Name))) {
		return
	}
	d, err := parent.OpenFile(".", os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer d.Close()
	for range sweepMost / sweepAtOnce {
		list, err := d.ReadDir(sweepAtOnce)
		for _, e := range list {
			if e.Type().IsRegular() && isTemp(e.Name()) {
				w.clear(parent, e.Name())
			}
		}
		if err != nil {
			return
		}
	}
}

// clear removes a temporary file that is ours, has been left alone for
// a while, and that no process has claimed: the process that fills one locks it until it
// is whole, and needs but a moment from then until it has its name.
func (w *Writer) clear(parent *os.Root, name string) {
	f, err := parent.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) < leftAge || !ours(info) {
		return
	}
	if filelock.TryOpen(f, filelock.Exclusive) == nil {
		parent.Remove(name)
	}
}

// ours reports whether a temporary file can be one of this user's. The superuser
// gives them the owner of the file they are to replace.
func ours(info fs.FileInfo) bool {
	uid, _ := owner(info)
	return uid < 0 || uid == os.Geteuid() || os.Geteuid() == 0
}
