package packages

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/files/filelock"
	"gatehouse/internal/files/sqlfile"
	"gatehouse/internal/packages/attest"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/image"
	"gatehouse/internal/state"
	"gatehouse/tool"
)

// Options configure a Manager. Folder and Records are required. One struct, because each field is one thing that the
// host gives to packages.
type Options struct {
	Settings

	// holds a folder for each package; private to its user
	Folder  string
	Records *state.Mount[map[string]Record] // what is installed, beyond the end of the host
	// Logins keeps the logins at packages' servers; nil means that no user can log in
	Logins *secret.Store
	// Administrator reports whether a caller may log in for all callers; nil means no caller
	Administrator func(tool.Caller) bool
	// ClientDocument is the https address of this host's client ID metadata document; "" for none
	ClientDocument string
	// puts secrets into an environment that refers to them; nil: there are none
	Secrets func(map[string]string) (map[string]secret.Text, error)
	// names of modules, which packages cannot use; nil means none
	Taken func() []string
	// publishes a package's public state; nil after its removal. It must not call back
	Show func(id string, p *Public)
	// a server failed too often and is no longer started; it must not block
	Broken  func(id string, why error)
	Changed func() // the tools have changed; it must not block
	// Relisted is called if a server's tools differ from those it had when
	// it was installed or last ran. It must not block. It may be nil.
	Relisted func(id string, c ToolChanges)
	// Restored returns the records of packages that were restored from a backup
	// since the last call, and a function to call when they are stored. It may
	// be nil.
	Restored func() (records map[string]Record, kept func() error, err error)
	// Waiting returns the ids of packages that wait to be restored, and a
	// function that puts their folders in place and leaves their records for
	// Restored. It is called often, and returns no ids if no restore waits. It
	// may be nil.
	Waiting func() (ids []string, put func() error, err error)

	// Unapplied is called if packages that the settings declare cannot be installed.
	// It must not block. It may be nil.
	Unapplied func(why error)
	// Watches counts a resource of a package that a caller watches, and returns a function
	// that ends that, or why there are too many. nil means no limit.
	Watches func(c tool.Caller) (release func(), err error)
	// CannotStage returns why a folder cannot be in the view of a staged task; nil means that each can.
	CannotStage func(folder string) string
	// TaskOpen reports whether calls can be staged in a task; nil means that there are no tasks.
	TaskOpen func(task string) bool
	// SecretsUsed is called when a server of a staged task was started with secrets. It must not block. It may be nil.
	SecretsUsed func(c tool.Caller, task string, names []string)
	// Share keeps files that several packages have once. It is for hosts whose
	// servers cannot write below a folder that they may only read (see package shield).
	Share bool
	// Lazy leaves the packages to other hosts of the folder while there are none.
	// The first installation acquires them.
	Lazy bool
	// Manual starts only servers that an operation or a call names.
	Manual bool
	// Sandboxes opens the driver that packages are confined by, when the first of them runs; the manager closes it. nil
	// means that no package is confined unless its record says so, and that those do not run.
	Sandboxes func() (sandbox.Driver, error)
	// Images returns the registries of the settings and their logins, when an image is pulled; nil means none.
	Images func() image.PullOptions
	// TrustedRoot returns the authorities of attestations; nil means those that this program was built with.
	TrustedRoot func() (*attest.Root, error)
	// Egress is told what a confined package reaches or tries to reach. It must not block. It may be nil.
	Egress func(id string, d sandbox.Decision)
	// Completed is called with the params of a server's notifications/elicitation/complete for each session that the
	// server has asked to visit that URL; by tool.Caller.Session or Connection. It must not block.
	Completed func(session string, params json.RawMessage)
	// Alone is set on a manager of OpenAlone.
	Alone *Alone
	// Cluster is that of a host that is a node, whose records are those of all nodes; nil without one.
	Cluster *Cluster

	// SettingsFile is the file of this host's settings. What another file declares is not
	// changed by Run, as long as that file exists. "" means that there is none.
	SettingsFile string

	Log     *slog.Logger // nil discards
	Name    string       // of this host, sent to servers
	Version string

	// Calls is the most requests to packages at once. Each package may have as many of them as it leaves free, so that
	// one that does not answer leaves room for the others. 0 means 1024.
	Calls int

	restart restartPolicy // for tests
	circuit circuitPolicy // for tests
}

