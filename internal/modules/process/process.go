// Package process is the module that starts programs which outlive the call
// that started them, and lets their owner read, type to and stop them.
//
// A process belongs to the principal and context that started it; other callers
// cannot find it. It outlives the call and the session and ends with the host.
// When it ends, every process that it started ends too. Its output never blocks
// it: the newest part is kept, and a cursor shows how much was lost.
package process

import (
	"cmp"
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

// Config is what the module depends on. The zero value is usable.
type Config struct {
	Settings

	// Hub gets the messages about processes for their owners. The module does not
	// close it. nil means that no messages are sent.
	Hub *hub.Hub
	// Env returns the environment of programs in the caller's context; nil means
	// an empty one. If it returns an error, the call is refused. Its secrets are
	// hidden in the output of programs.
	Env func(tool.Caller) (contextstore.Environment, error)
	// Rules decides who may list and stop the processes of all callers; nil means
	// that no caller may.
	Rules operator.Func
	// Claim takes one of the running processes of the host for a principal, or returns
	// why it gets none. nil means that the first principal that asks gets one. release
	// is called when the process has ended.
	Claim func(principal string, administrator bool) (release func(), err error)
	// Turn waits until the caller may start a program; done is called when it runs. nil means at once.
	Turn func(ctx context.Context, c tool.Caller) (done func(), err error)
	// Sessions reports the end of sessions; nil means that there are no sessions.
	Sessions Sessions
	// Folder keeps the cards and the output of detached processes; "" means that
	// no process can be detached.
	Folder string
	// Ready is closed when subscribers receive events. The module then adopts the
	// detached processes of an earlier host. nil means at once.
	Ready <-chan struct{}
	// Lister is called once with a function that returns the running processes of all owners. That function may be
	// called at any time and concurrently. nil means that no part of the host lists them.
	Lister func(running func() []Running)
	// Stream offers output over a WebSocket; nil means that the host has none.
	Stream Stream
}

// Running is a process that has not ended.
type Running struct {
	ID      string
	Owner   string
	Command string // the program, without its arguments
	PID     int
	Started time.Time
}

// Sessions reports the end of the sessions with which a process may end.
type Sessions interface {
	// Ended yields, from now on, functions that report whether a session has
	// ended.
	Ended(context.Context) iter.Seq[func(session string) bool]
	// Lives reports whether a session has not ended.
	Lives(session string) bool
}

// closeWait is the time that one process has to end when the module closes.
const closeWait = 2 * time.Second

// manager is the module.
type manager struct {
	offer     module.Offer
	cfg       Config
	retention time.Duration
	log       *slog.Logger
	deps      module.Deps
	newID     func(kind string) string
	tell      func(subject string, fact any)
	ctx       context.Context // of all processes; a field because they outlive the calls that start them
	cancel    context.CancelFunc
	wg        sync.WaitGroup // the goroutines of the records

	adopting sync.Mutex      // held during adopt; acquired before mu, which adopt acquires for short times
	badCards map[string]bool // paths of cards that cannot be read, which are logged once; guarded by adopting

	// mu guards what follows. It is another lock than adopting because files are read while
	// adopting is held.
	mu        sync.Mutex
	closed    bool
	records   map[string]*record
	byOwner   map[string]int // running processes by owner
	byContext map[string]int // running processes by context
	total     int            // running processes
}

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		m := &manager{
			deps:      d,
			log:       d.Log,
			newID:     d.NewID,
			tell:      d.Publish,
			records:   map[string]*record{},
			byOwner:   map[string]int{},
			byContext: map[string]int{},
			badCards:  map[string]bool{},
		}
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
		if m.cfg.Lister != nil {
			m.cfg.Lister(m.running)
		}
		m.offer.Tools = []tool.Tool{
			m.startTool(), m.runTool(), m.listTool(), m.outputTool(), m.screenTool(), m.inputTool(), m.resizeTool(),
			m.stopTool(), m.killTool(), m.removeTool(),
		}
		tool.StagePrograms(m.offer.Tools)
		return m, nil
	}
}

