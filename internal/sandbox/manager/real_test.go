//go:build linux && (amd64 || arm64)

package manager

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/interpreter"
	"gatehouse/internal/sandbox/namespaces"
)

// real is a manager of the namespaces driver. A machine that has none skips the
// test, with what is missing.
func real(t testing.TB, o Options) *Manager {
	t.Helper()
	var ids atomic.Int32
	if o.Ladder == nil {
		o.Ladder = []LadderEntry{{namespaces.Name, func() (sandbox.Driver, error) {
			return namespaces.New(namespaces.Options{})
		}}}
	}
	o.NewID = func(kind string) string { return fmt.Sprint(kind, "_", ids.Add(1)) }
	m := New(o)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	d, err := m.Driver()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range d.Doctor(t.Context()) {
		if f.Needed && !f.OK {
			t.Skipf("%s: %s; %s", f.Name, f.Detail, f.Remedy)
		}
	}
	return m
}

// says runs code and gives what it printed.
func says(t testing.TB, run func(context.Context, interpreter.Code) (interpreter.Result, error), source string) string {
	t.Helper()
	var out bytes.Buffer
	r, err := run(t.Context(), interpreter.Code{Source: source, Stdout: &out, Stderr: &out, Timeout: time.Minute})
	if err != nil || r.Outcome != sandbox.OK {
		t.Errorf("%q: %+v, %v: %s", source, r.Result, err, out.String())
	}
	return out.String()
}

func (b *Box) hasPython(t testing.TB) bool {
	t.Helper()
	_, err := b.Run(t.Context(), sandbox.Command{Argv: []string{"python3", "-c", "1"}})
	return err == nil
}

func TestCodeOfAClaimedSandboxRunsAsAsked(t *testing.T) {
	m := real(t, Options{Ready: 1})
	m.Serve()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if s, _ := m.Pool(); s.Waiting == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the pool is not filled")
		}
	}
	for _, memory := range []int{0, 300} {
		b := create(t, m, "ann", Spec{Env: []string{"WHO=ann"}, Limits: sandbox.Limits{MemoryMiB: memory}})
		if !b.hasPython(t) {
			t.Skip("sandboxes see no python3 here")
		}
		code := func(ctx context.Context, c interpreter.Code) (interpreter.Result, error) {
			return b.Code(ctx, interpreter.Python, c)
		}
		if got := says(t, code, "import os; print(os.environ['WHO'])"); got != "ann\n" {
			t.Errorf("%q", got)
		}
		var all sync.WaitGroup // more than one interpreter waits for
		for i := range 4 {
			all.Go(func() {
				if got := says(t, code,
					fmt.Sprintf("import time; time.sleep(0.05); print(%d)", i)); got != fmt.Sprintln(i) {
					t.Errorf("%q", got)
				}
			})
		}
		all.Wait()
	}
}

// The first piece of JavaScript has a Node started for those that follow, and
// for sandboxes that are made for the pool from then on.
func TestANodeWaitsWhereJavaScriptRuns(t *testing.T) {
	m := real(t, Options{Ready: 1})
	m.Serve()
	waits := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	one := func() bool { s, _ := m.Pool(); return s.Waiting == 1 }
	waits("the pool is not filled", one)
	first := create(t, m, "ann", Spec{Env: []string{"WHO=ann"}})
	if _, err := first.Run(t.Context(), sandbox.Command{Argv: []string{"node", "-e", "1"}}); err != nil {
		t.Skip("sandboxes see no node here")
	}
	if first.node != nil {
		t.Error("a Node waits where nobody runs JavaScript")
	}
	waits("the pool is not filled again", one) // with one that was made before
	code := func(b *Box) string {
		return says(t, func(ctx context.Context, c interpreter.Code) (interpreter.Result, error) {
			return b.Code(ctx, interpreter.Node, c)
		}, "console.log(process.env.WHO)")
	}
	for range 3 {
		if got := code(first); got != "ann\n" {
			t.Errorf("%q", got)
		}
	}
	waits("no Node waits", func() bool {
		first.starting.Lock()
		defer first.starting.Unlock()
		return first.node != nil
	})
	if got := code(first); got != "ann\n" {
		t.Errorf("by the one that waits: %q", got)
	}
	if b := create(t, m, "ann", Spec{}); !b.Warm || b.node != nil {
		t.Error("one that was made before has a Node")
	}
	waits("the pool is not filled again", one)
	last := create(t, m, "ann", Spec{Env: []string{"WHO=bob"}})
	if last.node == nil || code(last) != "bob\n" {
		t.Error("no Node waits in one of the pool")
	}
}

func TestContextsOfASandbox(t *testing.T) {
	m := real(t, Options{NoPool: true})
	b := create(t, m, "ann", Spec{})
	c, err := b.NewContext(interpreter.Bash)
	if err != nil {
		t.Fatal(err)
	}
	says(t, c.Run, "x=1")
	if got := says(t, c.Run, "echo $x"); got != "1\n" {
		t.Errorf("%q", got)
	}
	if err := b.RestartContext(c.ID); err != nil {
		t.Fatal(err)
	}
	if c, err = b.Context(c.ID); err != nil {
		t.Fatal(err)
	}
	if got := says(t, c.Run, "echo ${x-forgotten}"); got != "forgotten\n" {
		t.Errorf("%q", got)
	}
	for range mostContexts - 1 {
		if _, err := b.NewContext(interpreter.Bash); err != nil {
			t.Error(err)
		}
	}
	if _, err := b.NewContext(interpreter.Bash); err == nil {
		t.Error("there is no end of contexts")
	}
	if err := b.RemoveContext(c.ID); err != nil || len(b.Contexts()) != mostContexts-1 {
		t.Errorf("%v, %d left", err, len(b.Contexts()))
	}
	if _, err := b.Context(c.ID); err != ErrNoContext {
		t.Errorf("%v", err)
	}
}