// restartPolicy sets the pauses between starts of a server that keeps exiting.
type restartPolicy struct {
	first, max  time.Duration // doubled from one to the other; 0 means 1 s and 1 min
	stableAfter time.Duration // a server that ran for so long starts with zero failures; 0 means 1 min
}

const (
	defaultStartTimeout   = 30 * time.Second
	defaultCallTimeout    = 5 * time.Minute
	defaultIdleTimeout    = 10 * time.Minute
	defaultInstallTimeout = 15 * time.Minute
	defaultMaxMessage     = 16 << 20
	defaultMaxPackages    = 100
	defaultMaxCalls       = 1024

	defaultInstances       = 64
	defaultParked          = 1000
	defaultQuestionTimeout = 5 * time.Minute

	acquireInterval = 5 * time.Second // while another host has the packages
	// commandPatience is how long a command waits for another one, which found no running host either, to end.
	commandPatience = 2 * time.Second
)

// Manager manages the packages of one folder. It is safe for concurrent use.
type Manager struct {
	opts Options
	log  *slog.Logger
	// ctx ends with Close. Servers of packages outlive the calls that start them.
	ctx      context.Context
	end      context.CancelCauseFunc
	relaying atomic.Int64   // requests to all packages that have not ended
	work     sync.WaitGroup // background work and running changes

	// mu guards what follows, up to wake.
	mu      sync.Mutex
	release func() error // of the lock; nil while another host has it

	acquired chan struct{} // closed when this host has acquired the packages
	closed   bool
	all      map[string]*managedPackage
	offered  []Offered // as of the last change; nil when it has to be made
	epoch    uint64    // how often it was forgotten

	declared []Declared // by the settings

	forwards atomic.Pointer[[]string] // see Forwards; nil when it has to be made
	started  *limit.Shares            // of instances that serve one caller
	calls    *callTable
	logins   loginTable
	callback callback

	roots rootCache

	sandboxes sandboxes
	visits    visits

	wake     chan struct{} // holds a token when declared has changed
	applying sync.Mutex    // held while declared packages are applied; before mu
	store    store

	following sync.Mutex // held while changes of other nodes are applied; before mu

	places places   // in a cluster
	fences sync.Map // by id: the *cluster.Fence of each package whose lease this node has

	restoring    sync.Mutex // held while packages are brought back; before mu
	restoreError string     // the last logged reason why a restore failed; guarded by restoring
}

// errClosing is the cause that ends operations when the host stops.
var errClosing = errors.New("the host is stopping")

// Open opens the packages of a folder. No server starts before Run. If it fails nothing
// stays open.
func Open(o Options) (*Manager, error) {
	h := newManager(o)
	got, err := h.acquireUsed()
	if o.Manual {
		end := time.Now().Add(commandPatience)
		for err == nil && !got && !h.unused() && time.Now().Before(end) {
			time.Sleep(commandPatience / 40)
			got, err = h.acquireUsed()
		}
	}
	if err != nil && !o.Lazy {
		return nil, fmt.Errorf("packages: %w", err)
	}
	if err != nil {
		h.log.Warn("packages cannot be loaded", "err", err)
	} else if !got && !h.unused() && !h.opts.Manual {
		h.log.Warn("another host of the same data folder runs the packages, so their tools are not here; "+
			"clients that start gatehouse stdio in place of gatehouse serve share one host", "folder", o.Folder)
	}
	return h, nil
}

