package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"gatehouse/internal/files/atomicfile"
	"gatehouse/internal/files/filelock"
)

// Restored describes a restore.
type Restored struct {
	Backup  string    `json:"backup"`
	Created time.Time `json:"created"` // time of the backup
	Host    Host      `json:"host"`    // that created it
	Files   int       `json:"files"`
	// Packages are the ids of the packages that it was limited to; none means
	// everything.
	Packages []string `json:"packages,omitempty"`
}

// order describes a restore that has not taken effect. It is written to the data
// folder after everything was unpacked.
type order struct {
	Restored
	Saved   bool                       `json:"saved"`             // the current files were moved aside
	Records map[string]json.RawMessage `json:"records,omitempty"` // of Packages
}

const orderName = "restore.json"

// stage unpacks a backup into the staging folders. If it returns an error, it leaves
// nothing there.
func stage(
	ctx context.Context,
	f Folders,
	r io.Reader,
	key Key,
	name string,
	packages []string,
) (m *Manifest, err error) {
	a, err := openArchive(r, key)
	if err != nil {
		return nil, err
	}
	defer a.closeArchive()
	if f.Data == "" {
		return nil, errors.New("this host keeps nothing on disk")
	}
	o := order{Restored: Restored{Backup: name, Created: a.manifest.Created, Host: a.manifest.Host}}
	if o.Packages, o.Records, err = a.manifest.choose(packages); err != nil {
		return nil, err
	}
	l, err := f.lockRestore()
	if err != nil {
		return nil, err
	}
	defer l.Release()
	if err := unstage(f); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unstage(f))
		}
	}()
	if o.Files, err = unpack(ctx, a, f, chosenFiles(o.Packages)); err != nil {
		return nil, err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	return a.manifest, atomicfile.Write(f.orderFile(), text)
}

func (f Folders) orderFile() string { return filepath.Join(f.Data, stagedFolder, orderName) }

// place returns where the files of a folder are staged, and where they go.
func (f Folders) place(folder string) (staged, final string) {
	for _, n := range f.existing() {
		if n.name == folder {
			return filepath.Join(n.path, stagedFolder, folder), n.path
		}
	}
	return "", ""
}

