package app

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"sync"

	"gatehouse/internal/dispatch/toolsearch"
	"gatehouse/internal/modules/code"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/tool"
)

func (a *App) codeDeps() (code.Config, error) {
	s := a.cfg.Modules.Code
	claim := claims("programs", cmp.Or(s.Programs, code.DefaultPrograms))
	sandboxes := &programSandboxes{app: a}
	a.closing("sandboxes of programs", sandboxes.close)
	c := code.Config{
		Settings: s,
		Boxes:    sandboxes.boxes,
		Tools: func(ctx context.Context, who tool.Caller) (toolsearch.Catalog, error) {
			return a.views.Catalog(ctx, who)
		},
		Claim:         func(who tool.Caller) (func(), error) { return claim(who.Principal, a.rules(who)) },
		Administrator: a.rules,
	}
	if !a.opts.Private && a.cfg.Folders.State != "" {
		c.Folder = filepath.Join(a.cfg.Folders.State, "programs")
	}
	return c, nil
}

// programSandboxes are the sandboxes of programs.
type programSandboxes struct {
	app *App

	mu     sync.Mutex
	own    *manager.Manager // nil while the host has none, or that of the module sandbox is used
	closed bool
}

// boxes returns the manager of the module sandbox, so that its limits hold for both, or one of its own if the host
// does not have that module.
func (p *programSandboxes) boxes() (*manager.Manager, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.own != nil {
		return p.own, nil
	}
	if m := p.app.boxes.Load(); m != nil {
		return m, nil
	}
	if p.closed {
		return nil, errors.New("the host is closing")
	}
	c, err := p.app.sandboxDeps()
	if err != nil {
		return nil, err
	}
	o, err := c.Options()
	if err != nil {
		return nil, err
	}
	o.NewID, o.Log = p.app.host.NewID, p.app.log
	p.own = manager.New(o)
	open := p.own.All
	p.app.tree.listSandboxes.Store(&open)
	return p.own, nil
}

func (p *programSandboxes) close(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.own == nil {
		return nil
	}
	return p.own.Close()
}
