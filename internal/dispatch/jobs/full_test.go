package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/tool"
)

// limitPages makes the file behave as on a full disk: it grows to n pages at most.
func limitPages(t *testing.T, j *Manager, n int) {
	t.Helper()
	db, err := j.store.file.DB()
	if err == nil {
		_, err = db.Exec(fmt.Sprintf("PRAGMA max_page_count = %d", n))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// refuseWrites makes every write to the file fail, or succeed again.
func refuseWrites(t *testing.T, j *Manager, refuse bool) {
	t.Helper()
	db, err := j.store.file.DB()
	if err == nil {
		_, err = db.Exec(fmt.Sprintf("PRAGMA query_only = %t", refuse))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// On a full disk every job still ends: as failed, for all who wait, and on disk as soon as there is room.
func TestOutcomeOnAFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jobs.db")
	j := open(t, path, Options{MaxPerOwner: 1000})
	first := create(t, j, Record{})
	limitPages(t, j, 40)
	running := []*Running{first}
	for {
		run, err := j.Create(t.Context(), Record{Owner: "alice",
			Request: json.RawMessage(`"` + strings.Repeat("x", 3000) + `"`)})
		if err != nil {
			if !strings.Contains(err.Error(), "full") {
				t.Fatal(err)
			}
			break
		}
		running = append(running, run)
	}
	type end struct {
		rec Record
		err error
	}
	ends := make(chan end, len(running))
	for _, run := range running {
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			rec, err := j.Wait(ctx, "alice", run.ID(), func(r Record) bool { return r.Status.Terminal() })
			ends <- end{rec, err}
		}()
	}
	for _, run := range running {
		err := run.Finish(json.RawMessage(`"` + strings.Repeat("r", 100_000) + `"`))
		if err == nil || !strings.Contains(err.Error(), "full") {
			t.Fatalf("finish on a full disk: %v", err)
		}
		if context.Cause(run.Context()) != ErrSettled {
			t.Errorf("the context of the round: %v", context.Cause(run.Context()))
		}
	}
	for range running {
		if e := <-ends; e.err != nil || e.rec.Status != Failed ||
			!strings.Contains(e.rec.Error.Message, "could not be stored") {
			t.Fatalf("waited for %+v, %v", e.rec, e.err)
		}
	}
	limitPages(t, j, 10_000)
	j.storeFailures()
	if n := j.Live(); n != 0 {
		t.Errorf("%d jobs are still in memory", n)
	}
	j.Close(t.Context())
	again := open(t, path, Options{})
	for _, run := range running {
		if r := get(t, again, run.ID()); r.Status != Failed || !strings.Contains(r.Note, "could not be stored") {
			t.Fatalf("after a restart: %+v", r)
		}
	}
}

// A store that refuses every write: what ends is seen as failed by each method, never changes again, and is
// stored by the first sweep that can.
func TestOutcomeThatCannotBeStored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jobs.db")
	j := open(t, path, Options{})
	ends := map[string]func(*Running) error{
		"finish": func(r *Running) error { return r.Finish(json.RawMessage(`{}`)) },
		"fail":   func(r *Running) error { return r.Fail(&tool.WireError{Code: 1, Message: "no"}) },
		"ask":    func(r *Running) error { return r.Ask(twoQuestions, nil, nil) },
	}
	runs := map[string]*Running{}
	for name := range ends {
		runs[name] = create(t, j, Record{Title: name})
	}
	seen := make(chan Record, 100)
	for name, run := range runs {
		if _, err := j.Watch("alice", run.ID(), func(r Record) { seen <- r }); err != nil {
			t.Fatal(name, err)
		}
	}
	refuseWrites(t, j, true)
	for name, f := range ends {
		if err := f(runs[name]); err == nil || errors.Is(err, ErrSettled) {
			t.Errorf("%s: %v", name, err)
		}
		if r := <-seen; r.ID != runs[name].ID() || r.Status != Failed {
			t.Errorf("%s: watched %+v", name, r)
		}
		if err := runs[name].Finish(json.RawMessage(`{}`)); err != ErrSettled {
			t.Errorf("%s: a second end: %v", name, err)
		}
		if r, err := j.Cancel("alice", runs[name].ID()); err != ErrTerminal || r.Status != Failed {
			t.Errorf("%s: cancelled: %+v, %v", name, r, err)
		}
		if r, err := j.Answer("alice", runs[name].ID(), raw("a", "1")); err != ErrTerminal {
			t.Errorf("%s: answered: %+v, %v", name, r, err)
		}
	}
	j.storeFailures() // it cannot yet
	list, _, err := j.List("alice", "", 0)
	for _, r := range list {
		if r.Status != Failed || r.Error == nil {
			t.Errorf("listed: %+v", r)
		}
	}
	if open, e := j.Unfinished(); err != nil || e != nil || len(list) != 3 || len(open) != 0 {
		t.Errorf("%d listed, unfinished %+v: %v, %v", len(list), open, err, e)
	}
	refuseWrites(t, j, false)
	j.storeFailures()
	j.Close(t.Context())
	if len(seen) != 0 {
		t.Errorf("an end was seen twice: %+v", <-seen)
	}
	again := open(t, path, Options{})
	for name, run := range runs {
		if r := get(t, again, run.ID()); r.Status != Failed ||
			!strings.Contains(r.Error.Message, "could not be stored") {
			t.Errorf("%s after a restart: %+v", name, r)
		}
	}
}
