package backup

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

var quiet = slog.New(slog.DiscardHandler)

// A restore that is interrupted between any two steps goes on where it was.
//
//redteam:attack A kill leaves whole files: a restore is interrupted at every step
func TestARestoreSurvivesInterruptions(t *testing.T) {
	old := newMachine(t, "host_a")
	for i := range 3 {
		old.put(old.Data, "d"+strconv.Itoa(i), "new")
		old.put(old.Config, "sub/c"+strconv.Itoa(i), "new")
	}
	dir := old.target(0)
	old.create()
	for stop := 0; ; stop++ {
		m := newMachine(t, "host_b")
		m.put(m.Data, "d1", "old")
		m.put(m.Data, "other", "old")
		m.put(m.Config, "sub/c2", "old")
		m.put(m.Data, "packages/boxed/owners.json", "old")
		m.put(m.Data, "packages/boxed/data/of another user", "old")
		m.NotNow = func() (packed []string) {
			found, _ := filepath.Glob(filepath.Join(m.Data, "packages/*/owners.json"))
			for _, f := range found {
				packed = append(packed, filepath.Join(filepath.Dir(f), "data"))
			}
			return packed
		}
		m.backups.o.Folders = m.Folders
		if err := m.backups.SetTarget(t.Context(), Target{Name: "shelf", Kind: Directory, Path: dir}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := m.backups.Restore(t.Context(), "shelf", "", key(password), nil); err != nil {
			t.Fatal(err)
		}
		left, cut := stop, errors.New("the power is out")
		_, err := applyRestored(m.Folders, func(from, to string) error {
			if strings.Contains(from, "of another user") {
				t.Errorf("after %d steps %s is moved, which this process may not be able to move", stop, from)
			}
			if left--; left < 0 {
				return cut
			}
			return os.Rename(from, to)
		})
		if err == nil {
			if stop < 8 {
				t.Errorf("only %d steps", stop)
			}
			return
		}
		if !errors.Is(err, cut) {
			t.Fatal(err)
		}
		done, leave, err := Enter(m.Folders, quiet)
		if err != nil || done == nil || done.Host.ID != "host_a" {
			t.Fatalf("after %d steps: %+v, %v", stop, done, err)
		}
		leave()
		if got, want := all(t, m.Data), all(t, old.Data); !maps.Equal(got, want) {
			t.Errorf("after %d steps data is %v", stop, got)
		}
		if got := all(t, m.Config); got["sub/c2"] != "new" || got["sub/c1"] != "new" {
			t.Errorf("after %d steps config is %v", stop, got)
		}
		if saved := all(t, filepath.Join(m.Data, savedFolder)); !maps.Equal(
			saved,
			map[string]string{
				"d1": "old", "other": "old",
				"packages/boxed/owners.json": "old", "packages/boxed/data/of another user": "old",
			},
		) {
			t.Errorf("after %d steps put aside: %v", stop, saved)
		}
	}
}

func TestARestoreWaitsForOtherHosts(t *testing.T) {
	m := newMachine(t, "host_a")
	m.put(m.Data, "file", "in the backup")
	m.target(0)
	m.create()
	none, leaveFirst, err := Enter(m.Folders, quiet)
	if err != nil || none != nil {
		t.Fatal(none, err)
	}
	if _, _, err := m.backups.Restore(t.Context(), "", "", key(password), nil); err != nil {
		t.Fatal(err)
	}
	m.put(m.Data, "file", "since")
	none, leaveSecond, err := Enter(m.Folders, quiet)
	if err != nil || none != nil {
		t.Fatal("another host runs", none, err)
	}
	leaveFirst()
	leaveSecond()
	if w, err := Waiting(m.Folders); err != nil || w == nil || w.Files != 1+1 {
		t.Errorf("%+v waits, %v", w, err)
	}
	done, leave, err := Enter(m.Folders, quiet)
	if err != nil || done == nil {
		t.Fatal(done, err)
	}
	leave()
	if got := all(t, m.Data)["file"]; got != "in the backup" {
		t.Errorf("got %q", got)
	}
}

func TestARestoreThatWaitsCanBeCancelled(t *testing.T) {
	m := newMachine(t, "host_a")
	m.put(m.Data, "file", "in the backup")
	m.target(0)
	m.create()
	m.put(m.Data, "file", "since")
	if _, _, err := m.backups.Restore(t.Context(), "", "", key(password), nil); err != nil {
		t.Fatal(err)
	}
	if err := Cancel(m.Folders); err != nil {
		t.Fatal(err)
	}
	done, leave, err := Enter(m.Folders, quiet)
	if err != nil || done != nil || all(t, m.Data)["file"] != "since" {
		t.Error(done, err)
	}
	leave()
}

// packed makes what is inside the encryption.
func packed(t testing.TB, manifest any, members ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	add := func(name string, b []byte) {
		if err := errors.Join(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(b)),
			Mode: 0o600}), second(w.Write(b))); err != nil {
			t.Fatal(err)
		}
	}
	head, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	add(manifestName, head)
	for _, m := range members {
		add(m, []byte("text"))
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func second[T any](_ T, err error) error { return err }

//redteam:attack A backup is as closed as its password: backups with names that lead out, links and other kinds of files
func TestHostileBackupsAreRefused(t *testing.T) {
	file := func(folder, path string) File { return File{Folder: folder, Path: path, Size: 4, Mode: 0o600} }
	good := Manifest{Format: format, Created: time.Now(), Files: []File{file("data", "a"), file("config", "sub/b")}}
	if err := tryUnpack(t, packed(t, good, "data/a", "config/sub/b")); err != nil {
		t.Fatal(err)
	}
	for want, plain := range map[string][]byte{
		"has format 9": packed(t, Manifest{Format: 9}),
		"\"data/../x\"": packed(t, Manifest{Format: format, Files: []File{file("data", "../x")}},
			"data/../x"),
		"\"data//etc/x\"": packed(t, Manifest{Format: format, Files: []File{file("data", "/etc/x")}},
			"data//etc/x"),
		"\"data/.restore/x\"": packed(t,
			Manifest{Format: format, Files: []File{file("data", ".restore/x")}}, "data/.restore/x"),
		"\"home/x\"": packed(t, Manifest{Format: format, Files: []File{file("home", "x")}},
			"home/x"),
		"\"key/other\"": packed(t, Manifest{Format: format, Files: []File{file("key", "other")}},
			"key/other"),
		"\"data/a\", which no backup": packed(t,
			Manifest{Format: format, Files: []File{file("data", "a"), file("data", "a")}}, "data/a", "data/a"),
		"which its manifest does not name": packed(t, good, "data/a", "config/sub/b", "data/c"),
		"of its manifest":                  packed(t, good, "config/sub/b", "data/a"),
		"unexpected EOF":                   packed(t, good, "data/a"),
		"does not begin with":              packed(t, good)[:0],
		"cannot unmarshal":                 packed(t, []int{1}),
	} {
		err := tryUnpack(t, plain)
		if len(plain) == 0 {
			want = "damaged"
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// tryUnpack unpacks what was decrypted to a fresh machine.
func tryUnpack(t testing.TB, plain []byte) error {
	a, err := openPlain(bytes.NewReader(plain))
	if err != nil {
		return err
	}
	defer a.closeArchive()
	dir := t.TempDir()
	to := Folders{Data: filepath.Join(dir, "d"), Config: filepath.Join(dir, "c"), State: filepath.Join(dir, "s")}
	_, err = unpack(t.Context(), a, to, chosenFiles(nil))
	return err
}

func FuzzArchive(f *testing.F) {
	good := Manifest{
		Format: format,
		Files:  []File{{Folder: "data", Path: "a", Size: 4}, {Folder: "key", Path: "key", Size: 4}},
	}
	f.Add(packed(f, good, "data/a", "key/key"))
	f.Add(packed(f, good, "data/a"))
	f.Add(packed(f, Manifest{Format: format}))
	f.Fuzz(func(t *testing.T, plain []byte) {
		a, err := openPlain(bytes.NewReader(plain))
		if err != nil {
			return
		}
		defer a.closeArchive()
		if a.manifest.Bytes() > 1<<20 || len(a.manifest.Files) > 100 {
			return
		}
		top := t.TempDir()
		inner := filepath.Join(top, "inner")
		unpack(
			t.Context(),
			a,
			Folders{
				Data:   filepath.Join(inner, "d"),
				Config: filepath.Join(inner, "c"),
				State:  filepath.Join(inner, "s"),
			},
			chosenFiles(nil),
		)
		entries, err := os.ReadDir(top)
		if err != nil || len(entries) > 1 {
			t.Errorf("something came out: %v, %v", entries, err)
		}
	})
}
