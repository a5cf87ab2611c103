package packages

import (
	"cmp"
	"context"
	"encoding/json"
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

// managedPackage is one package of this host: its record, what it offers, and the
// instances of its server. It is safe for concurrent use. Its lock may be held while the
// manager's is acquired, not the other way round.
type managedPackage struct {
	manager *Manager
	id      string
	journal journal

	// showMu keeps what is shown in the order in which it was made. It is taken before mu.
	showMu sync.Mutex

	// mu guards what follows, and the state of the instances.
	mu       sync.Mutex
	rec      Record
	stored   []byte // in a cluster, the record as it is stored; see encodeRecord
	activity string // the running operation; "" for none
	progress *progress.Progress
	removed  bool // it was removed

	health health

	owners sync.Mutex // held while the owners of the files in the data folder change; taken before mu

	using dataUsers

	shared  *instance // the one whose listing is offered; never nil
	pool    map[instanceKey][]*instance
	changed chan struct{} // closed when calls or instances have changed

	// What the server has asked since the host started.
	serial    bool // questions that name no call, so that an instance that can be asked runs one at a time
	asksRoots bool // the roots of callers

	bothEras bool // the server speaks the older revisions too, as hasBothEras says

	conditional []json.RawMessage // tools that the server lists only for clients that can be asked
	listedAsked bool              // such tools were looked for since the host started

	logins logins // have a lock of their own, which is taken after mu

	fetching sync.Mutex // held while a program is fetched that another node has installed; before mu

	watched subscriptions // has a lock of its own, which is taken before the manager's

	missing   []string // secrets that are not stored
	missingAt time.Time

	abort context.CancelCauseFunc // of the running installation; nil if none runs

	tools  []Offered
	offer  *Offer // nil before the server was listed
	hidden []string
}

func (h *Manager) newPackage(r Record) *managedPackage {
	p := &managedPackage{manager: h, id: r.ID, rec: r}
	p.shared = &instance{pkg: p}
	p.health.policy = h.opts.circuit
	p.watched.init(p)
	p.pool, p.changed = map[instanceKey][]*instance{}, make(chan struct{})
	p.journal.dir = filepath.Join(h.folder(r.ID), "log")
	p.recallLogin()
	return p
}

func (p *managedPackage) folder() string { return p.manager.folder(p.id) }

func (p *managedPackage) data() string { return filepath.Join(p.folder(), dataFolder) }

const dataFolder = "data" // in the folder of a package

// public returns the public state; p.mu is held.
func (p *managedPackage) public() *Public {
	r := &p.rec
	out := &Public{
		Title: r.title(), Version: r.version(), Source: r.Source.public(), State: r.State,
		Status: p.shared.status(), Start: r.Start, Progress: p.progress,
		Health: p.health.snapshot(), Login: p.loginNeeded(r), Confinement: r.ShownConfinement(),
	}
	for _, t := range p.tools {
		if !r.isOff(&t) && p.isApproved(&t) {
			out.Tools++
		}
	}
	out.Quarantined = len(p.unapproved())
	out.Tasks, out.Actions, out.Outbound = p.needs(), p.publicActions(), r.Outbound
	if p.shared.running != nil {
		out.Started = new(p.shared.started.UTC())
	}
	if p.shared.why != nil {
		out.Error = shorten(p.shared.why.Error(), publicText)
	}
	return out
}

// publishState publishes the public state. The caller holds no lock.
func (p *managedPackage) publishState() {
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

// claim starts an operation that excludes all others on this package; one that takes long excludes those of other
// nodes, too.
func (p *managedPackage) claim(what string) (done func(), err error) {
	here, err := p.claimHere(what)
	if err != nil || p.manager.opts.Cluster == nil || !slices.Contains(exclusive, what) {
		return here, err
	}
	release, err := p.claimOnNodes()
	if err != nil {
		here()
		return nil, err
	}
	return func() { release(); here() }, nil
}

// claimHere is claim on this node alone.
func (p *managedPackage) claimHere(what string) (done func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.removed:
		return nil, errNoPackage(p.id)
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

// changePackage runs an operation that excludes all others on a package, with the record that it had before. The shared
// instance is started afterwards if it ran. It returns what the package is then, also if the operation failed.
func (h *Manager) changePackage(id, what string, change func(p *managedPackage, was Record) error) (i Info, err error) {
	p, err := h.findPackage(id)
	if err != nil {
		return i, err
	}
	done, err := p.claim(what)
	if err != nil {
		return i, err
	}
	p.mu.Lock()
	ran, was := p.shared.running != nil, p.rec
	p.mu.Unlock()
	err = change(p, was)
	done()
	p.startIfWanted(ran)
	return p.info(), err
}

// busy returns the refusal that names the running operation; p.mu is held.
func (p *managedPackage) busy() error {
	return &tool.Refusal{
		Code:    tool.CodeBusy,
		Message: fmt.Sprintf("package %s is busy: %s", p.id, p.activity),
		Next:    "job_list shows the job if there is one; wait for it with job_wait.",
	}
}

func (p *managedPackage) info() Info {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := Info{Record: p.rec, Public: *p.public(), Data: p.data(), Left: p.hidden, Fails: p.shared.failures}
	for _, t := range p.tools {
		if !i.isOff(&t) && p.isApproved(&t) {
			i.Names = append(i.Names, t.Name)
		}
	}
	i.Quarantined = p.unapproved()
	if i.isPlaced() {
		i.Node = p.manager.places.get(p.id).Node
	}
	if p.shared.running != nil && p.shared.running.child != nil {
		i.PID = p.shared.running.child.Pid()
	}
	if p.shared.status() == "waiting" {
		i.Next = p.shared.next
	}
	return i
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
		case o.Own != t.Own || o.hash != t.hash:
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
func (p *managedPackage) setTools(l listing, left []string, agreed, same bool) {
	tools, more := makeTools(p.manager.naming(p.id), l.Tools)
	left = append(more, left...)
	p.mu.Lock()
	changes := changesOf(p.tools, tools)
	same = same && sameTools(p.tools, tools)
	p.tools, p.hidden = tools, left
	p.mu.Unlock()
	if !agreed {
		p.pinUnasked()
	}
	if same {
		return
	}
	if !agreed && len(changes.Added)+len(changes.Removed)+len(changes.Changed) > 0 {
		p.manager.opts.Relisted(p.id, changes)
	}
	p.shareListing(l)
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
func (p *managedPackage) loadListing() {
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
	p.tools, p.hidden = makeTools(p.manager.naming(p.id), l.Tools)
	p.offer, left = makeOffer(p.manager.naming(p.id), &l)
	p.hidden = append(p.hidden, left...)
}

func sameTools(a, b []Offered) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name || a[i].Own != b[i].Own || a[i].Task != b[i].Task ||
			a[i].hash != b[i].hash || string(a[i].hinted) != string(b[i].hinted) {
			return false
		}
	}
	return true
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

func (h *Manager) setStopped(ctx context.Context, id, what string, halt, stopped bool) (Info, error) {
	leave, err := h.addWork()
	if err != nil {
		return Info{}, err
	}
	defer leave()
	p, err := h.findPackage(id)
	if err != nil {
		return Info{}, err
	}
	done, err := p.claim(what)
	if err != nil {
		return Info{}, err
	}
	err = p.saveStopped(stopped)
	if err == nil && halt {
		err = p.stopServers()
	}
	p.resetFailures()
	done()
	if err == nil && !stopped {
		var u *upstream
		if u, err = p.shared.ready(ctx); err == nil {
			u.releaseUpstream()
		} else {
			err = p.shared.withOutput(err)
		}
	}
	return p.info(), err
}

// saveStopped stores whether the package is stopped.
func (p *managedPackage) saveStopped(stopped bool) error {
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
func (p *managedPackage) saveRecord(r Record) error {
	p.mu.Lock()
	was := p.stored
	p.mu.Unlock()
	if err := p.manager.putRecord(r, was); err != nil {
		return fmt.Errorf("store package %s: %w", p.id, err)
	}
	p.mu.Lock()
	if p.rec = r; p.manager.opts.Cluster != nil {
		p.stored = encodeRecord(r)
	}
	p.mu.Unlock()
	return nil
}

// Info returns the full state of a package.
func (h *Manager) Info(id string) (Info, error) {
	p, err := h.findPackage(id)
	if err != nil {
		return Info{}, err
	}
	return p.info(), nil
}

// Usage returns the bytes of a package's program on the disk, and how many of them
// other packages have too.
func (h *Manager) Usage(ctx context.Context, id string) (bytes, also int64, err error) {
	p, err := h.findPackage(id)
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

// startIfWanted starts the shared instance; see instance.startIfWanted.
func (p *managedPackage) startIfWanted(asked bool) { p.shared.startIfWanted(asked) }

// resetFailures clears the failures, so that the server may start at once.
func (p *managedPackage) resetFailures() {
	p.health.reset()
	p.shared.resetFailures()
}

// List returns the full state of all packages, sorted by id.
func (h *Manager) List() (all []Info, err error) {
	h.mu.Lock()
	here := h.release != nil || h.closed
	h.mu.Unlock()
	if !here && !h.unused() {
		return nil, h.errOtherHost()
	}
	for _, p := range h.sortedPackages() {
		all = append(all, p.info())
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
	for _, p := range h.sortedPackages() {
		p.mu.Lock()
		rec := p.rec
		p.mu.Unlock()
		unstaged := h.unstaged(&rec)
		p.mu.Lock()
		if !p.removed && p.rec.State != Installing {
			for _, t := range p.tools {
				t.Unstaged = unstaged
				t.Text, t.Timeout = p.rec.Results == TextResults, p.rec.timeLimit()
				if p.rec.TrustHints || p.rec.Source.Kind == OpenAPI { // whose hints this host made
					t.Raw, t.Effects = t.hinted, effectsOf(t.hinted)
				}
				if !p.rec.isOff(&t) && p.isApproved(&t) {
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
	h.forwards.Store(nil)
	h.epoch++
	h.mu.Unlock()
	h.opts.Changed()
}

// Logs returns up to limit log lines of a server and its host: the oldest after the
// cursor or, with before, the newest before it. A negative cursor means the end.
func (h *Manager) Logs(id string, cursor int64, before bool, limit int) ([]Line, error) {
	p, err := h.findPackage(id)
	if err != nil {
		return nil, err
	}
	return p.journal.readLines(cursor, before, limit)
}

// Patience returns how long a request to a package may take.
func (h *Manager) Patience(id string) time.Duration {
	p, err := h.findPackage(id)
	if err != nil {
		return h.opts.Answer
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return cmp.Or(p.rec.timeLimit(), h.opts.Answer)
}
