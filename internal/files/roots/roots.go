// Package roots opens the folders that a call may access.
//
// A path is looked up in two steps. Set.Resolve finds by its text which folder a path is in; that decides nothing.
// The operation then uses that folder's *os.Root, in which the kernel resolves the name and refuses what leaves the
// folder, however it is written and whatever is swapped meanwhile. An *os.Root confines names. It knows nothing
// about mount points, hard links or devices, so it does not isolate programs.
//
// File tools use Place: a path found in its roots, with symbolic links that stay inside followed, and with errors
// that a model can act on.
package roots

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"gatehouse/internal/access/displaytext"
	"gatehouse/tool"
)

// Dir is one folder to open.
type Dir struct {
	Name string // "" means the base name of Path; made unique if it is taken
	Path string // may be relative to the current directory or begin with ~
}

// Options configures a Set. The zero value is usable.
type Options struct {
	// Home replaces ~; "" means the user's home directory. Tests set it to protect that.
	Home    string
	Protect []string // names that tools must not touch, see NewGuard; nil means Protected(), an empty list none
}

// Set is a list of open folders. It implements tool.Roots and is safe for concurrent use.
type Set struct {
	folders []*folder // in order; the first is the default
	guard   *Guard
	home    string
	view    View   // nil for the folders themselves
	changes bool   // with a view: the call may change something
	base    string // relative paths start here; "" means at the first folder
}

// Open opens the folders in order. It returns an error if there are none, or one is missing or not a directory. A
// folder that is given twice is opened once.
func Open(dirs []Dir, o Options) (*Set, error) {
	if o.Protect == nil {
		o.Protect = Protected()
	}
	guard, err := NewGuard(o.Protect)
	if err != nil {
		return nil, fmt.Errorf("open folders: %w", err)
	}
	s := &Set{home: home(o), guard: guard}
	for _, d := range dirs {
		f, err := openFolder(expand(d.Path, s.home))
		if err != nil {
			s.Close()
			return nil, err
		}
		if s.has(f) {
			f.closeFolder()
			continue
		}
		f.name = s.unused(d.Name, f.path)
		s.folders = append(s.folders, f)
	}
	if len(s.folders) == 0 {
		return nil, errors.New("open folders: none was given")
	}
	return s, nil
}

// Unrestricted opens the whole file system; on Windows, every volume that exists now. Relative paths start in the
// current directory.
func Unrestricted(o Options) (*Set, error) {
	base, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("find the current directory: %w", err)
	}
	s, err := Open(volumes(), o)
	if err != nil {
		return nil, err
	}
	s.base = base
	return s, nil
}

// Everything reports whether the set was opened by Unrestricted.
func (s *Set) Everything() bool { return s.base != "" }

// StartingAt returns an unrestricted set whose relative paths start at base, an absolute path. It shares the
// folders of s, and is closed with s.
func (s *Set) StartingAt(base string) *Set {
	n := &Set{guard: s.guard, home: s.home, base: base}
	for _, f := range s.folders {
		root, err := f.root()
		if err != nil {
			continue
		}
		g := &folder{name: f.name, path: f.path, real: f.real, above: f.above, fixed: true, lent: true}
		g.now.Store(&opened{root: root})
		n.folders = append(n.folders, g)
	}
	return n
}

