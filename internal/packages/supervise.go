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
	"gatehouse/tool"
)

const (
	mostFails  = 5                      // in a row, after which a server is no longer started by itself
	stopGrace  = 3 * time.Second        // for a server whose input was closed, and once more when it was asked to end
	shortWait  = 5 * time.Second        // for the next start, by a call
	listSettle = 250 * time.Millisecond // for more changes of the tools
	listEvery  = time.Second            // at most
	publicText = 300                    // bytes of a reason that everybody may read
)

// pack is one package while this host has it. Safe for concurrent use. Its
// lock may be held when that of the house is taken, not the other way round.
type pack struct {
	house   *House
	id      string
	journal journal

	// showing keeps what is shown in the order in which it was made. It is taken before mu.
	showing sync.Mutex

	// mu guards what follows.
	mu       sync.Mutex
	rec      Record
	doing    string // what is being done to it; "" when nothing is
	progress *progress.Progress
	gone     bool // it was removed

	up       *upstream
	last     *upstream     // the newest, whose end the next one waits for
	starting chan struct{} // closed when the start that runs has ended; nil when none does
	cancel   context.CancelFunc
	since    time.Time
	why      error // it is not running although it could be
	fails    int
	next     time.Time
	again    *time.Timer

	tools []Offered
	left  []string
}

func (h *House) newPack(r Record) *pack {
	p := &pack{house: h, id: r.ID, rec: r}
	p.journal.dir = filepath.Join(h.folder(r.ID), "log")
	return p
}

func (p *pack) folder() string { return p.house.folder(p.id) }
func (p *pack) data() string   { return filepath.Join(p.folder(), "data") }

// status is how the server is; p.mu is held.
func (p *pack) status() string {
	switch {
	case p.starting != nil:
		return "starting"
	case p.up != nil:
		return "running"
	case p.rec.Stopped:
		return "stopped"
	case p.fails >= mostFails:
		return "broken"
	case p.fails > 0 && time.Now().Before(p.next):
		return "waiting"
	}
	return "idle"
}

// public is what everybody may know; p.mu is held.
func (p *pack) public() *Public {
	r := &p.rec
	out := &Public{
		Title: r.title(), Version: r.version(), Source: r.Source.public(), State: r.State,
		Status: p.status(), Start: r.Start, Tools: len(p.tools), Progress: p.progress,
	}
	if p.up != nil {
		out.Started = new(p.since.UTC())
	}
	if p.why != nil {
		out.Error = shorten(p.why.Error(), publicText)
	}
	return out
}

// show shows what has changed. No lock is held by whoever calls it.
func (p *pack) show() {
	p.showing.Lock()
	defer p.showing.Unlock()
	p.mu.Lock()
	out, gone := p.public(), p.gone
	p.mu.Unlock()
	if gone {
		out = nil
	}
	p.house.opts.Show(p.id, out)
}

// claim begins something that excludes everything else with this package.
func (p *pack) claim(what string) (done func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.gone:
		return nil, &tool.Refusal{Code: "not_found", Message: fmt.Sprintf("there is no package %q", p.id), Next: "package_list shows those there are."}
	case p.doing != "":
		return nil, p.busy()
	}
	p.doing = what
	return func() {
		p.mu.Lock()
		p.doing, p.progress = "", nil
		p.mu.Unlock()
		p.show()
	}, nil
}

// busy says what is being done; p.mu is held.
func (p *pack) busy() error {
	return &tool.Refusal{Code: "busy", Message: fmt.Sprintf("package %s is busy: %s", p.id, p.doing), Next: "job_list shows the job if there is one; wait for it with job_wait."}
}

