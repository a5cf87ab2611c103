package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
)

// withPackages gives a machine packages, each with a program and data.
func (m *machine) withPackages(ids ...string) {
	records := map[string]json.RawMessage{}
	for _, id := range ids {
		m.put(m.Data, "packages/"+id+"/program-1/run.js", id+" program")
		m.put(m.Data, "packages/"+id+"/data/notes", id+" notes")
		records[id] = json.RawMessage(fmt.Sprintf(`{"id":%q}`, id))
	}
	m.backups.o.Packages = func(context.Context) (map[string]json.RawMessage, error) { return records, nil }
}

// some makes a backup of packages alone.
func (m *machine) some(ids ...string) (Made, error) {
	m.t.Helper()
	h, err := m.backups.Reserve()
	if err != nil {
		m.t.Fatal(err)
	}
	defer h.Release()
	return h.Create(m.t.Context(), "shelf", ids, key(password), nil)
}

// bringPackages restores packages and starts a host.
func (m *machine) bringPackages(dir, name string, ids ...string) *Restored {
	m.t.Helper()
	h, err := m.backups.Reserve()
	if err != nil {
		m.t.Fatal(err)
	}
	defer h.Release()
	if _, _, err := h.Restore(m.t.Context(), dir, name, ids, key(password), nil); err != nil {
		m.t.Fatal(err)
	}
	done, leave, err := Enter(m.Folders, slog.New(slog.DiscardHandler))
	if err != nil || done == nil {
		m.t.Fatalf("the restore did not take effect: %v, %v", done, err)
	}
	leave()
	return done
}

func TestPackagesAloneAreBackedUp(t *testing.T) {
	m := newMachine(t, "host_a")
	dir := m.target(1)
	m.put(m.Data, "contexts.db", "contexts")
	m.put(m.Config, "gatehouse.yaml", "settings")
	m.withPackages("one", "two")
	whole := m.create()
	m.now = m.now.Add(time.Hour)
	if _, err := m.some("three"); !isInvalid(err) ||
		!strings.Contains(err.Error(), `no such package "three"; this host has one, two`) {
		t.Errorf("a package that is not there: %v", err)
	}
	made, err := m.some("one")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range made.Manifest.Files {
		names = append(names, f.Member())
	}
	if got := strings.Join(names, " "); got != "data/packages/one/data/notes data/packages/one/program-1/run.js" {
		t.Errorf("it holds %s", got)
	}
	if ids := slices.Collect(maps.Keys(made.Manifest.Packages)); !slices.Equal(ids, []string{"one"}) ||
		made.Manifest.Format == format {
		t.Errorf("it holds the packages %v in format %d", ids, made.Manifest.Format)
	}
	// It does not push the backup of everything out of a target that keeps one.
	left, err := m.backups.List(t.Context(), "shelf")
	if err != nil || len(left) != 2 || len(made.Removed) > 0 {
		t.Errorf("there are %v, removed %v, %v", left, made.Removed, err)
	}
	// A restore of everything takes the newest backup of everything.
	if e, _, err := m.backups.FindBackup(t.Context(), "shelf", "", nil, key(password)); err != nil ||
		e.Name != whole.Name {
		t.Errorf("everything would come from %s, %v", e.Name, err)
	}
	if e, _, err := m.backups.FindBackup(t.Context(), "shelf", "", []string{"one"}, key(password)); err != nil ||
		e.Name != made.Name {
		t.Errorf("one would come from %s, %v", e.Name, err)
	}
	for _, name := range []string{whole.Name, made.Name} {
		m.put(m.Data, "packages/one/data/notes", "spoilt")
		m.put(m.Data, "packages/one/data/new", "later")
		m.put(m.Data, "packages/two/data/notes", "two later")
		m.put(m.Data, "contexts.db", "contexts later")
		done := m.bringPackages(dir, name, "one")
		if !slices.Equal(done.Packages, []string{"one"}) || done.Files != 2 {
			t.Errorf("restored %+v", done)
		}
		got := all(t, m.Data)
		for path, want := range map[string]string{
			"packages/one/data/notes": "one notes", "packages/one/data/new": "",
			"packages/one/program-1/run.js": "one program",
			"packages/two/data/notes":       "two later", "contexts.db": "contexts later",
		} {
			if got[path] != want {
				t.Errorf("from %s: %s holds %q, want %q", name, path, got[path], want)
			}
		}
		saved, err := os.ReadFile(filepath.Join(m.Data, savedFolder, "packages/one/data/new"))
		if string(saved) != "later" {
			t.Errorf("what was there is gone: %q, %v", saved, err)
		}
		records, kept, err := ReadRestored(filepath.Join(m.Data, "packages"))
		if err != nil || string(records["one"]) != `{"id":"one"}` || len(records) != 1 {
			t.Errorf("the records are %s, %v", records, err)
		}
		if err := kept(); err != nil {
			t.Error(err)
		}
		if again, _, err := ReadRestored(filepath.Join(m.Data, "packages")); len(again) > 0 || err != nil {
			t.Errorf("the records are given again: %s, %v", again, err)
		}
	}
}

