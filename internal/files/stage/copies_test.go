package stage

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gatehouse/internal/files/merged"
)

// copies makes the tasks of open those of copies. TestOverCopies sets it; no test that uses it runs beside another.
var copies bool

// packs is the test of archives of tasks, on systems that have these.
var packs func(*testing.T)

// The suite holds for tasks that are kept as copies of what file tools write, where no overlay can be mounted. Left out
// are tests in which a person changes the folder at a moment within a call, because throughTools applies what a call did
// at its end.
func TestOverCopies(t *testing.T) {
	copies = true
	defer func() { copies = false }()
	tests := map[string]func(*testing.T){
		"AFolderStaysUntilItIsAccepted":     TestAFolderStaysUntilItIsAccepted,
		"TwentyTasksAtOnce":                 TestTwentyTasksAtOnce,
		"NewFilesInADeletedFolderStay":      TestNewFilesInADeletedFolderStay,
		"AFolderIsDeletedLater":             TestAFolderIsDeletedLater,
		"APersonMakesAFolderOfTheName":      TestAPersonMakesAFolderOfTheName,
		"AFolderMovedIntoADeletedOneStays":  TestAFolderMovedIntoADeletedOneStays,
		"AFolderInANewFolderIsNew":          TestAFolderInANewFolderIsNew,
		"AFolderKeepsItsTimeAtAnAcceptance": TestAFolderKeepsItsTimeAtAnAcceptance,
		"ATaskGetsAFolderAroundAnother":     TestATaskGetsAFolderAroundAnother,
	}
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		maps.Copy(tests, map[string]func(*testing.T){
			"HalfIsAcceptedAndUndone":       TestHalfIsAcceptedAndUndone,
			"TasksAreDurableAndExpire":      TestTasksAreDurableAndExpire,
			"AChangeDuringACallIsAConflict": TestAChangeDuringACallIsAConflict,
			"WhatCannotBeStaged":            TestWhatCannotBeStaged,
			"ABranch":                       TestABranch,
			"ASaveDuringAnAcceptance":       TestASaveDuringAnAcceptance,
			"ASaveBeforeAKillStays":         TestASaveBeforeAKillStays,
			"AFileWithHolesIsAccepted":      TestAFileWithHolesIsAccepted,
			"KilledWhileAPersonAccepts":     TestKilledWhileAPersonAccepts,
		})
	}
	for name, test := range tests {
		t.Run(name, test)
	}
	if packs != nil {
		t.Run("ATaskIsPackedAndUnpacked", packs)
	}
}

