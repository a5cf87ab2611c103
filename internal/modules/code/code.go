// Package code runs programs of callers that call the caller's own tools, in a sandbox of their own.
//
// A program is untrusted. It reaches nothing but the tools that its caller could call, each of which is checked as a
// call of the caller; see package toolchannel for how. One call of code_run is one program: while the program waits
// for a user it is frozen, and the caller's next request attaches to it.
package code

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"gatehouse/internal/dispatch/toolsearch"
	"gatehouse/internal/files/filewatch"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/module"
	"gatehouse/tool"
)

// Settings limit programs.
type Settings struct {
	Timeout  time.Duration `doc:"How long a program may run, without the time in which it waits for a user, unless its caller asks for less or more; 0 means 60 s."`
	Longest  time.Duration `doc:"The longest time that a caller may ask for; 0 means 1 h."`
	Calls    int           `doc:"Calls of tools that one program may make; 0 means 10,000."`
	Programs int           `doc:"Programs at once, which callers share: each may have as many as it leaves free, and a sixteenth is for administrators; 0 means 64."`
	Question time.Duration `doc:"How long a program waits for the answer to a question, or for an approval; 0 means 10 m."`
}

func (s Settings) complete() Settings {
	s.Timeout = cmp.Or(s.Timeout, time.Minute)
	s.Longest = max(cmp.Or(s.Longest, time.Hour), s.Timeout)
	s.Calls = cmp.Or(s.Calls, 10_000)
	s.Programs = cmp.Or(s.Programs, DefaultPrograms)
	s.Question = cmp.Or(s.Question, 10*time.Minute)
	return s
}

// DefaultPrograms is the default of Settings.Programs.
const DefaultPrograms = 64

// Config is what the module needs.
type Config struct {
	Settings Settings
	// Boxes returns the manager of sandboxes, which belongs to the host; nil means that this host runs no programs.
	Boxes func() (*manager.Manager, error)
	// Tools returns the tools of a caller's view.
	Tools func(ctx context.Context, who tool.Caller) (toolsearch.Catalog, error)
	// Claim takes one of the programs for a caller, or returns why it gets none. nil means that every caller gets one.
	Claim func(who tool.Caller) (release func(), err error)
	// Administrator reports whether a caller may have a sandbox that is kept for administrators; nil means no caller.
	Administrator func(tool.Caller) bool
	// Folder of the journals, which say after a crash what a program has called; "" means that none are written.
	Folder string
}

// programs is the module.
type programs struct {
	cfg   Config
	deps  module.Deps
	log   *slog.Logger
	offer *module.Offer

	life context.Context // ends with Close; programs outlive the calls that started them
	end  context.CancelFunc
	work sync.WaitGroup

	stubs   stubCache
	journal *journal
	saved   *savedPrograms
	watcher *filewatch.Watcher // of what other hosts save; nil without a folder

	mu     sync.Mutex
	closed bool
	runs   map[string]*run
}

// New returns the module.
func New(c Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		c.Settings = c.Settings.complete()
		m := &programs{cfg: c, deps: d, log: d.Log, runs: map[string]*run{}, journal: newJournal(c.Folder)}
		m.life, m.end = context.WithCancel(context.Background())
		m.offer = &module.Offer{Tools: []tool.Tool{m.runTool(), m.listTool(), m.saveTool(), m.removeTool()}}
		var err error
		if m.saved, err = openSaved(c.Folder); err == nil && c.Folder != "" {
			m.followSaved(c.Folder)
		}
		return m, err
	}
}

// Close ends all programs.
func (m *programs) Close(context.Context) error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.end()
	m.work.Wait()
	if m.watcher != nil {
		return m.watcher.Close()
	}
	return nil
}

var errClosing = errors.New("the host is closing")

// addRun registers a program; the caller calls m.work.Done when it has ended.
func (m *programs) addRun(r *run) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errClosing
	}
	m.runs[r.id] = r
	m.work.Add(1)
	return nil
}

// findRun returns a program of an owner that runs, or has ended a while ago.
func (m *programs) findRun(owner, id string) *run {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.runs[id]; r != nil && r.owner == owner {
		return r
	}
	return nil
}

// keptOutcome is how long the outcome of a program that has asked is kept for a request that is sent again.
const keptOutcome = 5 * time.Minute

func (m *programs) dropRun(r *run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.runs, r.id)
}
