package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

const (
	longestName = 4096      // bytes of a path or of a link's target
	mostNames   = 128 << 20 // bytes of all names of an image
	mostHops    = 40        // links on the way to a file
	mostSteps   = 512       // folders on the way to a file, including those of links
	blockBytes  = 4096      // least size of a file on disk
)

// tree is the root file system that is made of layers. Names are resolved as they will be in the sandbox: a
// link to / leads to the root of the tree. The result is opened in an os.Root, so that even a bug here cannot
// leave the folder. It is not safe for concurrent use.
type tree struct {
	root *os.Root
	most Limits

	bytes   int64 // on disk
	entries int
	names   int

	mine map[string]bool // resolved paths that this layer made, with their parent folders

	at  string   // the folder last written to, as named in the tar
	dir *os.Root // the same folder, open
	is  string   // its resolved path
}

// parts splits a name of a tar. "" and "." are the root.
func (t *tree) parts(name string) ([]string, error) {
	if len(name) > longestName || strings.IndexByte(name, 0) >= 0 {
		return nil, fmt.Errorf("a name has %d bytes, %.60q: it may have %d and no zero byte", len(name), name,
			longestName)
	}
	var out []string
	for p := range strings.SplitSeq(name, "/") {
		switch p {
		case "", ".":
		case "..":
			return nil, fmt.Errorf("%.200q contains ..; expected a name below the root", name)
		default:
			out = append(out, p)
		}
	}
	if len(out) > t.most.Depth {
		return nil, fmt.Errorf("%.60q is %d folders deep; it may be %d", name, len(out), t.most.Depth)
	}
	return out, nil
}

// openFolder resolves a folder, and creates missing ones if make is set. The Root is valid until the next call.
func (t *tree) openFolder(parts []string, make bool) (is string, dir *os.Root, err error) {
	at := path.Join(append([]string{"."}, parts...)...)
	if t.dir != nil && t.at == at {
		return t.is, t.dir, nil
	}
	if is, err = t.resolve(parts, make); err != nil {
		return "", nil, err
	}
	if dir, err = t.root.OpenRoot(is); err != nil {
		return "", nil, err
	}
	t.closeFolder()
	t.at, t.is, t.dir = at, is, dir
	return is, dir, nil
}

// closeFolder closes the folder last written to.
func (t *tree) closeFolder() {
	if t.dir != nil {
		t.dir.Close()
		t.dir = nil
	}
}

func (t *tree) resolve(todo []string, make bool) (string, error) {
	cur, hops := []string{"."}, 0
	for len(todo) > 0 {
		next := todo[0]
		todo = todo[1:]
		switch next {
		case "", ".":
			continue
		case "..":
			cur = cur[:max(1, len(cur)-1)]
			continue
		}
		p := path.Join(path.Join(cur...), next)
		info, err := t.root.Lstat(p)
		if errors.Is(err, fs.ErrNotExist) && make {
			err = t.makeFolder(p)
			cur = append(cur, next)
			if err != nil {
				return "", err
			}
			continue
		}
		if err != nil {
			return "", err
		}
		switch {
		case info.IsDir():
			cur = append(cur, next)
		case info.Mode()&fs.ModeSymlink != 0:
			if hops++; hops > mostHops {
				return "", fmt.Errorf("too many links on the way to %.200q", p)
			}
			to, err := t.root.Readlink(p)
			if err != nil {
				return "", err
			}
			if strings.HasPrefix(to, "/") {
				cur = cur[:1]
			}
			if todo = append(strings.Split(to, "/"), todo...); len(todo) > mostSteps {
				return "", fmt.Errorf("the path to %.200q is too long", p)
			}
		default:
			return "", fmt.Errorf("%.200q is not a folder, but an entry is below it", p)
		}
	}
	return path.Join(cur...), nil
}

// makeFolder creates a folder that no layer contains.
func (t *tree) makeFolder(p string) error {
	if n := strings.Count(p, "/") + 1; n > t.most.Depth {
		return fmt.Errorf("%.60q is %d folders deep; it may be %d", p, n, t.most.Depth)
	}
	if err := t.charge(p, 0); err != nil {
		return err
	}
	t.markMade(p)
	if err := t.root.Mkdir(p, 0o700); err != nil {
		return err
	}
	return t.root.Chmod(p, 0o755)
}

// charge counts an entry against the limits before it is made.
func (t *tree) charge(name string, size int64) error {
	if size < 0 || size > t.most.File {
		return fmt.Errorf("%.200q has %d bytes; a file may have %d", name, size, t.most.File)
	}
	t.bytes += (size + 2*blockBytes - 1) / blockBytes * blockBytes
	t.names += len(name)
	if t.entries++; t.entries > t.most.Entries {
		return fmt.Errorf("the image has more than %d files; raise the limit in the settings of images", t.most.Entries)
	}
	if t.names > mostNames {
		return fmt.Errorf("the names have more than %d bytes together", mostNames)
	}
	if t.bytes > t.most.Bytes {
		return errTooMuch
	}
	return nil
}

// markMade records that a path belongs to this layer.
func (t *tree) markMade(p string) {
	for p != "." && !t.mine[p] {
		t.mine[p] = true
		p = path.Dir(p)
	}
}

// removeLower removes what comes from lower layers at a path.
func (t *tree) removeLower(p string) error {
	t.closeFolder()
	if !t.mine[p] {
		return t.root.RemoveAll(p)
	}
	info, err := t.root.Lstat(p)
	if err != nil || !info.IsDir() {
		return nil
	}
	return t.emptyLower(p)
}

// emptyLower does the same for the contents of a folder.
func (t *tree) emptyLower(p string) error {
	names, err := fs.ReadDir(t.root.FS(), p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, n := range names {
		if err := t.removeLower(path.Join(p, n.Name())); err != nil {
			return err
		}
	}
	return err
}

// othersMode returns the permissions of a file as others have them: no write permission, no setuid. The user who
// unpacks can read and remove everything.
func othersMode(mode fs.FileMode) fs.FileMode {
	if mode.IsDir() {
		return mode.Perm()&0o555 | 0o700
	}
	return mode.Perm()&0o555 | 0o600
}
