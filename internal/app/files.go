package app

import (
	"gatehouse/internal/access/identity"
	"gatehouse/internal/access/resolve"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/files/clientroots"
	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// rootOptions returns the options with which every folder of this host is opened.
func (a *App) rootOptions() roots.Options {
	return roots.Options{Protect: a.cfg.Modules.File.Protected()}
}

// clientRoots returns the narrower that restricts calls to the folders of their clients.
func (a *App) clientRoots() *clientroots.Narrower {
	return clientroots.New(clientroots.Options{
		Roots:     a.roots,
		Folders:   a.rootOptions(),
		AnyFolder: a.opts.AnyFolder,
		Exempt:    []string{resourcesModule, jobModule, publicModule, contextModule, views.SearchModule},
		Replacing: "filesystem",
		Stdio:     identity.StdioID,
	}, clientRootSettings(a.cfg))
}

func clientRootSettings(cfg config.Config) clientroots.Settings {
	s := clientroots.Settings{Everywhere: cfg.Roots.Client, In: map[string]bool{}, Fixed: cfg.Roots.Fixed}
	for _, c := range cfg.Contexts {
		if c.ClientRoots {
			s.In[c.Name] = true
		}
	}
	return s
}

// resolver returns the resolver of names in the arguments of calls, for the rules.
func (a *App) resolver() resolve.Resolver {
	return resolve.Resolver{
		RootsOf: func(who tool.Caller) tool.Roots {
			if set := a.contexts.RootsOf(who); set != nil {
				return set
			}
			return a.roots
		},
		Working: a.narrower.Working,
		Asks:    a.narrower.Asks,
		Shell:   a.cfg.Modules.Shell.Shell,
	}
}