func (m *manager) configure() error {
	c := &m.cfg
	for _, n := range []struct {
		value     *int
		otherwise int
	}{
		{&c.PerOwner, 256}, {&c.Total, DefaultTotal}, {&c.PerContext, math.MaxInt}, {&c.Processes, 512},
		{&c.Buffer, 1 << 20},
		{&c.MaxEnded, 50},
	} {
		if *n.value < 0 {
			return fmt.Errorf("%d is negative; expected a limit of 0 or more", *n.value)
		}
		if *n.value == 0 {
			*n.value = n.otherwise
		}
	}
	if m.retention = cmp.Or(c.Retention, time.Hour); m.retention < 0 {
		return fmt.Errorf("keep is %v; expected 0 or more", c.Retention)
	}
	return nil
}

// Offer implements module.Module.
func (m *manager) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &m.offer, nil
}

// running returns the processes that have not ended.
func (m *manager) running() (all []Running) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.records {
		if _, over := r.ended(); !over {
			all = append(all, Running{r.id, r.owner, r.command, r.child.Pid(), r.startedAt})
		}
	}
	return all
}

// adoptWhenReady adopts the processes of an earlier host when subscribers receive
// the events about them.
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

// EndOwned implements module.Owned: it kills the processes at once, including
// detached ones of an earlier host. It forgets ended processes and their output
// without listing them.
func (m *manager) EndOwned(_ context.Context, match func(owner string, made time.Time) bool) (ended []string) {
	m.adopt()
	own := m.matching(func(r *record) bool { return match(r.owner, r.startedAt) })
	lines := make([]string, len(own))
	var wg sync.WaitGroup
	for i, r := range own {
		wg.Go(func() {
			if _, over := r.ended(); !over {
				if err := r.child.Kill(); err != nil {
					m.log.Error("cannot end a process of a removed user", "process", r.id, "err", err)
					return // it stays registered, so that the next attempt finds it
				}
				lines[i] = fmt.Sprintf("process %s: %s", r.id, r.command)
			}
			m.removeProcess(r)
		})
	}
	wg.Wait()
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" })
}

// HandOver implements module.Transferable. Ended processes are handed over too,
// without being listed. Processes that end with a session, and those that ended
// before this host was started, are not handed over.
func (m *manager) HandOver(_ context.Context, heir module.Heir) (handed []string) {
	m.adopt()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.records {
		to := heir(r.owner, r.startedAt)
		d, detached := r.child.(*detached)
		// the last condition: it ended before this host was started
		if m.closed || to == "" || r.session != "" || r.files != nil && !detached {
			continue
		}
		if detached {
			if err := d.updateCard(func(c *card) { c.Owner = to }); err != nil {
				m.log.Error("cannot hand over a process: its card cannot be written", "process", r.id, "err", err)
				continue
			}
		}
		from := r.owner
		r.owner = to
		if r.counted {
			m.releaseLocked(from, r.context)
			m.reserveLocked(to, r.context) // even beyond the limits of the new owner, because the process exists
		}
		if r.feed != nil {
			r.feed.Close()
			m.openFeed(r)
		}
		m.tell("process.handed_over", Event{ID: r.id, Owner: to, From: from})
		if _, over := r.ended(); !over {
			handed = append(handed, fmt.Sprintf("process %s: %s", r.id, r.command))
		}
	}
	slices.Sort(handed)
	return handed
}

// Close ends all processes except detached ones.
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
			r.files.closeFiles()
		}
	}
	return nil
}

// reserve counts one more running process of an owner in a context. It refuses
// it if a limit is reached.
func (m *manager) reserve(owner, in string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return tool.Refuse(tool.CodeBusy, "the host is stopping")
	case m.byOwner[owner] >= m.cfg.PerOwner:
		return &tool.Refusal{
			Code:    tool.CodeBusy,
			Message: fmt.Sprintf("%d processes of yours are running, which is the limit", m.byOwner[owner]),
			Next:    "Stop one with process_stop; process_list with running_only lists them.",
		}
	case m.byContext[in] >= m.cfg.PerContext:
		return &tool.Refusal{
			Code:    tool.CodeBusy,
			Message: fmt.Sprintf("%d processes are running in this context, which is the limit", m.byContext[in]),
			Next:    "Stop one of yours, or try again later.",
		}
	case m.total >= m.cfg.Total:
		return &tool.Refusal{
			Code:    tool.CodeBusy,
			Message: "this host runs as many processes as its limit allows",
			Next:    "Try again later.",
		}
	}
	m.reserveLocked(owner, in)
	return nil
}