func TestProcessesGoOnInTheBackground(t *testing.T) {
	m := real(t, Options{NoPool: true})
	b := create(t, m, "ann", Spec{})
	g, err := b.Start(sandbox.Command{Argv: []string{"sh", "-c",
		"while read l; do echo got $l; done; echo over; exit 3"}}, "reader")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := g.Type(ctx, []byte("one\n"), false); err != nil {
		t.Fatal(err)
	}
	text, next, _ := g.Output(ctx, 0, 1000)
	if string(text) != "got one\n" {
		t.Errorf("%q", text)
	}
	if f := b.Status(); f.Processes != 1 {
		t.Errorf("%+v", f)
	}
	if err := g.Type(ctx, []byte("two\n"), true); err != nil {
		t.Fatal(err)
	}
	<-g.Done()
	if text, _, _ := g.Output(ctx, next, 1000); string(text) != "got two\nover\n" {
		t.Errorf("%q", text)
	}
	if r, over := g.Ended(); !over || r.Code != 3 {
		t.Errorf("%+v, %v", r, over)
	}
	if err := g.Type(ctx, []byte("three\n"), false); err == nil {
		t.Error("one that has ended was typed to")
	}
	for range mostBackground { // ended ones make room
		g, err := b.Start(sandbox.Command{Argv: []string{"true"}}, "true")
		if err != nil {
			t.Fatal(err)
		}
		<-g.Done()
	}
}

// left is what sandboxes of this process could leave behind.
type left struct{ files, mounts, groups, children int }

func (l left) more(than left) bool {
	return l.files > than.files || l.mounts > than.mounts || l.groups > than.groups || l.children > than.children
}

// Others on this machine mount and unmount as well, and what an earlier test
// left to the collector may be closed: what is more than before has to stay so
// to count.
func settled(t *testing.T, before left) left {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if after := whatIsLeft(t); !after.more(before) || time.Now().After(end) {
			return after
		}
	}
}

func whatIsLeft(t *testing.T) (l left) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	l.files, l.mounts = len(files), bytes.Count(mounts, []byte("\n"))
	filepath.WalkDir("/sys/fs/cgroup", func(_ string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() && strings.HasPrefix(e.Name(), "gatehouse-sandbox-") &&
			strings.Contains(e.Name(), fmt.Sprintf("-%d-", os.Getpid())) {
			l.groups++
		}
		return nil
	})
	tasks, _ := filepath.Glob("/proc/self/task/*/children")
	for _, file := range tasks {
		b, _ := os.ReadFile(file)
		l.children += len(bytes.Fields(b))
	}
	return l
}

// Sandboxes come, run code, leave something running and go, and nothing of
// them stays: not a process, a control group, a mount or a descriptor.
func TestNothingStaysOfManySandboxes(t *testing.T) {
	cycles := 1000
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		cycles = 10_000
	}
	if testing.Short() || raceDetected {
		cycles = 200
	}
	m := real(t, Options{Ready: 2, Boots: 2})
	cycle := func(i int) {
		b, err := m.Create(t.Context(), "ann", Spec{})
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := b.Start(sandbox.Command{Argv: []string{"sh", "-c", "sleep 1000 & sleep 1000"}},
			"sleep"); err != nil {
			t.Error(err)
		}
		var out bytes.Buffer
		if r, err := b.Shell(t.Context(), fmt.Sprint("echo ", i),
			interpreter.Code{Stdout: &out, Timeout: time.Minute}); err != nil || out.String() != fmt.Sprintln(i) {
			t.Errorf("%+v, %v: %q", r.Result, err, out.String())
		}
		if err := m.Destroy("ann", b.ID); err != nil {
			t.Error(err)
		}
	}
	cycle(0) // what is opened once is open now
	before := whatIsLeft(t)
	var next atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := int(next.Add(1)); i <= cycles && !t.Failed(); i = int(next.Add(1)) {
				cycle(i)
			}
		})
	}
	all.Wait()
	if n := m.Alive(); n != 0 {
		t.Errorf("%d are alive", n)
	}
	before.files += 8 // of the pool, which fills again
	if after := settled(t, before); after.more(before) || after.groups != 0 {
		t.Errorf("%+v before, %+v after", before, after)
	}
}

// What waits in a pool was started with the environment of its template, which
// belongs to no other owner.
func TestTemplatesHaveTheirEnvironmentsToThemselves(t *testing.T) {
	m := real(t, Options{
		Ready: 1,
		Templates: map[string]Template{
			DefaultTemplate: {Ready: -1},
			"marked":        {Env: []string{"MARK=theirs"}},
			"plain":         {},
		},
	})
	m.Serve()
	if b := create(t, m, "ann", Spec{Template: "marked"}); !b.hasPython(t) {
		t.Skip("sandboxes see no python3 here")
	}
	waits := func() bool { return slices.ContainsFunc(m.Pools(), func(p PoolStats) bool { return p.Waiting == 1 }) }
	for end := time.Now().Add(time.Minute); !waits(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the pool is not filled")
		}
	}
	for template, want := range map[string]string{"plain": "None\n", "marked": "theirs\n"} {
		b := create(t, m, "ann", Spec{Template: template})
		code := func(ctx context.Context, c interpreter.Code) (interpreter.Result, error) {
			return b.Code(ctx, interpreter.Python, c)
		}
		if got := says(t, code, "import os; print(os.environ.get('MARK'))"); got != want {
			t.Errorf("one of the template %s finds %q", template, got)
		}
	}
}
