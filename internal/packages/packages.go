package packages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/files/filelock"
	"gatehouse/internal/files/sqlfile"
	"gatehouse/internal/state"
	"gatehouse/tool"
)

// Options of a House. Folder and Records are needed.
type Options struct {
	Settings

	Folder  string                                                  // holds a folder for each package; private to its user
	Records *state.Mount[map[string]Record]                         // what is installed, beyond the end of the host
	Secrets func(map[string]string) (map[string]secret.Text, error) // puts secrets into an environment that refers to them; nil: there are none
	Taken   func() []string                                         // names of modules, which packages keep away from; nil means none
	Show    func(id string, p *Public)                              // what everybody may know of a package; nil when it is gone. It must not call back
	Broken  func(id string, why error)                              // a server failed too often and is left alone; it must not block
	Changed func()                                                  // the tools are others; it must not block
	// Relisted learns that a server's tools differ from those it had when it was
	// installed or last ran; it must not block. nil learns nothing.
	Relisted func(id string, c ToolChanges)
	// Restored gives the records of packages that were brought back from a backup
	// since the last time, and what is called when they are kept. nil means none.
	Restored func() (records map[string]Record, kept func() error, err error)
	// Waiting gives the ids of packages that a restore is to bring back, and what
	// puts their folders in place and leaves their records for Restored. It is
	// asked often, and answers no ids if no restore waits. nil means none.
	Waiting func() (ids []string, put func() error, err error)

	Log     *slog.Logger // nil drops what is said
	Name    string       // how this host calls itself to servers
	Version string

	pace pace // for tests
}

// pace is how long is waited between starts of a server that keeps ending.
type pace struct {
	first, most time.Duration // doubled from one to the other; 0 means 1 s and 1 min
	good        time.Duration // after so long a server is no longer held to have failed at once; 0 means 1 min
}

const (
	defaultBegin   = 30 * time.Second
	defaultAnswer  = 5 * time.Minute
	defaultIdle    = 10 * time.Minute
	defaultInstall = 15 * time.Minute
	defaultMessage = 16 << 20
	defaultMost    = 100

	takeAgain = 5 * time.Second // while another host has the packages
)

// House holds the packages of one folder. Safe for concurrent use.
type House struct {
	opts Options
	log  *slog.Logger
	// ctx ends with Close. Servers of packages outlive the calls that start them.
	ctx  context.Context
	end  context.CancelCauseFunc
	work sync.WaitGroup // everything the house does by itself, and every change that runs

	// mu guards what follows, up to restoring.
	mu      sync.Mutex
	release func() error // of the lock; nil while another host has it
	closed  bool
	all     map[string]*pack
	offered []Offered // as of the last change; nil when it has to be made
	epoch   uint64    // how often it was forgotten

	restoring sync.Mutex // held while packages are brought back; before mu
	waits     string     // why a restore could not be put in place, when that was last logged; guarded by restoring
}

// errClosing is why things end when the host does.
var errClosing = errors.New("the host is stopping")

// Open opens the packages of a folder. Nothing is started before Run. After an
// error nothing is left open.
func Open(o Options) (*House, error) {
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
	if o.Broken == nil {
		o.Broken = func(string, error) {}
	}
	o.Begin, o.Answer = cmp.Or(o.Begin, defaultBegin), cmp.Or(o.Answer, defaultAnswer)
	o.Idle, o.Install = cmp.Or(o.Idle, defaultIdle), cmp.Or(o.Install, defaultInstall)
	o.Message, o.Most = cmp.Or(o.Message, defaultMessage), cmp.Or(o.Most, defaultMost)
	o.pace = pace{cmp.Or(o.pace.first, time.Second), cmp.Or(o.pace.most, time.Minute), cmp.Or(o.pace.good, time.Minute)}
	h := &House{opts: o, log: o.Log, all: map[string]*pack{}}
	h.ctx, h.end = context.WithCancelCause(context.Background())
	if err := os.MkdirAll(o.Folder, 0o700); err != nil {
		return nil, fmt.Errorf("packages: %w", err)
	}
	got, err := h.take()
	if err != nil {
		return nil, fmt.Errorf("packages: %w", err)
	}
	if !got {
		h.log.Warn("another host of the same data folder runs the packages, so their tools are not here; "+
			"clients that start gatehouse stdio in place of gatehouse serve share one host", "folder", o.Folder)
	}
	return h, nil
}

// Files that the one host which runs the packages locks.
const (
	lockName  = "host.lock"
	lockOlder = "in-use.lock" // of the version before
)

// take makes the packages this host's, unless another host has them. What was
// interrupted is finished or undone.
func (h *House) take() (got bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.release != nil || h.closed {
		return h.release != nil, nil
	}
	folder := h.opts.Folder
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
	return true, nil
}

// Run starts what is to run always, and ends what has nothing to do, until ctx
// is done. It returns when every server has ended.
func (h *House) Run(ctx context.Context) error {
	h.keep(ctx)
	return h.Close()
}

func (h *House) keep(ctx context.Context) {
	look := time.NewTicker(min(max(h.opts.Idle/4, 10*time.Millisecond), takeAgain))
	defer look.Stop()
	begun := false
	for ctx.Err() == nil {
		got, err := h.take()
		if err != nil {
			h.log.Warn("packages cannot be looked after", "err", err)
		}
		if got && !begun {
			begun = true
			h.opts.Changed()
			for _, p := range h.packs() {
				p.show()
				p.begin(false)
			}
		}
		for _, p := range h.packs() {
			p.rest()
		}
		if got {
			h.putRestored()
		}
		select {
		case <-look.C:
		case <-ctx.Done():
		}
	}
}

// Close ends every server and waits for that. It may be called twice.
func (h *House) Close() error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.end(errClosing)
	h.work.Wait()
	h.mu.Lock()
	release := h.release
	h.release = nil
	h.mu.Unlock()
	if release != nil {
		return release()
	}
	return nil
}

// enter counts one thing that the house waits for when it closes.
func (h *House) enter() (leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, &tool.Refusal{Code: "unavailable", Message: errClosing.Error()}
	case h.release == nil:
		return nil, elsewhere()
	}
	h.work.Add(1)
	return h.work.Done, nil
}

func elsewhere() *tool.Refusal {
	return &tool.Refusal{Code: "busy", Message: "another host of the same folder of data runs the packages", Next: "Start the client with gatehouse stdio in place of gatehouse serve, so that it shares that host; or end that host, and this one takes them over."}
}

// packs are the packages by their ids.
func (h *House) packs() []*pack {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Collect(maps.Values(h.all))
	slices.SortFunc(all, func(a, b *pack) int { return compare(a.id, b.id) })
	return all
}

// find finds one package.
func (h *House) find(id string) (*pack, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.all[id]; p != nil {
		return p, nil
	}
	if h.release == nil && !h.closed {
		return nil, elsewhere()
	}
	return nil, &tool.Refusal{Code: "not_found", Message: fmt.Sprintf("there is no package %q", id), Next: "package_list shows those there are."}
}

func (h *House) folder(id string) string { return filepath.Join(h.opts.Folder, id) }

// keepRecord writes what is remembered of a package, for good.
func (h *House) keepRecord(r Record) error {
	ctx, cancel := context.WithTimeout(context.Background(), keepWait)
	defer cancel()
	return state.Put(ctx, h.opts.Records, r.ID, r)
}

const keepWait = 30 * time.Second // for the disk
