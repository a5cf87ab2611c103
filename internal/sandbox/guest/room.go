//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultMost is that of Options.
const DefaultMost = 20 << 30

// hold takes a made file for use: of this host and of others nobody removes it
// before what is given is closed. Without the file that is fs.ErrNotExist.
func hold(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := lock(f, unix.LOCK_SH); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	// Whoever removes it has it locked then, so that it has its name now or
	// never again.
	mine, err := f.Stat()
	if err == nil {
		var named fs.FileInfo
		if named, err = os.Stat(path); err == nil && !os.SameFile(mine, named) {
			err = &os.PathError{Op: "hold", Path: path, Err: fs.ErrNotExist}
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	now := time.Now()
	os.Chtimes(path, now, now) // it is in use
	return f, nil
}

func lock(f *os.File, how int) error {
	for {
		switch err := unix.Flock(int(f.Fd()), how); err {
		case unix.EINTR:
		case nil:
			return nil
		default:
			return &os.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
	}
}

// remove removes a made file, and reports whether it did: not while somebody
// uses it.
func remove(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	return lock(f, unix.LOCK_EX|unix.LOCK_NB) == nil && os.Remove(path) == nil
}

// kept is something that was made.
type kept struct {
	path  string
	bytes int64 // on disk
	used  time.Time
}

// all is what was made and has a name, that used last first.
func (g *Guest) all() (found []kept) {
	entries, _ := os.ReadDir(g.folder)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || strings.Contains(e.Name(), half) {
			continue
		}
		found = append(found, kept{filepath.Join(g.folder, e.Name()), space(info), info.ModTime()})
	}
	slices.SortFunc(found, func(a, b kept) int { return b.used.Compare(a.used) })
	return found
}

// space is how much a file takes on disk.
func space(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}

// makeRoom removes what nobody uses, that first which was not used for longest,
// until so many bytes more may be there. What nobody refers to any more is
// closed by the collector, which may not have come by.
func (g *Guest) makeRoom(bytes int64) error {
	over := g.clear(bytes)
	for try := 0; over > 0 && try < collections; try++ {
		runtime.GC()
		time.Sleep(collected)
		over = g.clear(bytes)
	}
	if over > 0 {
		return fmt.Errorf("with those in use the disks of virtual machines would take %d MiB more than the %d MiB they may: end sandboxes of other images, or remove their snapshots", over>>20, g.options.Most>>20)
	}
	return nil
}

const (
	collections = 10
	collected   = 100 * time.Millisecond // for files to be closed that were found to be nobody's
)

// clear is one attempt, and tells how many bytes are too many still.
func (g *Guest) clear(bytes int64) (over int64) {
	all := g.all()
	over = bytes - g.options.Most
	for _, k := range all {
		over += k.bytes
	}
	for _, k := range slices.Backward(all) {
		if over <= 0 {
			break
		}
		if remove(k.path) {
			over -= k.bytes
			g.log.Info("removed to make room for virtual machines", "file", k.path, "bytes", k.bytes)
		}
	}
	return over
}
