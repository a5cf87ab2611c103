package merged

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// The trees of a layer in its folder.
const (
	upperTree = "upper"
	cutsTree  = "cuts"
	workTree  = "copying" // what is being copied, before it gets its name in upper
)

// Layer is a folder with the changes to it, or a part of such a folder. It is safe for concurrent use by one process.
type Layer struct {
	*tree
	prefix       string // in the tree; "" for the whole
	lower, upper *os.Root
}

// tree is what the parts of a layer share.
type tree struct {
	real  string // path of the folder
	dir   string
	work  *os.Root
	marks *os.Root // cuts
	most  int64

	// writing is held while something is copied to upper, which may take long.
	writing sync.Mutex

	// mu guards the maps and lists below, and is held for moments.
	mu    sync.Mutex
	cuts  map[string]bool
	made  []string               // folders that were made in upper because a call used them
	owned map[string]fs.FileInfo // files that were copied because a call was about to change them
}

// Open opens the changes of a folder, which are kept in dir, with upper there as its folder of what was written. The
// caller has made that. One operation copies at most so many bytes. The caller closes the layer.
func Open(real, dir string, most int64) (*Layer, error) {
	t := &tree{real: real, dir: dir, most: most, cuts: map[string]bool{}, owned: map[string]fs.FileInfo{}}
	l := &Layer{tree: t}
	os.RemoveAll(filepath.Join(dir, workTree))
	for _, name := range []string{cutsTree, workTree} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			return nil, err
		}
	}
	var err error
	for at, into := range map[string]**os.Root{
		real: &l.lower, filepath.Join(dir, upperTree): &l.upper, filepath.Join(dir, cutsTree): &t.marks,
		filepath.Join(dir, workTree): &t.work,
	} {
		if *into, err = os.OpenRoot(at); err != nil {
			l.Close()
			return nil, err
		}
	}
	if t.cuts, err = Cuts(dir); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Close closes the layer, and not its parts.
func (l *Layer) Close() error {
	var errs []error
	for _, r := range []*os.Root{l.lower, l.upper, l.work, l.marks} {
		if r != nil {
			errs = append(errs, r.Close())
		}
	}
	return errors.Join(errs...)
}

// Cuts returns the names of a layer at which the folder itself is not shown, with slashes. It is empty for the layer of
// an overlay file system.
func Cuts(dir string) (map[string]bool, error) {
	cuts := map[string]bool{}
	root := filepath.Join(dir, cutsTree)
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, p)
		cuts[filepath.ToSlash(rel)] = true
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return cuts, err
}

// Path returns the path of the folder.
func (l *Layer) Path() string { return filepath.Join(l.real, l.prefix) }

// Upper returns the folder of what was written. It is shared: the caller must not close it.
func (l *Layer) Upper() *os.Root { return l.upper }

// Has reports whether a root is one of the layer's.
func (l *Layer) Has(root *os.Root) bool { return root == l.upper || root == l.lower && root != nil }

// NameOf returns the name in the layer of a path in the folder of what was written.
func (l *Layer) NameOf(p string) (string, bool) {
	for _, upper := range []string{l.upper.Name(), realPath(l.upper.Name())} {
		if rel, err := filepath.Rel(upper, p); err == nil && filepath.IsLocal(rel) {
			return rel, true
		}
	}
	return "", false
}

func realPath(p string) string {
	if real, err := filepath.EvalSymlinks(p); err == nil {
		return real
	}
	return p
}

// Folder opens a folder for reading.
func (l *Layer) Folder(name string) (Folder, error) {
	return (&folder{l, "."}).enter(filepath.ToSlash(name))
}

// Part returns a folder of the layer as a layer of its own. The caller calls ClosePart.
func (l *Layer) Part(name string) (*Layer, error) {
	at, err := l.follow(".", filepath.ToSlash(name), true)
	if err != nil {
		return nil, err
	}
	info, err := l.Lstat(at)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "open", Path: name, Err: syscall.ENOTDIR}
	}
	if err != nil {
		return nil, err
	}
	if err := l.makeFolders(at); err != nil {
		return nil, err
	}
	p := &Layer{tree: l.tree, prefix: path.Join(l.prefix, at)}
	if p.upper, err = l.upper.OpenRoot(at); err != nil {
		return nil, err
	}
	if l.shows(at) {
		if p.lower, err = l.lower.OpenRoot(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.upper.Close()
			return nil, err
		}
	}
	return p, nil
}

// ClosePart closes a part of a layer.
func (l *Layer) ClosePart() error {
	err := l.upper.Close()
	if l.lower != nil {
		err = errors.Join(err, l.lower.Close())
	}
	return err
}

// isCut reports whether the folder itself is not shown at a name.
func (l *Layer) isCut(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cuts[path.Join(l.prefix, name)]
}