// newManager returns a manager that has not acquired its folder.
func newManager(o Options) *Manager {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Show == nil {
		o.Show = func(string, *Public) {}
	}
	if o.Changed == nil {
		o.Changed = func() {}
	}
	if o.Relisted == nil {
		o.Relisted = func(string, ToolChanges) {}
	}
	if o.Watches == nil {
		o.Watches = func(tool.Caller) (func(), error) { return func() {}, nil }
	}
	if o.Broken == nil {
		o.Broken = func(string, error) {}
	}
	o.Begin, o.Answer = cmp.Or(o.Begin, defaultStartTimeout), cmp.Or(o.Answer, defaultCallTimeout)
	o.Idle, o.Install = cmp.Or(o.Idle, defaultIdleTimeout), cmp.Or(o.Install, defaultInstallTimeout)
	o.Calls = cmp.Or(o.Calls, defaultMaxCalls)
	o.Message, o.Most = cmp.Or(o.Message, defaultMaxMessage), cmp.Or(o.Most, defaultMaxPackages)
	o.Instances, o.Parked = cmp.Or(o.Instances, defaultInstances), cmp.Or(o.Parked, defaultParked)
	o.Question = cmp.Or(o.Question, defaultQuestionTimeout)
	o.restart = restartPolicy{
		cmp.Or(o.restart.first, time.Second),
		cmp.Or(o.restart.max, time.Minute),
		cmp.Or(o.restart.stableAfter, time.Minute),
	}
	o.circuit = circuitPolicy{
		cmp.Or(o.circuit.failures, 5), cmp.Or(o.circuit.first, time.Second), cmp.Or(o.circuit.max, time.Minute),
	}
	h := &Manager{opts: o, log: o.Log, all: map[string]*managedPackage{}, wake: make(chan struct{}, 1),
		acquired: make(chan struct{})}
	h.started = limit.NewShares(limit.Resource{Name: "instances of servers", Total: int64(o.Instances)})
	h.calls, h.roots.of = newCallTable(o.Parked, o.Question), map[string]string{}
	if o.Alone != nil {
		h.opts.Confinement = Trusted // it runs as the user who starts it
	}
	if h.opts.Sandboxes == nil {
		h.opts.Sandboxes = func() (sandbox.Driver, error) { return nil, errors.New("this host makes no sandboxes") }
	}
	h.store.dir = filepath.Join(o.Folder, storeFolder)
	h.ctx, h.end = context.WithCancelCause(context.Background())
	return h
}

// Files that the one host which runs the packages locks.
const (
	lockName  = "host.lock"
	lockOlder = "in-use.lock" // of the version before
)

// unused reports whether this host is lazy and there are no packages.
func (h *Manager) unused() bool {
	if !h.opts.Lazy || h.declares() {
		return false
	}
	h.mu.Lock()
	mine := h.release != nil
	h.mu.Unlock()
	if mine {
		return false
	}
	records, _, err := h.opts.Records.Get()
	if err != nil || len(records) > 0 || h.opts.Waiting == nil {
		return err == nil && len(records) == 0
	}
	ids, _, err := h.opts.Waiting()
	return err == nil && len(ids) == 0
}

// acquireUsed is acquire, except that a lazy host leaves a folder without packages
// alone.
func (h *Manager) acquireUsed() (got bool, err error) {
	if h.unused() {
		return false, nil
	}
	return h.acquire()
}

// acquire locks the packages for this host and loads them. It returns false if another
// host has the lock. Interrupted operations are finished or undone.
func (h *Manager) acquire() (got bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.release != nil || h.closed {
		return h.release != nil, nil
	}
	folder := h.opts.Folder
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return false, err
	}
	l, err := sqlfile.TryHost(filepath.Join(folder, lockName), filepath.Join(folder, lockOlder), filelock.Exclusive)
	if errors.Is(err, filelock.ErrHeld) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := h.recover(); err != nil {
		return false, errors.Join(err, l.Release())
	}
	h.release = l.Release
	close(h.acquired)
	return true, nil
}

// Acquired returns a channel that is closed when this host runs the packages of its folder.
func (h *Manager) Acquired() <-chan struct{} { return h.acquired }

// Run starts the servers with start always, and stops idle servers, until ctx is done.
// It returns when every server has exited.
func (h *Manager) Run(ctx context.Context) error {
	h.superviseUntil(ctx)
	return h.Close()
}

