package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"path/filepath"
	"sync/atomic"

	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/client"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/rawjson"
	hosting "gatehouse/internal/modules/packages"
	"gatehouse/internal/packages"
)

// Alone is the one server that a host serves, under the server's own names and with nothing of this host's.
type Alone struct {
	Package packages.Record
	Dir     string   // its working directory
	Env     []string // its environment, before that of the package
	// Again installs the program again, if its source is one that is installed.
	Again bool
	// Progress receives the progress of an installation; it may be nil.
	Progress packages.Report
}

// aloneServer is the running server of a host that serves it alone.
type aloneServer struct {
	manager      *packages.Manager
	instructions atomic.Pointer[string]
	said         atomic.Pointer[string] // what the engine was told last
}

// aloneModules are the modules of a host that serves one server alone.
func (a *App) aloneModules() []enabledModule {
	return []enabledModule{{Module: Module{packageModule, hosting.New(hosting.Config{
		Packages: a.alone.manager, Alone: true, Unsynced: true,
		Changed: func(f func()) { a.packagesChanged.Store(&f) },
	})}}}
}

// aloneSpec is the one context of such a host.
func aloneSpec(tools []string) views.Spec {
	return views.Spec{Name: DefaultContext, Modules: []string{packageModule}, Tools: tools, Unsorted: true}
}

// ServesAlone reports whether this host serves one server and nothing of its own.
func (a *App) ServesAlone() bool { return a.opts.Alone != nil }

// forwards returns the headers that the servers of packages may get from the requests of clients.
func (a *App) forwards() []string {
	manager := a.manager
	if a.opts.Alone != nil {
		manager = a.alone.manager
	}
	if manager == nil {
		return nil
	}
	return manager.Forwards()
}

// openAlone opens the packages of a host that serves one server alone. What is installed for it is kept in a folder
// of its own, so that several hosts may run it at once, and beside a host that runs packages.
func (a *App) openAlone(ctx context.Context) (err error) {
	one := a.opts.Alone
	if one == nil {
		return nil
	}
	if a.cfg.Folders.Data == "" {
		return &SettingError{errors.New("a folder for data is needed to run a server: set HOME, or GATEHOUSE_DATA_DIR")}
	}
	o := a.packageOptions()
	o.Alone = &packages.Alone{Dir: one.Dir, Env: one.Env, Described: a.describeAlone}
	o.Taken, o.Relisted, o.Restored, o.Waiting, o.Unapplied, o.Lazy, o.Manual = nil, nil, nil, nil, nil, false, true
	a.alone.manager, err = packages.OpenAlone(ctx,
		filepath.Join(a.cfg.Folders.Data, "run", aloneFolder(one.Package.Source)), o)
	if err != nil {
		return err
	}
	a.addPackages(a.alone.manager)
	return nil
}

// aloneFolder names the folder of what is installed from a source. Versions of one package share it.
func aloneFolder(s packages.Source) string {
	if s.Kind == packages.Command || s.IsRemote() {
		return s.Kind // nothing is installed
	}
	sum := sha256.Sum256([]byte(s.Name()))
	return s.Kind + "-" + hex.EncodeToString(sum[:8])
}

// startAlone installs the server if that is needed, starts it, and learns what it is.
func (a *App) startAlone(ctx context.Context) error {
	one := a.opts.Alone
	if one == nil {
		return nil
	}
	err := a.alone.manager.StartAlone(ctx, one.Package, one.Again, one.Progress)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if said := packages.Words(err); said != "" {
		err = errors.Join(err, errors.New("its last output was:\n"+said))
	}
	return &client.ConnectError{To: one.Package.Title, Err: err}
}

// describeAlone makes this host say of itself what the server says.
func (a *App) describeAlone(revision string, raw json.RawMessage) {
	if last := a.alone.said.Swap(new(string(raw))); last != nil && *last == string(raw) {
		return
	}
	info, ok := rawjson.Get(raw, "serverInfo")
	if !ok {
		meta, _ := rawjson.Get(raw, "_meta")
		info, _ = rawjson.Get(meta, "io.modelcontextprotocol/serverInfo")
	}
	d := protocol.Description{Capabilities: json.RawMessage(`{}`)}
	if rawjson.Kind(info) == '{' {
		d.Info = info
	}
	if caps, _ := rawjson.Get(raw, "capabilities"); rawjson.Kind(caps) == '{' {
		d.Capabilities = caps
	}
	text, _ := rawjson.Get(raw, "instructions")
	said, _ := rawjson.String(text)
	a.alone.instructions.Store(&said)
	a.engine.Describe(d)
	a.views.Stale()
	a.log.Debug("the server has been started", "revision", revision)
}

// instructions returns the text that every client's model reads once.
func (a *App) instructions(v *views.View) string {
	if a.opts.Alone == nil {
		return instructions(v)
	}
	if said := a.alone.instructions.Load(); said != nil {
		return *said
	}
	return ""
}