// shows reports whether what the folder itself has at a name, and below it, is shown.
func (l *Layer) shows(name string) bool {
	if l.lower == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for at := path.Join(l.prefix, name); len(l.cuts) > 0; at = path.Dir(at) {
		if l.cuts[at] {
			return false
		}
		if at == "." {
			return true
		}
	}
	return true
}

// Find returns the root that has a name, which has no links in its folders. The root is shared.
func (l *Layer) Find(name string) *os.Root {
	name = filepath.ToSlash(name)
	if _, err := l.upper.Lstat(name); err == nil || !errors.Is(err, fs.ErrNotExist) || !l.shows(name) {
		return l.upper
	}
	return l.lower
}

// Lstat returns the info of a name, which has no links in its folders.
func (l *Layer) Lstat(name string) (fs.FileInfo, error) { return l.Find(name).Lstat(name) }

// Readlink returns the target of a link, whose name has no links in its folders.
func (l *Layer) Readlink(name string) (string, error) { return l.Find(name).Readlink(name) }

// mostLinks is how many links a path may contain.
const mostLinks = 40

var errEscapes = errors.New("path escapes from parent") // as package os says it

// Follow returns a name with the links in its folders followed, and with last also one at its end.
func (l *Layer) Follow(name string, last bool) (string, error) {
	return l.follow(".", filepath.ToSlash(name), last)
}

func (l *Layer) follow(dir, name string, last bool) (string, error) {
	done, rest := dir, strings.Split(name, "/")
	fails := func(err error) (string, error) { return "", &fs.PathError{Op: "open", Path: name, Err: err} }
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if done == "." {
				return fails(errEscapes)
			}
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		target, err := "", errEscapes
		if len(rest) > 0 || last {
			target, err = l.Readlink(next)
		}
		if err != nil {
			done = next
			continue
		}
		if links++; links > mostLinks {
			return fails(syscall.ELOOP)
		}
		if filepath.IsAbs(target) {
			return fails(errEscapes)
		}
		rest = append(strings.Split(filepath.ToSlash(target), "/"), rest...)
	}
	return done, nil
}

// At returns the root in which a call uses a name: for one that may change it, what was written, with the folders that
// contain the name, unless only the folder itself has the name, as anything but a folder.
func (l *Layer) At(name string, changes bool) (*os.Root, error) {
	root := l.Find(name)
	if !changes {
		return root, nil
	}
	if root == l.lower {
		switch info, err := root.Lstat(name); {
		case err == nil && info.IsDir():
			return l.upper, l.makeFolders(name)
		case err == nil:
			return root, nil
		}
	}
	err := l.makeFolders(path.Dir(filepath.ToSlash(name)))
	if errors.Is(err, syscall.ENOTDIR) {
		return l.lower, nil // the operation on the name fails there
	}
	return l.upper, err
}

