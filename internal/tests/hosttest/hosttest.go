// Package hosttest builds a whole host in memory for tests: everything from the
// engine down, built by the function that builds the real host, with the modules
// that a test brings.
package hosttest

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/access/guardrail"
	"gatehouse/internal/access/limit"
	"gatehouse/internal/access/permit"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/app/core"
	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/internal/dispatch/spool"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/seal"
	"gatehouse/internal/mcp/session"
	"gatehouse/module"
	"gatehouse/tool"
)

// Options configures a Host. The zero value is usable.
type Options struct {
	Modules  map[string]module.New
	Roots    tool.Roots
	Policy   *permit.Policy
	Bus      func(bus.Bus) bus.Bus // wraps the bus that requests take; nil leaves it
	Seal     *seal.Ring            // nil makes one for this host alone
	JobsFile string                // "" keeps jobs in memory
	SpoolDir string                // "" makes one
	Timeout  time.Duration         // of calls
	Budget   int                   // of results, bytes
	Promote  time.Duration
	Silence  time.Duration
	AskFor   time.Duration
	Slots    int             // calls at once
	Queue    *limit.Queue    // who may run now; nil makes one with Slots
	Working  *limit.Shares   // of running jobs; nil means no limit
	Bytes    *limit.Shares   // of large results and arguments of jobs; nil means no limit
	Ledger   dispatch.Ledger // nil remembers nothing
	InFlight int             // requests of one pipe at once
	JobTools bool            // the tools with which a client without tasks follows jobs
	NoTable  bool            // serve HTTP without sessions
	Page     int
	Spec     *views.Spec // of the only context; nil lists everything. Its name is that of the default

	Guards *guardrail.Guards
	Others []views.Spec // contexts besides Spec

	Secrets func(map[string]string) (map[string]secret.Text, error) // of arguments that contexts fix; nil means none
}

// Host is a running host.
type Host struct {
	Engine *protocol.Engine
	Calls  *dispatch.Dispatcher

	Approvals *approvals.Store
	Views     *views.Registry
	Modules   *modulehost.Host
	Table     *session.Table
	Jobs      *jobs.Manager
	Spool     *spool.Spool
	Bus       bus.Bus

	core *core.Core
	stop func()
}

// New builds a host and runs it until the test ends or Stop is called.
func New(t testing.TB, o Options) *Host {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	log := logTo(t)
	if o.Seal == nil {
		o.Seal = seal.Ephemeral()
	}
	if o.SpoolDir == "" {
		o.SpoolDir = t.TempDir()
	}
	if o.Policy == nil {
		o.Policy = permit.Open(false)
	}
	h := &Host{stop: func() {}}
	var err error
	h.Spool, err = spool.Open(o.SpoolDir, spool.Options{Log: log})
	must(err)
	h.Jobs, err = jobs.Open(o.JobsFile, jobs.Options{Log: log})
	must(err)
	h.Approvals = approvals.Open("", approvals.Options{Log: log, Look: 5 * time.Millisecond})
	h.Bus = bus.New()
	c := core.Options{
		Bus:     h.Bus,
		Jobs:    h.Jobs,
		Spool:   h.Spool,
		Modules: modulehost.Options{Roots: o.Roots, Log: log},
		Views:   views.Options{Rules: views.Rules{Policy: o.Policy}, Log: log, Page: o.Page},
		Calls: dispatch.Options{
			Approvals: h.Approvals, Log: log, Timeout: o.Timeout, Budget: o.Budget,
			Slots: o.Slots, Queue: o.Queue, Ledger: o.Ledger, Secrets: o.Secrets, Guards: o.Guards,
		},
		Engine: protocol.Options{
			Seal: o.Seal, Log: log, Info: protocol.Info{Name: "gatehouse-test", Version: "0.0.0"},
			Promote: o.Promote, Silence: o.Silence, AskFor: o.AskFor, InFlight: o.InFlight,
			Working: o.Working, Bytes: o.Bytes,
		},
	}
	if o.Spec != nil {
		one := *o.Spec
		one.Name = "default"
		c.Views.Rules.Specs, c.Views.Always = append([]views.Spec{one}, o.Others...), []string{views.SearchModule}
	}
	if o.Bus != nil {
		c.Requests = o.Bus(h.Bus)
	}
	if !o.NoTable {
		c.Sessions = &session.Options{}
	}
	h.core = core.New(c)
	h.Modules, h.Views, h.Calls = h.core.Modules, h.core.Views, h.core.Calls
	h.Table, h.Engine = h.core.Sessions, h.core.Engine
	must(h.core.AddResources(t.Context()))
	if o.Spec != nil {
		must(h.core.AddToolFinder(t.Context()))
	}
	if o.JobTools {
		must(h.core.AddJobs(t.Context(), nil))
	}
	for name, make := range o.Modules {
		must(h.Modules.Add(t.Context(), name, make))
	}
	h.runHost(t, log)
	return h
}

// stopPatience is how long each part of a host may take to stop.
const stopPatience = 10 * time.Second

// runHost runs the parts as the real host does, until Stop.
func (h *Host) runHost(t testing.TB, log *slog.Logger) {
	parts := append([]core.Part{
		{Name: "spool", Run: func(ctx context.Context) error { return errors.Join(h.Spool.Run(ctx), h.Spool.Close()) }},
		{Name: "approvals", Run: func(ctx context.Context) error {
			return errors.Join(h.Approvals.Run(ctx), h.Approvals.Close())
		}},
	}, h.core.Parts(stopPatience)...)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		core.Run(ctx, log, stopPatience, parts...) // what a part returns is not of interest to the tests
	}()
	h.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(h.stop)
}

// Stop stops the host as a signal would. It may be called twice.
func (h *Host) Stop() { h.stop() }

// Client is the other end of a pipe to the host.
type Client struct {
	t    testing.TB
	pipe *protocol.Pipe
	in   chan []byte
}

// silence is how long a client waits for the host before the test fails.
const silence = 30 * time.Second

// Dial opens a pipe.
func (h *Host) Dial(t testing.TB) *Client { return h.DialAs(t, "anonymous") }

// DialAs opens a pipe for a principal.
func (h *Host) DialAs(t testing.TB, principal string) *Client {
	c := &Client{t: t, in: make(chan []byte, 10_000)}
	c.pipe = h.Engine.Pipe(protocol.Caller{Caller: tool.Caller{Principal: principal}}, func(m []byte) error {
		c.in <- append([]byte(nil), m...)
		return nil
	})
	t.Cleanup(func() { c.pipe.Close(nil) })
	return c
}

// Send sends one frame.
func (c *Client) Send(frame string) { c.pipe.Receive([]byte(frame)) }

// Next returns the next frame from the host.
func (c *Client) Next() json.RawMessage {
	c.t.Helper()
	select {
	case m := <-c.in:
		return m
	case <-time.After(silence):
		c.t.Fatal("the host says nothing")
		return nil
	}
}

// Quiet fails the test if the host has sent anything more.
func (c *Client) Quiet() {
	c.t.Helper()
	select {
	case m := <-c.in:
		c.t.Fatalf("unexpected: %s", m)
	case <-time.After(50 * time.Millisecond):
	}
}

// Close ends the connection.
func (c *Client) Close() { c.pipe.Close(nil) }

// logTo shows the host's log in a test; a benchmark discards it.
func logTo(t testing.TB) *slog.Logger {
	if _, ok := t.(*testing.B); ok {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