// unstage removes a restore that has not taken effect. The order is removed first,
// because without it the other files have no effect.
func unstage(f Folders) error {
	if err := os.Remove(f.orderFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, n := range f.existing() {
		errs = append(errs, os.RemoveAll(filepath.Join(n.path, stagedFolder)))
	}
	if f.KeyFile != "" {
		if err := os.Remove(f.stagedKey()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (f Folders) stagedKey() string { return f.KeyFile + ".restored" }

// unpack writes the chosen files. It reads the others too, because only the end of
// the stream shows that it is complete.
func unpack(ctx context.Context, a *archive, f Folders, chosen func(File) bool) (files int, err error) {
	roots := map[string]*os.Root{}
	defer func() {
		for _, r := range roots {
			r.Close()
		}
	}()
	for {
		file, content, err := a.nextFile()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return files, err
		}
		if ctx.Err() != nil {
			return files, context.Cause(ctx)
		}
		if !chosen(file) {
			continue
		}
		if err := unpackFile(roots, f, file, content); err != nil {
			return files, fmt.Errorf("unpack %s: %w", file.Member(), err)
		}
		files++
	}
}

func unpackFile(roots map[string]*os.Root, f Folders, file File, content io.Reader) error {
	if file.Folder == keyFolder {
		if !f.keyElsewhere() { // here the key is in the folder
			if f.Config == "" {
				return errors.New("this host has no folder for the key of the secrets")
			}
			file.Folder, file.Path = configFolder, "secrets.key"
		} else {
			return writeKey(f.stagedKey(), content)
		}
	}
	root := roots[file.Folder]
	if root == nil {
		staged, _ := f.place(file.Folder)
		if staged == "" {
			return errors.New("this host has no such folder")
		}
		if err := os.MkdirAll(staged, 0o700); err != nil {
			return err
		}
		var err error
		if root, err = os.OpenRoot(staged); err != nil {
			return err
		}
		roots[file.Folder] = root
	}
	name := filepath.FromSlash(file.Path)
	if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	to, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, file.Mode.Perm()&0o700|0o600)
	if err != nil {
		return err
	}
	err = copyContent(to, content)
	if e := root.Chtimes(name, file.Modified, file.Modified); err == nil {
		err = e
	}
	return err
}

func copyContent(to *os.File, content io.Reader) error {
	_, err := io.Copy(to, content)
	return errors.Join(streamOrDisk(err), to.Sync(), to.Close())
}

// streamOrDisk returns an error that matches ErrDamaged, unless the disk failed.
func streamOrDisk(err error) error {
	if _, disk := errors.AsType[*fs.PathError](err); err == nil || disk {
		return err
	}
	return broken(err)
}

func writeKey(path string, content io.Reader) error {
	b, err := io.ReadAll(io.LimitReader(content, 1<<20))
	if err != nil {
		return broken(err)
	}
	return atomicfile.Write(path, b)
}

// Waiting returns the restore that takes effect at the next start, or nil.
func Waiting(f Folders) (*Restored, error) {
	o, err := readOrder(f)
	if o == nil || err != nil {
		return nil, err
	}
	return &o.Restored, nil
}

func readOrder(f Folders) (*order, error) {
	if f.Data == "" {
		return nil, nil
	}
	text, err := atomicfile.Read(f.orderFile(), 1<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	o := &order{}
	if err := json.Unmarshal(text, o); err != nil {
		return nil, fmt.Errorf("%s: %w", f.orderFile(), err)
	}
	return o, nil
}

// Cancel removes a restore that has not taken effect, if there is one.
func Cancel(f Folders) error {
	l, err := f.lockRestore()
	if err != nil {
		return err
	}
	defer l.Release()
	return unstage(f)
}

// Enter marks the folders as used by a host until leave is called. Every host calls
// it before it opens a file in them. If a restore waits and no other host uses the
// folders, Enter applies and returns it.
func Enter(f Folders, log *slog.Logger) (done *Restored, leave func(), err error) {
	if f.Data == "" {
		return nil, func() {}, nil
	}
	if err := os.MkdirAll(f.Data, 0o700); err != nil {
		return nil, nil, err
	}
	waiting, err := readOrder(f)
	if err != nil {
		log.Error("the pending restore cannot be read; it is not applied", "err", err)
	}
	if waiting != nil {
		alone, err := f.tryHost(filelock.Exclusive)
		switch {
		case errors.Is(err, filelock.ErrHeld):
			log.Warn("the pending restore waits until no other host is running", "backup", waiting.Backup)
		case err != nil:
			return nil, nil, err
		default:
			done, err = applyRestored(f, os.Rename)
			if err := errors.Join(err, alone.Release()); err != nil {
				return nil, nil, fmt.Errorf("restore %s: %w", waiting.Backup, err)
			}
		}
	}
	held, err := f.holdHost()
	if err != nil {
		return done, nil, err
	}
	return done, func() { held.Release() }, nil
}

// applyRestored replaces the current files with the unpacked ones. If it is interrupted, the
// next call continues.
func applyRestored(f Folders, rename renaming) (*Restored, error) {
	o, err := readOrder(f) // again, because another host may have applied it
	if o == nil || err != nil {
		return nil, err
	}
	if !o.Saved {
		aside := putAside
		if len(o.Packages) > 0 {
			aside = o.putPackagesAside
		}
		if err := aside(f, rename); err != nil {
			return nil, fmt.Errorf("move the current files aside: %w", err)
		}
		o.Saved = true
		text, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		if err := atomicfile.Write(f.orderFile(), text); err != nil {
			return nil, err
		}
	}
	for _, n := range f.existing() {
		staged, final := f.place(n.name)
		if err := moveAll(staged, final, rename); err != nil {
			return nil, err
		}
	}
	if len(o.Packages) > 0 {
		if err := WriteRestored(filepath.Join(f.Data, packagesFolder), o.Records); err != nil {
			return nil, err
		}
	}
	if f.keyElsewhere() {
		if err := move(f.stagedKey(), f.KeyFile, rename); err != nil {
			return nil, err
		}
	}
	return &o.Restored, unstage(f)
}

// putAside moves all files that a backup would hold, and the journals of databases,
// to savedFolder. It first removes what an earlier restore moved there, but not what
// this one did before an interruption.
func putAside(f Folders, rename renaming) error {
	for _, n := range f.existing() {
		staged, _ := f.place(n.name)
		if _, err := os.Stat(staged); errors.Is(err, fs.ErrNotExist) {
			continue // the backup has no files for this folder
		}
		saved := filepath.Join(n.path, savedFolder)
		begun := filepath.Join(n.path, stagedFolder, "aside")
		if _, err := os.Stat(begun); errors.Is(err, fs.ErrNotExist) {
			if err := f.removeAll(saved); err != nil {
				return err
			}
			if err := atomicfile.Write(begun, nil); err != nil {
				return err
			}
		}
		if n.name == dataFolder {
			if err := f.putPackedAside(saved, rename); err != nil {
				return err
			}
		}
		var there []string
		if err := walk(n.path, f, true, func(rel string, _ fs.FileInfo) error {
			there = append(there, rel)
			return nil
		}); err != nil {
			return err
		}
		for _, rel := range there {
			if err := move(filepath.Join(n.path, rel), filepath.Join(saved, rel), rename); err != nil {
				return err
			}
		}
	}
	if f.keyElsewhere() {
		if _, err := os.Stat(f.stagedKey()); err == nil {
			return move(f.KeyFile, f.KeyFile+".before-restore", rename)
		}
	}
	return nil
}

// putPackedAside moves the folders of NotNow to the folder saved as they are, because this process may not be able to
// move the files in them. It is done before other files are moved, so that NotNow still finds them after an
// interruption.
func (f Folders) putPackedAside(saved string, rename renaming) error {
	if f.NotNow == nil {
		return nil
	}
	for _, dir := range f.NotNow() {
		rel, err := filepath.Rel(f.Data, dir)
		if err == nil && !filepath.IsLocal(rel) {
			err = fmt.Errorf("%s is not in %s", dir, f.Data)
		}
		if err != nil {
			return err
		}
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			continue // it was moved before an interruption
		}
		if err := move(dir, filepath.Join(saved, rel), rename); err != nil {
			return err
		}
	}
	return nil
}

// renaming is os.Rename, except in tests.
type renaming func(from, to string) error

// move moves a file, if it exists, and creates the folders above its new path.
func move(from, to string, rename renaming) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	if err := rename(from, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return atomicfile.SyncFolder(filepath.Dir(to))
}

func moveAll(from, to string, rename renaming) error {
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		return move(p, filepath.Join(to, rel), rename)
	})
}
