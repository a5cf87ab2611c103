package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/files/sqlfile"
)

// Folders are the folders that are backed up.
type Folders struct {
	Data, Config, State string // "" leaves one out, but never Data
	// KeyFile holds the key of the secrets; "" means a file in Config.
	KeyFile string
	// Not are folders inside those that are left out, and stay where they are. NotNow returns folders in Data that are
	// left out because Pack packs them; a restore moves them aside with their files. It may be nil.
	Not    []string
	NotNow func() []string
	// Remove removes a folder, of whose files some may belong to other users; nil if there are no such files.
	Remove func(path string) error
	// Pack makes regular files of what is in a folder that is left out, in the folder to, and returns them by the paths in
	// Data at which a restore puts them. What cannot be packed is logged. nil if there is nothing of the kind.
	Pack func(ctx context.Context, to string, log *slog.Logger) (map[string]string, error)
}

// Names of the folders in a manifest.
const (
	dataFolder   = "data"
	configFolder = "config"
	stateFolder  = "state"
	keyFolder    = "key" // holds one file of that name
)

// existing returns the folders that are set, with their names.
func (f Folders) existing() (all []named) {
	for _, n := range []named{{dataFolder, f.Data}, {configFolder, f.Config}, {stateFolder, f.State}} {
		if n.path != "" {
			all = append(all, n)
		}
	}
	return all
}

type named struct{ name, path string }

// keyElsewhere reports whether the key of the secrets is outside the folders.
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

// copied is the largest size of files that are copied before databases are
// snapshotted, so that a small file that describes a database is never newer.
const copied = 1 << 20

const maxFiles = 1_000_000

// collection is the content of a backup.
type collection struct {
	temp  string // folder of snapshots and copies; close removes it
	files []File
	from  []string // where to read each
	bytes int64
}

func (c *collection) closeFiles() { os.RemoveAll(c.temp) }

// collect copies small files, takes snapshots of databases, and lists the other files
// that chosen selects. Files that are removed meanwhile are left out.
func collect(
	ctx context.Context, f Folders, chosen func(File) bool, progress Progress, log *slog.Logger,
) (c *collection, err error) {
	if f.Data == "" {
		return nil, errors.New("this host stores nothing on disk")
	}
	if err := os.MkdirAll(f.Data, 0o700); err != nil {
		return nil, err
	}
	removeSnapshots(f.Data, time.Now())
	c = &collection{}
	if c.temp, err = os.MkdirTemp(f.Data, snapshotPrefix+"*"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.closeFiles()
		}
	}()
	var found []string
	note := func(folder, in string) func(string, fs.FileInfo) error {
		return func(rel string, info fs.FileInfo) error {
			if len(c.files) >= maxFiles {
				return fmt.Errorf("the folders hold more than %d files", maxFiles)
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
	for _, n := range f.existing() {
		if err := walk(n.path, f, false, note(n.name, n.path)); err != nil {
			return nil, fmt.Errorf("list the files of %s: %w", n.path, err)
		}
	}
	if f.Pack != nil {
		packed, err := f.Pack(ctx, c.temp, log)
		if err != nil {
			return nil, err
		}
		for _, rel := range slices.Sorted(maps.Keys(packed)) {
			info, err := os.Stat(packed[rel])
			if err == nil {
				err = note(dataFolder, "")(rel, info)
			}
			if err != nil {
				return nil, err
			}
			if n := len(found); n > 0 && found[n-1] == rel {
				found[n-1] = packed[rel]
			}
		}
	}
	if f.keyElsewhere() && chosen(File{Folder: keyFolder, Path: keyFolder}) {
		if info, err := os.Stat(f.KeyFile); err == nil && info.Mode().IsRegular() {
			c.files = append(c.files, File{keyFolder, keyFolder, info.Size(), info.Mode().Perm(), info.ModTime().UTC()})
			found = append(found, f.KeyFile)
		}
	}
	return c, c.copyAll(ctx, found, progress)
}

// removeSnapshots removes the snapshots of processes that were killed.
func removeSnapshots(data string, now time.Time) {
	left, _ := filepath.Glob(filepath.Join(data, snapshotPrefix+"*"))
	for _, p := range left {
		if info, err := os.Stat(p); err == nil && now.Sub(info.ModTime()) > 24*time.Hour {
			os.RemoveAll(p)
		}
	}
}

// copyAll copies files, then takes snapshots; see copied.
func (c *collection) copyAll(ctx context.Context, found []string, progress Progress) error {
	c.from = make([]string, len(found))
	databases := 0
	for i, from := range found {
		progress.report(PhaseSnapshot, int64(i), int64(len(found)))
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
	progress.report(PhaseSnapshot, int64(len(found)), int64(len(found)))
	return nil
}

// gone marks a file that was removed. It is not a valid path.
const gone = "\x00"

// copy copies a small file. isDatabase reports that snapshot must copy it.
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
		return false, nil // it is growing: read the size that was found
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
	mountsFolder   = ".mounts"
	lockName       = ".in-use.lock" // shared by running hosts, exclusive for one that applies a restore
	lockOlder      = ".in-use"      // of the version before
)

// walk calls f for the regular files below a folder; for the companions of databases
// only if companions is true. It does not follow links. It leaves out the other
// folders of all and the files of this package.
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

// apart returns a function that reports whether a folder is another one of f or is
// left out.
func (f Folders) apart(root string) func(fs.FileInfo) bool {
	var not []fs.FileInfo
	left := append([]string{f.Data, f.Config, f.State}, f.Not...)
	if f.NotNow != nil {
		left = append(left, f.NotNow()...)
	}
	for _, p := range left {
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

// removeAll removes a folder and what is in it.
func (f Folders) removeAll(path string) error {
	err := os.RemoveAll(path)
	if errors.Is(err, fs.ErrPermission) && f.Remove != nil {
		return f.Remove(path)
	}
	return err
}

// ours reports whether a path belongs to this package.
func ours(rel string) bool {
	top, _, _ := strings.Cut(filepath.ToSlash(rel), "/")
	return top == stagedFolder || top == savedFolder || top == mountsFolder || top == lockOlder || top == lockName ||
		strings.HasPrefix(top, snapshotPrefix)
}

// passing reports whether a file is temporary or belongs to one process.
func passing(base string) bool {
	switch path.Ext(base) {
	case ".tmp", ".lock", ".pid", ".sock", ".socket":
		return true
	}
	return base == "local-token" || strings.Contains(base, ".db-host-")
}

// companion reports whether a file is a journal of a SQLite database.
func companion(rel string) bool {
	for _, s := range []string{"-wal", "-shm", "-journal"} {
		if strings.HasSuffix(rel, s) {
			return true
		}
	}
	return false
}
