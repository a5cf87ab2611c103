package manager

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

func asking(mib int) Spec { return Spec{Limits: sandbox.Limits{MemoryMiB: mib}} }

// What living sandboxes may use together is no more than the host, or one
// principal in all of its contexts, may have, however many ask at once.
//
//redteam:attack No principal takes the host from the others: sandboxes larger than the host, in one and in many, by one principal and by several
func TestMemoryIsGrantedWithinSums(t *testing.T) {
	f := &fake{slow: time.Millisecond}
	m := open(t, f, Options{NoPool: true, MemoryMiB: 1000, PrincipalMiB: 700})
	if _, err := m.Create(t.Context(), "ann/lab", asking(1001)); !errors.Is(err, ErrMemory) ||
		!strings.Contains(err.Error(), "1000 MiB for all sandboxes") {
		t.Errorf("one larger than the host: %v", err)
	}
	if _, err := m.Create(t.Context(), "ann/lab", asking(701)); !errors.Is(err, ErrMemory) ||
		!strings.Contains(err.Error(), "700 MiB for all your sandboxes") {
		t.Errorf("one larger than its principal may have: %v", err)
	}
	var made, refused atomic.Int32
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			switch _, err := m.Create(t.Context(), []string{"ann/lab", "ann/den"}[i%2], asking(100)); {
			case err == nil:
				made.Add(1)
			case errors.Is(err, ErrMemory):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made.Load() != 7 || refused.Load() != 33 || f.made.Load() != 7 {
		t.Errorf("%d made, %d refused, %d of the driver; want 7 of one principal", made.Load(), refused.Load(),
			f.made.Load())
	}
	for range 3 {
		create(t, m, "bob/lab", asking(100))
	}
	if _, err := m.Create(t.Context(), "bob/lab", asking(100)); !errors.Is(err, ErrMemory) {
		t.Errorf("more than the host has: %v", err)
	}
	for _, owner := range []string{"ann/lab", "ann/den", "bob/lab"} {
		for _, b := range m.List(owner) {
			if err := m.Destroy(owner, b.ID); err != nil {
				t.Error(err)
			}
		}
	}
	f.err = errors.New("no room")
	if _, err := m.Create(t.Context(), "ann/lab", asking(700)); !errors.Is(err, f.err) {
		t.Errorf("%v, want %v", err, f.err)
	}
	f.err = nil
	create(t, m, "ann/lab", asking(700))
	create(t, m, "bob/lab", asking(300))
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.granted.all != 1000 || m.granted.of["ann"] != 700 || m.granted.of["bob"] != 300 {
		t.Errorf("granted is %+v", m.granted)
	}
}

// Sandboxes that go on from a snapshot, and forks, count as others do.
func TestSnapshotsAreGrantedMemory(t *testing.T) {
	m := openAble(t, &able{}, Options{NoPool: true, MemoryMiB: 500})
	b := create(t, m, "ann", asking(200))
	s, err := m.Snapshot(t.Context(), b, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Restore(t.Context(), "ann", s.ID, Spec{}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Restore(t.Context(), "ann", s.ID, Spec{}); !errors.Is(err, ErrMemory) {
		t.Errorf("a third of 200 MiB within 500: %v", err)
	}
	if _, _, err := m.Fork(t.Context(), b, Spec{}); !errors.Is(err, ErrMemory) {
		t.Errorf("a fork: %v", err)
	}
}
