package roots

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"gatehouse/internal/files/merged"
	"gatehouse/tool"
)

// Place is a path found in the roots of a call. Its methods use the root and return refusals that contain the path
// as the caller wrote it.
type Place struct {
	Root *os.Root // shared; must not be closed
	Name string   // inside Root, clean; "." is the root itself
	Path string   // as the caller wrote it

	roots   tool.Roots
	guard   *Guard
	above   string        // name of Root in the folder it is a part of; "" for a whole one
	layer   *merged.Layer // Root is one of its two; nil if the folder is a file system
	changes bool          // with a layer: the call may change something
}

// Locate finds a path in the roots. The error is a *tool.Refusal.
func Locate(rs tool.Roots, path string) (Place, error) {
	root, name, err := rs.Resolve(path)
	if err != nil {
		return Place{}, err
	}
	layer, changes := layerOf(rs, root)
	return Place{root, name, path, rs, guardOf(rs), aboveOf(rs, root), layer, changes}, nil
}

// NamesDir reports whether the caller wrote the path with a slash at its end.
func (p Place) NamesDir() bool {
	return p.Name == "." || os.IsPathSeparator(p.Path[len(p.Path)-1])
}

// Stat returns the info of the file; it follows links.
func (p Place) Stat() (fs.FileInfo, error) { return do(p, true, (*os.Root).Stat) }

// Lstat returns the info of the file, or of the link itself.
func (p Place) Lstat() (fs.FileInfo, error) { return do(p, false, (*os.Root).Lstat) }

// Open opens the file; it follows links. It returns an error if the guard forbids it.
func (p Place) Open(flag int, perm fs.FileMode) (*os.File, error) {
	if err := p.may(flag&(os.O_WRONLY|os.O_RDWR) != 0); err != nil {
		return nil, err
	}
	if p.layer != nil && flag&(os.O_WRONLY|os.O_RDWR|os.O_CREATE|os.O_TRUNC) != 0 {
		var err error
		if p, err = p.Followed(true); err == nil {
			p, err = p.own()
		}
		if err != nil {
			return nil, p.Refuse(err)
		}
	}
	f, err := p.openFile(flag, perm)
	if err == nil {
		err = p.Judge(f, "", flag&(os.O_WRONLY|os.O_RDWR) != 0)
	}
	if err != nil {
		if f != nil {
			f.Close()
		}
		return nil, err
	}
	return f, nil
}

