package packages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/dispatch/progress"
	"gatehouse/internal/files/atomicfile"
	"gatehouse/internal/mcp/client"
	"gatehouse/tool"
)

const (
	maxFailures  = 5                      // in a row, after which a server is no longer started automatically
	stopGrace    = 3 * time.Second        // after closing a server's input, and again after the termination signal
	startWait    = 5 * time.Second        // for the next start, by a call
	listDelay    = 250 * time.Millisecond // for more changes of the tools
	listInterval = time.Second            // at most
	publicText   = 300                    // bytes of an error that every user may read
)

// instance is one package of this host. It is safe for concurrent use. Its lock may be
// held while the manager's is acquired, not the other way round.
type instance struct {
	manager *Manager
	id      string
	journal journal

	// showing keeps what is shown in the order in which it was made. It is taken before mu.
	showMu sync.Mutex

	// mu guards what follows.
	mu       sync.Mutex
	rec      Record
	activity string // the running operation; "" for none
	progress *progress.Progress
	removed  bool // it was removed

	running    *upstream
	previous   *upstream     // the newest; the next start waits until it has exited
	starting   chan struct{} // closed when the running start ends; nil if none runs
	cancel     context.CancelFunc
	started    time.Time
	why        error // why it is not running
	failures   int
	next       time.Time
	retryTimer *time.Timer

	tools  []Offered
	offer  *Offer // nil before the server was listed
	hidden []string
}

func (h *Manager) newInstance(r Record) *instance {
	p := &instance{manager: h, id: r.ID, rec: r}
	p.journal.dir = filepath.Join(h.folder(r.ID), "log")
	return p
}

func (p *instance) folder() string { return p.manager.folder(p.id) }
func (p *instance) data() string   { return filepath.Join(p.folder(), "data") }

// status returns the state of the server; p.mu is held.
func (p *instance) status() string {
	switch {
	case p.starting != nil:
		return "starting"
	case p.running != nil:
		return "running"
	case p.rec.Stopped:
		return "stopped"
	case p.failures >= maxFailures:
		return "broken"
	case p.failures > 0 && time.Now().Before(p.next):
		return "waiting"
	}
	return "idle"
}

// public returns the public state; p.mu is held.
func (p *instance) public() *Public {
	r := &p.rec
	out := &Public{
		Title: r.title(), Version: r.version(), Source: r.Source.public(), State: r.State,
		Status: p.status(), Start: r.Start, Progress: p.progress,
	}
	for _, t := range p.tools {
		if !slices.Contains(r.Off, t.Name) {
			out.Tools++
		}
	}
	if p.running != nil {
		out.Started = new(p.started.UTC())
	}
	if p.why != nil {
		out.Error = shorten(p.why.Error(), publicText)
	}
	return out
}

// publishState publishes the public state. The caller holds no lock.
func (p *instance) publishState() {
	p.showMu.Lock()
	defer p.showMu.Unlock()
	p.mu.Lock()
	out, gone := p.public(), p.removed
	p.mu.Unlock()
	if gone {
		out = nil
	}
	p.manager.opts.Show(p.id, out)
}

// claim starts an operation that excludes all others on this package.
func (p *instance) claim(what string) (done func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.removed:
		return nil, &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: fmt.Sprintf("there is no package %q", p.id),
			Next:    "package_list lists the packages.",
		}
	case p.activity != "":
		return nil, p.busy()
	}
	p.activity = what
	return func() {
		p.mu.Lock()
		p.activity, p.progress = "", nil
		p.mu.Unlock()
		p.publishState()
	}, nil
}

// busy returns the refusal that names the running operation; p.mu is held.
func (p *instance) busy() error {
	return &tool.Refusal{
		Code:    tool.CodeBusy,
		Message: fmt.Sprintf("package %s is busy: %s", p.id, p.activity),
		Next:    "job_list shows the job if there is one; wait for it with job_wait.",
	}
}

