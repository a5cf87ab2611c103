//go:build linux && !portable

package stage

import (
	"archive/tar"
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// described returns what a folder has: types, modes, sizes, targets, and of files and links the content and times.
func described(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", `cd "$1" && find . -mindepth 1 -printf '%P %y %m %s %l %n\n' | sort && find . -type f,l,p -printf '%P %T@\n' | sort &&
		find . -type f -print0 | sort -z | xargs -0 -r sha256sum`, "sh", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

func init() { packs = TestATaskIsPackedAndUnpacked }

// A task that was packed and unpacked elsewhere is accepted as the task itself would have been.
func TestATaskIsPackedAndUnpacked(t *testing.T) {
	var folders [2]string
	for i := range folders {
		m, real := open(t, Options{})
		write := func(name, content string) {
			t.Helper()
			p := filepath.Join(real, name)
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(p, time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
				t.Fatal(err)
			}
		}
		write("kept", "kept")
		write("changed", "before")
		write("gone", "gone")
		write("old/a", "a")
		write("old/b", "b")
		write("away/x", "x")
		w := begin(t, m, "ann", real)
		out := w.shell(`set -e; echo after > changed; chmod 750 changed; rm gone; rm -r away; rm -r old; mkdir old; echo new > old/c
			ln -s ../kept old/link; mkdir -p deep/er; printf %s "an own name" > "deep/er/a name\\ with=signs"; ln changed hard
			truncate -s 3000000 sparse; printf end >> sparse; mkfifo pipe; chmod 2755 deep
			touch -d @1000000100 changed hard old/c sparse "deep/er/a name\\ with=signs"; touch -h -d @1000000101 old/link
			touch -d @1000000102 pipe deep/er deep old .`)
		if out != "" {
			t.Fatal(out)
		}
		if i == 1 {
			m.closeViews(true)
			away := t.TempDir()
			packed, err := Pack(t.Context(), m.opts.Dir, away, slog.Default())
			if err != nil || len(packed) != 1 {
				t.Fatalf("packed %v, %v", packed, err)
			}
			removeTree(m.opts.Dir)
			if err := os.MkdirAll(m.opts.Dir, 0o700); err != nil {
				t.Fatal(err)
			}
			for name, file := range packed {
				b, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(m.opts.Dir, name), b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.MkdirAll(filepath.Join(m.opts.Dir, unpacking+w.id, "left"), 0o700); err != nil { // by a host that was killed
				t.Fatal(err)
			}
			for range 2 { // the second has nothing to do
				if err := Unpack(m.opts.Dir, slog.Default()); err != nil {
					t.Fatal(err)
				}
			}
			names, err := os.ReadDir(m.opts.Dir)
			if err != nil || len(names) != 2 || names[0].Name() != w.id || names[1].Name() != "unpack.lock" {
				t.Fatalf("unpacked: %v, %v", names, err)
			}
			m = New(m.opts)
			w.m = m
			t.Cleanup(func() { m.closeViews(true) })
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(m.opts.Dir, w.id, "layers/0/upper/sparse"), &st); err != nil || st.Blocks*512 > 1<<20 {
				t.Errorf("a file with a hole uses %d bytes, %v", st.Blocks*512, err)
			}
		}
		if i == 0 {
			m.closeViews(true)
		}
		_, of, err := m.Changes(w.id, 0)
		changes := of.First
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(changes, func(c Change) bool { return c.Conflict != "" }) {
			t.Errorf("%d: conflicts in %+v", i, changes)
		}
		if _, err := m.Accept(w.id, Choice{}); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(filepath.Join(real, "pipe")); err != nil || info.ModTime().Unix() != 1000000102 {
			t.Errorf("%d: the pipe is %v, %v", i, info, err)
		}
		folders[i] = described(t, real)
	}
	if folders[0] != folders[1] {
		t.Errorf("accepted as it was:\n%s\naccepted after it was unpacked:\n%s", folders[0], folders[1])
	}
}

// What no task has is refused, nothing of it stays, and nothing is made outside of the folder of the tasks.
//
//redteam:attack A backup is as closed as its password: archives of tasks with other paths, devices, attributes and content
func TestArchivesThatNoTaskHas(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	file := func(name string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: 1}
	}
	task := file(taskFile)
	for what, all := range map[string][]tar.Header{
		"an absolute path":      {file(outside)},
		"a path above":          {file("../../outside")},
		"a device":              {{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}},
		"a block device":        {{Name: "disk", Typeflag: tar.TypeBlock}},
		"through a link":        {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: filepath.Dir(outside)}, file("l/outside")},
		"a name of a link":      {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "l"}},
		"a name outside":        {{Name: "h", Typeflag: tar.TypeLink, Linkname: "../../../etc/passwd"}},
		"a trusted attribute":   {{Name: "d", Typeflag: tar.TypeDir, PAXRecords: map[string]string{attributeRecord + "trusted.overlay.redirect": "/"}}},
		"the same name twice":   {task, task},
		"no task":               {file("other")},
		"another kind of entry": {{Name: "x", Typeflag: tar.TypeCont}},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for _, h := range all {
				if err := w.WriteHeader(&h); err != nil {
					t.Fatal(err)
				}
				if h.Size > 0 {
					fmt.Fprint(w, "x")
				}
			}
			w.Close()
			name := packedPrefix + "st_hostile" + packedSuffix
			if err := os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := Unpack(dir, slog.Default()); err != nil {
				t.Fatal(err)
			}
			left := map[string]bool{}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				left[e.Name()] = true
			}
			if want := map[string]bool{name + ".damaged": true, "unpack.lock": true}; !maps.Equal(left, want) {
				t.Errorf("what is left: %v", left)
			}
			if _, err := os.Lstat(outside); err == nil {
				t.Error("a file was made outside")
			}
		})
	}
	for _, name := range []string{packedPrefix + "..tar", packedPrefix + "other" + packedSuffix} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Unpack(dir, slog.Default()); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadDir(dir); err != nil || !slices.ContainsFunc(b, func(e os.DirEntry) bool { return strings.HasSuffix(e.Name(), ".damaged") || e.Name() == name }) {
			t.Errorf("%s: %v, %v", name, b, err)
		}
	}
}
