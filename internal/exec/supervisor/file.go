//go:build linux && (amd64 || arm64)

package supervisor

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// file is a program or a script.
type file struct {
	id         identity
	size       int64
	path       string   // without links
	paths      []string // and the known links to it
	names      []string // by which folders of programs have it
	copies     []string // known files with the same content
	multi      string   // the name of a program that is many, such as busybox
	head       []byte   // its first bytes
	loader     bool     // a loader of programs, or another library that was started
	privileged bool
	problem    string // why it is refused
}

// multiCall are the programs that do what they are called by, or what their first argument says.
var multiCall = map[string]bool{"busybox": true, "toybox": true, "coreutils": true}

const headBytes = 256 // as much as the kernel reads of a script

// fileOf returns the file behind an open descriptor whose path the kernel gave.
func (s *supervisor) fileOf(fd int, name string) *file {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &file{path: name, problem: "it cannot be identified: " + err.Error()}
	}
	id := identityOf(&st)
	var there unix.Stat_t
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return &file{id: id, path: name, problem: "it is no file"}
	case st.Nlink == 0, !path.IsAbs(name), unix.Stat(name, &there) != nil, identityOf(&there) != id:
		return &file{id: id, path: name, problem: "its file has no name, because it is in memory, was removed or is " +
			"mounted elsewhere for this process alone"}
	}
	key := fmt.Sprintf("%s\x00%d %d %d %d", name, id.Dev, id.Ino, st.Size, st.Ctim.Nano())
	if f := s.files[key]; f != nil {
		return f
	}
	f := &file{id: id, size: st.Size, path: name, paths: []string{name}}
	s.examine(f, &st)
	if len(s.files) > 10_000 {
		clear(s.files)
	}
	s.files[key] = f
	return f
}

// examine finds out what is to be known of a file. It is done once for each.
func (s *supervisor) examine(f *file, st *unix.Stat_t) {
	if slices.Contains(s.plan.Folders, path.Dir(f.path)) {
		f.names = append(f.names, path.Base(f.path))
	}
	f.privileged = st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0
	if n, err := unix.Getxattr(f.path, "security.capability", nil); err == nil && n > 0 {
		f.privileged = true
	}
	for _, k := range s.plan.Files {
		if k.ID == f.id && k.Path != f.path {
			f.paths = append(f.paths, k.Path)
			f.names = append(f.names, path.Base(k.Path))
		}
	}
	if err := s.readContent(f); err != nil && s.user != 0 {
		f.problem = "it cannot be read, so it cannot be told from a program that is denied"
	}
	for _, p := range slices.Concat(f.paths, f.copies) {
		if multiCall[path.Base(p)] {
			f.multi = path.Base(p)
		}
	}
}

// readContent reads the beginning of a file, and all of it if it may be a copy of one that is denied.
func (s *supervisor) readContent(f *file) error {
	r, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer r.Close()
	f.head = make([]byte, headBytes)
	n, err := io.ReadFull(r, f.head)
	if f.head = f.head[:n]; err != nil && err != io.ErrUnexpectedEOF && err != io.EOF {
		return err
	}
	f.loader = isLoader(r)
	for _, k := range s.plan.Files {
		if k.Size != f.size || k.ID == f.id || !k.Denied && !multiCall[path.Base(k.Path)] {
			continue
		}
		if sameContent(r, k.Path) {
			f.copies = append(f.copies, k.Path)
		}
	}
	return nil
}

// sameContent reports whether a file has the same content as an open one.
func sameContent(r io.ReaderAt, name string) bool {
	other, err := os.Open(name)
	if err != nil {
		return false
	}
	defer other.Close()
	a, b := make([]byte, compareBytes), make([]byte, compareBytes)
	for at := int64(0); ; at += compareBytes {
		n, err := r.ReadAt(a, at)
		m, err2 := other.ReadAt(b, at)
		if !bytes.Equal(a[:n], b[:m]) || (err == nil) != (err2 == nil) {
			return false
		}
		if err != nil {
			return err == io.EOF && err2 == io.EOF
		}
	}
}

const compareBytes = 64 << 10

// isLoader reports whether a file is a library that is started as a program, as the loader of dynamic programs is:
// it names no loader of its own, and does not say that it is a program.
func isLoader(r io.ReaderAt) bool {
	e, ok := readELF(r)
	return ok && e.shared && !e.interp && !e.pie
}

// interpreter returns the program that the kernel loads for a script, and its argument; "" if the file is none.
func (f *file) interpreter() (program, arg string) {
	line, ok := bytes.CutPrefix(f.head, []byte("#!"))
	if !ok {
		return "", ""
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	program, arg, _ = strings.Cut(strings.Trim(string(line), " \t"), " ")
	return program, strings.Trim(arg, " \t")
}

// openAs opens a file as a process does that names it, without reading it. Links are resolved from our root.
func openAs(pid int, dir int, name string) (fd int, real string, err error) {
	at := name
	if !path.IsAbs(name) {
		at = fmt.Sprintf("/proc/%d/cwd/%s", pid, name)
		if dir != unix.AT_FDCWD {
			at = fmt.Sprintf("/proc/%d/fd/%d/%s", pid, dir, name)
		}
	}
	if fd, err = unix.Open(at, unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
		return -1, "", err
	}
	if real, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil {
		unix.Close(fd)
		return -1, "", err
	}
	return fd, real, nil
}

// named returns the file that a process names; nil if there is none.
func (s *supervisor) named(pid, dir int, name string) *file {
	fd, real, err := openAs(pid, dir, name)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	return s.fileOf(fd, real)
}
