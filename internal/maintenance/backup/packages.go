package backup

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"gatehouse/internal/files/atomicfile"
)

// packagesFolder, in the data folder, holds a folder for each package.
const packagesFolder = "packages"

// restoredName is the file in that folder with the records of restored packages. The
// packages are opened after the restore has taken effect.
const restoredName = ".restored.json"

var packageID = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)

// records returns the records of all packages or, with ids, of these.
func (r *Manager) records(ctx context.Context, ids []string) (map[string]json.RawMessage, error) {
	all := map[string]json.RawMessage{}
	if r.o.Packages != nil {
		var err error
		if all, err = r.o.Packages(ctx); err != nil {
			return nil, err
		}
	}
	return pick(all, ids, "this host")
}

// pick returns the records with some ids, or all if there are no ids. of names the
// owner of the records in errors.
func pick(all map[string]json.RawMessage, ids []string, of string) (map[string]json.RawMessage, error) {
	if len(ids) == 0 {
		return all, nil
	}
	some := map[string]json.RawMessage{}
	for _, id := range ids {
		record, ok := all[id]
		switch {
		case !ok && len(all) == 0:
			return nil, invalid("no such package %.40q: %s has none", id, of)
		case !ok:
			return nil, invalid(
				"no such package %.40q; %s has %s",
				id,
				of,
				strings.Join(slices.Sorted(maps.Keys(all)), ", "),
			)
		}
		some[id] = record
	}
	return some, nil
}

// choose returns the packages that a restore is limited to, with their records; none
// means everything.
func (m *Manifest) choose(ids []string) ([]string, map[string]json.RawMessage, error) {
	if len(ids) == 0 && !m.OfPackages() {
		return nil, nil, nil
	}
	records, err := pick(m.Packages, ids, "the backup")
	if err != nil && len(m.Packages) == 0 {
		err = invalid(
			"no package can be restored from this backup: it holds none, or release %.40q, which created it, "+
				"stored no records of them; restore everything",
			m.Version,
		)
	}
	return slices.Sorted(maps.Keys(records)), records, err
}

// packageOf returns the id of the package that a file belongs to, or "".
func (f File) packageOf() string {
	below, ok := strings.CutPrefix(f.Path, packagesFolder+"/")
	id, _, file := strings.Cut(below, "/")
	if f.Folder != dataFolder || !ok || !file {
		return ""
	}
	return id
}

func (m *Manifest) inPackage(f File) bool {
	_, ok := m.Packages[f.packageOf()]
	return ok
}

// chosenFiles selects the files of some packages; no ids means all files.
func chosenFiles(ids []string) func(File) bool {
	return func(f File) bool { return len(ids) == 0 || slices.Contains(ids, f.packageOf()) }
}

// putPackagesAside moves the folders of the packages to restore out of the way.
func (o *order) putPackagesAside(f Folders, rename renaming) error {
	saved := filepath.Join(f.Data, savedFolder)
	begun := filepath.Join(f.Data, stagedFolder, "aside")
	if _, err := os.Stat(begun); errors.Is(err, fs.ErrNotExist) {
		if err := f.removeAll(saved); err != nil {
			return err
		}
		if err := atomicfile.Write(begun, nil); err != nil {
			return err
		}
	}
	for _, id := range o.Packages {
		if err := move(filepath.Join(f.Data, packagesFolder, id),
			filepath.Join(saved, packagesFolder, id), rename); err != nil {
			return err
		}
	}
	return nil
}

// WriteRestored stores the records of restored packages for ReadRestored. folder is
// that of the packages.
func WriteRestored(folder string, records map[string]json.RawMessage) error {
	text, err := json.Marshal(records)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(folder, restoredName), text)
}

// ReadRestored returns the records of packages that were restored since done was last
// called. The caller calls done when it has stored them; until then ReadRestored
// returns them again.
func ReadRestored(folder string) (records map[string]json.RawMessage, done func() error, err error) {
	path := filepath.Join(folder, restoredName)
	text, err := atomicfile.Read(path, maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, func() error { return nil }, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &records)
	}
	return records, func() error { return os.Remove(path) }, err
}

// PackagesWaiting returns the ids of the packages that a pending restore is limited
// to; none if there is no such restore.
func PackagesWaiting(f Folders) ([]string, error) {
	w, err := Waiting(f)
	if w == nil || err != nil {
		return nil, err
	}
	return w.Packages, nil
}

// PutPackages applies a pending restore of packages while a host runs, and stores
// their records for ReadRestored. The caller holds the packages, so that no other
// host uses their folders. If it is interrupted, the next call or the next start of a
// host continues.
func PutPackages(f Folders) (*Restored, error) {
	l, err := f.lockRestore()
	if err != nil {
		return nil, err
	}
	defer l.Release()
	o, err := readOrder(f)
	switch {
	case err != nil:
		return nil, err
	case o == nil:
		return nil, nil // it was cancelled
	case len(o.Packages) == 0:
		return nil, errors.New("the pending restore replaces everything; restart the host to apply it")
	}
	return applyRestored(f, os.Rename)
}

// CheckPackages returns an error if an id is not a package of this host.
func (r *Manager) CheckPackages(ctx context.Context, ids []string) error {
	_, err := r.records(ctx, ids)
	return err
}

// FindBackup is Info for the backup that a restore of packages, or of everything, would use.
func (r *Manager) FindBackup(
	ctx context.Context, target, name string, packages []string, key Key,
) (Entry, *Manifest, error) {
	e, m, err := r.backupInfo(ctx, target, name, len(packages) == 0, key)
	if err == nil {
		_, _, err = m.choose(packages)
	}
	return e, m, err
}
