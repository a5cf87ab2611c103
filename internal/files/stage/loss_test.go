package stage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// has checks what a folder has: content by name, "" for a name that must not be there.
func has(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	for name, content := range want {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if content == "" && err == nil {
			t.Errorf("%s is there: %q", name, b)
		}
		if content != "" && string(b) != content {
			t.Errorf("%s is %.40q, %v; want %.40q", name, b, err, content)
		}
	}
}

// blocked returns the names of the conflicts of a result.
func blocked(dir string, r Result) string {
	var names []string
	for _, b := range r.Conflict {
		names = append(names, strings.TrimPrefix(b.Path, dir+"/"))
	}
	return strings.Join(names, " ")
}

// What a person puts into a folder that a task has deleted or replaced stays.
func TestNewFilesInADeletedFolderStay(t *testing.T) {
	for name, line := range map[string]string{
		"deleted": "rm -r d", "replaced by a file": "rm -r d; echo f >d", "replaced by a folder": "rm -r d; mkdir d",
		"deleted inside": "rm -r d/sub", "first changed": "echo new >>d/sub/old; rm -r d",
	} {
		t.Run(name, func(t *testing.T) {
			m, real := open(t, Options{})
			write(t, filepath.Join(real, "d/sub/old"), "old")
			write(t, filepath.Join(real, "d/other"), "old")
			w := begin(t, m, "ann", real)
			w.shell(line)
			write(t, filepath.Join(real, "d/sub/mine"), "mine")
			write(t, filepath.Join(real, "d/sub/made/mine"), "mine")
			nextTick(time.Now())
			w.shell("echo later >later")
			r := w.accept()
			has(t, real, map[string]string{
				"d/sub/mine": "mine", "d/sub/made/mine": "mine", "d/sub/old": "", "later": "later\n",
			})
			if !strings.Contains(blocked(real, r), "d/sub/mine") {
				t.Errorf("conflicts: %v", r.Conflict)
			}
		})
	}
}

// A folder that the task changed first and deleted in a later call has no conflicts of its own.
func TestAFolderIsDeletedLater(t *testing.T) {
	m, real := open(t, Options{})
	for _, name := range []string{"d/a", "d/b", "d/sub/c", "d/sub/e"} {
		write(t, filepath.Join(real, name), "old")
	}
	w := begin(t, m, "ann", real)
	w.shell("echo new >d/a; echo new >d/sub/c")
	w.shell("rm -r d")
	if r := w.accept(); len(r.Conflict) > 0 {
		t.Errorf("conflicts: %v", r.Conflict)
	}
	has(t, real, map[string]string{"d/a": "", "d/b": "", "d/sub/c": "", "d/sub/e": ""})
	if _, err := os.Lstat(filepath.Join(real, "d")); err == nil {
		t.Error("d is there")
	}
}

// A person makes a folder of the name of a file that a task has deleted, or of a folder that it has made.
func TestAPersonMakesAFolderOfTheName(t *testing.T) {
	for name, line := range map[string]string{"deleted": "rm d", "made": "rm d; mkdir d; echo new >d/new", "kept": "echo new >d"} {
		t.Run(name, func(t *testing.T) {
			m, real := open(t, Options{})
			write(t, filepath.Join(real, "d"), "old")
			w := begin(t, m, "ann", real)
			w.shell(line)
			if err := os.Remove(filepath.Join(real, "d")); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(real, "d/mine"), "mine")
			nextTick(time.Now())
			w.shell(":")
			w.accept()
			has(t, real, map[string]string{"d/mine": "mine"})
		})
	}
}