// ready returns the server, and starts it if it does not run. The caller must release
// it. If ready fails, no request was sent to it.
func (p *instance) ready(ctx context.Context) (*upstream, error) {
	for {
		p.mu.Lock()
		u, wait, err := p.running, p.starting, error(nil)
		var after time.Duration
		switch {
		case u != nil:
			u.retain() // so that it is not stopped as idle
			p.mu.Unlock()
			return u, nil
		case wait != nil:
		case p.activity != "":
			err = p.busy()
		case p.rec.State != Installed:
			err = tool.Refuse(tool.CodeUnavailable, "package %s is not completely installed", p.id)
		case p.rec.Stopped:
			err = &tool.Refusal{
				Code:    tool.CodeUnavailable,
				Message: "package " + p.id + " was stopped; nothing was run",
				Next:    "An administrator can start it with package_start.",
			}
		case p.failures >= maxFailures:
			err = &tool.Refusal{
				Code: tool.CodeUnavailable,
				Message: fmt.Sprintf(
					"package %s failed %d times in a row and is no longer started automatically; nothing was run: %s",
					p.id,
					p.failures,
					shorten(p.why.Error(), publicText),
				),
				Next: "An administrator can see the reason with package_logs and try again with package_restart.",
			}
		default:
			if after = time.Until(p.next); after > startWait {
				err = &tool.Refusal{
					Code: tool.CodeUnavailable,
					Message: fmt.Sprintf(
						"package %s failed and is started again in %d s; nothing was run: %s",
						p.id,
						int(after.Seconds())+1,
						shorten(p.why.Error(), publicText),
					),
					Next: "Try again then.",
				}
			} else if after <= 0 {
				wait = p.startInstance()
			}
		}
		p.mu.Unlock()
		if err != nil {
			return nil, err
		}
		if wait == nil {
			if err := sleep(ctx, after); err != nil {
				return nil, err
			}
			continue
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if p.manager.ctx.Err() != nil {
			return nil, tool.Refuse(tool.CodeUnavailable, "%v; nothing was run", errClosing)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// startIfWanted starts a server with start always, or any server if asked is set. It
// does nothing if the server runs, was stopped or failed too often.
func (p *instance) startIfWanted(asked bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil && p.starting == nil && p.activity == "" && !p.removed && p.rec.State == Installed &&
		!p.rec.Stopped &&
		p.failures < maxFailures &&
		(asked || p.rec.Start == Always) {
		p.startInstance()
	}
}

// startInstance starts the server; p.mu is held. The channel is closed when the start has
// succeeded or failed.
func (p *instance) startInstance() chan struct{} {
	done := make(chan struct{})
	leave, err := p.manager.addWork()
	if err != nil {
		p.setFailed(err)
		close(done)
		return done
	}
	ctx, cancel := context.WithCancel(p.manager.ctx)
	p.starting, p.cancel = done, cancel
	rec, last := p.rec, p.previous
	go func() {
		defer leave()
		defer cancel()
		p.publishState()
		if last != nil {
			<-last.gone
		}
		u, listed, err := p.launchServer(ctx, &rec)
		p.mu.Lock()
		p.starting, p.cancel = nil, nil
		if err != nil {
			p.setFailed(err)
		} else {
			p.setRunning(u)
		}
		p.mu.Unlock()
		if err == nil {
			p.setListing(listed, false)
			p.manager.work.Go(func() { p.watch(u) }) // this goroutine is counted, so Close still waits
			p.manager.work.Go(func() { u.follow(p.manager.ctx) })
		} else if ctx.Err() == nil {
			p.manager.log.Warn("a package cannot be started", "package", p.id, "err", err)
		}
		p.reportBroken()
		p.publishState()
		close(done)
	}()
	return done
}

// setRunning records that the server runs; p.mu is held.
func (p *instance) setRunning(u *upstream) {
	p.running, p.previous, p.started, p.why = u, u, time.Now(), nil
	p.rec.Server = u.server
}

// setFailed records that the server does not run, and when it is started again; p.mu is
// held.
func (p *instance) setFailed(err error) {
	p.why = err
	p.failures++
	pace := p.manager.opts.restart
	delay := pace.max
	if p.failures < 30 {
		delay = min(pace.first<<(p.failures-1), pace.max)
	}
	p.next = time.Now().Add(delay)
	if p.rec.Start == Always && p.failures < maxFailures && p.manager.ctx.Err() == nil {
		p.retryTimer = time.AfterFunc(delay, func() { p.startIfWanted(false) })
	}
}

// watch updates the tools of a server until it exits.
func (p *instance) watch(u *upstream) {
	for {
		select {
		case <-u.gone:
			p.serverExited(u)
			return
		case <-u.relist:
		}
		if sleepUntil(u.gone, listDelay) {
			continue
		}
		ctx, cancel := context.WithTimeout(p.manager.ctx, p.manager.opts.Begin)
		listed, err := u.list(ctx)
		cancel()
		if err == nil {
			p.setListing(listed, false)
			p.publishState()
		} else if u.conn.Err() == nil {
			p.journal.writeLine(fmt.Sprintf("[host] the tools have changed and cannot be listed: %v", err))
		}
		sleepUntil(u.gone, listInterval)
	}
}

// sleepUntil sleeps for d. It reports whether end was closed before.
func sleepUntil(end <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-end:
		return true
	case <-t.C:
		return false
	}
}

// serverExited records that a server exited on its own.
func (p *instance) serverExited(u *upstream) {
	p.mu.Lock()
	if p.running != u {
		p.mu.Unlock()
		return
	}
	p.running = nil
	if time.Since(p.started) >= p.manager.opts.restart.stableAfter {
		p.failures = 0
	}
	err := u.conn.Err()
	if errors.Is(err, client.ErrSessionLost) {
		p.mu.Unlock()
		p.journal.writeLine("[host] " + err.Error() + "; the next request opens a new one")
		p.publishState()
		return
	}
	p.setFailed(err)
	broken := p.failures >= maxFailures
	p.mu.Unlock()
	p.journal.writeLine("[host] the server has exited: " + err.Error())
	if p.manager.ctx.Err() == nil {
		p.manager.log.Warn("a package's server has exited", "package", p.id, "err", err, "again", !broken)
	}
	p.reportBroken()
	p.publishState()
}

// reportBroken reports the failure after which the server is no longer started.
func (p *instance) reportBroken() {
	p.mu.Lock()
	why := p.why
	broken := p.failures == maxFailures && why != nil && p.running == nil
	p.mu.Unlock()
	if broken && p.manager.ctx.Err() == nil {
		p.manager.opts.Broken(p.id, why)
	}
}

// ToolChanges are the differences between two tool lists of a server, by the tools'
// names on this host.
type ToolChanges struct {
	Added   []string `json:"added,omitempty"`
	Removed []string `json:"removed,omitempty"`
	Changed []string `json:"changed,omitempty"` // another description, schema or title
}

func changesOf(was, now []Offered) (c ToolChanges) {
	old := map[string]Offered{}
	for _, t := range was {
		old[t.Name] = t
	}
	for _, t := range now {
		o, there := old[t.Name]
		delete(old, t.Name)
		switch {
		case !there:
			c.Added = append(c.Added, t.Name)
		case o.Own != t.Own || string(o.Raw) != string(t.Raw):
			c.Changed = append(c.Changed, t.Name)
		}
	}
	c.Removed = slices.Sorted(maps.Keys(old))
	return c
}

// setTools stores the tools of a server and the rest of its listing. agreed means that an
// administrator has just installed them; other changes of tools are reported, because no
// administrator has seen them. same means that the rest has not changed, and left names what
// of it is not offered.
func (p *instance) setTools(l listing, left []string, agreed, same bool) {
	tools, more := makeTools(p.id, l.Tools)
	left = append(more, left...)
	p.mu.Lock()
	changes := changesOf(p.tools, tools)
	same = same && sameTools(p.tools, tools)
	p.tools, p.hidden = tools, left
	p.mu.Unlock()
	if same {
		return
	}
	if !agreed && len(changes.Added)+len(changes.Removed)+len(changes.Changed) > 0 {
		p.manager.opts.Relisted(p.id, changes)
	}
	if b, err := json.Marshal(l); err == nil {
		if err := atomicfile.Write(filepath.Join(p.folder(), listingFile), b); err != nil {
			p.manager.log.Warn("the tools of a package cannot be stored", "package", p.id, "err", err)
		}
	}
	p.manager.invalidateTools()
}

const (
	listingFile = "listing.json"
	toolsFile   = "tools.json" // of earlier versions: the tools alone
)

// loadListing loads what the server offered when it last ran.
func (p *instance) loadListing() {
	var l listing
	b, err := atomicfile.Read(filepath.Join(p.folder(), listingFile), 5*maxListing)
	if err == nil {
		err = json.Unmarshal(b, &l)
	} else if b, err = atomicfile.Read(filepath.Join(p.folder(), toolsFile), 2*maxListing); err == nil {
		err = json.Unmarshal(b, &l.Tools)
	}
	if err != nil {
		return
	}
	var left []string
	p.tools, p.hidden = makeTools(p.id, l.Tools)
	p.offer, left = makeOffer(p.id, &l)
	p.hidden = append(p.hidden, left...)
}

func sameTools(a, b []Offered) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name || a[i].Own != b[i].Own || string(a[i].Raw) != string(b[i].Raw) {
			return false
		}
	}
	return true
}

// stopInstance stops the server, or cancels its start, and waits for its exit.
func (p *instance) stopInstance() error {
	p.mu.Lock()
	if p.retryTimer != nil {
		p.retryTimer.Stop()
		p.retryTimer = nil
	}
	if cancel, starting := p.cancel, p.starting; starting != nil {
		p.mu.Unlock()
		cancel()
		<-starting
		p.mu.Lock()
	}
	u := p.running
	p.running = nil
	p.mu.Unlock()
	if u == nil {
		return nil
	}
	return u.stopProcess(stopGrace)
}

// stopIfIdle stops an idle server that was started on demand.
func (p *instance) stopIfIdle() {
	p.mu.Lock()
	u := p.running
	if u == nil || p.rec.Start != OnDemand || p.activity != "" || u.idle() < p.manager.opts.Idle {
		p.mu.Unlock()
		return
	}
	leave, err := p.manager.addWork()
	if err != nil {
		p.mu.Unlock()
		return
	}
	p.running, p.failures = nil, 0
	p.mu.Unlock()
	go func() {
		defer leave()
		u.stopProcess(stopGrace)
		p.publishState()
	}()
}

// resetFailures clears the failures, so that the server may start at once.
func (p *instance) resetFailures() {
	p.mu.Lock()
	p.failures, p.why, p.next = 0, nil, time.Time{}
	p.mu.Unlock()
}

// Start starts a server and keeps it enabled. The error is why it does not run.
func (h *Manager) Start(ctx context.Context, id string) (Info, error) {
	return h.setStopped(ctx, id, "starting", false, false)
}

// Stop stops a server. It is not started again before Start.
func (h *Manager) Stop(ctx context.Context, id string) (Info, error) {
	return h.setStopped(ctx, id, "stopping", true, true)
}

// Restart stops a server if it runs, and starts it.
func (h *Manager) Restart(ctx context.Context, id string) (Info, error) {
	return h.setStopped(ctx, id, "restarting", true, false)
}

// withOutput adds to the refusal of a server that failed to start what it printed.
func (p *instance) withOutput(err error) error {
	p.mu.Lock()
	said := Words(p.why)
	p.mu.Unlock()
	if said == "" {
		return err
	}
	return &outputError{err, said}
}

func (h *Manager) setStopped(ctx context.Context, id, what string, halt, stopped bool) (Info, error) {
	leave, err := h.addWork()
	if err != nil {
		return Info{}, err
	}
	defer leave()
	p, err := h.findInstance(id)
	if err != nil {
		return Info{}, err
	}
	done, err := p.claim(what)
	if err != nil {
		return Info{}, err
	}
	err = p.saveStopped(stopped)
	if err == nil && halt {
		err = p.stopInstance()
	}
	p.resetFailures()
	done()
	if err == nil && !stopped {
		var u *upstream
		if u, err = p.ready(ctx); err == nil {
			u.releaseUpstream()
		} else {
			err = p.withOutput(err)
		}
	}
	return p.instanceInfo(), err
}

// saveStopped stores whether the package is stopped.
func (p *instance) saveStopped(stopped bool) error {
	p.mu.Lock()
	r := p.rec
	p.mu.Unlock()
	if r.State != Installed {
		return tool.Refuse(tool.CodeUnavailable, "package %s is not completely installed", p.id)
	}
	r.Stopped = stopped
	return p.saveRecord(r)
}

// saveRecord stores the record of the package durably.
func (p *instance) saveRecord(r Record) error {
	if err := p.manager.putRecord(r); err != nil {
		return fmt.Errorf("store package %s: %w", p.id, err)
	}
	p.mu.Lock()
	p.rec = r
	p.mu.Unlock()
	return nil
}

// Call relays a call to a server, and starts it if it does not run. args and meta are
// the caller's. The result is the server's, unchanged. A *tool.WireError is the
// server's own error.
func (h *Manager) Call(
	ctx context.Context,
	id, own string,
	args, meta json.RawMessage,
	progress func(done, total float64, note string),
) (json.RawMessage, error) {
	p, err := h.findInstance(id)
	if err != nil {
		return nil, err
	}
	raw, err := p.relay(ctx, client.Request{
		Method: "tools/call", Params: callParams(own, args, meta), Name: own, Progress: progressOf(progress),
	}, false)
	if err != nil {
		return nil, err
	}
	return rewriteURIs(raw, "content", func(b json.RawMessage) json.RawMessage { return blockHere(id, b) }), nil
}

// waitExited waits until the exit of a server has been recorded.
func (p *instance) waitExited(ctx context.Context, u *upstream) {
	select {
	case <-u.gone:
	case <-ctx.Done():
		return
	}
	for {
		p.mu.Lock()
		known := p.running != u
		p.mu.Unlock()
		if known || sleep(ctx, 5*time.Millisecond) != nil {
			return
		}
	}
}

// Info returns the full state of a package.
func (h *Manager) Info(id string) (Info, error) {
	p, err := h.findInstance(id)
	if err != nil {
		return Info{}, err
	}
	return p.instanceInfo(), nil
}

func (p *instance) instanceInfo() Info {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := Info{Record: p.rec, Public: *p.public(), Data: p.data(), Left: p.hidden, Fails: p.failures}
	for _, t := range p.tools {
		if !slices.Contains(i.Off, t.Name) {
			i.Names = append(i.Names, t.Name)
		}
	}
	if p.running != nil && p.running.child != nil {
		i.PID = p.running.child.Pid()
	}
	if p.status() == "waiting" {
		i.Next = p.next
	}
	return i
}

// Usage returns the bytes of a package's program on the disk, and how many of them
// other packages have too.
func (h *Manager) Usage(ctx context.Context, id string) (bytes, also int64, err error) {
	p, err := h.findInstance(id)
	if err != nil {
		return 0, 0, err
	}
	p.mu.Lock()
	r := p.rec
	p.mu.Unlock()
	if r.Program == "" {
		return 0, 0, nil
	}
	return usage(ctx, filepath.Join(p.folder(), programTop(r.Program)))
}

// List returns the full state of all packages, sorted by id.
func (h *Manager) List() (all []Info, err error) {
	h.mu.Lock()
	here := h.release != nil || h.closed
	h.mu.Unlock()
	if !here && !h.unused() {
		return nil, errOtherHost()
	}
	for _, p := range h.instances() {
		all = append(all, p.instanceInfo())
	}
	return all, nil
}

// Tools returns the tools of all packages that can be called. The slice must not be
// changed.
func (h *Manager) Tools() []Offered {
	h.mu.Lock()
	offered, epoch := h.offered, h.epoch
	h.mu.Unlock()
	if offered != nil {
		return offered
	}
	offered = []Offered{}
	for _, p := range h.instances() {
		p.mu.Lock()
		if !p.removed && p.rec.State != Installing {
			for _, t := range p.tools {
				t.Text = p.rec.Results == TextResults
				if !slices.Contains(p.rec.Off, t.Name) {
					offered = append(offered, t)
				}
			}
		}
		p.mu.Unlock()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.epoch == epoch {
		h.offered = offered
	}
	return offered
}

// invalidateTools drops the cached tool list and reports the change.
func (h *Manager) invalidateTools() {
	h.mu.Lock()
	h.offered = nil
	h.epoch++
	h.mu.Unlock()
	h.opts.Changed()
}

// Logs returns up to limit log lines of a server and its host: the oldest after the
// cursor or, with before, the newest before it. A negative cursor means the end.
func (h *Manager) Logs(id string, cursor int64, before bool, limit int) ([]Line, error) {
	p, err := h.findInstance(id)
	if err != nil {
		return nil, err
	}
	return p.journal.readLines(cursor, before, limit)
}

// Patience is how long a call of a package may take.
func (h *Manager) Patience() time.Duration { return h.opts.Answer }
