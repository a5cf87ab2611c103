package clientconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gatehouse/internal/files/atomicfile"
	"gatehouse/internal/files/filelock"
)

// Change is a change of one file of a client, which Plan has worked out and
// Apply makes.
type Change struct {
	Client *Client
	Scope  Scope
	File   string // as the client names it
	Name   string // of the server

	Before  []byte
	After   []byte
	Existed bool // there is a file
	Delete  bool // the file is removed, since it was made for the server

	target string // File after links were followed
	mode   fs.FileMode
}

// Changes reports whether there is anything to do.
func (c *Change) Changes() bool { return c.Delete || !bytes.Equal(c.Before, c.After) }

// ErrModified means that a file became another while it was changed.
var ErrModified = errors.New("the file was changed meanwhile by another program; run the command again")

// FileError is a problem of a client's file.
type FileError struct {
	File string
	Err  error
}

func (e *FileError) Error() string {
	if _, ok := errors.AsType[*SyntaxError](e.Err); ok {
		return e.File + ": " + e.Err.Error()
	}
	return fmt.Sprintf("%s: %v", e.File, e.Err)
}

func (e *FileError) Unwrap() error { return e.Err }

// openConfig reads a file of a client.
func (m Machine) openConfig(c *Client, s Scope, name string) (*Change, error) {
	file := m.Path(c, s)
	if file == "" {
		return nil, fmt.Errorf("%s has no file for the scope %s on this platform", c.Title, s)
	}
	ch, err := openFile(c, s, file, name)
	if err != nil || s != Project {
		return ch, err
	}
	// The files of a project may come from others: a link among them must not lead
	// to a file of the user's.
	project, err := follow(m.Project)
	if err != nil {
		return nil, err
	}
	if in, err := filepath.Rel(project, ch.target); err != nil || !filepath.IsLocal(in) {
		return nil, &FileError{file, fmt.Errorf("a link leads from it to %s, outside the project", ch.target)}
	}
	return ch, nil
}

func openFile(c *Client, s Scope, file, name string) (*Change, error) {
	ch := &Change{Client: c, Scope: s, File: file, Name: name, mode: 0o600}
	if s == Project {
		ch.mode = 0o644
	}
	var err error
	if ch.target, err = follow(ch.File); err != nil {
		return nil, &FileError{ch.File, err}
	}
	info, err := os.Stat(ch.target)
	if errors.Is(err, fs.ErrNotExist) {
		return ch, nil
	}
	if err != nil {
		return nil, err
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, &FileError{ch.File, errors.New("it is not a regular file")}
	case filelock.OfAnother(info):
		return nil, &FileError{ch.File, errors.New("it belongs to another user; run this command as that user")}
	}
	ch.Existed, ch.mode = true, info.Mode()
	if ch.Before, err = readLimited(ch.target, c.Limit()); err != nil {
		return nil, &FileError{ch.File, err}
	}
	return ch, nil
}

// maxLinks is how many symbolic links are followed to a file.
const maxLinks = 40

// follow returns the file that a path leads to, also if it does not exist yet.
// A link is left in place: what it points to is what is changed.
func follow(path string) (string, error) {
	for range maxLinks {
		info, err := os.Lstat(path)
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
				return filepath.Join(dir, filepath.Base(path)), nil
			}
			return path, nil
		}
		to, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return "", fmt.Errorf("more than %d links lead from it", maxLinks)
}

func readLimited(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("it has more than %d bytes", limit)
	}
	return text, err
}

// PlanPut works out how a server gets into the file of a client.
func (m Machine) PlanPut(c *Client, s Scope, server Server) (*Change, error) {
	ch, err := m.openConfig(c, s, server.Name)
	if err != nil {
		return nil, err
	}
	if ch.After, err = c.Put(ch.Before, server); err != nil {
		return nil, &FileError{ch.File, err}
	}
	return ch, nil
}

