package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/files/sqlfile"
)

// Folders are what is backed up.
type Folders struct {
	Data, Config, State string // "" leaves one out, but never Data
	// KeyFile opens the secrets; "" means that it lies in Config.
	KeyFile string
	// Not are folders that are left out where they lie in one of those.
	Not []string
}

// The folders as a manifest names them.
const (
	dataFolder   = "data"
	configFolder = "config"
	stateFolder  = "state"
	keyFolder    = "key" // holds one file of that name
)

// list gives the folders that are there to be walked, by name.
func (f Folders) list() (all []named) {
	for _, n := range []named{{dataFolder, f.Data}, {configFolder, f.Config}, {stateFolder, f.State}} {
		if n.path != "" {
			all = append(all, n)
		}
	}
	return all
}

type named struct{ name, path string }

// keyElsewhere reports whether the key of the secrets has to be looked for
// outside the folders.
func (f Folders) keyElsewhere() bool {
	return f.KeyFile != "" && (f.Config == "" || filepath.Clean(f.KeyFile) != filepath.Join(f.Config, "secrets.key"))
}

// File is one file of a backup.
type File struct {
	Folder   string      `json:"folder"` // data, config, state or key
	Path     string      `json:"path"`   // in it, with slashes
	Size     int64       `json:"size"`
	Mode     fs.FileMode `json:"mode"` // the permissions
	Modified time.Time   `json:"modified"`
}

// copied is the size up to which files are copied before the databases are
// looked at: a small file that describes a database is then never ahead of it.
const copied = 1 << 20

const maxFiles = 1_000_000

// collection is what goes into a backup.
type collection struct {
	temp  string // snapshots and copies; removed at the end
	files []File
	from  []string // where to read each
	bytes int64
}

func (c *collection) close() { os.RemoveAll(c.temp) }

