// Package process starts programs that go on after the call that started them,
// and lets their owner read, drive and end them.
//
// A process belongs to the principal and context that started it; nobody else
// finds it. It outlives call and session and ends with the host, and with it
// ends everything that came of it. What it prints never holds it up: the newest
// part is kept, and a cursor tells what was lost.
package process

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"gatehouse/internal/hub"
	"gatehouse/internal/proc"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is the module's section of the configuration. The zero value is
// usable: each zero stands for the default.
type Config struct {
	Running   int    `json:"running,omitempty"`   // processes of one owner at once; 0 means 256
	Everyones int    `json:"everyones,omitempty"` // processes at once in all; 0 means 1000
	Processes int    `json:"processes,omitempty"` // what one process may become, threads included; 0 means 512
	Buffer    int    `json:"buffer,omitempty"`    // bytes of each stream that are kept; 0 means 1 MiB
	Kept      int    `json:"kept,omitempty"`      // ended processes of one owner that are remembered; 0 means 50
	Keep      string `json:"keep,omitempty"`      // for how long; "" means 1h

	// Hub is where owners hear of their processes; it belongs to whoever gave
	// it. nil means that nobody listens.
	Hub *hub.Hub `json:"-"`
	// Sessions tells when sessions end; nil means that there are none.
	Sessions Sessions `json:"-"`
}

// Sessions are those that a process may end with.
type Sessions interface {
	// Ended yields, from now on, which sessions have ended.
	Ended(context.Context) iter.Seq[func(session string) bool]
	// Lives reports whether a session has not ended.
	Lives(session string) bool
}

// closeWait is how long one process may take to end when the module closes.
const closeWait = 2 * time.Second

// manager is the module.
type manager struct {
	offer  module.Offer
	cfg    Config
	keep   time.Duration
	log    *slog.Logger
	newID  func(kind string) string
	tell   func(subject string, fact any)
	life   context.Context // of all processes
	end    context.CancelFunc
	follow sync.WaitGroup // goroutines of the records

	mu      sync.Mutex
	closed  bool
	records map[string]*record
	running map[string]int // by owner
	all     int            // running
}

// New makes the module; Config says what can be configured.
func New(_ context.Context, d module.Deps) (module.Module, error) {
	m := &manager{log: d.Log, newID: d.NewID, tell: d.Publish, records: map[string]*record{}, running: map[string]int{}}
	if err := m.configure(d); err != nil {
		return nil, err
	}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	if m.tell == nil {
		m.tell = func(string, any) {}
	}
	m.life, m.end = context.WithCancel(context.Background())
	if m.cfg.Sessions != nil {
		ended := m.cfg.Sessions.Ended(m.life) // from now on
		m.follow.Go(func() { m.leave(ended) })
	}
	m.offer.Tools = []tool.Tool{
		m.startTool(), m.runTool(), m.listTool(), m.outputTool(), m.screenTool(), m.inputTool(), m.resizeTool(),
		m.stopTool(), m.killTool(), m.removeTool(),
	}
	return m, nil
}

func (m *manager) configure(d module.Deps) (err error) {
	c := &m.cfg
	if d.Config != nil {
		if err := d.Config(c); err != nil {
			return err
		}
	}
	for _, n := range []struct {
		value     *int
		otherwise int
	}{{&c.Running, 256}, {&c.Everyones, 1000}, {&c.Processes, 512}, {&c.Buffer, 1 << 20}, {&c.Kept, 50}} {
		if *n.value < 0 {
			return fmt.Errorf("%d: a limit cannot be negative", *n.value)
		}
		if *n.value == 0 {
			*n.value = n.otherwise
		}
	}
	if m.keep = time.Hour; c.Keep != "" {
		if m.keep, err = time.ParseDuration(c.Keep); err != nil {
			return fmt.Errorf("keep: %w", err)
		}
	}
	return nil
}

// Offer implements module.Module.
func (m *manager) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &m.offer, nil
}

// Close ends all processes.
func (m *manager) Close(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	records := m.records
	m.records = map[string]*record{}
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, closeWait)
	defer cancel()
	var wg sync.WaitGroup
	for _, r := range records {
		wg.Go(func() {
			if err := r.p.Stop(ctx); err != nil {
				m.log.Error("a process did not end", "process", r.id, "err", err)
			}
		})
	}
	wg.Wait()
	m.end()
	m.follow.Wait()
	for _, r := range records {
		r.forget()
	}
	return nil
}

// reserve takes a place for one more process of an owner.
func (m *manager) reserve(owner string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return tool.Refuse("busy", "the host is closing")
	case m.running[owner] >= m.cfg.Running:
		return &tool.Refusal{Code: "busy", Message: fmt.Sprintf("%d processes of yours are running, which is the most there may be", m.running[owner]), Next: "Stop some: process_list shows them with running_only."}
	case m.all >= m.cfg.Everyones:
		return &tool.Refusal{Code: "busy", Message: "this host runs as many processes as it may", Next: "Try again later."}
	}
	m.running[owner]++
	m.all++
	return nil
}

// release gives the place back.
func (m *manager) release(owner string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all--
	if m.running[owner]--; m.running[owner] == 0 {
		delete(m.running, owner)
	}
}

// find is a process of the caller's; somebody else's is as if it were not there.
func (m *manager) find(c *tool.Call, id string) (*record, error) {
	m.mu.Lock()
	r := m.records[id]
	m.mu.Unlock()
	if r == nil || r.owner != c.Caller.Owner {
		return nil, &tool.Refusal{Code: "not_found", Message: "process not found: " + id, Next: "process_list shows the processes there are; ended ones are kept for a while."}
	}
	return r, nil
}

// remove forgets an ended process.
func (m *manager) remove(r *record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.records, r.id)
	r.forget()
}

// over is called when a process has ended: its place is free, and it is
// remembered for a while.
func (m *manager) over(r *record, s proc.State) {
	m.release(r.owner)
	m.tell("process.exited", exited{r.id, r.owner, s.Code, s.Signal, s.Took})
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records[r.id] != r {
		return
	}
	r.expire = time.AfterFunc(m.keep, func() { m.remove(r) })
	for {
		var oldest *record
		n := 0
		for _, o := range m.records {
			if o.owner != r.owner || o.expire == nil {
				continue
			}
			if n++; oldest == nil || o.began.Before(oldest.began) {
				oldest = o
			}
		}
		if n <= m.cfg.Kept {
			return
		}
		delete(m.records, oldest.id)
		oldest.forget()
	}
}

// started and exited are the facts that are published.
type started struct {
	ID      string `json:"id"`
	Owner   string `json:"owner"`
	Command string `json:"command"`
	PID     int    `json:"pid"`
}

type exited struct {
	ID       string        `json:"id"`
	Owner    string        `json:"owner"`
	ExitCode int           `json:"exitCode"`
	Signal   string        `json:"signal,omitempty"`
	Duration time.Duration `json:"duration"` // ns
}
