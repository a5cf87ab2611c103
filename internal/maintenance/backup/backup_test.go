package backup

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/files/sqlfile"
)

const password = "correct horse battery"

// machine is one person's folders with a room.
type machine struct {
	t *testing.T
	Folders
	backups *Manager
	now     time.Time
}

func newMachine(t *testing.T, id string) *machine {
	t.Helper()
	top := t.TempDir()
	m := &machine{t: t, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	m.Folders = Folders{
		Data:   filepath.Join(top, "data"),
		Config: filepath.Join(top, "config"),
		State:  filepath.Join(top, "state"),
	}
	m.backups = New(Options{
		Folders: m.Folders, Secrets: secret.In(m.Config, ""), Version: "test", work: 4,
		Host: func(context.Context) (Host, error) { return Host{ID: id, Name: "house"}, nil },
		now:  func() time.Time { return m.now },
		part: 5 << 20,
	})
	return m
}

func (m *machine) put(folder, name, text string) {
	m.t.Helper()
	path := filepath.Join(folder, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		m.t.Fatal(err)
	}
}

// target makes a target in a folder.
func (m *machine) target(keep int) (dir string) {
	m.t.Helper()
	dir = m.t.TempDir()
	if err := m.backups.SetTarget(m.t.Context(),
		Target{Name: "shelf", Kind: Directory, Path: dir, Keep: keep}); err != nil {
		m.t.Fatal(err)
	}
	return dir
}

func (m *machine) create() Made {
	m.t.Helper()
	made, err := m.backups.Create(m.t.Context(), "shelf", key(password), nil)
	if err != nil {
		m.t.Fatal(err)
	}
	return made
}

// bring restores the newest backup of a folder and starts a host.
func (m *machine) bring(dir string) {
	m.t.Helper()
	if err := m.backups.SetTarget(m.t.Context(), Target{Name: "shelf", Kind: Directory, Path: dir}); err != nil {
		m.t.Fatal(err)
	}
	if _, _, err := m.backups.Restore(m.t.Context(), "shelf", "", key(password), nil); err != nil {
		m.t.Fatal(err)
	}
	done, leave, err := Enter(m.Folders, slog.New(slog.DiscardHandler))
	if err != nil || done == nil {
		m.t.Fatalf("the restore did not take effect: %v, %v", done, err)
	}
	leave()
}

func key(text string) Key { return Key{Password: secret.New(text)} }

// all gives the files below a folder but those of this package, with what they
// hold.
func all(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := walk(dir, Folders{}, true, func(rel string, _ fs.FileInfo) error {
		b, err := os.ReadFile(filepath.Join(dir, rel))
		got[rel] = string(b)
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return got
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// database opens a file of numbers, in the way this house does.
func database(t *testing.T, path string) *sql.DB {
	t.Helper()
	f := &sqlfile.File{Path: path, Version: 7, Schema: "CREATE TABLE n (a INTEGER, b INTEGER)"}
	db, err := f.DB()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return db
}

func count(t *testing.T, path string) (a, b int) {
	t.Helper()
	if err := database(t, path).QueryRow("SELECT COUNT(a), COUNT(b) FROM n").Scan(&a, &b); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func TestABackupBringsEverythingToAFreshMachine(t *testing.T) {
	old := newMachine(t, "host_a")
	old.put(old.Data, "keys.json", "{}")
	old.put(old.Data, "packages/one/deep/file", strings.Repeat("package data ", 200_000))
	old.put(old.Config, "gatehouse.yaml", "log: {}\n")
	old.put(old.State, "local-token", "not worth keeping")
	old.put(old.State, "contexts.db.lock", "")
	old.put(old.Data, "empty", "")
	if err := secret.In(old.Config, "").Set("MAIL", secret.New("hunter2-hunter2")); err != nil {
		t.Fatal(err)
	}
	db := database(t, filepath.Join(old.Data, "state.db")) // open, with what it holds in its log
	for i := range 500 {
		if _, err := db.Exec("INSERT INTO n VALUES (?, ?)", i, i); err != nil {
			t.Fatal(err)
		}
	}
	dir := old.target(0)
	var seen []string
	made, err := old.backups.Create(t.Context(), "shelf", key(password), func(phase string, done, total int64) {
		if len(seen) == 0 || seen[len(seen)-1] != phase {
			seen = append(seen, phase)
		}
		if total > 0 && done > total {
			t.Errorf("%s: %d of %d", phase, done, total)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(seen, []string{PhaseSnapshot, PhaseWrite, PhaseTidy}) {
		t.Errorf("phases %v", seen)
	}
	if left := names(t, dir); len(left) != 1 || left[0] != made.Name {
		t.Errorf("the target holds %v, want %s alone", left, made.Name)
	}
	sealed, err := os.ReadFile(filepath.Join(dir, made.Name))
	if err != nil || int64(len(sealed)) != made.Size || bytes.Contains(sealed, []byte("package data")) {
		t.Errorf("%d bytes, said to be %d, %v; want it encrypted", len(sealed), made.Size, err)
	}
	if info, err := os.Stat(filepath.Join(dir, made.Name)); err != nil ||
		runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}

	fresh := newMachine(t, "host_b")
	fresh.put(fresh.Data, "keys.json", "its own")
	fresh.put(fresh.Data, "stale.db", "its own")
	fresh.put(fresh.Data, "state.db-wal", "of another database")
	fresh.bring(dir)
	want, got := all(t, old.Data), all(t, fresh.Data)
	for _, m := range []map[string]string{want, got} {
		maps.DeleteFunc(m, func(name, _ string) bool { return strings.HasPrefix(name, "state.db") })
	}
	if !maps.Equal(got, want) {
		t.Errorf("the data folder holds %v, want %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
	if a, _ := count(t, filepath.Join(fresh.Data, "state.db")); a != 500 {
		t.Errorf("the database has %d rows, want 500", a)
	}
	if v, err := secret.In(fresh.Config, "").Get("MAIL"); err != nil || v.Reveal() != "hunter2-hunter2" {
		t.Errorf("the secret is lost: %v", err)
	}
	if _, there := all(t, fresh.State)["local-token"]; there {
		t.Error("the token of a process was brought along")
	}
	saved := all(t, filepath.Join(fresh.Data, savedFolder))
	if saved["stale.db"] != "its own" || saved["keys.json"] != "its own" || len(saved) != 3 {
		t.Errorf("put aside: %v", saved)
	}
	for _, dir := range []string{fresh.Data, fresh.Config, fresh.State} {
		if _, err := os.Stat(filepath.Join(dir, stagedFolder)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: something is still staged (%v)", dir, err)
		}
	}
}

// What is left out of backups is also left where it is.
func TestSomeFoldersAreLeftAlone(t *testing.T) {
	old := newMachine(t, "host_a")
	old.put(old.State, "processes/1", "of the old machine")
	old.put(old.State, "jobs", "old")
	old.Not = []string{filepath.Join(old.State, "processes"), filepath.Join(old.State, "nothing")}
	old.backups.o.Folders = old.Folders
	dir := old.target(0)
	old.create()
	fresh := newMachine(t, "host_b")
	fresh.put(fresh.State, "processes/1", "of the new one")
	fresh.put(fresh.State, "jobs", "new")
	fresh.Not = []string{filepath.Join(fresh.State, "processes")}
	fresh.backups.o.Folders = fresh.Folders
	fresh.bring(dir)
	if got, want := all(t, fresh.State), map[string]string{"processes/1": "of the new one", "jobs": "old"}; !maps.Equal(
		got,
		want,
	) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Each database is seen at one moment, whatever is written meanwhile.
func TestDatabasesInUseAreWhole(t *testing.T) {
	m := newMachine(t, "host_a")
	db := database(t, filepath.Join(m.Data, "busy.db"))
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	defer writing.Wait()
	defer stop()
	begun := make(chan struct{})
	writing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			tx, err := db.Begin()
			if err == nil {
				_, e := tx.Exec("INSERT INTO n (a) VALUES (?)", i)
				_, f := tx.Exec("INSERT INTO n (b) VALUES (?)", i)
				err = errors.Join(e, f, tx.Commit())
			}
			if err != nil {
				t.Error(err)
				return
			}
			if i == 10 {
				close(begun)
			}
		}
	})
	<-begun
	dir := m.target(0)
	for range 5 {
		m.create()
	}
	fresh := newMachine(t, "host_b")
	fresh.bring(dir)
	if a, b := count(t, filepath.Join(fresh.Data, "busy.db")); a != b || a < 10 {
		t.Errorf("%d and %d rows, want as many of both", a, b)
	}
}

func TestAnInterruptedBackupLeavesNothing(t *testing.T) {
	m := newMachine(t, "host_a")
	m.put(m.Data, "large", strings.Repeat("x", 4<<20))
	dir := m.target(0)
	for _, at := range []string{PhaseSnapshot, PhaseWrite} {
		ctx, cancel := context.WithCancelCause(t.Context())
		stopped := errors.New("somebody pulled the plug")
		_, err := m.backups.Create(ctx, "shelf", key(password), func(phase string, _, _ int64) {
			if phase == at {
				cancel(stopped)
			}
		})
		if !errors.Is(err, stopped) {
			t.Errorf("%s: got %v", at, err)
		}
	}
	if left := names(t, dir); len(left) > 0 {
		t.Errorf("the target holds %v", left)
	}
	if left, _ := filepath.Glob(filepath.Join(m.Data, snapshotPrefix+"*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestWhatOthersLeftUnfinishedIsTakenAway(t *testing.T) {
	m := newMachine(t, "host_a")
	dir := m.target(0)
	old, young, foreign := unfinished(newName("x", m.now, false)), unfinished(newName("x", m.now, false)), ".notes.part"
	for _, name := range []string{old, young, foreign} {
		m.put(dir, name, "half")
	}
	ago := time.Now().Add(-48 * time.Hour)
	for _, name := range []string{old, foreign} {
		if err := os.Chtimes(filepath.Join(dir, name), ago, ago); err != nil {
			t.Fatal(err)
		}
	}
	m.create()
	if left := names(t, dir); slices.Contains(left, old) || !slices.Contains(left, young) ||
		!slices.Contains(left, foreign) {
		t.Errorf("the target holds %v", left)
	}
}

func TestATargetKeepsTheNewestOfEachHost(t *testing.T) {
	m, other := newMachine(t, "host_a"), newMachine(t, "host_b")
	dir := m.target(2)
	if err := other.backups.SetTarget(t.Context(),
		Target{Name: "shelf", Kind: Directory, Path: dir, Keep: 1}); err != nil {
		t.Fatal(err)
	}
	theirs := other.create()
	var made []string
	for range 4 {
		m.now = m.now.Add(time.Hour)
		made = append(made, m.create().Name)
	}
	got, err := m.backups.List(t.Context(), "shelf")
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range got {
		left = append(left, e.Name)
		if e.Own == (e.Name == theirs.Name) || e.Size <= 0 || e.Created.IsZero() {
			t.Errorf("%+v", e)
		}
	}
	if want := []string{made[3], made[2], theirs.Name}; !slices.Equal(left, want) {
		t.Errorf("the target holds %v, want %v", left, want)
	}
}

func TestInfoReadsTheBeginningAlone(t *testing.T) {
	m := newMachine(t, "host_a")
	m.put(m.Data, "zeros", strings.Repeat("\x00", 1<<20))
	var noise strings.Builder
	for i := range 300_000 {
		fmt.Fprintf(&noise, "%x,", i*2654435761)
	}
	m.put(m.Data, "noise", noise.String())
	dir := m.target(0)
	made := m.create()
	e, manifest, err := m.backups.Info(t.Context(), "", "", key(password))
	if err != nil {
		t.Fatal(err)
	}
	if e.Name != made.Name || e.Size != made.Size || manifest.Host != (Host{"host_a", "house"}) ||
		manifest.Version != "test" ||
		!manifest.Created.Equal(m.now) {
		t.Errorf("got %+v, %+v", e, manifest)
	}
	if !slices.ContainsFunc(
		manifest.Files,
		func(f File) bool { return f.Member() == "data/zeros" && f.Size == 1<<20 },
	) {
		t.Errorf("files %+v", manifest.Files)
	}
	if err := os.Truncate(filepath.Join(dir, made.Name), made.Size/2); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.backups.Info(t.Context(), "shelf", made.Name, key(password)); err != nil {
		t.Errorf("the end was asked for: %v", err)
	}
}

//redteam:attack A backup is as closed as its password: a backup that was changed or cut short
func TestDamageChangesNothing(t *testing.T) {
	m := newMachine(t, "host_a")
	m.put(m.Data, "file", strings.Repeat("something to lose ", 10_000))
	dir := m.target(0)
	made := m.create()
	path := filepath.Join(dir, made.Name)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before := all(t, m.Data)
	try := func(what string, b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := m.backups.Restore(t.Context(), "shelf", made.Name, key(password), nil)
		if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrPassword) {
			t.Errorf("%s: got %v", what, err)
		}
		if w, err := Waiting(m.Folders); w != nil || err != nil {
			t.Errorf("%s: %v waits, %v", what, w, err)
		}
	}
	for _, n := range []int{0, 10, 100, len(whole) / 2, len(whole) - 17, len(whole) - 1} {
		try(fmt.Sprintf("cut at %d", n), whole[:n])
	}
	for _, n := range []int{0, 30, 60, 200, len(whole) / 2, len(whole) - 1} {
		b := slices.Clone(whole)
		b[n] ^= 1
		try(fmt.Sprintf("bit at %d", n), b)
	}
	if after := all(t, m.Data); !maps.Equal(before, after) {
		t.Errorf("the data folder has changed: %v", after)
	}
}

func TestKeys(t *testing.T) {
	m := newMachine(t, "host_a")
	m.put(m.Data, "file", "text")
	m.target(0)
	for want, k := range map[string]Key{
		"the password has 5 bytes": key("short"),
		"the password has 0 bytes": {},
		"is not a public key":      {Recipients: []string{"age1nothing"}},
		"not with both":            {Recipients: []string{"age1nothing"}, Password: secret.New(password)},
	} {
		if _, err := m.backups.Create(t.Context(), "shelf", k, nil); !isInvalid(err) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	pair, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	made, err := m.backups.Create(t.Context(), "shelf", Key{Recipients: []string{pair.Recipient().String()}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	info := func(k Key) error {
		_, _, err := m.backups.Info(t.Context(), "shelf", made.Name, k)
		return err
	}
	if err := info(Key{Identity: secret.New("# kept apart\n" + pair.String() + "\n")}); err != nil {
		t.Error(err)
	}
	if err := info(key(password)); !errors.Is(err, ErrPassword) {
		t.Errorf("with a password: %v", err)
	}
	if err := info(Key{Identity: secret.New("hunter2")}); !isInvalid(err) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
	if err := info(Key{}); !isInvalid(err) {
		t.Errorf("got %v", err)
	}
	made = m.create()
	if err := info(key(password + "!")); !errors.Is(err, ErrPassword) {
		t.Errorf("with a wrong password: %v", err)
	}
}

func isInvalid(err error) bool {
	_, is := errors.AsType[*Invalid](err)
	return is
}

func TestTheKeyOfTheSecretsMayLieElsewhere(t *testing.T) {
	old := newMachine(t, "host_a")
	old.KeyFile = filepath.Join(t.TempDir(), "key")
	old.backups.o.Folders = old.Folders
	if err := secret.In(old.Config, old.KeyFile).Set("A", secret.New("value")); err != nil {
		t.Fatal(err)
	}
	dir := old.target(0)
	old.create()
	for name, elsewhere := range map[string]bool{"elsewhere": true, "in the folder": false} {
		t.Run(name, func(t *testing.T) {
			fresh := newMachine(t, "host_b")
			if elsewhere {
				fresh.KeyFile = filepath.Join(t.TempDir(), "other", "key")
				fresh.put(filepath.Dir(fresh.KeyFile), "key", "# another")
				fresh.backups.o.Folders = fresh.Folders
			}
			fresh.bring(dir)
			if v, err := secret.In(fresh.Config, fresh.KeyFile).Get("A"); err != nil || v.Reveal() != "value" {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestTargetsThatCannotBe(t *testing.T) {
	m := newMachine(t, "host_a")
	inside := filepath.Join(m.Data, "in", "side")
	if err := os.MkdirAll(inside, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(inside, link); err != nil {
		t.Fatal(err)
	}
	s3 := Target{
		Name:      "x",
		Kind:      S3,
		Endpoint:  "https://s3.example.com",
		Bucket:    "bucket",
		AccessKey: "key",
		Secret:    "S",
	}
	smb := Target{Name: "x", Kind: SMB, Host: "nas", Share: "backups"}
	with := func(t Target, f func(*Target)) Target { f(&t); return t }
	for want, target := range map[string]Target{
		"name":                             {Name: "X y", Kind: Directory, Path: t.TempDir()},
		"kind":                             {Name: "x", Kind: "tape"},
		"keep is -1":                       {Name: "x", Kind: Directory, Path: t.TempDir(), Keep: -1},
		"expected an absolute path":        {Name: "x", Kind: Directory, Path: "relative"},
		"the folder does not exist":        {Name: "x", Kind: Directory, Path: filepath.Join(t.TempDir(), "gone")},
		"is in a folder that is backed up": {Name: "x", Kind: Directory, Path: inside},
		"link\" is in a folder":            {Name: "x", Kind: Directory, Path: link},
		"bucket is for":                    {Name: "x", Kind: Directory, Path: t.TempDir(), Bucket: "b"},
		"host is for":                      {Name: "x", Kind: Directory, Path: t.TempDir(), Host: "b"},
		"endpoint \"ftp://":                with(s3, func(t *Target) { t.Endpoint = "ftp://s3.example.com" }),
		"endpoint \"https://s/path":        with(s3, func(t *Target) { t.Endpoint = "https://s/path" }),
		"bucket \"B\"":                     with(s3, func(t *Target) { t.Bucket = "B" }),
		"region":                           with(s3, func(t *Target) { t.Region = "eu/1" }),
		"needs access_key":                 with(s3, func(t *Target) { t.AccessKey = "" }),
		"secret: name":                     with(s3, func(t *Target) { t.Secret = "two words" }),
		"path \"../x\"":                    with(s3, func(t *Target) { t.Path = "../x" }),
		"needs the secret S; store":        s3,
		"needs host and share":             with(smb, func(t *Target) { t.Share = "" }),
		"needs secret, the name":           with(smb, func(t *Target) { t.User = "me" }),
		"path \"/abs\"":                    with(smb, func(t *Target) { t.Path = "/abs" }),
	} {
		if err := m.backups.SetTarget(t.Context(), target); !isInvalid(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if all, err := m.backups.Targets(); len(all) > 0 || err != nil {
		t.Errorf("there are targets %v, %v", all, err)
	}
	if err := m.backups.RemoveTarget("x"); !errors.Is(err, ErrNoTarget) {
		t.Errorf("got %v", err)
	}
	if _, err := m.backups.List(t.Context(), ""); !errors.Is(err, ErrNoTarget) {
		t.Errorf("got %v", err)
	}
	m.target(1)
	if _, _, err := m.backups.Info(t.Context(), "", "../../etc/passwd", key(password)); !isInvalid(err) {
		t.Errorf("got %v", err)
	}
	if _, _, err := m.backups.Info(t.Context(), "", newName("x", m.now, false), key(password)); !errors.Is(
		err,
		ErrNoBackup,
	) {
		t.Errorf("got %v", err)
	}
	if _, _, err := m.backups.Restore(t.Context(), "", "", key(password), nil); !errors.Is(err, ErrNoBackup) {
		t.Errorf("got %v", err)
	}
	if err := m.backups.RemoveTarget("shelf"); err != nil {
		t.Error(err)
	}
}
