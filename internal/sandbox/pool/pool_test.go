package pool

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/sandbox"
)

// maker is a driver whose sandboxes take a while to make and do nothing.
type maker struct {
	takes time.Duration

	mu                     sync.Mutex
	fails                  error
	made, making, together int
	open                   map[*made]bool
}

type made struct {
	maker *maker
	done  chan struct{}
	once  sync.Once

	mu       sync.Mutex
	deaf     bool
	adjusted sandbox.Limits
}

func (m *maker) Name() string                             { return "maker" }
func (m *maker) Capabilities() sandbox.Capabilities       { return sandbox.Capabilities{} }
func (m *maker) Doctor(context.Context) []sandbox.Finding { return nil }
func (m *maker) Close() error                             { return nil }
func (s *made) Limits() sandbox.Limits                    { return s.adjusted }
func (s *made) Done() <-chan struct{}                     { return s.done }
func (s *made) Exec(context.Context, sandbox.Command) (sandbox.Process, error) {
	return nil, errors.New("it runs nothing")
}

func (s *made) Ping(ctx context.Context) error {
	s.mu.Lock()
	deaf := s.deaf
	s.mu.Unlock()
	if deaf {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (s *made) Adjust(ctx context.Context, l sandbox.Limits, _ []string) error {
	s.mu.Lock()
	s.adjusted = l
	s.mu.Unlock()
	return s.Ping(ctx)
}

func (s *made) Close() error {
	s.once.Do(func() {
		close(s.done)
		s.maker.mu.Lock()
		defer s.maker.mu.Unlock()
		delete(s.maker.open, s)
	})
	return nil
}

func (m *maker) Create(ctx context.Context, _ sandbox.Spec) (sandbox.Sandbox, error) {
	m.mu.Lock()
	m.making++
	m.together = max(m.together, m.making)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.making--
		m.mu.Unlock()
	}()
	select {
	case <-time.After(m.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails != nil {
		return nil, m.fails
	}
	m.made++
	s := &made{maker: m, done: make(chan struct{})}
	m.open[s] = true
	return s, nil
}

// still is how many sandboxes are open.
func (m *maker) still() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.open)
}

// most is how many were made at the same time.
func (m *maker) most() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.together
}

func (m *maker) set(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fails = err
}

// in runs a pool of a maker in a bubble, and checks afterwards that nothing is
// left open.
func in(t *testing.T, takes time.Duration, prepare func(*Pool), story func(t *testing.T, p *Pool, m *maker)) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{takes: takes, open: map[*made]bool{}}
		p := &Pool{Driver: m}
		if prepare != nil {
			prepare(p)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		synctest.Wait()
		story(t, p, m)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := m.still(); n != 0 {
			t.Errorf("%d sandboxes are still open", n)
		}
		if _, _, err := p.Claim(t.Context(), sandbox.Spec{}); !errors.Is(err, ErrClosed) {
			t.Errorf("a claim after the end: %v", err)
		}
	})
}

