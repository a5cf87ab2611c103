package app

import (
	"path/filepath"
	"time"

	"gatehouse/internal/files/index"
	"gatehouse/internal/modules/build"
	"gatehouse/internal/modules/ide"
	"gatehouse/tool"
)

// maxRunningBuilds is how many builds may run at once.
const maxRunningBuilds = 16

// buildDeps returns the file with the history of builds, the hub that gets messages about them, and the shares of
// principals.
func (a *App) buildDeps() (c build.Config, err error) {
	if !a.opts.Private {
		c.Path = filepath.Join(a.cfg.Folders.State, "builds.db")
	}
	claim := claims("running builds", maxRunningBuilds)
	c.Claim = func(who tool.Caller) (func(), error) { return claim(who.Principal, a.rules(who)) }
	c.Hub = a.openWebSockets()
	c.Lister = func(running func() []build.Build) { a.tree.listBuilds.Store(&running) }
	return c, nil
}

// maxRunningAgents is how many agents may run at once.
const maxRunningAgents = 32

// ideDeps returns the file with chats, the store in which they are searched, the hub that gets the updates of agents, and
// the shares of principals.
func (a *App) ideDeps(texts func() (*index.Store, error)) (c ide.Config, err error) {
	c.Settings = a.cfg.Modules.IDE
	if !a.opts.Private {
		c.Path = filepath.Join(a.cfg.Folders.State, "chats.db")
	}
	claim := claims("running agents", maxRunningAgents)
	c.Claim = func(who tool.Caller) (func(), error) { return claim(who.Principal, a.rules(who)) }
	c.Hub = a.openWebSockets()
	c.Rules, c.Fill = a.rules, a.fillSecrets()
	if c.Texts, err = texts(); err != nil {
		return c, err
	}
	c.Editing = func(unsaved ide.Unsaved) { a.tree.unsaved.Store(&unsaved) }
	return c, nil
}

// buildState is a member of /public/builds: a running build.
type buildState struct {
	Owner   string    `json:"owner"`
	Repo    string    `json:"repo"`
	Branch  string    `json:"branch,omitempty"`
	Tool    string    `json:"tool"`
	Status  string    `json:"status"`
	Started time.Time `json:"started"`
	Node    string    `json:"node,omitempty"` // of the cluster
}

// buildsNow returns the running builds.
func (l *liveTree) buildsNow() map[string]buildState {
	all := map[string]buildState{}
	if list := l.listBuilds.Load(); list != nil {
		for _, b := range (*list)() {
			all[b.ID] = buildState{b.Owner, b.Repo, b.Branch, b.Tool, b.Status, b.Started.UTC(), l.app.nodeName()}
		}
	}
	return all
}
