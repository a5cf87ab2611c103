// Package custom is the module with what one context defines for itself:
// prompts made of templates, tools that run a program or make an HTTP request,
// and resources that are texts, files, or come from such programs and requests.
//
// No shell is involved: each argument of a program is a template of its own,
// and a value can be neither more than one argument nor an option. A request
// goes to the host that its author wrote, whatever the values. Programs and
// requests have a deadline, and what comes back has a limit.
package custom

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/files/filewatch"
	"gatehouse/internal/mcp/schema"
	"gatehouse/module"
	"gatehouse/tool"
)

// Options of a Module. The zero value is good.
type Options struct {
	// Env is the environment of the caller's context. nil means that there is
	// none. Its error refuses the call.
	Env func(tool.Caller) (contextstore.Environment, error)
	// Roots are the folders of the caller's context, in which files are watched
	// for subscribers. nil means that there are none.
	Roots func(tool.Caller) tool.Roots
	// Client makes the requests; nil means one that follows no redirects.
	Client *http.Client
	Log    *slog.Logger // nil discards
}

// Module is the module of one context. Set may be called before and after the
// host has made it.
type Module struct {
	opts  Options
	offer atomic.Pointer[module.Offer]
	files *filewatch.Watcher

	mu      sync.Mutex
	changed func(module.Audience)
	basis   map[string]string      // by URI: what the resource's content follows from
	watches map[*watching]struct{} // that are open
}

// New makes a module that offers nothing yet.
func New(o Options) *Module {
	if o.Env == nil {
		o.Env = func(tool.Caller) (contextstore.Environment, error) { return contextstore.Environment{}, nil }
	}
	if o.Client == nil {
		o.Client = &http.Client{
			Transport:     http.DefaultTransport.(*http.Transport).Clone(),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	m := &Module{opts: o, files: filewatch.New(o.Log), watches: map[*watching]struct{}{}}
	m.offer.Store(&module.Offer{})
	return m
}

// Make is the module.New of the module.
func (m *Module) Make(_ context.Context, d module.Deps) (module.Module, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changed = d.Changed
	return m, nil
}

// Offer implements module.Module.
func (m *Module) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return m.offer.Load(), nil
}

// Close implements module.Module.
func (m *Module) Close(context.Context) error {
	m.opts.Client.CloseIdleConnections()
	return m.files.Close()
}

// Set offers what a record defines from now on; calls that run go on with what
// they began with. The record has been checked, and is not changed any more.
func (m *Module) Set(r *contextstore.Record) error {
	o := &module.Offer{}
	for i := range r.OwnTools {
		t, err := m.tool(&r.OwnTools[i])
		if err != nil {
			return err
		}
		o.Tools = append(o.Tools, t)
	}
	for i := range r.OwnPrompts {
		p, err := prompt(&r.OwnPrompts[i])
		if err != nil {
			return err
		}
		o.Prompts = append(o.Prompts, p)
	}
	basis := map[string]string{}
	for i := range r.OwnResources {
		res, err := m.resource(&r.OwnResources[i])
		if err != nil {
			return err
		}
		if strings.Contains(res.URI, "{") {
			o.Templates = append(o.Templates, res)
		} else {
			o.Resources = append(o.Resources, res)
		}
		if basis[res.URI], err = basisOf(r, &r.OwnResources[i]); err != nil {
			return err
		}
	}
	m.offer.Store(o)
	m.mu.Lock()
	changed, was := m.changed, m.basis
	m.basis = basis
	var stale []*watching
	for w := range m.watches {
		if now, there := basis[w.of]; there && now != was[w.of] {
			stale = append(stale, w)
		}
	}
	m.mu.Unlock()
	if changed != nil {
		changed(module.Audience{})
	}
	for _, w := range stale {
		w.changed(nil)
	}
	return nil
}

// source runs a program or makes a request in its context's environment. The
// error is a *failure if that is what failed.
type source func(context.Context, *tool.Call, *contextstore.Environment) (answer, error)

// environment is that of the caller's context.
func (m *Module) environment(who tool.Caller) (contextstore.Environment, error) {
	env, err := m.opts.Env(who)
	if err != nil {
		err = &tool.Refusal{
			Code: "unavailable", Message: "the environment of this context is not complete: " + err.Error(),
			Next: "An administrator should look at the context's definition.",
		}
	}
	return env, err
}

// inEnvironment gives a source its environment, and takes the secrets of that
// out of the result.
func (m *Module) inEnvironment(run source, b *bounds) tool.Handler {
	return func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		env, err := m.environment(c.Caller)
		if err != nil {
			return tool.Result{}, err
		}
		var res tool.Result
		a, err := run(ctx, c, &env)
		if f, ok := errors.AsType[*failure](err); ok {
			res, err = tool.Result{IsError: true, Content: []tool.Content{tool.Text(f.text)}}, nil
		} else if err == nil {
			res, err = b.result(a)
		}
		for i := range res.Content {
			res.Content[i].Text = string(env.Mask([]byte(res.Content[i].Text)))
		}
		if raw, ok := res.Structured.(json.RawMessage); ok {
			res.Structured = json.RawMessage(env.Mask(raw))
		}
		return res, err
	}
}

// tool makes a tool of its definition, with everything that can be read
// beforehand read.
func (m *Module) tool(t *contextstore.Tool) (tool.Tool, error) {
	b := bounds{timeout: t.Deadline(), most: t.Most()}
	if t.Output != nil {
		var err error
		if b.output, err = schema.Compile(t.Output); err != nil {
			return tool.Tool{}, err
		}
	}
	var run source
	var err error
	if t.Command != nil {
		run, err = m.command(t.Command, b)
	} else {
		run, err = m.request(t.HTTP, b)
	}
	return tool.Tool{
		Def: tool.Def{
			Name: t.Name, Title: t.Title, Description: t.Description, Help: t.Help, Effects: t.Does(),
			// What ends late of itself has time to say so.
			Timeout: b.timeout + patience, Input: t.Input, Output: t.Output,
		},
		Run: m.inEnvironment(run, &b),
	}, err
}