// makeFolders makes the folders of a name in upper which the folder itself has, with their modes and times.
func (l *Layer) makeFolders(name string) error {
	if name == "." {
		return nil
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	parts := strings.Split(filepath.ToSlash(name), "/")
	for i := range parts {
		at := path.Join(parts[:i+1]...)
		if _, err := l.upper.Lstat(at); err == nil {
			continue
		}
		if !l.shows(at) {
			return nil
		}
		info, err := l.lower.Lstat(at)
		if err == nil && !info.IsDir() {
			return &fs.PathError{Op: "open", Path: at, Err: syscall.ENOTDIR}
		}
		if err != nil {
			return nil // the operation on the name fails by itself
		}
		if err := l.copyFolder(at); err != nil {
			return err
		}
		l.mu.Lock()
		l.made = append(l.made, path.Join(l.prefix, at))
		l.mu.Unlock()
	}
	return nil
}

// Cut hides what the folder itself has at a name.
func (l *Layer) Cut(name string) error {
	name = filepath.ToSlash(name)
	if !l.shows(name) {
		return nil
	}
	if _, err := l.lower.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	full := path.Join(l.prefix, name)
	if err := l.marks.RemoveAll(full); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := l.marks.MkdirAll(path.Dir(full), 0o700); err != nil {
		return err
	}
	if err := l.marks.WriteFile(full, nil, 0o600); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for other := range l.cuts {
		if strings.HasPrefix(other, full+"/") {
			delete(l.cuts, other)
		}
	}
	l.cuts[full] = true
	return nil
}

// IsCopiedToMove reports whether Own copies something of the folder itself.
func (l *Layer) IsCopiedToMove(name string) bool {
	name = filepath.ToSlash(name)
	if !l.shows(name) {
		return false
	}
	_, err := l.lower.Lstat(name)
	return err == nil
}

// Own copies to upper what the folder itself has at a name, with everything in it, and hides the folder there. A call
// does that before it moves, links or deletes the name.
func (l *Layer) Own(name string) error {
	name = filepath.ToSlash(name)
	if err := l.makeFolders(path.Dir(name)); err != nil {
		return err
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	if !l.shows(name) {
		return nil
	}
	c := copying{l: l, left: l.most}
	if err := c.complete(name); err != nil {
		return err
	}
	if info, err := l.upper.Lstat(name); err == nil && c.copied == 1 && !info.IsDir() {
		l.mu.Lock()
		l.owned[path.Join(l.prefix, name)] = info
		l.mu.Unlock()
	}
	return l.Cut(name)
}

// Hide deletes a name, with everything in it, without copying it before.
func (l *Layer) Hide(name string) error {
	if err := l.makeFolders(path.Dir(filepath.ToSlash(name))); err != nil {
		return err
	}
	if err := l.upper.RemoveAll(name); err != nil {
		return err
	}
	return l.Cut(name)
}

// Settle removes from upper what calls did not change in the end. No call uses the layer meanwhile.
func (l *Layer) Settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, was := range l.owned {
		now, err := l.upper.Lstat(name)
		if err != nil || !os.SameFile(was, now) || was.Size() != now.Size() || !was.ModTime().Equal(now.ModTime()) ||
			was.Mode() != now.Mode() || !l.cuts[name] { // a folder that contains it is hidden by now
			continue
		}
		if l.marks.Remove(name) == nil {
			delete(l.cuts, name)
			l.upper.Remove(name)
		}
	}
	for i := len(l.made) - 1; i >= 0; i-- {
		if !l.hasCutIn(l.made[i]) {
			l.upper.Remove(l.made[i]) // one with something in it stays
		}
	}
	l.made, l.owned = nil, map[string]fs.FileInfo{}
}

// hasCutIn reports whether names in a folder are hidden. l.mu is held.
func (l *Layer) hasCutIn(dir string) bool {
	for name := range l.cuts {
		if strings.HasPrefix(name, dir+"/") || name == dir {
			return true
		}
	}
	return false
}

// copying copies parts of a folder to upper.
type copying struct {
	l      *Layer
	left   int64 // bytes that may still be copied
	copied int   // names
}

// ErrTooLarge is returned if more is to be copied than a task may hold.
var ErrTooLarge = errors.New("it is larger than a task may hold")

// complete copies what upper does not have of a name.
func (c *copying) complete(name string) error {
	if c.l.isCut(name) {
		return nil
	}
	info, err := c.l.lower.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	there, err := c.l.upper.Lstat(name)
	switch {
	case err == nil && (!there.IsDir() || !info.IsDir()):
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case err != nil && info.IsDir():
		if err := c.l.copyFolder(name); err != nil {
			return err
		}
	}
	c.copied++
	if !info.IsDir() {
		return c.copyFile(name, info)
	}
	d, err := c.l.lower.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	entries, err := d.ReadDir(-1)
	d.Close()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := c.complete(path.Join(name, e.Name())); err != nil {
			return err
		}
	}
	return c.l.likeLower(name)
}

// copyFolder makes one folder in upper, without what is in it.
func (l *Layer) copyFolder(name string) error {
	if err := l.upper.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return l.likeLower(name)
}

// likeLower gives a folder in upper the owner, the mode and the time of the folder itself.
func (l *Layer) likeLower(name string) error {
	from, err := l.lower.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	to, err := l.upper.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer to.Close()
	if err := describe(to, from, info); err != nil {
		return err
	}
	return l.upper.Chtimes(name, info.ModTime(), info.ModTime())
}

// copyFile copies a file or a link. A socket or a device is left out: it is not part of what can be accepted.
func (c *copying) copyFile(name string, info fs.FileInfo) error {
	const temp = "new"
	work := c.l.work
	if err := work.RemoveAll(temp); err != nil {
		return err
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := c.l.lower.Readlink(name)
		if err != nil {
			return err
		}
		if err := work.Symlink(target, temp); err != nil {
			return err
		}
	case info.Mode().IsRegular():
		if c.left -= info.Size(); c.left < 0 {
			return fmt.Errorf("%s: %w", name, ErrTooLarge)
		}
		if err := c.copyContent(name, temp); err != nil {
			return err
		}
	default:
		return nil
	}
	full := filepath.Join(c.l.dir, upperTree, filepath.FromSlash(path.Join(c.l.prefix, name)))
	return os.Rename(filepath.Join(c.l.dir, workTree, temp), full)
}

func (c *copying) copyContent(name, temp string) error {
	from, err := c.l.lower.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	to, err := c.l.work.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = CopyContent(to, from); err == nil {
		err = describe(to, from, info)
	}
	if err := errors.Join(err, to.Close()); err != nil {
		return err
	}
	return c.l.work.Chtimes(temp, info.ModTime(), info.ModTime())
}