// A folder that a person moves into one that a task deletes during the call has files with old times.
func TestAFolderMovedIntoADeletedOneStays(t *testing.T) {
	m, real := open(t, Options{})
	write(t, filepath.Join(real, "d/old"), "old")
	aside := filepath.Join(filepath.Dir(real), "aside")
	write(t, filepath.Join(aside, "sub/mine"), "mine")
	nextTick(time.Now())
	w := begin(t, m, "ann", real)
	w.call(func(_ *View, root *os.Root) {
		if err := root.RemoveAll("d"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(aside, filepath.Join(real, "d/aside")); err != nil {
			t.Fatal(err)
		}
	})
	w.accept()
	has(t, real, map[string]string{"d/aside/sub/mine": "mine"})
}

// A task deletes a folder and makes it anew with a folder of a name that was in it.
func TestAFolderInANewFolderIsNew(t *testing.T) {
	m, real := open(t, Options{})
	write(t, filepath.Join(real, "d/sub/old"), "old")
	w := begin(t, m, "ann", real)
	w.shell("rm -r d; mkdir -p d/sub; echo new >d/sub/new")
	w.shell("echo other >d/sub/other")
	if r := w.accept(); len(r.Conflict) > 0 {
		t.Errorf("conflicts: %v", r.Conflict)
	}
	has(t, real, map[string]string{"d/sub/old": "", "d/sub/new": "new\n", "d/sub/other": "other\n"})
}

// What a person removes during a call that changes it is not made again.
func TestARemovalDuringACallIsAConflict(t *testing.T) {
	m, real := open(t, Options{})
	for n := range times() {
		name := fmt.Sprintf("d%d/f", n)
		file := filepath.Join(real, name)
		write(t, file, "old")
		w := begin(t, m, "ann", real)
		w.call(func(_ *View, root *os.Root) {
			f, err := root.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteString(" staged"); err != nil {
				t.Fatal(err)
			}
			gone := file
			if n%2 == 1 {
				gone = filepath.Dir(file)
			}
			if err := os.RemoveAll(gone); err != nil {
				t.Fatal(err)
			}
		})
		if r := w.accept(); !strings.Contains(blocked(real, r), name) {
			t.Fatalf("got %v", r)
		}
		has(t, real, map[string]string{name: ""})
		if err := m.Refuse(w.id, "ann"); err != nil {
			t.Fatal(err)
		}
	}
}

// A person and a task delete a file during a call, and the person makes it again.
func TestAFileMadeAgainStays(t *testing.T) {
	m, real := open(t, Options{})
	file := filepath.Join(real, "f")
	write(t, file, "old")
	w := begin(t, m, "ann", real)
	w.call(func(_ *View, root *os.Root) {
		if err := root.Remove("f"); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	})
	write(t, file, "mine")
	nextTick(time.Now())
	w.shell(":")
	if r := w.accept(); len(r.Conflict) != 1 {
		t.Errorf("conflicts: %v", r.Conflict)
	}
	has(t, real, map[string]string{"f": "mine"})
}

// A change that ended before a call began is none during it.
func TestAChangeBeforeACallIsNoConflict(t *testing.T) {
	m, real := open(t, Options{})
	w := begin(t, m, "ann", real)
	w.call(func(*View, *os.Root) {})
	for n := range 100 {
		name := fmt.Sprintf("f%d", n)
		write(t, filepath.Join(real, name), "mine")
		w.call(func(_ *View, root *os.Root) {
			if err := root.WriteFile(name, []byte("staged"), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
	if r := w.accept(); len(r.Done) != 100 || len(r.Conflict) > 0 {
		t.Errorf("%d done; conflicts: %v", len(r.Done), r.Conflict)
	}
}

// A call that ends does not hide what a person changes before another call ends that runs beside it.
func TestACallThatEndsBesideAnother(t *testing.T) {
	m, real := open(t, Options{})
	file := filepath.Join(real, "f")
	write(t, file, "old")
	w := begin(t, m, "ann", real)
	w.call(func(_ *View, root *os.Root) {
		old, err := root.ReadFile("f")
		if err != nil {
			t.Fatal(err)
		}
		w.call(func(_ *View, root *os.Root) {
			write(t, file, "a person's")
			nextTick(time.Now())
		})
		if err := root.WriteFile("f", append(old, " and new"...), 0o644); err != nil {
			t.Fatal(err)
		}
		if r := w.accept(); len(r.Conflict) != 1 {
			t.Errorf("got %+v", r)
		}
	})
	has(t, real, map[string]string{"f": "a person's"})
}

// What a person saves while a task is accepted, or while that is undone, is there afterwards.
func TestASaveDuringAnAcceptance(t *testing.T) {
	m, real := open(t, Options{})
	file, aside := filepath.Join(real, "f"), filepath.Join(filepath.Dir(real), "aside")
	large := strings.Repeat("old line\n", 8<<20/9)
	for n := range 16 {
		write(t, file, large)
		w := begin(t, m, "ann", real)
		w.shell("echo new >>f")
		write(t, aside, "mine")
		saved := make(chan error)
		go func() {
			time.Sleep(time.Duration(n) * 12 * time.Millisecond)
			saved <- os.Rename(aside, file)
		}()
		r := w.accept()
		if err := <-saved; err != nil {
			t.Fatal(err)
		}
		has(t, real, map[string]string{"f": "mine"})
		if left, _ := filepath.Glob(filepath.Join(real, ".gatehouse-*")); len(left) > 0 {
			t.Errorf("%v is left; %v", left, r.Conflict)
		}
		m.Refuse(w.id, "ann")
	}
}

// A person's version that had the temporary name of a plan when the host was killed gets its name back.
func TestASaveBeforeAKillStays(t *testing.T) {
	for name, c := range map[string]struct {
		line string
		left map[string]string // name to content; TEMP is the temporary name
		want string
	}{
		"replaced":         {"echo new >f", map[string]string{"f": "new\n", "TEMP": "mine"}, "mine"},
		"removed":          {"rm f", map[string]string{"TEMP": "mine"}, "mine"},
		"not yet replaced": {"echo new >f", map[string]string{"f": "mine", "TEMP": "new\n"}, "mine"},
		"unchanged":        {"echo new >f", map[string]string{"f": "new\n", "TEMP": "old"}, "new\n"},
	} {
		t.Run(name, func(t *testing.T) {
			m, real := open(t, Options{})
			write(t, filepath.Join(real, "f"), "old")
			w := begin(t, m, "ann", real)
			w.shell(c.line)
			w.accept()
			task, err := m.load(w.id)
			if err != nil {
				t.Fatal(err)
			}
			dir := task.acceptances()[0]
			p, err := openPlan(filepath.Join(dir, planFile))
			if err != nil {
				t.Fatal(err)
			}
			defer p.close()
			o, err := p.op(0)
			if err != nil {
				t.Fatal(err)
			}
			os.Remove(filepath.Join(dir, resultFile))
			os.Remove(filepath.Join(real, "f"))
			for at, content := range c.left {
				write(t, filepath.Join(real, strings.ReplaceAll(at, "TEMP", o.Temp)), content)
			}
			if err := m.Recover(); err != nil {
				t.Fatal(err)
			}
			has(t, real, map[string]string{"f": c.want, o.Temp: ""})
		})
	}
}

// A file that a person edits again in the same tick, with the same size, is another one.
func TestAStateIsThatOfTheContent(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	write(t, filepath.Join(dir, "f"), "one")
	a, err := stateOf(root, "f")
	if err != nil {
		t.Fatal(err)
	}
	b := a
	write(t, filepath.Join(dir, "f"), "two")
	if b, err = stateOf(root, "f"); err != nil {
		t.Fatal(err)
	}
	b.CTime, b.MTime = a.CTime, a.MTime // as a clock of ticks may date it
	if a.same(b) {
		t.Error("two contents are the same")
	}
}

// The holes of a file stay holes.
func TestAFileWithHolesIsAccepted(t *testing.T) {
	m, real := open(t, Options{})
	file := filepath.Join(real, "f")
	w := begin(t, m, "ann", real)
	w.shell("printf begin >f; truncate -s 512M f; printf middle >>f; truncate -s 1G f")
	if r := w.accept(); len(r.Done) != 1 {
		t.Fatal(r.Conflict)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(file, &st); err != nil || st.Size != 1<<30 || st.Blocks*512 > 64<<20 {
		t.Errorf("it has %d bytes in %d blocks, %v", st.Size, st.Blocks, err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for at, want := range map[int64]string{0: "begin\x00", 512 << 20: "middle\x00", 1<<30 - 1: "\x00"} {
		b := make([]byte, len(want))
		if _, err := f.ReadAt(b, at); err != nil || string(b) != want {
			t.Errorf("at %d it has %q, %v", at, b, err)
		}
	}
}