// checkout copies a folder with the changes of its layer to another folder, without package merged, and checks that the
// layer shows the same.
func checkout(t *testing.T, l *merged.Layer, to string) {
	t.Helper()
	upper := l.Upper().Name()
	cuts, err := merged.Cuts(filepath.Dir(upper))
	if err != nil {
		t.Fatal(err)
	}
	copyTo := func(from string) {
		if out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	copyTo(l.Path())
	for name := range cuts {
		os.RemoveAll(filepath.Join(to, name))
	}
	copyTo(upper)
	f, err := l.Folder(".")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := names(t, f.FS()), names(t, os.DirFS(to)); got != want {
		t.Errorf("the layer shows\n%s\nwant\n%s", got, want)
	}
}

// names describes what a folder has.
func names(t *testing.T, in fs.FS) string {
	t.Helper()
	var all []string
	err := fs.WalkDir(in, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content := ""
		if info.Mode().IsRegular() && info.Size() < 1<<20 {
			b, err := fs.ReadFile(in, name)
			if err != nil {
				return err
			}
			content = fmt.Sprintf("%d %q", info.ModTime().UnixNano(), b)
		}
		all = append(all, fmt.Sprintf("%q %v %s", name, info.Mode(), content))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// infos returns the infos of everything in a folder.
func infos(t *testing.T, dir string) map[string]fs.FileInfo {
	t.Helper()
	all := map[string]fs.FileInfo{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		all[rel], err = d.Info()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// throughTools runs f on a copy of the view, and does with the layer what file tools would have done to get there.
func (w *work) throughTools(v *View, f func(dir string)) {
	t := w.t
	t.Helper()
	l, release, err := v.Layer(w.real)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	dir := t.TempDir()
	checkout(t, l, dir)
	before := infos(t, dir)
	f(dir)
	after := infos(t, dir)
	a := applying{t: t, l: l, dir: dir, links: map[uint64]string{}}
	for _, name := range sorted(before) {
		if before[name] == nil {
			continue // in one that was deleted
		}
		if now := after[name]; now == nil || now.Mode().Type() != before[name].Mode().Type() ||
			now.IsDir() && !os.SameFile(now, before[name]) {
			a.must(l.Hide(name))
			for in := range before {
				if in == name || strings.HasPrefix(in, name+"/") {
					delete(before, in)
				}
			}
		}
	}
	all := sorted(after)
	for _, name := range all {
		a.apply(name, before[name], after[name])
	}
	for _, name := range slices.Backward(all) {
		if now := after[name]; now.IsDir() && (before[name] == nil || before[name].ModTime() != now.ModTime()) {
			if _, err := l.Upper().Lstat(name); err == nil {
				a.must(l.Upper().Chtimes(name, now.ModTime(), now.ModTime()))
			}
		}
	}
}

func sorted(all map[string]fs.FileInfo) []string {
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

type applying struct {
	t     *testing.T
	l     *merged.Layer
	dir   string
	links map[uint64]string // new files with several names
}

func (a *applying) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

// apply makes one name of the layer what it is in the copy.
func (a *applying) apply(name string, was, now fs.FileInfo) {
	a.t.Helper()
	st := now.Sys().(*syscall.Stat_t)
	if was != nil && os.SameFile(was, now) && was.Sys().(*syscall.Stat_t).Ctim == st.Ctim {
		return
	}
	_, err := a.l.At(filepath.Dir(name), true)
	a.must(err)
	upper := a.l.Upper()
	path := filepath.Join(upper.Name(), name)
	switch {
	case now.IsDir():
		if err := upper.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			a.t.Fatal(err)
		}
		a.must(os.Chmod(path, now.Mode()))
	case now.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(filepath.Join(a.dir, name))
		a.must(err)
		a.must(a.l.Hide(name))
		a.must(upper.Symlink(target, name))
		a.must(linkTime(upper, name, now.ModTime().UnixNano()))
	case now.Mode()&fs.ModeNamedPipe != 0:
		a.must(a.l.Hide(name))
		a.must(syscall.Mkfifo(path, uint32(now.Mode().Perm())))
		a.must(linkTime(upper, name, now.ModTime().UnixNano()))
	case now.Mode().IsRegular():
		if first := a.links[st.Ino]; st.Nlink > 1 && first != "" {
			a.must(a.l.Hide(name))
			a.must(upper.Link(first, name))
			return
		}
		a.links[st.Ino] = name
		a.file(name, now)
	}
}

// file writes a file as roots.Writer does: whole, and by a rename.
func (a *applying) file(name string, now fs.FileInfo) {
	a.t.Helper()
	upper, temp := a.l.Upper(), filepath.Join(filepath.Dir(name), tempName())
	in, err := os.Open(filepath.Join(a.dir, name))
	a.must(err)
	defer in.Close()
	out, err := upper.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	a.must(err)
	a.must(errors.Join(merged.CopyContent(out, in), out.Chmod(now.Mode()), out.Close()))
	a.must(upper.Chtimes(temp, now.ModTime(), now.ModTime()))
	a.must(upper.Rename(temp, name))
	a.must(a.l.Cut(name))
}

// What a task wrote stays with the task, and shows nothing else, when the folder changes beside it; what it only read
// or failed to change is shown as the folder has it.
func TestCopiesHaveWhatWasChangedAlone(t *testing.T) {
	copies = true
	defer func() { copies = false }()
	m, real := open(t, Options{})
	write(t, filepath.Join(real, "d/a"), "old")
	write(t, filepath.Join(real, "d/b"), "old")
	w := begin(t, m, "ann", real)
	layer := func(f func(l *merged.Layer)) {
		t.Helper()
		v, err := m.Enter(w.id, []string{real}, true)
		if err != nil {
			t.Fatal(err)
		}
		l, release, err := v.Layer(real)
		if err != nil {
			t.Fatal(err)
		}
		f(l)
		if err := errors.Join(release(), v.Leave(true)); err != nil {
			t.Fatal(err)
		}
	}
	layer(func(l *merged.Layer) {
		if err := l.Own("d/a"); err != nil { // as a call that then fails
			t.Fatal(err)
		}
		if _, err := l.Upper().Lstat("d/a"); err != nil {
			t.Error(err)
		}
	})
	if left, err := os.ReadDir(filepath.Join(m.opts.Dir, w.id, "layers/0/upper")); err != nil || len(left) != 0 {
		t.Errorf("the layer has %v, %v", left, err)
	}
	write(t, filepath.Join(real, "d/a"), "newer")
	layer(func(l *merged.Layer) {
		f, err := l.Folder(".")
		if err != nil {
			t.Fatal(err)
		}
		if b, err := f.ReadFile("d/a"); err != nil || string(b) != "newer" {
			t.Errorf("it is %q, %v", b, err)
		}
		if _, err := f.OpenFile("d/a", os.O_RDWR, 0); err == nil {
			t.Error("a folder that is read opened a file for writing")
		}
		if _, err := f.Open("../../etc/passwd"); err == nil {
			t.Error("a name led out of the layer")
		}
	})
	if _, of, err := m.Changes(w.id, 0); err != nil || of.Total != 0 {
		t.Errorf("changes: %v, %v", of.First, err)
	}
	v, err := m.Enter(w.id, []string{real}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Leave(false)
	if _, err := v.Space(false); err == nil {
		t.Error("a program got a view of copies")
	}
}

// A host whose machine has no overlay leaves the tasks of one that has alone, and the other way round.
func TestTasksOfTheOtherKindAreLeftAlone(t *testing.T) {
	m, real := open(t, Options{})
	w := begin(t, m, "ann", real)
	w.shell("echo new >f")
	o := m.opts
	o.Copies = func() bool { return true }
	other := New(o)
	t.Cleanup(func() { other.closeViews(true) })
	who := Who{Principal: "ann", Context: "c"}
	if id := other.Current(who); id != "" {
		t.Errorf("it goes on with %s", id)
	}
	if id, err := other.Begin(who); err != nil || id == w.id {
		t.Errorf("it goes on with %s, %v", id, err)
	}
	if id := m.Current(who); id != w.id {
		t.Errorf("the first host has %s", id)
	}
	if r := w.accept(); len(r.Done) != 1 {
		t.Errorf("%+v", r)
	}
}