// turn waits until a caller may start a process.
func (m *manager) turn(ctx context.Context, c *tool.Call) (done func(), err error) {
	if m.cfg.Turn == nil {
		return func() {}, nil
	}
	return m.cfg.Turn(ctx, c.Caller)
}

// claim takes one of the running processes of the host for a caller.
func (m *manager) claim(c *tool.Call) (release func(), err error) {
	if m.cfg.Claim == nil {
		return func() {}, nil
	}
	if release, err = m.cfg.Claim(c.Caller.Principal, m.cfg.Rules.By(c.Caller)); err != nil {
		return nil, &tool.Refusal{
			Code:    tool.CodeBusy,
			Message: err.Error(),
			Next:    "Stop one with process_stop; process_list with running_only lists them.",
		}
	}
	return release, nil
}

// reserveUnchecked counts a running process without checking the limits, because
// the process exists already.
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

// releaseInput undoes reserve.
func (m *manager) releaseInput(owner, in string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.releaseLocked(owner, in)
}

// releaseLocked is release with m.mu held.
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

// findProcess returns a process of the caller. The process of another caller is
// reported as missing.
func (m *manager) findProcess(c *tool.Call, id string) (*record, error) {
	return m.findAs(c, id, false)
}

// findAs returns a process of the caller or, with all, of any caller.
func (m *manager) findAs(c *tool.Call, id string, all bool) (*record, error) {
	r := m.record(id)
	if r == nil {
		m.adopt() // it may be a detached process of an earlier host
		r = m.record(id)
	}
	if r == nil || !all && m.ownerOf(r) != c.Caller.Owner {
		return nil, &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: "process not found: " + id,
			Next:    "process_list lists your processes; ended ones are kept for a while.",
		}
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

// removeProcess forgets an ended process and its output.
func (m *manager) removeProcess(r *record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.records, r.id)
	r.dropFiles()
}

// recordEnd is called when a process has ended: it releases the place among the
// running processes and keeps the record for the retention time.
func (m *manager) recordEnd(r *record, s proc.State) {
	m.mu.Lock()
	owner := r.owner
	m.releaseLocked(owner, r.context)
	r.counted = false
	if r.release != nil {
		r.release()
	}
	m.mu.Unlock()
	keep := m.retention
	if r.ending != nil {
		keep -= time.Since(r.ending.At)
	}
	if d, ok := r.child.(*detached); ok && m.record(r.id) == r {
		// it was removed
		if err := d.updateCard(func(c *card) { c.End = endingOf(s, false) }); err != nil &&
			!errors.Is(err, os.ErrClosed) {
			m.log.Warn("cannot write the end of a process to its card", "process", r.id, "err", err)
		}
	}
	if r.ending == nil {
		m.tell("process.exited", Event{ID: r.id, Owner: owner, ExitCode: &s.Code, Signal: s.Signal, Duration: s.Took})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records[r.id] != r {
		return
	}
	r.expire = time.AfterFunc(keep, func() { m.removeProcess(r) })
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

// Event is what the module publishes about a process: process.started,
// process.handed_over and process.exited.
type Event struct {
	ID       string        `json:"id"`
	Owner    string        `json:"owner"`
	Command  string        `json:"command,omitempty"`  // started
	PID      int           `json:"pid,omitempty"`      // started
	From     string        `json:"from,omitempty"`     // handed_over: the owner before
	ExitCode *int          `json:"exitCode,omitempty"` // exited
	Signal   string        `json:"signal,omitempty"`   // exited
	Duration time.Duration `json:"duration,omitempty"` // exited, in ns
}
