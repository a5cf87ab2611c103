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
	leftAge     = 5 * time.Minute  // a newer file may belong to a process that has not locked it yet
	sweepPause  = 10 * time.Minute // between two checks of one directory
	sweepMost   = 20_000           // entries checked at once; more would delay the call noticeably
	sweptMost   = 1000             // directories that are remembered
	sweepAtOnce = 512              // entries read at once
)

// Writer writes files, and removes the temporary files of writers that were killed. The zero value is ready to use.
// It is safe for concurrent use.
type Writer struct {
	mu    sync.Mutex
	swept map[string]time.Time // directories, and when they were last checked
}

// tempName returns the name of a temporary file.
func tempName() string { return ".gatehouse-" + rand.Text() + ".tmp" }

func isTemp(name string) bool {
	middle, begins := strings.CutPrefix(name, ".gatehouse-")
	middle, ends := strings.CutSuffix(middle, ".tmp")
	return begins && ends && len(middle) == len(rand.Text()) &&
		strings.Trim(middle, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// due reports whether a directory should be checked now, and records the check.
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

// clearLeftovers removes old temporary files from a directory to which a file was just written. A file that cannot
// be removed stays, which does no harm.
func (w *Writer) clearLeftovers(p Place, parent *os.Root) {
	if !w.due(filepath.Join(p.Folder(), filepath.Dir(p.Name))) {
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

// clear removes a temporary file if it belongs to this user, is old enough, and no process has locked it. A process
// locks its temporary file until it is complete, and renames it immediately afterwards.
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

// ours reports whether a temporary file can be one of this user's. The superuser's have the owner of the file that
// they replace.
func ours(info fs.FileInfo) bool {
	uid, _ := owner(info)
	return uid < 0 || uid == os.Geteuid() || os.Geteuid() == 0
}