// PlanRemove works out how a server gets out of the file of a client. A file that
// nothing else has changed becomes what it was before the server came.
func (m Machine) PlanRemove(b Store, c *Client, s Scope, name string) (*Change, error) {
	ch, err := m.openConfig(c, s, name)
	if err != nil {
		return nil, err
	}
	ch.After = ch.Before
	if !ch.Existed {
		return ch, nil
	}
	known, err := b.findConnection(ch.target, name)
	if err != nil {
		return nil, err
	}
	if known != nil && known.After == digest(ch.Before) {
		if !known.Existed {
			ch.After, ch.Delete = nil, true
			return ch, nil
		}
		held, err := os.ReadFile(b.backup(ch.target, known.Before))
		if err == nil && digest(held) == known.Before {
			ch.After = held
			return ch, nil
		}
	}
	if ch.After, err = c.Remove(ch.Before, name, known != nil && known.Container); err != nil {
		return nil, &FileError{ch.File, err}
	}
	return ch, nil
}

// Apply makes a change and returns the backup of what the file held, "" if there
// was none. A reader of the file sees the old content or the new one, also
// after a crash between any two steps. The error is ErrModified if the file is
// not what the change was worked out from.
func (b Store) Apply(ch *Change) (backup string, err error) {
	unlock, err := b.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := ch.unchanged(); err != nil {
		return "", err
	}
	if ch.Existed {
		if backup, err = b.store(ch.target, ch.Before); err != nil {
			return "", fmt.Errorf("keep a backup of %s: %w", ch.File, err)
		}
	}
	has := false
	if !ch.Delete {
		if has, err = ch.Client.Has(ch.After, ch.Name); err != nil {
			return "", err
		}
	}
	if !has { // what is remembered goes last: without it, what is there is still removed
		if err := ch.write(); err != nil {
			return "", err
		}
		return backup, b.saveConnection(ch.target, ch.Name, nil)
	}
	now, err := b.connection(ch)
	if err != nil {
		return "", err
	}
	if err := b.saveConnection(ch.target, ch.Name, now); err != nil {
		return "", err
	}
	return backup, ch.write()
}

// Knows reports whether the server of a change was added by a change before it.
func (b Store) Knows(ch *Change) (bool, error) {
	c, err := b.findConnection(ch.target, ch.Name)
	return c != nil, err
}

// connection is what is remembered of a change that adds a server.
func (b Store) connection(ch *Change) (*connection, error) {
	now := &connection{
		Client: ch.Client.ID, File: ch.target, Name: ch.Name, Existed: ch.Existed,
		Before: digest(ch.Before), After: digest(ch.After), At: time.Now().UTC().Truncate(time.Second),
	}
	tree, _ := ch.Client.format.parse(withoutBOM(ch.Before)) // an empty text has no servers
	held, _ := lookup(tree, steps(ch.Client.path...))
	now.Container = held == nil
	last, err := b.findConnection(ch.target, ch.Name)
	if err != nil || last == nil {
		return now, err
	}
	if there, _ := ch.Client.Has(ch.Before, ch.Name); !there {
		return now, nil // it was removed by hand, so this is another beginning
	}
	now.Existed, now.Container = last.Existed, last.Container
	switch now.Before {
	case last.After: // nothing else has changed it: what was before the first change is restored
		now.Before = last.Before
	default:
		now.Before, now.Existed = "", true
	}
	return now, nil
}

// unchanged returns ErrModified if the file is not what was read.
func (ch *Change) unchanged() error {
	text, err := readLimited(ch.target, ch.Client.Limit())
	switch {
	case errors.Is(err, fs.ErrNotExist) && !ch.Existed:
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case err != nil || !ch.Existed || !bytes.Equal(text, ch.Before):
		return &FileError{ch.File, ErrModified}
	}
	return nil
}

// removeLeft removes what a command left beside a file when it was killed. No
// command is at work, since the caller holds the lock.
func removeLeft(target string) error {
	entries, err := os.ReadDir(filepath.Dir(target))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	before, after, _ := strings.Cut(filepath.Base(target)+atomicfile.ReplaceSuffix, "*")
	for _, e := range entries {
		if name := e.Name(); strings.HasPrefix(name, before) && strings.HasSuffix(name, after) {
			if err := os.Remove(filepath.Join(filepath.Dir(target), name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (ch *Change) write() error {
	if err := removeLeft(ch.target); err != nil {
		return err
	}
	if ch.Delete {
		return os.Remove(ch.target)
	}
	return atomicfile.Replace(ch.target, ch.After, ch.mode, ch.unchanged)
}