// ready gives the server, which is started if it does not run. Whoever gets it
// releases it. An error means that nothing was asked of it.
func (p *pack) ready(ctx context.Context) (*upstream, error) {
	for {
		p.mu.Lock()
		u, wait, err := p.up, p.starting, error(nil)
		var after time.Duration
		switch {
		case u != nil:
			u.hold() // so that it is not ended for having nothing to do
			p.mu.Unlock()
			return u, nil
		case wait != nil:
		case p.doing != "":
			err = p.busy()
		case p.rec.State != Installed:
			err = tool.Refuse("unavailable", "package %s is not installed whole", p.id)
		case p.rec.Stopped:
			err = &tool.Refusal{Code: "unavailable", Message: "package " + p.id + " was stopped; nothing was run", Next: "Those who rule this host start it with package_start."}
		case p.fails >= mostFails:
			err = &tool.Refusal{Code: "unavailable", Message: fmt.Sprintf("package %s failed %d times in a row and is no longer started by itself; nothing was run: %s", p.id, p.fails, shorten(p.why.Error(), publicText)), Next: "Those who rule this host see why with package_logs, and try again with package_restart."}
		default:
			if after = time.Until(p.next); after > shortWait {
				err = &tool.Refusal{Code: "unavailable", Message: fmt.Sprintf("package %s failed and is started again in %d s; nothing was run: %s", p.id, int(after.Seconds())+1, shorten(p.why.Error(), publicText)), Next: "Try again then."}
			} else if after <= 0 {
				wait = p.attempt()
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
		if p.house.ctx.Err() != nil {
			return nil, tool.Refuse("unavailable", "%v; nothing was run", errClosing)
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

// begin starts a server that is to run always. asked starts it whatever it is
// for.
func (p *pack) begin(asked bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.up == nil && p.starting == nil && p.doing == "" && !p.gone && p.rec.State == Installed && !p.rec.Stopped &&
		p.fails < mostFails && (asked || p.rec.Start == Always) {
		p.attempt()
	}
}

// attempt starts the server; p.mu is held. What it returns is closed when that
// has worked, or not.
func (p *pack) attempt() chan struct{} {
	done := make(chan struct{})
	leave, err := p.house.enter()
	if err != nil {
		p.failed(err)
		close(done)
		return done
	}
	ctx, cancel := context.WithCancel(p.house.ctx)
	p.starting, p.cancel = done, cancel
	rec, last := p.rec, p.last
	go func() {
		defer leave()
		defer cancel()
		p.show()
		if last != nil {
			<-last.gone
		}
		u, entries, err := p.launch(ctx, &rec)
		p.mu.Lock()
		p.starting, p.cancel = nil, nil
		if err != nil {
			p.failed(err)
		} else {
			p.lives(u)
		}
		p.mu.Unlock()
		if err == nil {
			p.learn(entries, false)
			p.house.work.Go(func() { p.watch(u) }) // this goroutine is counted, so the house still waits
		} else if ctx.Err() == nil {
			p.house.log.Warn("a package cannot be started", "package", p.id, "err", err)
		}
		p.tellBroken()
		p.show()
		close(done)
	}()
	return done
}

// lives notes that a server runs; p.mu is held.
func (p *pack) lives(u *upstream) {
	p.up, p.last, p.since, p.why = u, u, time.Now(), nil
	p.rec.Server = u.server
}

// failed notes that a server does not run, and when it is tried again; p.mu is
// held.
func (p *pack) failed(err error) {
	p.why = err
	p.fails++
	pace := p.house.opts.pace
	delay := pace.most
	if p.fails < 30 {
		delay = min(pace.first<<(p.fails-1), pace.most)
	}
	p.next = time.Now().Add(delay)
	if p.rec.Start == Always && p.fails < mostFails && p.house.ctx.Err() == nil {
		p.again = time.AfterFunc(delay, func() { p.begin(false) })
	}
}

// watch looks after a server until it has ended.
func (p *pack) watch(u *upstream) {
	for {
		select {
		case <-u.gone:
			p.ended(u)
			return
		case <-u.relist:
		}
		if sleepUntil(u.gone, listSettle) {
			continue
		}
		ctx, cancel := context.WithTimeout(p.house.ctx, p.house.opts.Begin)
		entries, err := u.list(ctx)
		cancel()
		if err == nil {
			p.learn(entries, false)
			p.show()
		} else if u.reason() == nil {
			p.journal.say(fmt.Sprintf("[host] the tools have changed and cannot be listed: %v", err))
		}
		sleepUntil(u.gone, listEvery)
	}
}

// sleepUntil reports whether it ended early.
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

// ended takes note of a server that has ended without being asked to.
func (p *pack) ended(u *upstream) {
	p.mu.Lock()
	if p.up != u {
		p.mu.Unlock()
		return
	}
	p.up = nil
	if time.Since(p.since) >= p.house.opts.pace.good {
		p.fails = 0
	}
	err := u.reason()
	p.failed(err)
	broken := p.fails >= mostFails
	p.mu.Unlock()
	p.journal.say("[host] the server has ended: " + err.Error())
	if p.house.ctx.Err() == nil {
		p.house.log.Warn("a package has ended", "package", p.id, "err", err, "again", !broken)
	}
	p.tellBroken()
	p.show()
}

// tellBroken tells of the failure after which the server is left alone.
func (p *pack) tellBroken() {
	p.mu.Lock()
	why := p.why
	broken := p.fails == mostFails && why != nil && p.up == nil
	p.mu.Unlock()
	if broken && p.house.ctx.Err() == nil {
		p.house.opts.Broken(p.id, why)
	}
}

// ToolChanges are the tools in which a server's list differs from the one before,
// by their names here.
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

// learn takes in which tools a server has. agreed says that an administrator has
// just installed what they come from; other changes are told, because nobody
// agreed to them.
func (p *pack) learn(entries []json.RawMessage, agreed bool) {
	tools, left := offer(p.id, entries)
	p.mu.Lock()
	same := sameTools(p.tools, tools)
	changes := changesOf(p.tools, tools)
	p.tools, p.left = tools, left
	p.mu.Unlock()
	if same {
		return
	}
	if !agreed && len(changes.Added)+len(changes.Removed)+len(changes.Changed) > 0 {
		p.house.opts.Relisted(p.id, changes)
	}
	if b, err := json.Marshal(entries); err == nil {
		if err := atomicfile.Write(filepath.Join(p.folder(), toolsFile), b); err != nil {
			p.house.log.Warn("the tools of a package are not remembered", "package", p.id, "err", err)
		}
	}
	p.house.stale()
}

const toolsFile = "tools.json"

// recall takes in which tools a server had when it last ran.
func (p *pack) recall() {
	b, err := atomicfile.Read(filepath.Join(p.folder(), toolsFile), 2*mostListing)
	var entries []json.RawMessage
	if err == nil && json.Unmarshal(b, &entries) == nil {
		p.tools, p.left = offer(p.id, entries)
	}
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

// halt ends the server, if it runs or is being started, and waits for that.
func (p *pack) halt() error {
	p.mu.Lock()
	if p.again != nil {
		p.again.Stop()
		p.again = nil
	}
	if cancel, starting := p.cancel, p.starting; starting != nil {
		p.mu.Unlock()
		cancel()
		<-starting
		p.mu.Lock()
	}
	u := p.up
	p.up = nil
	p.mu.Unlock()
	if u == nil {
		return nil
	}
	return u.stop(stopGrace)
}

// rest ends a server that was started on demand and has nothing to do.
func (p *pack) rest() {
	p.mu.Lock()
	u := p.up
	if u == nil || p.rec.Start != OnDemand || p.doing != "" || u.idle() < p.house.opts.Idle {
		p.mu.Unlock()
		return
	}
	leave, err := p.house.enter()
	if err != nil {
		p.mu.Unlock()
		return
	}
	p.up, p.fails = nil, 0
	p.mu.Unlock()
	go func() {
		defer leave()
		u.stop(stopGrace)
		p.show()
	}()
}

// forgive forgets what has failed.
func (p *pack) forgive() {
	p.mu.Lock()
	p.fails, p.why, p.next = 0, nil, time.Time{}
	p.mu.Unlock()
}

// Start has a server run from now on. The error says why it does not.
func (h *House) Start(ctx context.Context, id string) (Info, error) {
	return h.set(ctx, id, "starting", false, false)
}

// Stop ends a server, which is not started again before Start.
func (h *House) Stop(ctx context.Context, id string) (Info, error) {
	return h.set(ctx, id, "stopping", true, true)
}

// Restart ends a server if it runs, and starts it.
func (h *House) Restart(ctx context.Context, id string) (Info, error) {
	return h.set(ctx, id, "restarting", true, false)
}

// withLastWords adds to the refusal of a server that could not be started what
// it printed then.
func (p *pack) withLastWords(err error) error {
	p.mu.Lock()
	said := Words(p.why)
	p.mu.Unlock()
	if said == "" {
		return err
	}
	return &spoken{err, said}
}

func (h *House) set(ctx context.Context, id, what string, halt, stopped bool) (Info, error) {
	leave, err := h.enter()
	if err != nil {
		return Info{}, err
	}
	defer leave()
	p, err := h.find(id)
	if err != nil {
		return Info{}, err
	}
	done, err := p.claim(what)
	if err != nil {
		return Info{}, err
	}
	err = p.desire(stopped)
	if err == nil && halt {
		err = p.halt()
	}
	p.forgive()
	done()
	if err == nil && !stopped {
		var u *upstream
		if u, err = p.ready(ctx); err == nil {
			u.release()
		} else {
			err = p.withLastWords(err)
		}
	}
	return p.info(), err
}

// desire remembers whether a package is to be stopped.
func (p *pack) desire(stopped bool) error {
	p.mu.Lock()
	r := p.rec
	p.mu.Unlock()
	if r.State != Installed {
		return tool.Refuse("unavailable", "package %s is not installed whole", p.id)
	}
	r.Stopped = stopped
	return p.keep(r)
}

// keep makes a record that of the package, for good.
func (p *pack) keep(r Record) error {
	if err := p.house.keepRecord(r); err != nil {
		return fmt.Errorf("remember package %s: %w", p.id, err)
	}
	p.mu.Lock()
	p.rec = r
	p.mu.Unlock()
	return nil
}

// Call passes a call on to a server, which is started if it does not run. args
// and meta are the caller's; what comes back is the server's result, as it
// came. A *tool.WireError is the server's own.
func (h *House) Call(ctx context.Context, id, own string, args, meta json.RawMessage, progress func(done, total float64, note string)) (json.RawMessage, error) {
	p, err := h.find(id)
	if err != nil {
		return nil, err
	}
	params := callParams(own, args, meta)
	for try := 0; ; try++ {
		u, err := p.ready(ctx)
		if err != nil {
			return nil, err
		}
		raw, err := u.request(ctx, "tools/call", params, progress)
		u.release()
		gone, ok := errors.AsType[*lost](err)
		switch {
		case !ok:
			return raw, err
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case gone.ran:
			return nil, &tool.Refusal{Code: "unavailable", Message: fmt.Sprintf("package %s gave no answer; %s may have run: %v", id, shorten(own, 100), gone.why), Next: "Look at the outcome before you try again."}
		case try > 0:
			return nil, &tool.Refusal{Code: "unavailable", Message: fmt.Sprintf("package %s is not there; nothing was run: %v", id, gone.why), Next: "Try again in a moment."}
		}
		p.settled(ctx, u)
	}
}

// settled waits until a server that was found dead is known to be.
func (p *pack) settled(ctx context.Context, u *upstream) {
	select {
	case <-u.gone:
	case <-ctx.Done():
		return
	}
	for {
		p.mu.Lock()
		known := p.up != u
		p.mu.Unlock()
		if known || sleep(ctx, 5*time.Millisecond) != nil {
			return
		}
	}
}

// Info says all there is to know of a package.
func (h *House) Info(id string) (Info, error) {
	p, err := h.find(id)
	if err != nil {
		return Info{}, err
	}
	return p.info(), nil
}

func (p *pack) info() Info {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := Info{Record: p.rec, Public: *p.public(), Data: p.data(), Left: p.left, Fails: p.fails}
	for _, t := range p.tools {
		i.Names = append(i.Names, t.Name)
	}
	if p.up != nil {
		i.PID = p.up.child.Pid()
	}
	if p.status() == "waiting" {
		i.Next = p.next
	}
	return i
}

// List says what there is, by id.
func (h *House) List() (all []Info, err error) {
	h.mu.Lock()
	here := h.release != nil || h.closed
	h.mu.Unlock()
	if !here {
		return nil, elsewhere()
	}
	for _, p := range h.packs() {
		all = append(all, p.info())
	}
	return all, nil
}

// Tools are those that can be called, of all packages. The slice is not to be
// changed.
func (h *House) Tools() []Offered {
	h.mu.Lock()
	offered, epoch := h.offered, h.epoch
	h.mu.Unlock()
	if offered != nil {
		return offered
	}
	offered = []Offered{}
	for _, p := range h.packs() {
		p.mu.Lock()
		if !p.gone && p.rec.State != Installing {
			for _, t := range p.tools {
				t.Text = p.rec.Results == TextResults
				offered = append(offered, t)
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

// stale forgets what is offered, and tells.
func (h *House) stale() {
	h.mu.Lock()
	h.offered = nil
	h.epoch++
	h.mu.Unlock()
	h.opts.Changed()
}

// Logs gives lines of what a server and its host said of it, at most limit: the
// oldest after the cursor or, with before, the newest before it. A negative
// cursor is the end.
func (h *House) Logs(id string, cursor int64, before bool, limit int) ([]Line, error) {
	p, err := h.find(id)
	if err != nil {
		return nil, err
	}
	return p.journal.read(cursor, before, limit)
}

// Patience is how long a call of a package may take.
func (h *House) Patience() time.Duration { return h.opts.Answer }
