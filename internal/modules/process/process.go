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
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/access/operator"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/dispatch/hub"
	"gatehouse/internal/exec/proc"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is the module's section of the configuration. The zero value is
// usable: each zero stands for the default.
type Config struct {
	PerOwner   int    `json:"running,omitempty"`   // processes of one owner at once; 0 means 256
	PerContext   int    `json:"context,omitempty"`   // processes of one context at once, of all its callers; 0 means as many as in all
	Total int    `json:"everyones,omitempty"` // processes at once in all; 0 means 1000
	Processes int    `json:"processes,omitempty"` // what one process may become, threads included; 0 means 512
	Buffer    int    `json:"buffer,omitempty"`    // bytes of each stream that are kept; 0 means 1 MiB
	MaxEnded      int    `json:"kept,omitempty"`      // ended processes of one owner that are remembered; 0 means 50
	Retention      string `json:"keep,omitempty"`      // for how long; "" means 1h

	// Hub is where owners hear of their processes; it belongs to whoever gave
	// it. nil means that nobody listens.
	Hub *hub.Hub `json:"-"`
	// Env is what programs find in their environment in the caller's context;
	// nil means that there is nothing. Its error refuses the call. The secrets
	// in it are hidden in what they print.
	Env func(tool.Caller) (contextstore.Environment, error) `json:"-"`
	// Rules says who may list and end the processes of all callers; nil means no one.
	Rules operator.Func `json:"-"`
	// Sessions tells when sessions end; nil means that there are none.
	Sessions Sessions `json:"-"`
	// Folder is where detached processes are kept; "" means there are none.
	Folder string `json:"-"`
	// Begun is closed when facts are followed, and the processes that an earlier
	// host left are taken on; nil means at once.
	Ready <-chan struct{} `json:"-"`
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
	retention   time.Duration
	log    *slog.Logger
	newID  func(kind string) string
	tell   func(subject string, fact any)
	ctx   context.Context // of all processes
	cancel    context.CancelFunc
	wg sync.WaitGroup // goroutines of the records

	adopting sync.Mutex      // before mu; held while what an earlier host left is taken on
	badCards   map[string]bool // cards that cannot be read; guarded by adopting

	mu      sync.Mutex
	closed  bool
	records map[string]*record
	byOwner map[string]int // by owner
	byContext  map[string]int // by context
	total     int            // running
}

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		m := &manager{log: d.Log, newID: d.NewID, tell: d.Publish, records: map[string]*record{}, byOwner: map[string]int{}, byContext: map[string]int{}, badCards: map[string]bool{}}
		m.cfg = cfg
		if err := m.configure(); err != nil {
			return nil, err
		}
		if m.log == nil {
			m.log = slog.New(slog.DiscardHandler)
		}
		if m.tell == nil {
			m.tell = func(string, any) {}
		}
		m.ctx, m.cancel = context.WithCancel(context.Background())
		if m.cfg.Sessions != nil {
			ended := m.cfg.Sessions.Ended(m.ctx) // from now on
			m.wg.Go(func() { m.stopWithSessions(ended) })
		}
		if m.cfg.Folder != "" {
			m.wg.Go(m.adoptWhenReady)
		}
		m.offer.Tools = []tool.Tool{
			m.startTool(), m.runTool(), m.listTool(), m.outputTool(), m.screenTool(), m.inputTool(), m.resizeTool(),
			m.stopTool(), m.killTool(), m.removeTool(),
		}
		return m, nil
	}
}

func (m *manager) configure() (err error) {
	c := &m.cfg
	for _, n := range []struct {
		value     *int
		otherwise int
	}{{&c.PerOwner, 256}, {&c.Total, 1000}, {&c.PerContext, math.MaxInt}, {&c.Processes, 512}, {&c.Buffer, 1 << 20}, {&c.MaxEnded, 50}} {
		if *n.value < 0 {
			return fmt.Errorf("%d: a limit cannot be negative", *n.value)
		}
		if *n.value == 0 {
			*n.value = n.otherwise
		}
	}
	if m.retention = time.Hour; c.Retention != "" {
		if m.retention, err = time.ParseDuration(c.Retention); err != nil {
			return fmt.Errorf("keep: %w", err)
		}
	}
	return nil
}