// Writable returns an error if the guard or the system does not let this user write the file.
func (p Place) Writable() error {
	err := p.may(true)
	if err != nil {
		return err
	}
	p.changes = false // in a layer, the file is opened where it is, and not copied
	f, err := p.openFile(os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return p.Judge(f, "", true)
}

func (p Place) openFile(flag int, perm fs.FileMode) (*os.File, error) {
	return do(p, true, func(r *os.Root, name string) (*os.File, error) {
		return r.OpenFile(name, flag, perm)
	})
}

// Regular opens a regular file for reading, unless the guard forbids it. It refuses other files before opening
// them, because opening a pipe or a device can have effects.
func (p Place) Regular() (*os.File, fs.FileInfo, error) {
	if err := p.MayRead(); err != nil {
		return nil, nil, err
	}
	info, err := p.Stat()
	if err != nil {
		return nil, nil, err
	}
	if err := p.MustBeRegular(info); err != nil {
		return nil, nil, err
	}
	f, err := p.openFile(os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may have been replaced by a pipe since
	if err != nil {
		return nil, nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = p.MustBeRegular(info)
	} else {
		err = p.Refuse(err)
	}
	if err == nil {
		err = p.Judge(f, "", false)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// Dir opens a directory for reading. The caller closes it.
func (p Place) Dir() (merged.Folder, error) {
	info, err := p.Stat()
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, &tool.Refusal{Code: tool.CodeNotADirectory, Message: quote(p.Path) + " is not a directory"}
	}
	if p.layer != nil {
		q, err := p.Followed(true)
		if err != nil {
			return nil, err
		}
		f, err := q.layer.Folder(q.Name)
		if err != nil {
			return nil, p.Refuse(err)
		}
		return f, nil
	}
	r, err := do(p, true, (*os.Root).OpenRoot)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// MustBeRegular returns an error if the file is not a regular file.
func (p Place) MustBeRegular(info fs.FileInfo) error {
	switch {
	case info.Mode().IsRegular():
		return nil
	case info.IsDir():
		return &tool.Refusal{
			Code:    tool.CodeIsADirectory,
			Message: quote(p.Path) + " is a directory",
			Next:    "Use dir_list to see what is in it.",
		}
	}
	return tool.Refuse(tool.CodeNotAFile, "%s is %s, not a regular file", quote(p.Path), Kind(info.Mode()))
}

// Kind describes the type of something that is neither a file nor a directory.
func Kind(m fs.FileMode) string {
	switch {
	case m&fs.ModeSymlink != 0:
		return "link"
	case m&fs.ModeNamedPipe != 0:
		return "pipe"
	case m&fs.ModeSocket != 0:
		return "socket"
	case m&fs.ModeDevice != 0:
		return "device"
	case m&fs.ModeIrregular != 0:
		return "special"
	}
	return ""
}

// do runs one operation. A root refuses absolute links, links that leave it, even to a folder that the caller may
// use, and more than eight links in a row. do follows such a name itself and repeats the operation on the target.
func do[T any](p Place, last bool, op func(*os.Root, string) (T, error)) (T, error) {
	var v T
	err := error(errInLayer)
	if p.layer == nil {
		v, err = op(p.Root, p.Name)
	}
	if err == errInLayer || escapes(err) || errors.Is(err, syscall.ELOOP) {
		q, ferr := p.Followed(last)
		if ferr != nil {
			return v, ferr
		}
		v, err = op(q.Root, q.Name)
	}
	if err != nil {
		return v, p.Refuse(err)
	}
	return v, nil
}

// errInLayer makes do follow the links of a name, which may lead from one root of a layer to the other.
var errInLayer = errors.New("the name is in a layer")

// plain reports whether a deep name certainly contains no links. It opens each directory from the one above,
// because looking each name up from the root takes a number of steps that is quadratic in the depth.
func plain(root *os.Root, parts []string) bool {
	dir := root
	defer func() {
		if dir != root {
			dir.Close()
		}
	}()
	for i, part := range parts {
		if part == "" || part == "." || part == ".." {
			return false
		}
		info, err := dir.Lstat(part)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return true // then nothing is below it
		case err != nil || info.Mode()&(fs.ModeSymlink|fs.ModeIrregular) != 0:
			return false
		case i+1 == len(parts):
			return true
		}
		next, err := dir.OpenRoot(part)
		if err != nil {
			return false
		}
		if dir != root {
			dir.Close()
		}
		dir = next
	}
	return false
}

// maxLinks is how many links a path may contain.
const maxLinks = 40

// Followed returns the place that p leads to. Its name contains no links, except that a link at the end stays if
// last is false. Names that do not exist stay as they are. Other processes may change the folders meanwhile: the
// root decides when the name is used.
func (p Place) Followed(last bool) (Place, error) {
	q := p
	done, rest := ".", strings.Split(filepath.ToSlash(p.Name), "/")
	if p.layer == nil && len(rest) > 2 && plain(p.Root, rest) {
		return p, nil
	}
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		if part == "." || part == "" {
			continue
		}
		if part == ".." && done != "." {
			done = filepath.Dir(done)
			continue
		}
		target := ".."
		if part != ".." {
			next := filepath.Join(done, part)
			link, err := q.readlink(next)
			if err != nil || (len(rest) == 0 && !last) {
				done = next
				continue
			}
			target = link
		}
		if links++; links > maxLinks {
			return Place{}, p.Refuse(syscall.ELOOP)
		}
		if part == ".." || filepath.IsAbs(target) {
			if part == ".." {
				target, rest = filepath.Join(append([]string{q.Folder(), ".."}, rest...)...), nil
			}
			var err error
			if q, err = Locate(p.roots, target); err != nil {
				return Place{}, Outside(p.Path)
			}
			done, target = ".", q.Name
		}
		rest = append(strings.Split(filepath.ToSlash(target), "/"), rest...)
	}
	q.Name, q.Path, q.guard = done, p.Path, p.guard
	return q.at()
}

// readlink returns the target of a link whose name has no links in its folders.
func (p Place) readlink(name string) (string, error) {
	if p.layer != nil {
		return p.layer.Readlink(filepath.ToSlash(name))
	}
	return p.Root.Readlink(name)
}
