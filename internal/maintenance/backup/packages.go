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

// restoredName is the file in it with the records of packages that a restore
// brought back. The packages are opened later than the restore takes effect.
const restoredName = ".restored.json"

var packageID = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)

// records are those of all packages or, with ids, of these.
func (r *Room) records(ctx context.Context, ids []string) (map[string]json.RawMessage, error) {
	all := map[string]json.RawMessage{}
	if r.o.Packages != nil {
		var err error
		if all, err = r.o.Packages(ctx); err != nil {
			return nil, err
		}
	}
	return pick(all, ids, "this host")
}

// pick takes the records of some packages out of those that something holds; no
// ids means all.
func pick(all map[string]json.RawMessage, ids []string, of string) (map[string]json.RawMessage, error) {
	if len(ids) == 0 {
		return all, nil
	}
	some := map[string]json.RawMessage{}
	for _, id := range ids {
		record, ok := all[id]
		switch {
		case !ok && len(all) == 0:
			return nil, invalid("there is no package %.40q: %s has none", id, of)
		case !ok:
			return nil, invalid("there is no package %.40q; %s has %s", id, of, strings.Join(slices.Sorted(maps.Keys(all)), ", "))
		}
		some[id] = record
	}
	return some, nil
}

// choose says which packages a restore brings back alone, with their records;
// none means everything.
func (m *Manifest) choose(ids []string) ([]string, map[string]json.RawMessage, error) {
	if len(ids) == 0 && !m.OfPackages() {
		return nil, nil, nil
	}
	records, err := pick(m.Packages, ids, "the backup")
	if err != nil && len(m.Packages) == 0 {
		err = invalid("no package can be taken out of this backup: it holds none, or %.40q made it, a release that kept no records of them; restore it whole", m.Version)
	}
	return slices.Sorted(maps.Keys(records)), records, err
}

// packageOf is the id of the package a file belongs to; "" when to none.
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

// chosenFiles are those of some packages; no ids means all files.
func chosenFiles(ids []string) func(File) bool {
	return func(f File) bool { return len(ids) == 0 || slices.Contains(ids, f.packageOf()) }
}

// putPackagesAside moves the folders of the packages that are brought back out
// of the way, and nothing else.
func (o *order) putPackagesAside(f Folders, rename renaming) error {
	saved := filepath.Join(f.Data, savedFolder)
	begun := filepath.Join(f.Data, stagedFolder, "aside")
	if _, err := os.Stat(begun); errors.Is(err, fs.ErrNotExist) {
		if err := os.RemoveAll(saved); err != nil {
			return err
		}
		if err := atomicfile.Write(begun, nil); err != nil {
			return err
		}
	}
	for _, id := range o.Packages {
		if err := move(filepath.Join(f.Data, packagesFolder, id), filepath.Join(saved, packagesFolder, id), rename); err != nil {
			return err
		}
	}
	return nil
}

// WriteRestored leaves the records of packages that were brought back for
// TakeRestored. folder is that of the packages.
func WriteRestored(folder string, records map[string]json.RawMessage) error {
	text, err := json.Marshal(records)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(folder, restoredName), text)
}

// TakeRestored gives the records of packages that a restore has brought back
// since the last time. done is called when they are kept; until then they are
// given again.
func TakeRestored(folder string) (records map[string]json.RawMessage, done func() error, err error) {
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

// PackagesWaiting gives the ids of the packages that a restore of packages alone is
// to bring back; none if no such restore waits.
func PackagesWaiting(f Folders) ([]string, error) {
	w, err := Waiting(f)
	if w == nil || err != nil {
		return nil, err
	}
	return w.Packages, nil
}

// PutPackages puts a restore of packages alone in place while a host runs, and
// leaves their records for TakeRestored. The caller holds the packages, so that
// no other host uses their folders. It can be interrupted at any point and goes
// on when it is called again, or when a host starts.
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
		return nil, nil // it was cancelled meanwhile
	case len(o.Packages) == 0:
		return nil, errors.New("the restore that waits replaces everything, which is done when a host starts")
	}
	return apply(f, os.Rename)
}

// CheckPackages says which of some ids is no package of this host.
func (r *Room) CheckPackages(ctx context.Context, ids []string) error {
	_, err := r.records(ctx, ids)
	return err
}

// Find is Info for what a restore of packages, or of everything, would take.
func (r *Room) Find(ctx context.Context, target, name string, packages []string, key Key) (Entry, *Manifest, error) {
	e, m, err := r.info(ctx, target, name, len(packages) == 0, key)
	if err == nil {
		_, _, err = m.choose(packages)
	}
	return e, m, err
}
