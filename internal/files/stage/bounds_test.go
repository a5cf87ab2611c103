package stage

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"gatehouse/tool"
)

// A task that holds too much takes no more calls until it is reviewed, and a principal has a limited number of tasks.
func TestTasksAreBounded(t *testing.T) {
	m, real := open(t, Options{Bytes: 1 << 20, Most: 2})
	w := begin(t, m, "ann", real)
	w.shell("head -c 3000000 /dev/urandom >large")
	m.closeViews(true) // a task is measured once a minute, and by a new host at once
	v, err := m.Enter(w.id, []string{real}, true)
	if err == nil {
		v.Leave(false)
	}
	if r, ok := errors.AsType[*tool.Refusal](err); !ok || r.Code != tool.CodeTooLarge ||
		!strings.Contains(r.Next, "gatehouse review") {
		t.Errorf("a call of a task that is full: %v", err)
	}
	if r := w.accept(); len(r.Done) != 1 {
		t.Errorf("it cannot be accepted: %+v", r)
	}
	for n := range 3 {
		_, err := m.Begin(Who{Principal: "bob", Context: "c", Session: fmt.Sprint(n)})
		if r, ok := errors.AsType[*tool.Refusal](err); (n == 2) != ok || ok && r.Code != tool.CodeBusy {
			t.Errorf("task %d: %v", n, err)
		}
	}
	if _, err := m.Begin(Who{Principal: "carl", Context: "c"}); err != nil {
		t.Errorf("another principal: %v", err)
	}
}

// The bases of a large task are kept between its calls, within a limit for all tasks, and read anew above it.
func TestBasesAreKept(t *testing.T) {
	var total atomic.Int64
	task := func(names int) *Task {
		one := &Task{dir: t.TempDir(), read: &read{total: &total}}
		if err := one.addBases(func(add func(base) error) error {
			for i := range names {
				if err := add(base{Path: fmt.Sprint(i)}); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return one
	}
	read := func(one *Task, names int) {
		t.Helper()
		if all, err := one.bases(); err != nil || len(all) != names {
			t.Fatalf("%d bases, %v; want %d", len(all), err, names)
		}
	}
	large, more, small := task(mostRead-1), task(leastRead+1), task(10)
	for range 2 {
		read(large, mostRead-1)
		read(more, leastRead+1)
		read(small, 10)
		if large.read.all == nil || more.read.all != nil || small.read.all == nil {
			t.Errorf("kept are %d, %d and %d", len(large.read.all), len(more.read.all), len(small.read.all))
		}
	}
	if err := large.addBases(func(add func(base) error) error {
		return errors.Join(add(base{Path: "one"}), add(base{Path: "two"}))
	}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it is forgotten when it grows, and its bases are known nevertheless
		read(large, mostRead+1)
		if large.read.all != nil || total.Load() != 10 {
			t.Errorf("kept are %d, %d in total", len(large.read.all), total.Load())
		}
	}
	read(more, leastRead+1)
	if more.read.all == nil || total.Load() != leastRead+11 {
		t.Errorf("%d bases are kept", total.Load())
	}
}
