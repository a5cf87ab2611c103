//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const mostLinks = 40 // links on one path, as in the kernel

// selection is a selection of the host's files. Adding a program adds what it requires.
type selection struct {
	found map[string]fs.FileInfo // by path; links as links
	order []string               // of found, folders before their contents
	dirs  []string               // folders of libraries
	warn  func(string, ...any)
}

func newSelection(warn func(string, ...any)) *selection {
	s := &selection{found: map[string]fs.FileInfo{}, dirs: libraryFolders("/etc/ld.so.conf", 0), warn: warn}
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64"} {
		s.addPath(dir) // adds the link that it may be
	}
	return s
}

// key describes the selection; it changes if a selected file changes.
func (s *selection) key() string {
	all := slices.Sorted(slices.Values(s.order))
	var b strings.Builder
	for _, path := range all {
		info := s.found[path]
		if info.IsDir() {
			fmt.Fprintf(&b, "%s\x00", path)
			continue
		}
		fmt.Fprintf(&b, "%s %o %d %d\x00", path, info.Mode(), info.Size(), info.ModTime().UnixNano())
	}
	return b.String()
}

// addPath selects the file at a path of the host, the links on the way and, for a program, what it requires.
// Missing files are left out. It returns the path without links.
func (s *selection) addPath(path string) string {
	path = filepath.Clean(path)
	for range mostLinks {
		next, done := s.walk(path)
		if done {
			return next
		}
		path = next
	}
	return ""
}

// walk selects the links on the way to a path. At the first link it returns the path after following it.
func (s *selection) walk(path string) (string, bool) {
	at := "/"
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i, part := range parts {
		at = filepath.Join(at, part)
		info, err := os.Lstat(at)
		if err != nil {
			return "", true
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			to, err := os.Readlink(at)
			if err != nil {
				return "", true
			}
			s.selectPath(at, info)
			if !filepath.IsAbs(to) {
				to = filepath.Join(filepath.Dir(at), to)
			}
			return filepath.Join(append([]string{to}, parts[i+1:]...)...), false
		}
		if i == len(parts)-1 && info.Mode().IsRegular() {
			s.addFile(at, info)
		}
	}
	return at, true
}

func (s *selection) selectPath(path string, info fs.FileInfo) (fresh bool) {
	if s.found[path] != nil {
		return false
	}
	s.found[path] = info
	s.order = append(s.order, path)
	return true
}

// addFile selects a regular file. A file that cannot be read is left out.
func (s *selection) addFile(path string, info fs.FileInfo) {
	if s.found[path] != nil {
		return
	}
	f, err := os.Open(path)
	if err != nil {
		s.warn("a file of the host cannot be read and is left out of virtual machines", "error", err)
		return
	}
	defer f.Close()
	s.selectPath(path, info)
	if info.Mode()&0o111 == 0 && !strings.Contains(filepath.Base(path), ".so") {
		return
	}
	head := make([]byte, 256)
	n, _ := io.ReadFull(f, head)
	switch head = head[:n]; {
	case bytes.HasPrefix(head, []byte("\x7fELF")):
		s.addNeeded(path, f)
	case interpreter(head) != "":
		s.addPath(interpreter(head))
	}
}

// addNeeded selects the loader and the libraries of an ELF file.
func (s *selection) addNeeded(path string, f io.ReaderAt) {
	e, err := elf.NewFile(f)
	if err != nil {
		return // not a valid ELF file
	}
	for _, p := range e.Progs {
		if p.Type == elf.PT_INTERP && p.Filesz < 4096 {
			b, _ := io.ReadAll(p.Open())
			s.addPath(string(bytes.TrimRight(b, "\x00")))
		}
	}
	var own []string
	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		lists, _ := e.DynString(tag)
		for _, l := range lists {
			l = strings.NewReplacer("$ORIGIN", filepath.Dir(path), "${ORIGIN}", filepath.Dir(path)).Replace(l)
			own = append(own, strings.Split(l, ":")...)
		}
	}
	needed, _ := e.ImportedLibraries()
	for _, name := range needed {
		s.addLibrary(name, own)
	}
}

// addLibrary selects a library where the loader finds it.
func (s *selection) addLibrary(name string, own []string) {
	if strings.Contains(name, "/") {
		s.addPath(name)
		return
	}
	for _, dir := range slices.Concat(own, s.dirs) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); filepath.IsAbs(path) && err == nil && info.Mode().IsRegular() {
			s.addPath(path)
			return
		}
	}
}

// addFolder selects a whole folder, unless it is too large.
func (s *selection) addFolder(dir string) {
	real := s.addPath(dir)
	if real == "" {
		return
	}
	var size int64
	var paths []string
	infos := map[string]fs.FileInfo{}
	err := filepath.WalkDir(real, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // unreadable files are left out
		}
		if d.IsDir() && path != real &&
			(d.Name() == "test" || d.Name() == "site-packages" && filepath.Dir(path) == real) {
			return fs.SkipDir // Python's own tests, and folders that are listed separately
		}
		info, err := d.Info()
		if err != nil || info.Mode()&(fs.ModeSocket|fs.ModeNamedPipe|fs.ModeDevice) != 0 {
			return nil
		}
		if size += info.Size(); size > largestFolder {
			return fmt.Errorf("%s holds more than %d MiB", real, largestFolder>>20)
		}
		paths = append(paths, path)
		infos[path] = info
		return nil
	})
	if err != nil {
		s.warn("a folder of the host is left out of virtual machines", "error", err)
		return
	}
	for _, path := range paths {
		switch info := infos[path]; {
		case info.IsDir():
			s.selectPath(path, info)
		case info.Mode()&fs.ModeSymlink != 0:
			s.addPath(path)
		default:
			s.addFile(path, info)
		}
	}
}

// libraryFolders returns the folders in which the loader searches.
func libraryFolders(config string, depth int) []string {
	var all []string
	b, _ := os.ReadFile(config)
	for line := range strings.Lines(string(b)) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "#")
		if pattern, ok := strings.CutPrefix(line, "include "); ok && depth < 3 {
			pattern = strings.TrimSpace(pattern)
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(config), pattern)
			}
			more, _ := filepath.Glob(pattern)
			for _, m := range more {
				all = append(all, libraryFolders(m, depth+1)...)
			}
		} else if filepath.IsAbs(line) {
			all = append(all, line)
		}
	}
	if depth == 0 {
		all = append(all, "/lib64", "/usr/lib64", "/lib", "/usr/lib")
	}
	return all
}