// A backup of packages alone never takes the place of everything, also where no
// package is named.
func TestABackupOfPackagesReplacesNothingElse(t *testing.T) {
	m := newMachine(t, "host_a")
	dir := m.target(0)
	m.withPackages("one", "two")
	made, err := m.some("two")
	if err != nil {
		t.Fatal(err)
	}
	other := newMachine(t, "host_b")
	other.put(other.Data, "contexts.db", "of another host")
	other.put(other.Config, "gatehouse.yaml", "settings")
	if done := other.bringPackages(dir, made.Name); !slices.Equal(done.Packages, []string{"two"}) {
		t.Errorf("restored %+v", done)
	}
	got := all(t, other.Data)
	if got["contexts.db"] != "of another host" || got["packages/two/data/notes"] != "two notes" ||
		got["packages/one/data/notes"] != "" {
		t.Errorf("there is %v", got)
	}
	if _, _, err := other.backups.Restore(t.Context(), dir, "", key(password), nil); !errors.Is(err, ErrNoBackup) {
		t.Errorf("everything is restored from a backup of packages: %v", err)
	}
	// A manifest of packages that names other files is damaged.
	bad := &Manifest{
		Format:   formatPackages,
		Packages: map[string]json.RawMessage{"a": nil},
		Files:    []File{{Folder: "data", Path: "identity.db"}},
	}
	if err := bad.validate(); !errors.Is(err, ErrDamaged) {
		t.Errorf("got %v", err)
	}
}

// Backups of releases that kept no records of packages say so.
func TestPackagesOutOfAnOlderBackup(t *testing.T) {
	m := newMachine(t, "host_a")
	m.target(0)
	m.put(m.Data, "packages/one/data/notes", "notes")
	m.create()
	if _, _, err := m.backups.FindBackup(t.Context(), "shelf", "", []string{"one"}, key(password)); !isInvalid(err) ||
		!strings.Contains(err.Error(), "restore everything") {
		t.Errorf("got %v", err)
	}
}

// A second caller is refused before any work, and an unused claim
// lapses.
func TestOneAtATime(t *testing.T) {
	m := newMachine(t, "host_a")
	m.target(0)
	h, err := m.backups.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := m.backups.Reserve(); !errors.Is(err, ErrBusy) {
			t.Errorf("got %v", err)
		}
	}
	if _, err := m.backups.Create(t.Context(), "shelf", key(password), nil); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	m.now = m.now.Add(holdFor)
	next, err := m.backups.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Create(t.Context(), "shelf", nil, key(password), nil); !errors.Is(err, ErrBusy) {
		t.Errorf("a right that lapsed is used: %v", err)
	}
	h.Release() // takes nothing from the other
	if err := next.use(); err != nil {
		t.Fatal(err)
	}
	m.now = m.now.Add(time.Hour)
	if _, err := m.backups.Reserve(); !errors.Is(err, ErrBusy) {
		t.Errorf("a right in use lapses: %v", err)
	}
	next.Release()
	if h, err = m.backups.Reserve(); err != nil {
		t.Fatal(err)
	}
	h.Release()
}

func TestOneFileIsReadOutOfABackup(t *testing.T) {
	m := newMachine(t, "host_a")
	m.target(0)
	m.put(m.Data, "a/one", "first")
	m.put(m.Data, "a/two", "second")
	m.put(m.Config, "gatehouse.yaml", "settings")
	made := m.create()
	for path, want := range map[string]string{"data/a/two": "second", "config/gatehouse.yaml": "settings"} {
		got := ""
		if err := m.backups.ReadFile(t.Context(), "shelf", "", path, key(password),
			func(e Entry, f File, r io.Reader) error {
				b, err := io.ReadAll(r)
				got = string(b)
				if e.Name != made.Name || f.Member() != path {
					t.Errorf("%s: of %s, %s", path, e.Name, f.Member())
				}
				return err
			}); err != nil ||
			got != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	full := errors.New("no space")
	use := func(Entry, File, io.Reader) error { return full }
	if err := m.backups.ReadFile(t.Context(), "shelf", "", "data/a/one", key(password), use); err != full {
		t.Errorf("an error of the reader's becomes %v", err)
	}
	for _, path := range []string{"data/a", "data/a/three", "../data/a/one", ""} {
		if err := m.backups.ReadFile(t.Context(), "shelf", "", path, key(password), use); !errors.Is(err, ErrNoFile) {
			t.Errorf("%q: %v", path, err)
		}
	}
	if err := m.backups.ReadFile(t.Context(), "shelf", "", "data/a/one",
		Key{Password: secret.New("another password")}, use); !errors.Is(
		err,
		ErrPassword,
	) {
		t.Errorf("got %v", err)
	}
	list := made.Manifest.Folder("data")
	if len(list) != 1 || list[0] != (Below{"a/", 11}) {
		t.Errorf("data holds %+v", list)
	}
	if list := made.Manifest.Folder("data/none"); len(list) > 0 {
		t.Errorf("nothing holds %+v", list)
	}
}
