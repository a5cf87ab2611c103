package stage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gatehouse/internal/exec/overlay"
)

// open returns tasks, and a folder that they can stage; it skips the test where no overlay can be mounted.
func open(t *testing.T, o Options) (*Manager, string) {
	t.Helper()
	base := t.TempDir()
	real := filepath.Join(base, "real")
	if err := os.Mkdir(real, 0o755); err != nil {
		t.Fatal(err)
	}
	o.Dir = filepath.Join(base, "tasks")
	if copies {
		o.Copies = func() bool { return true }
	} else if err := overlay.Probe(o.Dir, o.Network); errors.Is(err, overlay.ErrNone) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	m := New(o)
	t.Cleanup(func() {
		m.closeViews(true)
		removeTree(o.Dir)
	})
	return m, real
}

// work is one task at work.
type work struct {
	t    *testing.T
	m    *Manager
	id   string
	real string
}

func begin(t *testing.T, m *Manager, who, real string) *work {
	t.Helper()
	id, err := m.Begin(Who{Principal: who, Context: "c"})
	if err != nil {
		t.Fatal(err)
	}
	return &work{t, m, id, real}
}

// call runs f as a call in the view.
func (w *work) call(f func(v *View, root *os.Root)) {
	w.t.Helper()
	v, err := w.m.Enter(w.id, []string{w.real}, true)
	if err != nil {
		w.t.Fatal(err)
	}
	if v.live.task.Copies {
		w.throughTools(v, func(dir string) {
			root, err := os.OpenRoot(dir)
			if err != nil {
				w.t.Fatal(err)
			}
			defer root.Close()
			f(v, root)
		})
	} else {
		root, err := v.Root(w.real)
		if err != nil {
			w.t.Fatal(err)
		}
		f(v, root)
	}
	if err := v.Leave(true); err != nil {
		w.t.Fatal(err)
	}
}

// shell runs a command line in the view.
func (w *work) shell(line string) string {
	w.t.Helper()
	var out []byte
	w.call(func(v *View, root *os.Root) {
		cmd := exec.Command("/bin/sh", "-ec", line)
		cmd.Dir = root.Name()
		if !v.live.task.Copies {
			cmd.Dir = w.real
			s, err := v.Space(false)
			if err != nil {
				w.t.Fatal(err)
			}
			defer s.Close()
			if err := s.Prepare(cmd); err != nil {
				w.t.Fatal(err)
			}
		}
		var err error
		if out, err = cmd.CombinedOutput(); err != nil {
			w.t.Fatalf("%v: %s", err, out)
		}
	})
	return string(out)
}

