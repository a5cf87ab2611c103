package jobs

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A child of this test program is a host that creates jobs until it is killed.
const childPath = "JOBS_TEST_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childPath); path != "" {
		child(path)
		return
	}
	os.Exit(m.Run())
}

// child prints a job only after it is stored.
func child(path string) {
	j, err := Open(path, Options{MaxPerOwner: 1 << 20})
	if err != nil {
		fmt.Println("error", err)
		return
	}
	go io.Copy(io.Discard, os.Stdin)
	for i := 0; ; i++ {
		run, err := j.Create(context.Background(), Record{Owner: "alice", Request: json.RawMessage(fmt.Sprint(i))})
		if err != nil {
			fmt.Println("error", err)
			return
		}
		fmt.Println("working", run.ID())
		switch i % 4 {
		case 0:
			run.Finish(json.RawMessage(fmt.Sprint(i)))
			fmt.Println("completed", run.ID())
		case 1:
			run.Ask(twoQuestions[:1], raw("once", fmt.Sprint(i)), []byte("state"))
			fmt.Println("input_required", run.ID())
		case 2:
			run.Progress(1, 2, "half")
		}
	}
}

func startChild(t *testing.T, path string) (kill func(), lines *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childPath+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
	t.Cleanup(kill)
	return kill, bufio.NewScanner(out)
}

// Acknowledged jobs survive kill -9 at any point of their lives.
//
//redteam:attack A kill leaves whole files: a host is killed while jobs are made, ask and end
func TestAKilledHostLosesNothingItAcknowledged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jobs.db")
	kill, lines := startChild(t, path)
	told := map[string]Status{}
	for lines.Scan() {
		status, id, _ := strings.Cut(lines.Text(), " ")
		if status == "error" {
			t.Fatal(lines.Text())
		}
		told[id] = Status(status)
		if len(told) == 60 {
			kill()
		}
	}
	if len(told) < 60 {
		t.Fatalf("the child printed %d jobs", len(told))
	}

	answered := make(chan Record, len(told))
	j := open(t, path, Options{MaxPerOwner: 1 << 20, Resume: func(_ context.Context, r Record, run *Running) {
		run.Finish(r.Recorded["once"])
		answered <- r
	}})
	seen := map[Status]int{}
	for id, last := range told {
		r := get(t, j, id)
		seen[r.Status]++
		switch {
		case r.Status == Working:
			t.Errorf("%s is still working", id)
		case last == Completed && (r.Status != Completed || string(r.Result) != string(r.Request)):
			t.Errorf("completed: %+v", r)
		case r.Status == Failed && (r.Error == nil || r.Error.Code != -32603 || r.Error.Message != stopText):
			t.Errorf("failed: %+v", r)
		case last == InputRequired && r.Status != InputRequired:
			t.Errorf("asked: %+v", r)
		}
		if r.Status == InputRequired {
			if _, err := j.Answer("alice", id, raw("a", "true")); err != nil {
				t.Error(err)
			}
			if r := <-answered; string(r.State) != "state" || string(r.Recorded["once"]) != string(r.Request) ||
				string(r.Recorded["a"]) != "true" {
				t.Errorf("resumed with %+v", r)
			}
		}
	}
	if seen[Completed] == 0 || seen[Failed] == 0 || seen[InputRequired] == 0 {
		t.Errorf("seen %v", seen)
	}
	j.removeExpired()
	if left, _ := filepath.Glob(path + "-*-*"); len(left) > 2 {
		t.Errorf("the killed host left %v", left)
	}
}

func TestHostsThatShareAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jobs.db")
	ctx := t.Context()
	a := open(t, path, Options{})
	run, asked := create(t, a, Record{}), create(t, a, Record{})
	b := open(
		t,
		path,
		Options{Resume: func(_ context.Context, _ Record, run *Running) { run.Finish(json.RawMessage(`"b"`)) }},
	)
	for _, j := range []*Manager{a, b} {
		runCtx, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { defer close(done); j.Run(runCtx) }()
		t.Cleanup(func() { stop(); <-done })
	}
	if r := get(t, b, run.ID()); r.Status != Working {
		t.Fatalf("a second host failed the job of the first: %+v", r)
	}
	if err := asked.Ask(twoQuestions[:1], nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Answer("alice", asked.ID(), raw("a", "1")); err != nil {
		t.Fatal(err)
	}
	ended := func(r Record) bool { return r.Status.Terminal() }
	if r, err := a.Wait(ctx, "alice", asked.ID(), ended); err != nil || string(r.Result) != `"b"` {
		t.Errorf("answered at the other host: %+v, %v", r, err)
	}
	if _, err := b.Cancel("alice", run.ID()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-run.Context().Done():
	case <-time.After(time.Minute):
		t.Fatal("the round did not learn that the other host cancelled its job")
	}
	if context.Cause(run.Context()) != ErrCancelled {
		t.Errorf("cause %v", context.Cause(run.Context()))
	}
}

// The cleanup of other hosts does not remove the lock by which a host shows that it is alive.
func TestTidyingDoesNotUnlockAHost(t *testing.T) {
	base := filepath.Join(t.TempDir(), "jobs.db")
	ctx, stop := context.WithCancel(t.Context())
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for ctx.Err() == nil {
				hostAlive(base, "one")
			}
		})
	}
	for range 200 {
		l, err := lockHost(base, "one")
		if err != nil {
			t.Error(err)
			break
		}
		if !hostAlive(base, "one") {
			t.Error("a host that holds its lock is dead")
		}
		l.Remove()
	}
	stop()
	others.Wait()
}

func TestAClosedHostFailsWhatItLeaves(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jobs.db")
	a := open(t, path, Options{})
	working, asked := create(t, a, Record{}), create(t, a, Record{})
	asked.Ask(twoQuestions, nil, nil)
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := open(t, path, Options{})
	if r := get(t, b, working.ID()); r.Status != Failed || r.Note != stopText {
		t.Errorf("%+v", r)
	}
	if r := get(t, b, asked.ID()); r.Status != InputRequired || len(r.Questions) != 2 {
		t.Errorf("%+v", r)
	}
}

// A round that may run again is left to the next host, which runs it with what was kept; the job of a further round that
// ends without an outcome because the host stops, too.
func TestAKeptRoundRunsAgainOnTheNextHost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jobs.db")
	a := open(t, path, Options{})
	run := create(t, a, Record{})
	if err := run.Keep(raw("=task", `"one"`)); err != nil {
		t.Fatal(err)
	}
	if err := run.Interrupt(); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	began := make(chan Record, 2)
	b := open(t, path, Options{Resume: func(ctx context.Context, r Record, _ *Running) {
		began <- r
		<-ctx.Done()
	}})
	if r := get(t, b, run.ID()); r.Status != Working {
		t.Fatalf("before Run: %+v", r)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	if r := <-began; string(r.Recorded["=task"]) != `"one"` || len(r.Recorded) != 1 || r.Round != 2 {
		t.Errorf("the next host runs %+v", r)
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	c := open(t, path, Options{Resume: func(_ context.Context, r Record, run *Running) {
		run.Finish(r.Recorded["=task"])
	}})
	ctx, stop = context.WithCancel(t.Context())
	go func() { ended <- c.Run(ctx) }()
	r, err := c.Wait(t.Context(), "alice", run.ID(), func(r Record) bool { return r.Status.Terminal() })
	if err != nil || r.Status != Completed || string(r.Result) != `"one"` || r.Repeatable {
		t.Errorf("at last %+v, %v", r, err)
	}
	stop()
	<-ended
}

func TestOpenRefusesWhatItCannotRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "damaged ?#%.db")
	os.WriteFile(path, []byte(strings.Repeat("not a database ", 1000)), 0o600)
	if _, err := Open(path, Options{}); err == nil || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("damaged: %v", err)
	}
	path = filepath.Join(dir, "newer.db")
	j := open(t, path, Options{})
	create(t, j, Record{})
	db, err := j.store.writer(false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("PRAGMA user_version = 99"); err != nil {
		t.Fatal(err)
	}
	j.Close(t.Context())
	if _, err := Open(path, Options{}); err == nil || !strings.Contains(err.Error(), "the program that wrote it") {
		t.Errorf("newer: %v", err)
	}
}