// Offer implements module.Module.
func (m *manager) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &m.offer, nil
}

// adoptFirst takes on what an earlier host left when somebody follows the facts.
func (m *manager) adoptWhenReady() {
	if m.cfg.Ready != nil {
		select {
		case <-m.cfg.Ready:
		case <-m.ctx.Done():
			return
		}
	}
	m.adopt()
}

// EndOwned implements module.Owned: it kills, at once, also what another host
// left. Processes that have ended, and their output, are forgotten unlisted.
func (m *manager) EndOwned(_ context.Context, match func(owner string, made time.Time) bool) (ended []string) {
	m.adopt()
	own := m.matching(func(r *record) bool { return match(r.owner, r.startedAt) })
	lines := make([]string, len(own))
	var wg sync.WaitGroup
	for i, r := range own {
		wg.Go(func() {
			if _, over := r.ended(); !over {
				if err := r.child.Kill(); err != nil {
					m.log.Error("a process of a removed user did not end", "process", r.id, "err", err)
					return // it stays known, so that the next attempt finds it
				}
				lines[i] = fmt.Sprintf("process %s: %s", r.id, r.command)
			}
			m.remove(r)
		})
	}
	wg.Wait()
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" })
}

// HandOver implements module.Transferable. Processes that have ended go with
// the others, unlisted. Those that end with a session, and those that ended
// before this host, stay.
func (m *manager) HandOver(_ context.Context, heir module.Heir) (handed []string) {
	m.adopt()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.records {
		to := heir(r.owner, r.startedAt)
		d, detached := r.child.(*detached)
		if m.closed || to == "" || r.session != "" || r.files != nil && !detached { // the last ended before this host
			continue
		}
		if detached {
			if err := d.updateCard(func(c *card) { c.Owner = to }); err != nil {
				m.log.Error("a process cannot be handed over: its file cannot be written", "process", r.id, "err", err)
				continue
			}
		}
		from := r.owner
		r.owner = to
		if r.counted {
			m.releaseLocked(from, r.context)
			m.reserveLocked(to, r.context) // past the limits of the new owner too: it is there
		}
		if r.feed != nil {
			r.feed.Close()
			m.openFeed(r)
		}
		m.tell("process.handed_over", handedOverEvent{r.id, to, from})
		if _, over := r.ended(); !over {
			handed = append(handed, fmt.Sprintf("process %s: %s", r.id, r.command))
		}
	}
	slices.Sort(handed)
	return handed
}

// Close ends all processes but those that are detached.
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
			if r.files != nil {
				r.unfollow()
				return
			}
			if err := r.child.Stop(ctx); err != nil {
				m.log.Error("a process did not end", "process", r.id, "err", err)
			}
		})
	}
	wg.Wait()
	m.cancel()
	m.wg.Wait()
	for _, r := range records {
		r.stopExpiry()
		if r.files != nil {
			r.files.close()
		}
	}
	return nil
}

// reserve takes a place for one more process of an owner.
func (m *manager) reserve(owner, in string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return tool.Refuse("busy", "the host is closing")
	case m.byOwner[owner] >= m.cfg.PerOwner:
		return &tool.Refusal{Code: "busy", Message: fmt.Sprintf("%d processes of yours are running, which is the most there may be", m.byOwner[owner]), Next: "Stop some: process_list shows them with running_only."}
	case m.byContext[in] >= m.cfg.PerContext:
		return &tool.Refusal{Code: "busy", Message: fmt.Sprintf("%d processes are running in this context, which is the most there may be", m.byContext[in]), Next: "Stop some of yours, or try again later."}
	case m.total >= m.cfg.Total:
		return &tool.Refusal{Code: "busy", Message: "this host runs as many processes as it may", Next: "Try again later."}
	}
	m.reserveLocked(owner, in)
	return nil
}