func (w *work) accept(paths ...string) Result {
	w.t.Helper()
	r, err := w.m.Accept(w.id, Choice{Paths: paths, By: "ann"})
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// snapshot describes everything in a folder.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	inodes := map[uint64]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		st := info.Sys().(*syscall.Stat_t)
		fmt.Fprintf(&b, "%q %v", rel, info.Mode())
		switch {
		case info.Mode().IsRegular():
			content, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %d %q", info.ModTime().UnixNano(), content)
			if st.Nlink > 1 {
				if first := inodes[st.Ino]; first != "" {
					fmt.Fprintf(&b, " = %s", first)
				} else {
					inodes[st.Ino] = rel
				}
			}
			f, err := os.Open(p)
			if err == nil {
				all, _, _ := attributesOf(f)
				fmt.Fprintf(&b, " %v", all)
				f.Close()
			}
		case info.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(p)
			fmt.Fprintf(&b, " -> %s", target)
			if keepsAll {
				fmt.Fprintf(&b, " %d", info.ModTime().UnixNano())
			}
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// populate makes a folder with everything that a file system can hold.
func populate(t *testing.T, real string) {
	t.Helper()
	for _, name := range []string{
		"a", "same", "dir/x", "dir/y", "dir/deep/z", "gone/1", "gone/2", "opaque/old", "becomes-dir", "becomes-file/in",
		"Case", "case", "\u00e9", "e\u0301", "with space", "with\nnewline", "comma,colon:back\\slash", "mode",
	} {
		write(t, filepath.Join(real, name), "old "+name)
	}
	for _, err := range []error{
		os.Symlink("a", filepath.Join(real, "link")), os.Symlink("/etc/passwd", filepath.Join(real, "out")),
		os.Link(filepath.Join(real, "a"), filepath.Join(real, "hard")),
		syscall.Mkfifo(filepath.Join(real, "pipe"), 0o640), os.Chmod(filepath.Join(real, "dir/x"), 0o755),
		os.Chtimes(filepath.Join(real, "dir/y"), time.Unix(1e9, 1), time.Unix(1e9, 123456789)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// changeAll changes what populate made in every way.
const changeAll = `
echo new >>a
rm -r gone; rm -r opaque; mkdir opaque; echo fresh >opaque/new
rm becomes-dir; mkdir becomes-dir; echo in >becomes-dir/in
rm -r becomes-file; echo now >becomes-file
chmod 600 mode; chmod 700 dir; ln -sf same link
mkdir -p made/deep; echo m >made/deep/f; ln made/deep/f made/hard; ln -s ../a made/link
mkfifo made/pipe; mv Case CASE; rm case
touch -d 2001-02-03T04:05:06.789 made/deep/f
echo more >>'with space'; echo "$(printf 'new\303\251')" >'é'
`

func TestAFolderStaysUntilItIsAccepted(t *testing.T) {
	m, real := open(t, Options{})
	populate(t, real)
	before := snapshot(t, real)
	w := begin(t, m, "ann", real)
	line := changeAll
	if !keepsAll {
		line = strings.ReplaceAll(line, "mkfifo made/pipe; ", "")
	}
	w.shell(line)
	if after := snapshot(t, real); after != before {
		t.Fatalf("the folder changed:\n%s\nwas\n%s", after, before)
	}
	const describe = "find . -type f -exec sha256sum {} + | sort; find . -printf '%p %y %m %l\\n' | sort; " +
		"find . -type f -printf '%p %T@\\n' | sort"
	want := w.shell(describe)
	r := w.accept()
	if len(r.Conflict) > 0 {
		t.Errorf("conflicts: %v", r.Conflict)
	}
	cmd := exec.Command("/bin/sh", "-ec", describe)
	cmd.Dir = real
	got, err := cmd.CombinedOutput()
	if err != nil || string(got) != want {
		t.Errorf("the folder has, %v\n%s\nwant\n%s", err, got, want)
	}
	one, _ := os.Stat(filepath.Join(real, "made/deep/f"))
	two, _ := os.Stat(filepath.Join(real, "made/hard"))
	if !os.SameFile(one, two) {
		t.Error("a hard link became a copy")
	}
	if task, err := m.load(w.id); err != nil || task.State != Accepted {
		t.Errorf("the task is %v, %v", task, err)
	}
	if u, err := m.Undo(w.id, "ann"); err != nil || len(u.Conflict) > 0 {
		t.Errorf("undo: %v, %v", u.Conflict, err)
	}
	if after := snapshot(t, real); withoutLinks(after) != withoutLinks(before) {
		t.Errorf("after undo:\n%s\nwas\n%s", after, before)
	}
}

// withoutLinks leaves out which names were one file: replacing one of them makes two files.
func withoutLinks(s string) string { return strings.ReplaceAll(s, " = a", "") }

func TestHalfIsAcceptedAndUndone(t *testing.T) {
	m, real := open(t, Options{})
	for i := range 200 {
		write(t, filepath.Join(real, fmt.Sprintf("d%d/f%03d", i%7, i)), fmt.Sprint("old ", i))
	}
	before := snapshot(t, real)
	w := begin(t, m, "ann", real)
	w.shell(`for f in d*/*; do echo new >"$f"; done`)
	var half []string
	_, of, err := m.Changes(w.id, 0)
	all := of.First
	if err != nil || len(all) != 200 {
		t.Fatalf("got %d changes, %v", len(all), err)
	}
	for i, c := range all {
		if i%2 == 0 {
			half = append(half, c.Path)
		}
	}
	if r := w.accept(half...); len(r.Done) != 100 || len(r.Conflict) > 0 {
		t.Fatalf("got %d, %v", len(r.Done), r.Conflict)
	}
	if _, left, err := m.Changes(w.id, 0); err != nil || left.Total != 100 {
		t.Fatalf("%d changes are left, %v", left.Total, err)
	}
	own := map[string]string{ // a person's edits of accepted and of other files, a new file, and a removed one
		half[3]: "mine", all[1].Path: "mine too", filepath.Join(real, "d0/new"): "a new one",
	}
	for path, content := range own {
		write(t, path, content)
	}
	os.Remove(half[5])
	r, err := m.Undo(w.id, "ann")
	if err != nil || len(r.Done) != 98 || len(r.Conflict) != 2 {
		t.Fatalf("undo: %d, %v, %v", len(r.Done), r.Conflict, err)
	}
	for path, content := range own {
		if b, err := os.ReadFile(path); err != nil || string(b) != content {
			t.Errorf("%s is %q, %v", path, b, err)
		}
		os.Remove(path)
	}
	for line := range strings.Lines(snapshot(t, real)) {
		if strings.Contains(line, "old") && !strings.Contains(before, line) {
			t.Errorf("undo made %s", line)
		}
	}
	r = w.accept(all[1].Path)
	if len(r.Done) != 0 || len(r.Conflict) != 1 {
		t.Errorf("a file that the person changed was accepted: %v", r)
	}
}

func TestTwentyTasksAtOnce(t *testing.T) {
	m, real := open(t, Options{})
	write(t, filepath.Join(real, "shared"), "old")
	var all []*work
	done := make(chan bool)
	for i := range 20 {
		w := begin(t, m, fmt.Sprint("agent", i), real)
		all = append(all, w)
		go func() {
			defer func() { done <- true }()
			w.shell(fmt.Sprintf("echo %d >own%d; echo %d >shared; cat shared own%d", i, i, i, i))
		}()
	}
	for range all {
		<-done
	}
	if names, _ := os.ReadDir(real); len(names) != 1 {
		t.Fatalf("the folder has %v", names)
	}
	conflicts := 0
	for i, w := range all {
		r := w.accept()
		conflicts += len(r.Conflict)
		if b, err := os.ReadFile(filepath.Join(real, fmt.Sprint("own", i))); err != nil ||
			string(b) != fmt.Sprintln(i) {
			t.Errorf("task %d: %q, %v", i, b, err)
		}
	}
	if b, _ := os.ReadFile(filepath.Join(real, "shared")); conflicts != 19 || string(b) != "0\n" {
		t.Errorf("%d conflicts, and shared is %q", conflicts, b)
	}
}

func TestTasksAreDurableAndExpire(t *testing.T) {
	told := 0
	m, real := open(t, Options{Expires: func(Task) { told++ }})
	w := begin(t, m, "ann", real)
	w.call(func(_ *View, root *os.Root) {
		if err := root.WriteFile("f", []byte("new"), 0o644); err != nil {
			t.Fatal(err)
		}
	})
	m.closeViews(true)
	again := New(m.opts)
	t.Cleanup(func() { again.closeViews(true) })
	if id := again.Current(Who{Principal: "ann", Context: "c"}); id != w.id {
		t.Fatalf("got %q, want %q", id, w.id)
	}
	other := &work{t, again, w.id, real}
	if got := other.shell("cat f"); got != "new" {
		t.Errorf("got %q", got)
	}
	again.closeViews(true)
	late := func() *Task {
		t.Helper()
		task, err := again.load(w.id)
		if err != nil {
			t.Fatal(err)
		}
		task.Expires = time.Now().Add(-time.Hour)
		if err := errors.Join(task.save(), again.Recover(), again.Recover()); err != nil {
			t.Fatal(err)
		}
		if task, err = again.load(w.id); err != nil {
			t.Fatal(err)
		}
		return task
	}
	// No host ran while it should have been told.
	if task := late(); task.State != Open || told != 1 || time.Until(task.Expires) < 24*time.Hour {
		t.Errorf("it is %s until %v, and was told %d times", task.State, task.Expires, told)
	}
	task := late()
	if told != 1 || task.State != Expired {
		t.Errorf("it is %s", task.State)
	}
	if _, err := os.Stat(filepath.Join(task.dir, "layers")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its changes are kept: %v", err)
	}
	if _, err := again.Accept(w.id, Choice{}); err == nil {
		t.Error("it could be accepted")
	}
}

// times is how often a test tries what depends on the tick in which something happens. Each takes a second with the
// race detector.
func times() int {
	if os.Getenv("GATEHOUSE_TEST_ALL") == "" {
		return 8
	}
	return 50
}

// A change of the folder while a call runs cannot be told from one that the call saw.
func TestAChangeDuringACallIsAConflict(t *testing.T) {
	m, real := open(t, Options{})
	for n := range times() {
		name := fmt.Sprintf("f%d", n)
		file := filepath.Join(real, name)
		write(t, file, "old")
		w := begin(t, m, "ann", real)
		w.call(func(_ *View, root *os.Root) {
			if err := root.WriteFile(name, []byte("staged"), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte("a person's"), 0o644); err != nil {
				t.Fatal(err)
			}
		})
		if r := w.accept(); len(r.Conflict) != 1 {
			t.Fatalf("got %v", r)
		}
		if b, _ := os.ReadFile(file); string(b) != "a person's" {
			t.Fatalf("it is %q", b)
		}
		if err := m.Refuse(w.id, "ann"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhatCannotBeStaged(t *testing.T) {
	m, real := open(t, Options{})
	for _, folder := range []string{"/", filepath.Dir(m.opts.Dir), "/dev"} {
		if why := m.CannotStage(folder); why == "" {
			t.Errorf("%s can be staged", folder)
		}
	}
	if why := m.CannotStage(real); why != "" {
		t.Error(why)
	}
	w := begin(t, m, "ann", real)
	w.shell(`python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('s')" 2>/dev/null || exit 0`)
	_, of, err := m.Changes(w.id, 0)
	all := of.First
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(all, func(c Change) bool { return c.Now.Type == Socket }); i >= 0 &&
		all[i].Conflict == "" {
		t.Error("a socket would be accepted")
	}
}

// A program that runs when a task is accepted keeps its view, and the task stays open.
func TestATaskInUseStaysOpen(t *testing.T) {
	m, real := open(t, Options{})
	w := begin(t, m, "ann", real)
	w.call(func(v *View, root *os.Root) {
		s, err := v.Space(true)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/bin/sh", "-c", "echo 1 >one; read x; echo 2 >two")
		cmd.Dir = real
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Prepare(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		s.Close()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if info, err := root.Stat("one"); err == nil && info.Size() > 0 {
				break
			}
		}
		if r := w.accept(); len(r.Done) != 1 || r.Note == "" {
			t.Errorf("got %+v", r)
		}
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	if r := w.accept(); len(r.Done) != 1 || r.Note != "" {
		t.Errorf("got %+v", r)
	}
	if b, err := os.ReadFile(filepath.Join(real, "two")); err != nil || string(b) != "2\n" {
		t.Errorf("got %q, %v", b, err)
	}
}

func TestABranch(t *testing.T) {
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) { testBranch(t, format) })
	}
}

func testBranch(t *testing.T, format string) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip(err)
	}
	m, real := open(t, Options{})
	write(t, filepath.Join(real, "keep"), "k\n")
	write(t, filepath.Join(real, "drop"), "d\n")
	write(t, filepath.Join(real, ".gitignore"), "*.log\n")
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(git, append([]string{"-C", real, "-c", "user.name=a", "-c", "user.email=a@b"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("init", "-q", "--object-format="+format)
	run("add", ".")
	run("commit", "-qm", "first")
	head := run("rev-parse", "HEAD")
	w := begin(t, m, "ann", real)
	w.shell("echo more >>keep; rm drop; mkdir n; echo x >n/run; chmod +x n/run; echo l >x.log; ln -s keep l; mkdir -p n/.git; echo x >n/.git/x")
	r, err := m.AcceptBranch(t.Context(), w.id, "agent/fix", Choice{By: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	if got := run("ls-tree", "-r", "--format=%(objectmode) %(path)",
		"agent/fix"); got != "100644 .gitignore\n100644 keep\n120000 l\n100755 n/run" {
		t.Errorf("the branch has\n%s\n%v", got, r)
	}
	if run("rev-parse", "HEAD") != head || run("status", "--porcelain") != "" {
		t.Errorf("the repository changed: %s", run("status", "--porcelain"))
	}
	if _, err := m.AcceptBranch(t.Context(), w.id, "agent/fix", Choice{By: "ann"}); err == nil {
		t.Error("a branch was replaced")
	}

	// As a commit on the present branch, beside a person's own changes of other files, which stay as they are.
	write(t, filepath.Join(real, "own"), "a person's")
	write(t, filepath.Join(real, ".gitignore"), "*.log\n*.tmp\n")
	run("add", "own")
	r, err = m.AcceptCommit(t.Context(), w.id, Choice{By: "ann"})
	if err != nil || len(r.Conflict) > 0 || !strings.Contains(r.Note, "committed") {
		t.Fatal(r, err)
	}
	if got := run("log", "--format=%s %an", "-2"); got != "Changes of task "+w.id+" ann\nfirst a" {
		t.Errorf("the branch has\n%s", got)
	}
	if got := run("show", "--name-status", "--format=", "HEAD"); got != "D\tdrop\nM\tkeep\nA\tl\nA\tn/run" {
		t.Errorf("the commit has\n%s", got)
	}
	if got := run("status", "--porcelain"); got != "M .gitignore\nA  own" && got != "M .gitignore\nA  own\n?? n/.git/" {
		t.Errorf("the repository has\n%s", got)
	}
	if _, err := m.AcceptCommit(t.Context(), w.id, Choice{By: "ann"}); err == nil {
		t.Error("a task was committed twice")
	}
}

// A folder that stays keeps its time at an acceptance unless names came to it or left it, and gets its old time back
// when that is undone.
func TestAFolderKeepsItsTimeAtAnAcceptance(t *testing.T) {
	for _, most := range []int{manyOps, 0} {
		t.Run(fmt.Sprint("above ", most), func(t *testing.T) {
			defer func(n int) { manyOps = n }(manyOps)
			manyOps = most
			testFolderTimes(t)
		})
	}
}

func testFolderTimes(t *testing.T) {
	m, real := open(t, Options{})
	old := time.Unix(1e9, 123456789)
	dirs := []string{"edited", "mode", "made", "gone", "later", "undone"}
	for _, dir := range dirs {
		write(t, filepath.Join(real, dir, "f"), "old")
	}
	for _, dir := range append(dirs, ".") {
		if err := os.Chtimes(filepath.Join(real, dir), old, old); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when string, want map[string]bool) {
		t.Helper()
		for dir, kept := range want {
			info, err := os.Stat(filepath.Join(real, dir))
			if err != nil {
				t.Fatal(err)
			}
			if info.ModTime().Equal(old) != kept {
				t.Errorf("after %s %s is of %v", when, dir, info.ModTime())
			}
		}
	}
	w := begin(t, m, "ann", real)
	w.shell("echo new >edited/f; chmod 700 mode; sed -i s/old/new/ mode/f; echo new >made/new; rm gone/f; " +
		"echo new >later/new; echo new >undone/f")
	if r := w.accept(); len(r.Conflict) > 0 {
		t.Fatal(r.Conflict)
	}
	check("the acceptance", map[string]bool{
		"edited": true, "mode": true, "made": false, "gone": false, "undone": true, ".": true,
	})
	write(t, filepath.Join(real, "later/own"), "a person's")
	if r, err := m.Undo(w.id, "ann"); err != nil || len(r.Conflict) > 0 {
		t.Fatal(r.Conflict, err)
	}
	check("its undoing", map[string]bool{
		"edited": true, "mode": true, "made": true, "gone": true, "undone": true, ".": true, "later": false,
	})
}

// A review of the first changes has the same etag as one of all, and the etag accepts nothing that was not shown.
func TestAReviewOfSome(t *testing.T) {
	m, real := open(t, Options{})
	w := begin(t, m, "ann", real)
	w.shell("for d in b a c/d; do mkdir -p $d; for i in 1 2 3 4 5 6 7 8 9; do echo $d >$d/$i; done; done")
	_, whole, err := m.Changes(w.id, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, some, err := m.Changes(w.id, 3)
	if err != nil {
		t.Fatal(err)
	}
	if whole.Total != 31 || len(whole.First) != 31 || some.Total != 31 || len(some.First) != 3 || some.ETag != whole.ETag {
		t.Fatalf("all: %d of %d, %s; some: %d of %d, %s", len(whole.First), whole.Total, whole.ETag, len(some.First),
			some.Total, some.ETag)
	}
	for i, c := range some.First {
		if c.Path != whole.First[i].Path {
			t.Errorf("change %d is of %s, want %s", i, c.Path, whole.First[i].Path)
		}
	}
	w.shell("echo more >c/d/9")
	if r, err := m.Accept(w.id, Choice{ETag: some.ETag, By: "ann"}); !errors.Is(err, errShown) {
		t.Fatalf("it accepted %v, %v", r.Done, err)
	}
	has(t, real, map[string]string{"a/1": ""})
	_, now, err := m.Changes(w.id, 1)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := m.Accept(w.id, Choice{ETag: now.ETag, By: "ann"}); err != nil || len(r.Done) != 31 {
		t.Fatalf("it accepted %v, %v", r.Done, err)
	}
	has(t, real, map[string]string{"a/1": "a\n", "c/d/9": "more\n"})
}

// What an earlier version accepted, whose plan and result are one value each, is undone and shown.
func TestPlansOfEarlierVersions(t *testing.T) {
	m, real := open(t, Options{})
	write(t, filepath.Join(real, "old"), "old")
	w := begin(t, m, "ann", real)
	w.shell("echo new >old; echo made >made")
	if r := w.accept(); len(r.Done) != 2 {
		t.Fatal(r.Conflict)
	}
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
	was, err := task.readOutcome(dir, planFile, resultFile)
	if err != nil {
		t.Fatal(err)
	}
	whole := p.plan
	whole.Lines = false
	if err := p.each(func(o *op) error {
		s, _ := was.of(o)
		whole.Ops, was.States = append(whole.Ops, *o), append(was.States, s)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	was.Left, was.Got = nil, nil
	if err := errors.Join(writeJSON(filepath.Join(dir, planFile), whole), writeJSON(filepath.Join(dir, resultFile), was)); err != nil {
		t.Fatal(err)
	}
	if accepted, _ := m.Results(task); len(accepted) != 1 || len(accepted[0].Done) != 2 {
		t.Errorf("it shows %+v", accepted)
	}
	if r, err := m.Undo(w.id, "ann"); err != nil || len(r.Done) != 2 || len(r.Conflict) > 0 {
		t.Errorf("undone: %+v, %v", r, err)
	}
	has(t, real, map[string]string{"old": "old", "made": ""})
}

// A call that begins after a kill does not change what the plan still needs.
func TestACallAfterAKill(t *testing.T) {
	m, real := open(t, Options{})
	w := begin(t, m, "ann", real)
	w.shell("echo new >f")
	w.accept()
	task, err := m.load(w.id)
	if err != nil {
		t.Fatal(err)
	}
	os.Remove(filepath.Join(task.acceptances()[0], resultFile))
	os.Remove(filepath.Join(real, "f"))
	task.State = Open
	if err := task.save(); err != nil {
		t.Fatal(err)
	}
	w.shell("cat f >seen; echo later >f")
	has(t, real, map[string]string{"f": "new\n"})
	if _, undone := m.Results(task); len(undone) != 0 {
		t.Errorf("undone: %v", undone)
	}
	if accepted, _ := m.Results(task); len(accepted) != 1 || accepted[0].Note == "" {
		t.Errorf("accepted: %+v", accepted)
	}
}

// A task that gets a folder around one that it has keeps the view of that, also when it is opened again.
func TestATaskGetsAFolderAroundAnother(t *testing.T) {
	m, real := open(t, Options{})
	sub := filepath.Join(real, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	inner := begin(t, m, "ann", sub)
	inner.shell("printf 'in a folder' >a")
	outer := &work{t, m, inner.id, real}
	if copies {
		if _, err := m.Enter(inner.id, []string{real}, true); err == nil || !strings.Contains(err.Error(), real) {
			t.Errorf("got %v", err)
		}
		return
	}
	check := func() {
		t.Helper()
		if got := outer.shell("cat sub/a"); got != "in a folder" {
			t.Errorf("around it: %q", got)
		}
		outer.call(func(_ *View, root *os.Root) {
			if b, err := root.ReadFile("sub/a"); err != nil || string(b) != "in a folder" {
				t.Errorf("a file tool around it: %q, %v", b, err)
			}
		})
	}
	check()
	outer.shell("echo b >sub/b; echo c >c")
	if got := inner.shell("cat b ../c"); got != "b\nc\n" {
		t.Errorf("in it: %q", got)
	}
	m.closeViews(true)
	check()
	if got := inner.shell("cat b ../c"); got != "b\nc\n" {
		t.Errorf("in it, opened again: %q", got)
	}
	if r := inner.accept(); len(r.Done) != 3 || len(r.Conflict) > 0 {
		t.Errorf("accepted %+v", r)
	}
}

// Removing a folder of a task by a file tool, from a folder around it, leaves the task usable.
func TestAFolderOfATaskIsRemoved(t *testing.T) {
	m, real := open(t, Options{})
	sub := filepath.Join(real, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	inner := begin(t, m, "ann", sub)
	inner.shell("echo a >a")
	outer := &work{t, m, inner.id, real}
	outer.call(func(_ *View, root *os.Root) {
		if err := root.RemoveAll("sub"); err != nil {
			t.Fatal(err)
		}
	})
	for range 2 {
		if got := outer.shell("echo c >c; cat c"); got != "c\n" {
			t.Errorf("got %q", got)
		}
		m.closeViews(true)
	}
	if _, err := os.Stat(sub); err != nil {
		t.Error(err)
	}
}