// collect takes snapshots of databases and copies of what is small, and notes
// the rest. What vanishes meanwhile is left out.
// chosen is which files go in.
func collect(ctx context.Context, f Folders, chosen func(File) bool, tell Tell) (c *collection, err error) {
	if f.Data == "" {
		return nil, errors.New("this host keeps nothing on disk")
	}
	if err := os.MkdirAll(f.Data, 0o700); err != nil {
		return nil, err
	}
	sweep(f.Data, time.Now())
	c = &collection{}
	if c.temp, err = os.MkdirTemp(f.Data, snapshotPrefix+"*"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	var found []string
	note := func(folder, in string) func(string, fs.FileInfo) error {
		return func(rel string, info fs.FileInfo) error {
			if len(c.files) >= maxFiles {
				return fmt.Errorf("there are more than %d files", maxFiles)
			}
			file := File{folder, filepath.ToSlash(rel), info.Size(), info.Mode().Perm(), info.ModTime().UTC()}
			if !chosen(file) {
				return ctx.Err()
			}
			c.files = append(c.files, file)
			found = append(found, filepath.Join(in, rel))
			return ctx.Err()
		}
	}
	for _, n := range f.list() {
		if err := walk(n.path, f, false, note(n.name, n.path)); err != nil {
			return nil, fmt.Errorf("look through %s: %w", n.path, err)
		}
	}
	if f.keyElsewhere() && chosen(File{Folder: keyFolder, Path: keyFolder}) {
		if info, err := os.Stat(f.KeyFile); err == nil && info.Mode().IsRegular() {
			c.files = append(c.files, File{keyFolder, keyFolder, info.Size(), info.Mode().Perm(), info.ModTime().UTC()})
			found = append(found, f.KeyFile)
		}
	}
	return c, c.take(ctx, found, tell)
}

// sweep removes the snapshots of whoever was killed while taking them.
func sweep(data string, now time.Time) {
	left, _ := filepath.Glob(filepath.Join(data, snapshotPrefix+"*"))
	for _, p := range left {
		if info, err := os.Stat(p); err == nil && now.Sub(info.ModTime()) > 24*time.Hour {
			os.RemoveAll(p)
		}
	}
}

// take copies, then takes the snapshots, in this order.
func (c *collection) take(ctx context.Context, found []string, tell Tell) error {
	c.from = make([]string, len(found))
	databases := 0
	for i, from := range found {
		tell.say(PhaseSnapshot, int64(i), int64(len(found)))
		is, err := c.copy(i, from)
		if err != nil {
			return err
		}
		if is {
			databases++
			c.from[i] = ""
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	for i, from := range found {
		if c.from[i] != "" || databases == 0 {
			continue
		}
		if err := c.snapshot(ctx, i, from); err != nil {
			return err
		}
	}
	files, sources := c.files, c.from
	c.files, c.from = nil, nil
	for i, f := range files {
		if sources[i] != gone {
			c.files, c.from, c.bytes = append(c.files, f), append(c.from, sources[i]), c.bytes+f.Size
		}
	}
	tell.say(PhaseSnapshot, int64(len(found)), int64(len(found)))
	return nil
}

// gone stands for a file that vanished; no path is like it.
const gone = "\x00"

// copy copies a small file; isDatabase means that it is for snapshot.
func (c *collection) copy(i int, from string) (isDatabase bool, err error) {
	c.from[i] = from
	file, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		c.from[i] = gone
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	if sqlfile.Is(file) {
		return true, nil
	}
	if c.files[i].Size > copied {
		return false, nil
	}
	b, err := io.ReadAll(io.LimitReader(file, 2*copied))
	if err != nil {
		return false, fmt.Errorf("read %s: %w", from, err)
	}
	if len(b) == 2*copied {
		return false, nil // it grows fast: read what was there when it was found
	}
	c.from[i], c.files[i].Size = c.staged(i), int64(len(b))
	return false, os.WriteFile(c.from[i], b, 0o600)
}

func (c *collection) staged(i int) string { return filepath.Join(c.temp, strconv.Itoa(i)) }

func (c *collection) snapshot(ctx context.Context, i int, from string) error {
	c.from[i] = c.staged(i)
	err := sqlfile.Snapshot(ctx, from, c.from[i])
	if _, there := os.Lstat(from); err != nil && errors.Is(there, fs.ErrNotExist) {
		c.from[i] = gone
		return nil
	}
	if err != nil {
		return err
	}
	info, err := os.Stat(c.from[i])
	if err == nil {
		c.files[i].Size = info.Size()
	}
	return err
}

const (
	snapshotPrefix = ".snapshot-"
	stagedFolder   = ".restore"
	savedFolder    = ".before-restore"
	lockName       = ".in-use.lock" // shared by the hosts that run; alone it is held by one that puts a restore in place
	lockOlder      = ".in-use"      // of the version before
)

// walk calls f for the regular files below a folder, those with companions of
// databases only if all. Links are not followed. Folders that are roots of
// others, and what this package keeps, are left out.
func walk(root string, all Folders, companions bool, f func(rel string, info fs.FileInfo) error) error {
	apart := all.apart(root)
	return filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil || rel == "." {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if d.IsDir() {
			if ours(rel) || apart(info) {
				return fs.SkipDir
			}
			return nil
		}
		if !info.Mode().IsRegular() || ours(rel) || passing(filepath.Base(rel)) || !companions && companion(rel) {
			return nil
		}
		return f(rel, info)
	})
}

// apart reports which folders are others of these, or are left out.
func (f Folders) apart(root string) func(fs.FileInfo) bool {
	var not []fs.FileInfo
	for _, p := range append([]string{f.Data, f.Config, f.State}, f.Not...) {
		if p == "" || filepath.Clean(p) == filepath.Clean(root) {
			continue
		}
		if info, err := os.Stat(p); err == nil {
			not = append(not, info)
		}
	}
	return func(info fs.FileInfo) bool {
		for _, n := range not {
			if os.SameFile(n, info) {
				return true
			}
		}
		return false
	}
}

// ours reports whether a path is what this package keeps at the top of a
// folder.
func ours(rel string) bool {
	top, _, _ := strings.Cut(filepath.ToSlash(rel), "/")
	return top == stagedFolder || top == savedFolder || top == lockOlder || top == lockName ||
		strings.HasPrefix(top, snapshotPrefix)
}

// passing reports whether a file lives only as long as a process, or is about
// to be replaced.
func passing(base string) bool {
	switch path.Ext(base) {
	case ".tmp", ".lock", ".pid", ".sock", ".socket":
		return true
	}
	return base == "local-token" || strings.Contains(base, ".db-host-")
}

// companion reports whether SQLite keeps a file beside a database.
func companion(rel string) bool {
	for _, s := range []string{"-wal", "-shm", "-journal"} {
		if strings.HasSuffix(rel, s) {
			return true
		}
	}
	return false
}
