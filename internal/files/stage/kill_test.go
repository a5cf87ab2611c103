package stage

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/exec/killtest"
)

const (
	killVar = "GATEHOUSE_STAGE_KILL" // what the program that is killed does, and the folder of its tasks
	manyVar = "GATEHOUSE_STAGE_MANY" // not empty: it makes what it writes durable together
)

func TestMain(m *testing.M) {
	if os.Getenv(manyVar) != "" {
		manyOps = 0
	}
	if what, dir, ok := strings.Cut(os.Getenv(killVar), " "); ok {
		os.Exit(decide(what, dir))
	}
	os.Exit(m.Run())
}

// decide accepts or undoes the only task in a folder.
func decide(what, dir string) int {
	m := New(Options{Dir: dir})
	list, err := m.List(true)
	if err != nil || len(list) != 1 {
		fmt.Fprintln(os.Stderr, list, err)
		return 1
	}
	if what == "undo" {
		_, err = m.Undo(list[0].ID, "ann")
	} else {
		_, err = m.Accept(list[0].ID, Choice{By: "ann"})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// copyTasks copies a folder and its task to another place.
func copyTasks(t *testing.T, from, to string) (tasks, real string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	tasks, real = filepath.Join(to, "tasks"), filepath.Join(to, "real")
	m := New(Options{Dir: tasks})
	list, err := m.List(true)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	list[0].Layers[0].Lower = real
	if err := list[0].save(); err != nil {
		t.Fatal(err)
	}
	return tasks, real
}

// plain is a snapshot without the temporary files of a writer that was killed.
func plain(t *testing.T, dir string) string {
	var out strings.Builder
	for line := range strings.Lines(snapshot(t, dir)) {
		if !strings.Contains(line, ".gatehouse-") {
			out.WriteString(line)
		}
	}
	return withoutLinks(out.String())
}

// An acceptance or its undoing that is killed before any of its system calls leaves the old folder or the new one, or
// a plan, by which the next host makes the new one.
//
//redteam:attack Staged calls change nothing: kill -9 while a person accepts
func TestKilledWhileAPersonAccepts(t *testing.T) {
	t.Run("few names", func(t *testing.T) { killedWhileAccepting(t, "") })
	t.Run("many names", func(t *testing.T) {
		defer func(n int) { manyOps = n }(manyOps)
		manyOps = 0
		killedWhileAccepting(t, "1")
	})
}

func killedWhileAccepting(t *testing.T, many string) {
	if os.Geteuid() != 0 {
		t.Skip("an ordinary user cannot copy the marks of deleted files")
	}
	m, real := open(t, Options{})
	write(t, filepath.Join(real, "a"), "old")
	write(t, filepath.Join(real, "b"), "old")
	write(t, filepath.Join(real, "d/e"), "old")
	w := begin(t, m, "ann", real)
	w.shell("echo new >a; rm b; rm -r d; echo file >d; mkdir n; echo new >n/f; ln n/f n/g; chmod 700 .")
	m.closeViews(true)
	base := filepath.Dir(real)
	step := 23
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		step = 1
	}
	for _, what := range []string{"accept", "undo"} {
		old := plain(t, real)
		whole := filepath.Join(t.TempDir(), "whole")
		tasks, done := copyTasks(t, base, whole)
		if code := decide(what, tasks); code != 0 {
			t.Fatal(code)
		}
		now := plain(t, done)
		if old == now {
			t.Fatal("nothing changes")
		}
		noted := 0
		for n := 1; ; n += step {
			at := filepath.Join(t.TempDir(), "one")
			tasks, real := copyTasks(t, base, at)
			cmd := exec.Command(os.Args[0], "-test.run=^$")
			cmd.Env = append(os.Environ(), killVar+"="+what+" "+tasks, manyVar+"="+many, "GOMAXPROCS=1")
			ended, err := killtest.Before(cmd, n)
			if errors.Is(err, killtest.ErrUnsupported) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatalf("%s, killed before call %d: %v", what, n, err)
			}
			noted += judgeKilled(t, fmt.Sprintf("%s, killed before call %d", what, n), tasks, real, old, now)
			removeTree(at)
			if ended {
				t.Logf("%s makes %d calls; %d of the plans were finished afterwards", what, n, noted)
				break
			}
		}
		if noted == 0 {
			t.Errorf("%s was never killed between its plan and its result", what)
		}
		if what == "accept" { // now undo what was accepted
			removeTree(m.opts.Dir)
			tasks, _ := copyTasks(t, whole, filepath.Join(t.TempDir(), "accepted"))
			base, real = filepath.Dir(tasks), filepath.Join(filepath.Dir(tasks), "real")
		}
	}
}

// judgeKilled checks what a killed program left, and what the next host makes of it. It returns how many plans that
// finished.
func judgeKilled(t *testing.T, when, tasks, real, old, now string) int {
	t.Helper()
	m := New(Options{Dir: tasks})
	list, err := m.List(true)
	if err != nil || len(list) != 1 {
		t.Fatal(when, list, err)
	}
	unfinished := false
	for _, dir := range list[0].acceptances() {
		for _, pair := range [][2]string{{planFile, resultFile}, {undoFile, undoneFile}} {
			_, begun := os.Stat(filepath.Join(dir, pair[0]))
			_, ended := os.Stat(filepath.Join(dir, pair[1]))
			unfinished = unfinished || begun == nil && ended != nil
		}
	}
	got := plain(t, real)
	if got != old && got != now && !unfinished {
		t.Errorf("%s: a mixture without a plan:\n%s", when, got)
	}
	if err := m.Recover(); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	got = snapshot(t, real)
	if strings.Contains(got, ".gatehouse-") {
		t.Errorf("%s: a temporary file is left:\n%s", when, got)
	}
	if got = withoutLinks(got); got != now && (unfinished || got != old) {
		t.Errorf("%s: the next host made\n%s\nwant\n%s", when, got, now)
	}
	if !unfinished {
		return 0
	}
	accepted, undone := m.Results(list[0])
	for _, r := range append(accepted, undone...) {
		if r.Note != "" && len(r.Conflict) == 0 {
			return 1
		}
	}
	t.Errorf("%s: no result says that it was interrupted", when)
	return 0
}