// claim claims one and says how long that took.
func claim(t *testing.T, p *Pool, spec sandbox.Spec) (s sandbox.Sandbox, warm bool, took time.Duration) {
	t.Helper()
	began := time.Now()
	s, warm, err := p.Claim(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return s, warm, time.Since(began)
}

func waitingAt(p *Pool, i int) *made {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting[i].Sandbox.(*made)
}

func TestAClaimIsMetAtOnceHoweverSlowTheMakerIs(t *testing.T) {
	in(t, 3*time.Second, nil, func(t *testing.T, p *Pool, m *maker) {
		time.Sleep(time.Minute)
		for range 3 {
			s, warm, took := claim(t, p, sandbox.Spec{})
			if !warm || took != 0 {
				t.Errorf("warm %v after %v", warm, took)
			}
			s.Close()
		}
		last, warm, took := claim(t, p, sandbox.Spec{})
		if warm || took != 3*time.Second {
			t.Errorf("from the empty pool: warm %v after %v, want a new one after 3s", warm, took)
		}
		time.Sleep(time.Minute)
		s := p.Stats()
		if s.Waiting != 3 || s.Hits != 3 || s.Misses != 1 || s.HitRate() != 0.75 || s.Worst != 0 {
			t.Errorf("%+v", s)
		}
		last.Close()
	})
}

func TestThoseBeingMadeCountAndNeverTooManyAreMade(t *testing.T) {
	in(t, time.Second, func(p *Pool) { p.Ready, p.Boots = 10, 4 }, func(t *testing.T, p *Pool, m *maker) {
		var claimed []sandbox.Sandbox
		for range 20 {
			s, _, _ := claim(t, p, sandbox.Spec{})
			claimed = append(claimed, s)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		if n := m.most(); n > 5 { // four of the pool's, one of a claim's
			t.Errorf("%d were made at the same time", n)
		}
		if n := m.still(); n != 10+len(claimed) {
			t.Errorf("%d are open, want %d claimed and 10 waiting", n, len(claimed))
		}
		for _, s := range claimed {
			s.Close()
		}
	})
}

func TestWhatDoesNotAnswerIsNotHandedOut(t *testing.T) {
	in(t, time.Second, func(p *Pool) { p.Ready = 2 }, func(t *testing.T, p *Pool, m *maker) {
		time.Sleep(time.Minute)
		youngest := waitingAt(p, 1)
		youngest.mu.Lock()
		youngest.deaf = true
		youngest.mu.Unlock()
		s, warm, took := claim(t, p, sandbox.Spec{})
		if s == sandbox.Sandbox(youngest) || !warm || took != time.Second {
			t.Errorf("warm %v after %v", warm, took)
		}
		s.Close()
		if st := p.Stats(); st.Failed != 1 || st.Hits != 1 {
			t.Errorf("%+v", st)
		}
	})
}

func TestWhatDiesWhileItWaitsIsReplaced(t *testing.T) {
	in(t, time.Second, nil, func(t *testing.T, p *Pool, m *maker) {
		time.Sleep(time.Minute)
		waitingAt(p, 0).Close()
		time.Sleep(2 * time.Second)
		if s := p.Stats(); s.Waiting != 3 || s.Failed != 1 || s.Created != 4 {
			t.Errorf("%+v", s)
		}
	})
}

func TestTheOldAreReplaced(t *testing.T) {
	in(t, time.Second, func(p *Pool) { p.Age = 10 * time.Minute }, func(t *testing.T, p *Pool, m *maker) {
		time.Sleep(11 * time.Minute)
		if s := p.Stats(); s.Waiting != 3 || s.Expired != 3 || m.still() != 3 {
			t.Errorf("%+v, %d open", s, m.still())
		}
	})
}

func TestFailuresAreToldAndTriedAgainEverLater(t *testing.T) {
	no := errors.New("no room")
	in(t, 0, nil, func(t *testing.T, p *Pool, m *maker) {
		time.Sleep(time.Minute)
		m.set(no)
		for range 3 {
			s, _, _ := claim(t, p, sandbox.Spec{})
			s.Close()
		}
		time.Sleep(time.Hour)
		s := p.Stats()
		if s.Reason != no.Error() || s.Failures < 10 || s.Failures > 80 || s.Resume.Before(time.Now()) {
			t.Errorf("after an hour: %+v", s)
		}
		if _, _, err := p.Claim(t.Context(), sandbox.Spec{}); !errors.Is(err, no) {
			t.Errorf("a claim meanwhile: %v", err)
		}
		m.set(nil)
		time.Sleep(2 * time.Minute)
		if s := p.Stats(); s.Waiting != 3 || s.Reason != "" || !s.Resume.IsZero() {
			t.Errorf("when it works again: %+v", s)
		}
	})
}

func TestAClaimGetsTheLimitsItAsksFor(t *testing.T) {
	in(t, time.Second, nil, func(t *testing.T, p *Pool, m *maker) {
		time.Sleep(time.Minute)
		s, warm, _ := claim(t, p, sandbox.Spec{Limits: sandbox.Limits{MemoryMiB: 7}})
		if !warm || s.Limits().MemoryMiB != 7 {
			t.Errorf("warm %v, %+v", warm, s.Limits())
		}
		s.Close()
		s, warm, _ = claim(t, p, sandbox.Spec{Trees: []sandbox.Tree{{From: "/opt"}}})
		if warm {
			t.Error("one without the folder was handed out")
		}
		s.Close()
	})
}

func TestAPoolThatDoesNotRunMakesWhatIsAskedFor(t *testing.T) {
	m := &maker{open: map[*made]bool{}}
	s, warm, err := (&Pool{Driver: m}).Claim(t.Context(), sandbox.Spec{})
	if err != nil || warm {
		t.Fatal(warm, err)
	}
	s.Close()
}