func (h *Manager) superviseUntil(ctx context.Context) {
	look := time.NewTicker(min(max(h.opts.Idle/4, 10*time.Millisecond), acquireInterval))
	defer look.Stop()
	begun, apply := false, h.declares()
	for ctx.Err() == nil {
		got, err := h.acquireUsed()
		if err != nil {
			h.log.Warn("packages cannot be loaded", "err", err)
		}
		if got && !begun {
			begun = true
			h.goCollect()
			h.opts.Changed()
			for _, p := range h.sortedPackages() {
				p.publishState()
				if !h.opts.Manual {
					p.startIfWanted(false)
				}
			}
		}
		for _, p := range h.sortedPackages() {
			p.stopIfIdle()
			if p.health.due(time.Now()) {
				p.publishState()
			}
		}
		h.endClosedTasks()
		if got {
			h.tryPutRestored()
		}
		if got && h.opts.Cluster != nil {
			h.applyRecords()
			h.settleInterrupted()
			h.placeWanted(ctx)
		}
		if got && apply && !h.opts.Manual {
			apply = false
			h.goApply()
		}
		select {
		case <-look.C:
		case <-h.wake:
			apply = true
		case <-ctx.Done():
		}
	}
}

// collect removes what no package has in the store any more.
func (h *Manager) collect() {
	switch freed, err := h.store.collect(h.ctx); {
	case err != nil && h.ctx.Err() == nil:
		h.log.Warn("files of removed packages are left", "folder", h.store.dir, "err", err)
	case freed > 0:
		h.log.Debug("files of removed packages are gone", "bytes", freed)
	}
}

// goCollect collects in the background.
func (h *Manager) goCollect() {
	leave, err := h.addWork()
	if err != nil {
		return
	}
	go func() {
		defer leave()
		h.collect()
	}()
}

// goApply applies the declared packages in the background.
func (h *Manager) goApply() {
	leave, err := h.addWork()
	if err != nil {
		return
	}
	go func() {
		defer leave()
		h.applyDeclared()
	}()
}

// Close stops every server and waits for it. It may be called twice.
func (h *Manager) Close() error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.end(errClosing)
	h.work.Wait()
	err := h.closeDriver()
	h.mu.Lock()
	release := h.release
	h.release = nil
	h.mu.Unlock()
	if release != nil {
		err = errors.Join(err, release())
	}
	return err
}

// addWork counts an operation that Close waits for.
func (h *Manager) addWork() (leave func(), err error) {
	if h.opts.Lazy {
		if _, err := h.acquire(); err != nil {
			return nil, fmt.Errorf("packages: %w", err)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, &tool.Refusal{Code: tool.CodeUnavailable, Message: errClosing.Error()}
	case h.release == nil:
		return nil, h.errOtherHost()
	}
	h.work.Add(1)
	return h.work.Done, nil
}

func (h *Manager) errOtherHost() *tool.Refusal {
	next := "Start the client with gatehouse stdio in place of gatehouse serve, so that it shares that host; " +
		"or end that host, and this one takes them over."
	if h.opts.Manual { // a command, which would have asked that host if it had answered
		next = "That host does not answer commands on its own socket: its log says why. Name one of its listeners with " +
			"--url or --unix, or end it and run the command again."
	}
	return &tool.Refusal{
		Code:    tool.CodeBusy,
		Message: "another host of the same data folder runs the packages",
		Next:    next,
	}
}

// sortedPackages returns the packages, sorted by id.
func (h *Manager) sortedPackages() []*managedPackage {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Collect(maps.Values(h.all))
	slices.SortFunc(all, func(a, b *managedPackage) int { return compare(a.id, b.id) })
	return all
}

// findPackage returns one package.
func (h *Manager) findPackage(id string) (*managedPackage, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.all[id]; p != nil {
		return p, nil
	}
	if h.release == nil && !h.closed && !h.opts.Lazy {
		return nil, h.errOtherHost()
	}
	return nil, errNoPackage(id)
}

func (h *Manager) folder(id string) string { return filepath.Join(h.opts.Folder, id) }

const recordTimeout = 30 * time.Second // for the disk
