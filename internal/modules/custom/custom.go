// Package custom is the module with the definitions of one context: prompts made
// of templates, tools that run a program or make an HTTP request, and resources
// that are texts, files, or the output of such programs and requests.
//
// It uses no shell: each argument of a program is a template of its own, and a
// value cannot become more than one argument, nor an option. A request goes to
// the host in its definition, whatever the values are. Programs and requests
// have a deadline, and their output has a limit.
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
	// Env returns the environment of the caller's context. nil means an empty one.
	// If it returns an error, the call is refused.
	Env func(tool.Caller) (contextstore.Environment, error)
	// Turn waits until the caller may start a program; done is called when it runs. nil means at once.
	Turn func(ctx context.Context, c tool.Caller) (done func(), err error)
	// Roots returns the folders of the caller's context, in which files are
	// watched for subscribers. nil means that there are none.
	Roots func(tool.Caller) tool.Roots
	// Client makes the requests; nil means a client that follows no redirects.
	Client *http.Client
	Log    *slog.Logger // nil discards
}

// Module is the module of one context. Set may be called before and after Make.
type Module struct {
	opts  Options
	offer atomic.Pointer[module.Offer]
	files *filewatch.Watcher

	mu      sync.Mutex
	changed func(module.Audience)
	basis   map[string]string       // by URI: what the content of the resource depends on, see basisOf
	watches map[*openWatch]struct{} // that are open
}

// New returns a module that offers nothing until Set is called.
func New(o Options) *Module {
	if o.Turn == nil {
		o.Turn = func(context.Context, tool.Caller) (func(), error) { return func() {}, nil }
	}
	if o.Env == nil {
		o.Env = func(tool.Caller) (contextstore.Environment, error) { return contextstore.Environment{}, nil }
	}
	if o.Client == nil {
		o.Client = &http.Client{
			Transport:     http.DefaultTransport.(*http.Transport).Clone(),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	m := &Module{opts: o, files: filewatch.New(o.Log), watches: map[*openWatch]struct{}{}}
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

// Set replaces the offer by the definitions of a record. Running calls keep the
// definitions with which they began. The record must be valid and must not be
// changed afterwards.
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
	var stale []*openWatch
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

// source runs a program or makes a request in the environment of its context. The
// error is a *failure if the program or the request failed.
type source func(context.Context, *tool.Call, *contextstore.Environment) (answer, error)

// environment returns the environment of the caller's context.
func (m *Module) environment(who tool.Caller) (contextstore.Environment, error) {
	env, err := m.opts.Env(who)
	if err != nil {
		err = &tool.Refusal{
			Code: tool.CodeUnavailable, Message: "the environment of this context is incomplete: " + err.Error(),
			Next: "Ask an administrator to correct the definition of the context.",
		}
	}
	return env, err
}

// inEnvironment returns a handler that runs a source in its environment and hides
// the secrets of the environment in the result.
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

// tool returns the tool of a definition, whose templates and schemas it parses.
func (m *Module) tool(t *contextstore.Tool) (tool.Tool, error) {
	b := bounds{timeout: t.Deadline(), max: t.Most()}
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
			// Longer than the source's own deadline, so that the source reports it.
			Timeout: b.timeout + stopTimeout, Input: t.Input, Output: t.Output,
		},
		Run: m.inEnvironment(run, &b),
	}, err
}