// count takes a place whatever the limits are: the process is there.
func (m *manager) reserveUnchecked(owner, in string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reserveLocked(owner, in)
}

func (m *manager) reserveLocked(owner, in string) {
	m.byOwner[owner]++
	m.byContext[in]++
	m.total++
}

// release gives the place back.
func (m *manager) release(owner, in string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.releaseLocked(owner, in)
}

// vacate is release with m.mu held.
func (m *manager) releaseLocked(owner, in string) {
	m.total--
	for _, x := range []struct {
		of  map[string]int
		key string
	}{{m.byOwner, owner}, {m.byContext, in}} {
		if x.of[x.key]--; x.of[x.key] == 0 {
			delete(x.of, x.key)
		}
	}
}

// find is a process of the caller's; somebody else's is as if it were not there.
func (m *manager) find(c *tool.Call, id string) (*record, error) {
	return m.findAs(c, id, false)
}

// findAs is find, or with all a process of any caller.
func (m *manager) findAs(c *tool.Call, id string, all bool) (*record, error) {
	r := m.record(id)
	if r == nil {
		m.adopt() // another host may have left it
		r = m.record(id)
	}
	if r == nil || !all && m.ownerOf(r) != c.Caller.Owner {
		return nil, &tool.Refusal{Code: "not_found", Message: "process not found: " + id, Next: "process_list shows the processes there are; ended ones are kept for a while."}
	}
	return r, nil
}

func (m *manager) ownerOf(r *record) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return r.owner
}

func (m *manager) record(id string) *record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records[id]
}

// remove forgets an ended process.
func (m *manager) remove(r *record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.records, r.id)
	r.dropFiles()
}

// over is called when a process has ended: its place is free, and it is
// remembered for a while.
func (m *manager) recordEnd(r *record, s proc.State) {
	m.mu.Lock()
	owner := r.owner
	m.releaseLocked(owner, r.context)
	r.counted = false
	m.mu.Unlock()
	keep := m.retention
	if r.ending != nil {
		keep -= time.Since(r.ending.At)
	}
	if d, ok := r.child.(*detached); ok && m.record(r.id) == r {
		if err := d.updateCard(func(c *card) { c.End = endingOf(s, false) }); err != nil && !errors.Is(err, os.ErrClosed) { // it was removed meanwhile
			m.log.Warn("what became of a process cannot be written down", "process", r.id, "err", err)
		}
	}
	if r.ending == nil {
		m.tell("process.exited", exitedEvent{r.id, owner, s.Code, s.Signal, s.Took})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records[r.id] != r {
		return
	}
	r.expire = time.AfterFunc(keep, func() { m.remove(r) })
	for {
		var oldest *record
		n := 0
		for _, o := range m.records {
			if o.owner != r.owner || o.expire == nil {
				continue
			}
			if n++; oldest == nil || o.startedAt.Before(oldest.startedAt) {
				oldest = o
			}
		}
		if n <= m.cfg.MaxEnded {
			return
		}
		delete(m.records, oldest.id)
		oldest.dropFiles()
	}
}

// started and exited are the facts that are published.
type startedEvent struct {
	ID      string `json:"id"`
	Owner   string `json:"owner"`
	Command string `json:"command"`
	PID     int    `json:"pid"`
}

// handedOver is the fact that a process has another owner.
type handedOverEvent struct {
	ID    string `json:"id"`
	Owner string `json:"owner"`
	From  string `json:"from"`
}

type exitedEvent struct {
	ID       string        `json:"id"`
	Owner    string        `json:"owner"`
	ExitCode int           `json:"exitCode"`
	Signal   string        `json:"signal,omitempty"`
	Duration time.Duration `json:"duration"` // ns
}
