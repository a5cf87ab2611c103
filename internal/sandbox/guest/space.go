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

// DefaultMaxBytes is the default of Options.Most.
const DefaultMaxBytes = 20 << 30

// openHeld opens a cached file for use: neither this host nor others remove it before it is closed. It returns
// fs.ErrNotExist if there is no such file.
func openHeld(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := filelock.WaitOpen(context.Background(), f, filelock.Shared); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	// A remover holds the exclusive lock, so now the file either has its name or will never have it again.
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
	os.Chtimes(path, now, now) // marks it as used
	return f, nil
}

// removeStale removes a cached file unless it is in use, and reports whether it did.
func removeStale(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	return filelock.TryOpen(f, filelock.Exclusive) == nil && os.Remove(path) == nil
}

// cachedFile is a cached file.
type cachedFile struct {
	path string
	// file identifies the file independently of its names.
	file  inode
	bytes int64 // on disk
	used  time.Time
}

// inode identifies a file.
type inode struct{ device, number uint64 }

// all returns the finished files, the last used first.
func (g *Cache) all() []cachedFile {
	found := slices.DeleteFunc(filesIn(g.folder), func(k cachedFile) bool {
		return strings.Contains(filepath.Base(k.path), unfinished)
	})
	slices.SortFunc(found, func(a, b cachedFile) int { return b.used.Compare(a.used) })
	return found
}

// filesIn returns the regular files in a folder.
func filesIn(folder string) (found []cachedFile) {
	entries, _ := os.ReadDir(folder)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		k := cachedFile{path: filepath.Join(folder, e.Name()), bytes: space(info), used: info.ModTime()}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			k.file = inode{uint64(st.Dev), st.Ino}
		}
		found = append(found, k)
	}
	return found
}

// CountFolder makes the files of a folder count against the limit; they are copies or hard links of cached files.
// If space is needed, drop is called to remove an unused one and reports whether it did. Beside is called
// once, before anything is made.
func (g *Cache) CountFolder(folder string, drop func() bool) { g.beside, g.drop = folder, drop }

// space returns how many bytes a file occupies on disk.
func space(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}

// MakeRoom removes unused files, the least recently used first, until bytes more are available. Unreferenced
// disks are closed by the garbage collector, which it runs if necessary.
func (g *Cache) MakeRoom(bytes int64) error {
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
		return fmt.Errorf("the disks of virtual machines in use would take %d MiB more than the limit of %d "+
			"MiB: end sandboxes of other images, remove their snapshots, or raise machine_bytes in the settings "+
			"of sandboxes", max(over>>20, 1), g.options.MaxBytes>>20)
	}
	return nil
}

const (
	collections = 10
	collected   = 100 * time.Millisecond // for unreferenced files to be closed
)

// clear is one attempt and returns how many bytes are still missing. Removing a file that has a hard link in
// the folder of Beside frees nothing.
func (g *Cache) clear(bytes int64) (over int64) {
	over = bytes - g.options.MaxBytes
	beside := map[inode]bool{}
	if g.beside != "" {
		for _, k := range filesIn(g.beside) {
			beside[k.file] = true
			over += k.bytes
		}
	}
	all := slices.DeleteFunc(g.all(), func(k cachedFile) bool { return beside[k.file] })
	for _, k := range all {
		over += k.bytes
	}
	for _, k := range slices.Backward(all) {
		if over <= 0 {
			break
		}
		if removeStale(k.path) {
			over -= k.bytes
			g.log.Info("removed to make room for virtual machines", "file", k.path, "bytes", k.bytes)
		}
	}
	return over
}