func volumes() []Dir {
	if runtime.GOOS != "windows" {
		return []Dir{{Name: "root", Path: "/"}}
	}
	var dirs []Dir
	for c := 'A'; c <= 'Z'; c++ {
		path := string(c) + `:\`
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			dirs = append(dirs, Dir{Name: string(c), Path: path})
		}
	}
	return dirs
}

// Resolve implements tool.Roots. It uses the text of the path, and one stat to notice that the folder was replaced.
func (s *Set) Resolve(path string) (*os.Root, string, error) {
	if err := wellFormed(path); err != nil {
		return nil, "", err
	}
	name := expand(path, s.home)
	if !filepath.IsAbs(name) && s.base != "" {
		name = filepath.Join(s.base, name)
	}
	f, name := s.findFolder(filepath.Clean(name))
	if f == nil {
		return nil, "", Outside(path)
	}
	root, err := f.root()
	if err != nil {
		return nil, "", &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: "the folder " + path + " lies in is gone",
			Next:    "It was there when the server started; create it again or restart the server.",
		}
	}
	if f.layer == nil {
		return root, name, nil
	}
	if clean, err := f.layer.Follow(name, false); err == nil { // else the operation on it fails
		name = clean
	}
	if root, err = f.layer.At(name, s.changes); err != nil {
		return nil, "", Place{Path: path}.Refuse(err)
	}
	return root, filepath.FromSlash(name), nil
}

// findFolder returns the folder that leaves the shortest name, so that a folder inside another one is preferred.
func (s *Set) findFolder(path string) (best *folder, name string) {
	if !filepath.IsAbs(path) {
		if filepath.IsLocal(path) {
			return s.folders[0], path
		}
		return nil, ""
	}
	for _, f := range s.folders {
		for _, prefix := range []string{f.path, f.real} {
			rel, err := filepath.Rel(prefix, path)
			if err != nil || !filepath.IsLocal(rel) {
				continue
			}
			if best == nil || len(rel) < len(name) || rel == "." {
				best, name = f, rel
			}
		}
	}
	return best, name
}

// List implements tool.Roots.
func (s *Set) List() []tool.Root {
	list := make([]tool.Root, len(s.folders))
	for i, f := range s.folders {
		list[i] = tool.Root{Name: f.name, Path: f.path}
	}
	return list
}

// Close closes the folders. Calls that still use them get errors.
func (s *Set) Close() error {
	var errs []error
	for _, f := range s.folders {
		errs = append(errs, f.closeFolder())
	}
	return errors.Join(errs...)
}

func (s *Set) has(f *folder) bool {
	for _, g := range s.folders {
		if g.real == f.real {
			return true
		}
	}
	return false
}

func (s *Set) unused(name, path string) string {
	if name == "" {
		name = filepath.Base(path)
	}
	if name == string(filepath.Separator) || name == "" {
		name = "root"
	}
	unique := name
	for n := 2; s.named(unique); n++ {
		unique = fmt.Sprintf("%s-%d", name, n)
	}
	return unique
}

func (s *Set) named(name string) bool {
	for _, f := range s.folders {
		if f.name == name {
			return true
		}
	}
	return false
}

// Outside returns the refusal of a path that is in no folder of the call. It names no folder, because a refused
// caller must not learn which folders exist.
func Outside(path string) *tool.Refusal {
	return &tool.Refusal{
		Code:    tool.CodeOutsideRoot,
		Message: quote(path) + " is outside the folders this server may touch",
		Next:    "Use a path inside the workspace; a relative path starts at its first folder.",
	}
}

func wellFormed(path string) error {
	switch {
	case path == "":
		return &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: "the path is empty",
			Next:    `Use "." for the first folder of the workspace.`,
		}
	case strings.IndexByte(path, 0) >= 0:
		return tool.Refuse(tool.CodeInvalidArguments, "the path %s holds a NUL byte", quote(path))
	case runtime.GOOS != "windows" && isDrivePath(path):
		return &tool.Refusal{
			Code:    tool.CodeOutsideRoot,
			Message: quote(path) + " is a Windows path and this is not Windows",
			Next:    "Use a path inside the workspace, with forward slashes.",
		}
	}
	return nil
}

func isDrivePath(path string) bool {
	return len(path) >= 3 && path[1] == ':' && path[2] == '\\' && (path[0]|0x20 >= 'a' && path[0]|0x20 <= 'z')
}

func home(o Options) string {
	if o.Home != "" {
		return o.Home
	}
	h, _ := os.UserHomeDir() // without a home directory, ~ is an ordinary name
	return h
}

func expand(path, home string) string {
	if home == "" || path == "" || path[0] != '~' {
		return path
	}
	if path == "~" {
		return home
	}
	if os.IsPathSeparator(path[1]) {
		return filepath.Join(home, path[2:])
	}
	return path
}

// quote returns a path for a message: unchanged if it is plain, otherwise quoted and cut.
func quote(path string) string {
	const most = 200
	path = displaytext.Cut(path, most, "...")
	for _, r := range path {
		if r < ' ' || r == 0x7f || r == '\uFFFD' {
			return fmt.Sprintf("%q", path)
		}
	}
	return path
}
