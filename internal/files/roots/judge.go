package roots

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"gatehouse/tool"
)

// deleted is the suffix that Linux adds to the path of an open file that has no name any more.
const deleted = " (deleted)"

// pathOf returns the current path of an open file, whatever name it was opened by; "" if the system does not report
// it.
func pathOf(f *os.File) (path string) {
	if runtime.GOOS != "linux" {
		return ""
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return ""
	}
	raw.Control(func(fd uintptr) { path, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)) })
	if err != nil || !filepath.IsAbs(path) {
		return ""
	}
	return path
}

// Judge returns an error if the guard forbids reading or, with write, changing an open file or directory, or with a
// name something below it. It checks what was opened, because links and directories can be swapped after a name was
// checked.
func (p Place) Judge(f *os.File, below string, write bool) error {
	if p.guard == nil {
		return nil
	}
	path := pathOf(f)
	if path == "" {
		return p.judgeByName(f, below, write)
	}
	names := []string{path}
	if rest, gone := strings.CutSuffix(path, deleted); gone {
		names = append(names, rest)
	}
	for _, name := range names {
		if p.guard.Refuses(p.nameOf(filepath.Join(name, below)), write) {
			return p.isProtected(write)
		}
	}
	return nil
}

// nameOf returns the name by which the guard knows a path: relative to the folder that contains it, or the whole
// path if no folder does.
func (p Place) nameOf(path string) string {
	if rel, err := filepath.Rel(p.Folder(), path); err == nil && filepath.IsLocal(rel) {
		return filepath.Join(p.above, rel)
	}
	if p.layer != nil {
		if name, ok := p.layer.NameOf(path); ok {
			return filepath.Join(p.above, name)
		}
	}
	if q, err := Locate(p.roots, path); err == nil {
		return filepath.Join(q.above, q.Name)
	}
	return strings.TrimLeft(filepath.ToSlash(path[len(filepath.VolumeName(path)):]), "/")
}

// judgeByName is Judge for systems that do not report the path of an open file: the name without links must still
// be that file's.
func (p Place) judgeByName(f *os.File, below string, write bool) error {
	q, err := p.Followed(true)
	if err != nil {
		return err
	}
	if below != "" {
		q.Name = filepath.Dir(q.Name)
	}
	there, err := q.Root.Lstat(q.Name)
	var info fs.FileInfo
	if err == nil {
		info, err = f.Stat()
	}
	if err != nil {
		return p.Refuse(err)
	}
	if !os.SameFile(there, info) {
		return &tool.Refusal{
			Code:    tool.CodeStale,
			Message: quote(p.Path) + " was replaced while it was opened",
			Next:    "Repeat the call.",
		}
	}
	if p.guard.Refuses(filepath.Join(q.above, q.Name, below), write) {
		return p.isProtected(write)
	}
	return nil
}

// Parent opens the directory that contains p, and returns p's name in it. It returns an error if the guard forbids
// changing p, also if the directory is not the one that was looked up. The caller closes it.
func (p Place) Parent() (*os.Root, string, error) {
	p, err := p.own()
	if err != nil {
		return nil, "", err
	}
	dir, base := filepath.Split(p.Name)
	return p.parent(dir, base)
}

// parent opens the directory of a name.
func (p Place) parent(dir, base string) (*os.Root, string, error) {
	parent, err := p.Root.OpenRoot(filepath.Clean(dir))
	if err != nil {
		return nil, "", err
	}
	if p.guard == nil {
		return parent, base, nil
	}
	f, err := parent.Open(".")
	if err == nil {
		err = p.Judge(f, base, true)
		f.Close()
	}
	if err != nil {
		parent.Close()
		return nil, "", err
	}
	return parent, base, nil
}

// uncoverMost is how many entries of a directory are checked before it is moved. A larger directory is not moved.
const uncoverMost = 100_000

// MayMove returns an error if a move would remove the protection of something in a directory, because the pattern
// contains the directory's name: .aws/credentials must not become aws/credentials.
func (p Place) MayMove(to Place) error {
	levels := p.guard.levels()
	if levels == 0 {
		return nil
	}
	p, err := p.own()
	if err != nil {
		return p.Refuse(err)
	}
	dir, err := p.Root.OpenRoot(p.Name)
	if err != nil {
		return p.Refuse(err)
	}
	defer dir.Close()
	looked := 0
	return fs.WalkDir(dir.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if looked++; looked > uncoverMost {
			return &tool.Refusal{
				Code: tool.CodeDenied,
				Message: fmt.Sprintf(
					"%s holds more than %d entries, which is more than can be searched for protected names",
					quote(p.Path),
					uncoverMost,
				),
				Next: "Move what is in it part by part.",
			}
		}
		if err != nil {
			return p.Refuse(err) // what cannot be read may be protected
		}
		for _, write := range []bool{false, true} {
			was, will := filepath.Join(p.above, p.Name, name), filepath.Join(to.above, to.Name, name)
			if p.guard.Refuses(was, write) && !p.guard.Refuses(will, write) {
				return &tool.Refusal{
					Code: tool.CodeDenied,
					Message: fmt.Sprintf(
						"%s holds %s, which is protected by its name and would not be under the new one; "+
							"nothing was moved",
						quote(p.Path),
						quote(name),
					),
					Next: "Move the other things in it one by one, or ask the person to do it.",
				}
			}
		}
		if d.IsDir() && name != "." && strings.Count(name, "/")+1 >= levels {
			return fs.SkipDir
		}
		return nil
	})
}

// levels returns how many levels below a directory its own name can decide whether a name is protected.
func (g *Guard) levels() (n int) {
	if g == nil {
		return 0
	}
	for _, p := range g.patterns {
		if p.below && p.not {
			return uncoverMost // it allows names at any depth
		}
		n = max(n, len(p.parts)-1)
	}
	return n
}
