//go:build linux && (amd64 || arm64)

package guest

import (
	"context"
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

	"gatehouse/internal/files/filelock"
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
	if err := filelock.WaitOpen(context.Background(), f, filelock.Shared); err != nil {
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

// remove removes a made file, and reports whether it did: not while somebody
// uses it.
func remove(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	return filelock.TryOpen(f, filelock.Exclusive) == nil && os.Remove(path) == nil
}

// kept is something that was made.
type kept struct {
	path  string
	file  inode
	bytes int64 // on disk
	used  time.Time
}

// inode is a file, whatever names it has.
type inode struct{ device, number uint64 }

// all is what was made and has a name, that used last first.
func (g *Guest) all() []kept {
	found := slices.DeleteFunc(filesIn(g.folder), func(k kept) bool { return strings.Contains(filepath.Base(k.path), half) })
	slices.SortFunc(found, func(a, b kept) int { return b.used.Compare(a.used) })
	return found
}

// filesIn are the files in a folder.
func filesIn(folder string) (found []kept) {
	entries, _ := os.ReadDir(folder)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		k := kept{path: filepath.Join(folder, e.Name()), bytes: space(info), used: info.ModTime()}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			k.file = inode{uint64(st.Dev), st.Ino}
		}
		found = append(found, k)
	}
	return found
}

// Beside has the files of a folder count with what is made, of which they are
// copies or other names. Where there is no room for more, drop is asked to
// remove one that nobody uses, and tells whether it did. It is called once,
// before anything is made.
func (g *Guest) Beside(folder string, drop func() bool) { g.beside, g.drop = folder, drop }

// space is how much a file takes on disk.
func space(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}

// MakeRoom removes what nobody uses, that first which was not used for longest,
// until so many bytes more may be there. What nobody refers to any more is
// closed by the collector, which may not have come by.
func (g *Guest) MakeRoom(bytes int64) error {
	over := g.clear(bytes)
	for over > 0 && g.drop != nil && g.drop() {
		over = g.clear(bytes)
	}
	for try := 0; over > 0 && try < collections; try++ {
		runtime.GC()
		time.Sleep(collected)
		over = g.clear(bytes)
	}
	if over > 0 {
		return fmt.Errorf("with those in use the disks of virtual machines would take %d MiB more than the %d MiB they may: end sandboxes of other images, remove their snapshots, or raise machine_bytes in the settings of sandboxes", max(over>>20, 1), g.options.Most>>20)
	}
	return nil
}

const (
	collections = 10
	collected   = 100 * time.Millisecond // for files to be closed that were found to be nobody's
)

// clear is one attempt, and tells how many bytes are too many still. What has a
// name beside takes its room whether it is removed here or not.
func (g *Guest) clear(bytes int64) (over int64) {
	over = bytes - g.options.Most
	beside := map[inode]bool{}
	if g.beside != "" {
		for _, k := range filesIn(g.beside) {
			beside[k.file] = true
			over += k.bytes
		}
	}
	all := slices.DeleteFunc(g.all(), func(k kept) bool { return beside[k.file] })
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
