package manager

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/sandbox"
)

// fake makes sandboxes that do nothing.
type fake struct {
	tier  sandbox.Tier
	err   error
	slow  time.Duration // each takes so long
	alive atomic.Int32
	made  atomic.Int32
}

func (f *fake) Name() string                             { return "fake" }
func (f *fake) Capabilities() sandbox.Capabilities       { return sandbox.Capabilities{Tier: f.tier} }
func (f *fake) Doctor(context.Context) []sandbox.Finding { return nil }
func (f *fake) Close() error                             { return nil }
func (f *fake) Create(_ context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	time.Sleep(f.slow)
	if f.err != nil {
		return nil, f.err
	}
	f.alive.Add(1)
	f.made.Add(1)
	return &fakeBox{f: f, limits: s.Limits, done: make(chan struct{})}, nil
}

type fakeBox struct {
	f      *fake
	limits sandbox.Limits
	done   chan struct{}
	once   sync.Once
}

func (b *fakeBox) Limits() sandbox.Limits     { return b.limits }
func (b *fakeBox) Ping(context.Context) error { return nil }
func (b *fakeBox) Done() <-chan struct{}      { return b.done }
func (b *fakeBox) Exec(context.Context, sandbox.Command) (sandbox.Process, error) {
	return nil, errors.New("nothing runs in here")
}
func (b *fakeBox) Close() error {
	b.once.Do(func() {
		b.f.alive.Add(-1)
		close(b.done)
	})
	return nil
}

// open is a manager of a fake, which ends with the test and then has nothing
// left.
func open(t *testing.T, f *fake, o Options) *Manager {
	t.Helper()
	if f.tier == 0 {
		f.tier = sandbox.Namespaces
	}
	var ids atomic.Int32
	if o.Ladder == nil {
		o.Ladder = []LadderEntry{{"fake", func() (sandbox.Driver, error) { return f, nil }}}
	}
	o.NewID = func(kind string) string { return fmt.Sprint(kind, "_", ids.Add(1)) }
	m := New(o)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if n := f.alive.Load(); n != 0 {
			t.Errorf("%d sandboxes are left", n)
		}
	})
	return m
}

func create(t *testing.T, m *Manager, owner string, a Spec) *Box {
	t.Helper()
	b, err := m.Create(t.Context(), owner, a)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

//redteam:attack What is not yours is not there: sandboxes of other principals are named
func TestASandboxIsItsOwnersAlone(t *testing.T) {
	m := open(t, &fake{}, Options{})
	b := create(t, m, "ann", Spec{})
	if got, err := m.FindBox("ann", b.ID); got != b || err != nil {
		t.Errorf("its owner: %v, %v", got, err)
	}
	for _, c := range [][2]string{{"bob", b.ID}, {"ann", "sandbox_none"}, {"ann", ""}, {"", b.ID}} {
		if _, err := m.FindBox(c[0], c[1]); err != ErrNotFound {
			t.Errorf("%q asking for %q: %v, want ErrNotFound itself", c[0], c[1], err)
		}
		if err := m.Destroy(c[0], c[1]); err != ErrNotFound {
			t.Errorf("%q destroying %q: %v, want ErrNotFound itself", c[0], c[1], err)
		}
	}
	if len(m.List("bob")) != 0 || len(m.List("ann")) != 1 {
		t.Error("the lists are wrong")
	}
	if err := m.Destroy("ann", b.ID); err != nil {
		t.Error(err)
	}
	if err := m.Destroy("ann", b.ID); err != ErrNotFound {
		t.Errorf("a second time: %v", err)
	}
}

func TestThereAreNeverMoreThanThereMayBe(t *testing.T) {
	f := &fake{slow: time.Millisecond}
	m := open(t, f, Options{Sandboxes: 5, NoPool: true})
	var made, refused atomic.Int32
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			switch _, err := m.Create(t.Context(), "ann", Spec{}); {
			case err == nil:
				made.Add(1)
			case errors.Is(err, ErrFull) && strings.HasSuffix(err.Error(), "(5)"):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made.Load() != 5 || refused.Load() != 35 || f.made.Load() != 5 {
		t.Errorf("%d made, %d refused, %d of the driver", made.Load(), refused.Load(), f.made.Load())
	}
	if err := m.Destroy("ann", m.List("ann")[0].ID); err != nil {
		t.Fatal(err)
	}
	create(t, m, "ann", Spec{})
}

func TestAPlaceIsGivenBackWhenNoneCouldBeMade(t *testing.T) {
	f := &fake{err: errors.New("no room")}
	m := open(t, f, Options{Sandboxes: 1})
	for range 3 {
		if _, err := m.Create(t.Context(), "ann", Spec{}); !errors.Is(err, f.err) {
			t.Errorf("%v, want %v", err, f.err)
		}
	}
	f.err = nil
	create(t, m, "ann", Spec{})
}

func TestSandboxesEndWhenNobodyUsesThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []string
		m := open(t, &fake{}, Options{Publish: func(subject string, fact any) {
			mu.Lock()
			defer mu.Unlock()
			if d, ok := fact.(Event); ok && d.Why != "" {
				told = append(told, d.ID+" "+d.Why)
			}
		}})
		idle := create(t, m, "ann", Spec{})
		used := create(t, m, "ann", Spec{})
		busy := create(t, m, "ann", Spec{})
		short := create(t, m, "ann", Spec{Idle: time.Minute, Lifetime: 100 * time.Hour})
		done := busy.Use()
		time.Sleep(49 * time.Minute)
		if _, err := m.FindBox("ann", used.ID); err == nil {
			t.Fatal("one that nobody used for 49 minutes is there")
		}
		for id, there := range map[string]bool{idle.ID: false, busy.ID: true, short.ID: false} {
			if _, err := m.FindBox("ann", id); (err == nil) != there {
				t.Errorf("%s: %v, want there %v", id, err, there)
			}
		}
		time.Sleep(24 * time.Hour)
		if _, err := m.FindBox("ann", busy.ID); err == nil {
			t.Error("a busy one outlived its lifetime")
		}
		done()
		kept := create(t, m, "ann", Spec{})
		for range 20 {
			time.Sleep(14 * time.Minute)
			kept.Use()()
		}
		if _, err := m.FindBox("ann", kept.ID); err != nil {
			t.Errorf("one in use is gone: %v", err)
		}
		time.Sleep(16 * time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		for _, want := range []string{idle.ID + " idle", short.ID + " idle", busy.ID + " expired", kept.ID + " idle"} {
			if !strings.Contains(strings.Join(told, ", "), want) {
				t.Errorf("%q was not told: %q", want, told)
			}
		}
	})
}

func TestOneThatDiesIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := open(t, &fake{}, Options{})
		b := create(t, m, "ann", Spec{})
		b.Sandbox.Close()
		synctest.Wait()
		if _, err := m.FindBox("ann", b.ID); err != ErrNotFound {
			t.Errorf("%v", err)
		}
	})
}

func TestLimitsAreAskedForAndHeld(t *testing.T) {
	m := open(t, &fake{}, Options{Limits: sandbox.Limits{MemoryMiB: 100}, Most: sandbox.Limits{MemoryMiB: 200}})
	if got := create(t, m, "ann", Spec{}).Limits(); got.MemoryMiB != 100 || got.Processes != 256 ||
		got.Call != 30*time.Second {
		t.Errorf("nobody asked, and got %+v", got)
	}
	if got := create(t, m, "ann", Spec{Limits: sandbox.Limits{MemoryMiB: 150}}).Limits(); got.MemoryMiB != 150 {
		t.Errorf("150 were asked for, and there are %+v", got)
	}
	for _, n := range []int{-1, 201} {
		if _, err := m.Create(t.Context(), "ann", Spec{Limits: sandbox.Limits{MemoryMiB: n}}); err == nil ||
			!strings.Contains(err.Error(), "memory_mib") {
			t.Errorf("%d: %v, want an error that names it", n, err)
		}
	}
}

func TestATierTooLowIsRefused(t *testing.T) {
	m := open(t, &fake{tier: sandbox.NoIsolation}, Options{Least: sandbox.Namespaces})
	if _, err := m.Create(t.Context(), "ann", Spec{}); err == nil || !strings.Contains(err.Error(), `"process"`) ||
		!strings.Contains(err.Error(), `"namespaces"`) {
		t.Errorf("%v", err)
	}
}

func TestThePoolFillsOnlyWhenSandboxesAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{slow: time.Second}
		m := open(t, f, Options{Ready: 2})
		time.Sleep(time.Hour)
		if f.made.Load() != 0 {
			t.Errorf("%d were made before anybody wanted one", f.made.Load())
		}
		if b := create(t, m, "ann", Spec{}); b.Warm {
			t.Error("it came from a pool that is not there")
		}
		m.Serve()
		m.Serve()
		time.Sleep(time.Minute)
		began := time.Now()
		if b := create(t, m, "ann", Spec{}); !b.Warm || time.Since(began) != 0 {
			t.Errorf("warm %v, after %v", b.Warm, time.Since(began))
		}
		if b := create(t, m, "ann", Spec{Limits: sandbox.Limits{MemoryMiB: 512}}); b.Warm ||
			b.Limits().MemoryMiB != 512 {
			t.Errorf("one that cannot be changed was handed out: warm %v, %+v", b.Warm, b.Limits())
		}
		if s, ok := m.Pool(); !ok || s.Hits != 1 {
			t.Errorf("%+v, %v", s, ok)
		}
	})
}

func TestAManagerThatWasNeverAskedClosesAtOnce(t *testing.T) {
	m := New(Options{Ladder: []LadderEntry{{"fake", func() (sandbox.Driver, error) {
		t.Error("a driver was made")
		return nil, nil
	}}}})
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if _, err := m.Create(t.Context(), "ann", Spec{}); err == nil {
		t.Error("it still makes sandboxes")
	}
}

func TestJournalsKeepTheNewest(t *testing.T) {
	j := newJournal(10)
	for i := range 100 {
		fmt.Fprintf(j, "%02d", i)
	}
	if text, next, lost := j.readSince(t.Context(), 0, 100); string(text) != "9596979899" || next != 200 ||
		lost != 190 {
		t.Errorf("%q, %d, %d", text, next, lost)
	}
	if text, next, lost := j.readSince(t.Context(), 196, 2); string(text) != "98" || next != 198 || lost != 0 {
		t.Errorf("%q, %d, %d", text, next, lost)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if text, next, _ := j.readSince(ctx, 200, 10); len(text) != 0 || next != 200 {
		t.Errorf("%q, %d", text, next)
	}
	go fmt.Fprint(j, "new")
	if text, _, _ := j.readSince(t.Context(), 200, 10); string(text) != "new" {
		t.Errorf("%q", text)
	}
	j.endOutput()
	if text, next, _ := j.readSince(t.Context(), 203, 10); len(text) != 0 || next != 203 {
		t.Errorf("%q, %d", text, next)
	}
}
