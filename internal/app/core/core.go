// Package core builds the parts that serve a call, from the protocol engine down to the modules, and connects
// them. The host (package app) and the host of tests (hosttest) are both built by New, so that tests run what
// users run.
package core

import (
	"context"
	"errors"
	"time"

	"gatehouse/internal/access/operator"
	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/internal/dispatch/spool"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/session"
	"gatehouse/internal/modules/job"
	"gatehouse/internal/modules/resources"
	"gatehouse/internal/modules/toolfinder"
	"gatehouse/module"
	"gatehouse/tool"
)

// These are the modules that every host has, whatever its configuration.
const (
	ResourcesModule = "resources"
	JobModule       = "job"
)

// Options configures a Core. New fills in the fields that connect the parts: buses, views, the engine and the
// modules.
type Options struct {
	Bus bus.Bus // events, and requests unless Requests is set
	// Requests is the bus that carries calls to the modules; nil means Bus.
	Requests bus.Bus
	Jobs     *jobs.Manager
	Tasks    job.Jobs // that the module of jobs shows; nil means Jobs
	Spool    *spool.Spool

	Modules  modulehost.Options
	Views    views.Options
	Calls    dispatch.Options
	Sessions *session.Options // nil serves without sessions
	Engine   protocol.Options
}

// Core holds the parts that serve a call. Its fields do not change.
type Core struct {
	Modules  *modulehost.Host
	Views    *views.Registry
	Calls    *dispatch.Dispatcher
	Sessions *session.Table // nil without sessions
	Engine   *protocol.Engine

	jobs  *jobs.Manager
	tasks job.Jobs // that the module of jobs shows
	spool *spool.Spool
}

// New builds and connects the parts of a core. It starts nothing; see Parts.
func New(o Options) *Core {
	c := &Core{jobs: o.Jobs, tasks: o.Tasks, spool: o.Spool}
	if c.tasks == nil {
		c.tasks = o.Jobs
	}

	o.Modules.Bus = o.Bus
	c.Modules = modulehost.NewHost(o.Modules)

	o.Views.Offers = c.Modules.Offers
	o.Views.Tail = func(r mcpversion.Revision, shared bool) string { return c.Engine.ListTail(r, shared) }
	c.Views = views.New(o.Views)

	o.Calls.Bus, o.Calls.Views, o.Calls.Spool = o.Bus, c.Views, o.Spool
	if o.Requests != nil {
		o.Calls.Bus = o.Requests
	}
	c.Calls = dispatch.New(o.Calls)

	if o.Sessions != nil {
		s := *o.Sessions
		ended := s.Ended
		s.Ended = func(s *session.Session, cause error) {
			c.Engine.SessionEnded(s, cause)
			if ended != nil {
				ended(s, cause)
			}
		}
		c.Sessions = session.NewTable(s)
	}

	o.Engine.Calls, o.Engine.Views, o.Engine.Sessions = c.Calls, c.Views, c.Sessions
	o.Engine.Jobs, o.Engine.Bus = o.Jobs, o.Bus
	c.Engine = protocol.New(o.Engine)

	c.Modules.Bind(c.Calls.Inner, c.Calls.Program, c.Engine.StartJob)
	c.Modules.OnChange(func(module.Audience) {
		c.Views.Stale()
		c.Engine.Changed()
	})
	return c
}

// AddResources adds the module that serves long results and help texts.
func (c *Core) AddResources(ctx context.Context) error {
	help := resources.Help{Find: c.Views.Defined, Names: c.Views.ToolNames}
	return c.Modules.Add(ctx, ResourcesModule, resources.New(c.spool, help))
}

// AddToolFinder adds the module that finds tools, for contexts that do not list all of theirs.
func (c *Core) AddToolFinder(ctx context.Context) error {
	return c.Modules.Add(ctx, views.SearchModule, toolfinder.New(c.Views, contexts{c}))
}

// contexts are the contexts of callers.
type contexts struct{ c *Core }

func (x contexts) Names(ctx context.Context, who tool.Caller) []string {
	return x.c.Views.Contexts(ctx, who)
}

func (x contexts) Use(ctx context.Context, who tool.Caller, name string) error {
	return x.c.Engine.UseContext(ctx, who, name)
}

// AddJobs adds the module with which clients without tasks follow jobs. rules reports whether a caller is an
// administrator; nil means no caller is.
func (c *Core) AddJobs(ctx context.Context, rules operator.Func) error {
	return c.Modules.Add(ctx, JobModule, job.New(c.tasks, rules))
}

// Parts returns the parts of the core in the order of starting. Jobs stop before
// the modules in which they run, and sessions before the engine.
func (c *Core) Parts(patience time.Duration) []Part {
	parts := []Part{
		Closing("modules", patience, c.Modules.Close),
		{Name: "jobs", Run: func(ctx context.Context) error { return c.runJobs(ctx, patience) }},
		{Name: "engine", Run: c.Engine.Run},
	}
	if c.Sessions != nil {
		parts = append(parts, Part{Name: "sessions", Run: c.Sessions.Run})
	}
	return parts
}

func (c *Core) runJobs(ctx context.Context, patience time.Duration) error {
	err := c.jobs.Run(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	return errors.Join(err, c.jobs.Close(ctx))
}
