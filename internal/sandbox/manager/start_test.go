package manager

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/interpreter"
)

// slowBox starts nothing before it is let, and can be told what it may reach.
type slowBox struct {
	*fakeBox
	starts atomic.Int32
	let    chan error // why it did not start

	mu   sync.Mutex
	told [][]string // what may be reached, as the driver heard it
}

func (b *slowBox) Exec(context.Context, sandbox.Command) (sandbox.Process, error) {
	b.starts.Add(1)
	return nil, <-b.let
}

func (b *slowBox) SetNetwork(_ context.Context, n sandbox.Network) error {
	b.mu.Lock()
	b.told = append(b.told, n.Allow)
	b.mu.Unlock()
	time.Sleep(time.Second) // another caller may be faster
	return nil
}

// slowDriver makes them.
type slowDriver struct{ *fake }

func (d slowDriver) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	b, err := d.fake.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &slowBox{fakeBox: b.(*fakeBox), let: make(chan error)}, nil
}

func slow(t *testing.T) (*Box, *slowBox) {
	d := slowDriver{&fake{tier: sandbox.Namespaces}}
	b := create(t, open(t, d.fake, Options{NoPool: true, Ladder: []LadderEntry{of("slow", d)}}), "ann", Spec{})
	return b, b.Sandbox.(*slowBox)
}

func TestAnInterpreterThatIsSlowToStartHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := slow(t)
		patient := make(chan *interpreter.Forker)
		for range 2 { // for both the same one is started
			go func() { patient <- b.forker(t.Context()) }()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if f := b.forker(ctx); f != nil || time.Since(began) != time.Minute {
			t.Errorf("%v after %v", f, time.Since(began))
		}
		began = time.Now()
		if err := b.SetNetwork(t.Context(), sandbox.Network{}, nil); err != nil || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		s.let <- sandbox.ErrPaused
		for range 2 {
			if f := <-patient; f != nil {
				t.Error("there is one")
			}
		}
		if n := s.starts.Load(); n != 1 {
			t.Errorf("%d were started", n)
		}
	})
}

func TestOnlyWhatLastsIsRememberedOfAStart(t *testing.T) {
	missing := errors.New("there is no such program")
	for name, c := range map[string]struct {
		err    error
		paused bool
		want   int32 // how often two calls try to start it
	}{
		"paused":           {sandbox.ErrPaused, false, 2},
		"closed":           {sandbox.ErrClosed, false, 2},
		"missing":          {missing, false, 1},
		"paused meanwhile": {missing, true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for what, call := range map[string]func(*Box){
					"python": func(b *Box) { b.forker(t.Context()) },
					"node":   func(b *Box) { b.starter() },
				} {
					b, s := slow(t)
					b.paused = c.paused
					for range 2 {
						go call(b)
						synctest.Wait()
						select {
						case s.let <- c.err:
						default: // none is being started
						}
						synctest.Wait()
					}
					if n := s.starts.Load(); n != c.want {
						t.Errorf("%s: %d were started, want %d", what, n, c.want)
					}
				}
			})
		})
	}
}

func TestTheRulesShownAreThoseTheDriverHasHeardLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := slow(t)
		var all sync.WaitGroup
		for _, host := range []string{"a", "b", "c", "d"} {
			all.Go(func() {
				if err := b.SetNetwork(t.Context(), sandbox.Network{Allow: []string{host}}, nil); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		s.mu.Lock()
		if len(s.told) != 1 {
			t.Errorf("the driver hears %q at once", s.told)
		}
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := b.SetNetwork(ctx, sandbox.Network{}, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one that does not wait for the others: %v", err)
		}
		all.Wait()
		rules, _, _ := b.Network()
		if n := len(s.told); n != 4 || !slices.Equal(rules.Allow, s.told[n-1]) {
			t.Errorf("%q are shown, and the driver heard %q", rules.Allow, s.told)
		}
	})
}
