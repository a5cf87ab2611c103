package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"gatehouse/tool"
)

// registry implements Others for hosts in one process: it has the last state of each job and the host that has it.
type registry struct {
	mu  sync.Mutex
	job map[string]Record
	of  map[string]*member
}

// member is one of the hosts.
type member struct {
	*registry
	fail error // of each call
}

func (m *member) Share(r Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if of := m.of[r.ID]; of != nil && of != m {
		return ErrMoved
	}
	m.job[r.ID], m.of[r.ID] = r, m
	return m.fail
}

func (m *member) Keeps(id string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of[id] == m && !m.job[id].Status.Terminal(), m.fail
}

// take makes a host the one that has a job, and returns the job.
func (m *member) take(id string) Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.job[id]
	r.Round++
	m.of[id], m.job[id] = m, r
	return r
}

// A job that may run again goes on at another host with what it had recorded, under its id. The host that had it
// forgets it when it would store its end, and when it returns.
func TestAJobGoesOnAtAnotherHost(t *testing.T) {
	all := &registry{job: map[string]Record{}, of: map[string]*member{}}
	one, two := &member{registry: all}, &member{registry: all}
	path := filepath.Join(t.TempDir(), "jobs.db")
	first := open(t, path, Options{Others: one})
	begun := make(chan Record, 2)
	second := open(t, filepath.Join(t.TempDir(), "jobs.db"), Options{Others: two,
		Resume: func(_ context.Context, r Record, run *Running) {
			begun <- r
			run.Finish(json.RawMessage(`{"by":"second"}`))
		}})

	run := create(t, first, Record{Repeatable: true, Title: "install"})
	plain := create(t, first, Record{Title: "sleep"})
	run.Progress(3, 7, "third of seven")
	if err := run.Keep(raw("once", `"recorded"`)); err != nil {
		t.Fatal(err)
	}
	if _, there := all.job[plain.ID()]; there {
		t.Error("a job that cannot run again was given to the others")
	}
	if err := second.Adopt(two.take(run.ID())); err != nil {
		t.Fatal(err)
	}
	r := <-begun
	if r.ID != run.ID() || r.Title != "install" || string(r.Recorded["once"]) != `"recorded"` || r.Done != 3 || r.Total != 7 ||
		r.Round != 2 || r.Note != "third of seven" {
		t.Errorf("it goes on with %+v", r)
	}
	end, err := second.Wait(t.Context(), "alice", run.ID(), func(r Record) bool { return r.Status.Terminal() })
	if err != nil || string(end.Result) != `{"by":"second"}` {
		t.Errorf("its end: %+v, %v", end, err)
	}
	if err := run.Finish(json.RawMessage(`{"by":"first"}`)); err != ErrSettled {
		t.Errorf("the host that had it stores an end: %v", err)
	}
	if _, err := first.Get("alice", run.ID()); err != ErrNotFound {
		t.Errorf("the host that had it still has it: %v", err)
	}
	if context.Cause(run.Context()) != ErrSettled {
		t.Errorf("the round there: %v", context.Cause(run.Context()))
	}
	if got := all.job[run.ID()]; got.Status != Completed || string(got.Result) != `{"by":"second"}` {
		t.Errorf("the others know %+v", got)
	}
}

// A host that returns continues the jobs that it keeps, and forgets those with which others went on. If it cannot know,
// it continues none.
func TestAHostThatReturns(t *testing.T) {
	for _, c := range []struct {
		name string
		fail error
		want map[string]Status // "" means that it has forgotten the job
	}{
		{"others are heard", nil, map[string]Status{"kept": Completed, "moved": "", "asks": "", "plain": Failed}},
		{"others are not heard", errors.New("no answer"),
			map[string]Status{"kept": Working, "moved": Working, "asks": InputRequired, "plain": Failed}},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := &registry{job: map[string]Record{}, of: map[string]*member{}}
			one, two := &member{registry: all}, &member{registry: all}
			path := filepath.Join(t.TempDir(), "jobs.db")
			before := open(t, path, Options{Others: one})
			ids := map[string]string{}
			for _, name := range []string{"kept", "moved", "asks", "plain"} {
				run := create(t, before, Record{Repeatable: name != "plain"})
				if ids[name] = run.ID(); name == "asks" {
					if err := run.Ask(twoQuestions, nil, nil); err != nil {
						t.Fatal(err)
					}
				}
			}
			two.take(ids["moved"])
			two.take(ids["asks"])
			before.Close(t.Context()) // the jobs that may run again stay as they are

			one.fail = c.fail
			after := open(t, path, Options{Others: one, Resume: func(_ context.Context, _ Record, run *Running) {
				if err := run.Finish(json.RawMessage(`{}`)); err != nil {
					run.Fail(&tool.WireError{Message: err.Error()})
				}
			}})
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { after.Run(ctx) })
			defer running.Wait()
			defer stop()
			for name, want := range c.want {
				for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
					r, err := after.Get("alice", ids[name])
					if r.Status == want && (want != "" || errors.Is(err, ErrNotFound)) {
						break
					}
					if time.Now().After(end) {
						t.Fatalf("%s is %q, %v; want %q", name, r.Status, err, want)
					}
				}
			}
		})
	}
}
