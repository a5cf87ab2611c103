package app

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/modules/administration"
	"gatehouse/internal/modules/standard"
)

// DefaultContext is the name of the view that contains all modules of a host.
const DefaultContext = "default"

// instructions returns the text that every client's model reads once. It mentions paths only if a tool of the view
// has one in the folders, and long results only if one of them is cut.
func instructions(v *views.View) string {
	var said []string
	if slices.ContainsFunc(v.Entries(views.Tools), takesPath) {
		said = append(said, "Relative paths start in the first allowed folder.")
	}
	if slices.ContainsFunc(v.Entries(views.Tools), isCut) {
		said = append(said, "Long results end with how to get the rest.")
	}
	return strings.Join(said, " ")
}

// folderTools are the modules whose tools work in the allowed folders. Most paths of the module sandbox are inside a
// sandbox.
var folderTools = []string{"file", "dir", "lang", "filesystem", "shell", "process", "build", "rag", "lsp"}

func takesPath(e *views.Entry) bool { return slices.Contains(folderTools, e.Module) }

func isCut(e *views.Entry) bool { return !e.Whole && e.Tool.Budget >= 0 }

// introduce fills in the information that the host sends at initialize.
func introduce(i protocol.Info) protocol.Info {
	if i.Name == "" {
		i.Name, i.Title = "gatehouse", "Gatehouse"
	}
	if i.Version == "" {
		i.Version = Version
	}
	return i
}

// enabledModule is a module of this host. A module that is apart is only in its own context and in
// contexts that name it. A module that is implicit was not named: it is in the administration
// context, and has no context of its own.
type enabledModule struct {
	Module
	apart    bool
	implicit bool
	runs     bool // its tools run programs
}

// chooseModules returns the modules of a host: those that were named, or else the standard ones that are served by
// default, and the extra ones in either case. A module that is named twice is listed once. Presets are listed if
// no module was named or if their context was; naming modules therefore removes presets from no context that uses
// them. Presets that run programs are listed only in the latter case. all are the modules of the binary.
func chooseModules(cfg config.Config, o Options, all []standard.Module) ([]enabledModule, error) {
	var chosen []enabledModule
	v, names := cfg.View, named(cfg, o)
	unasked := len(names) == 0 && !o.Bare
	names, stands := withViews(names, v.Context)
	for _, name := range names {
		i := slices.IndexFunc(all, func(g standard.Module) bool { return g.Name == name })
		if i < 0 {
			return nil, &config.SettingProblem{
				Path: "view.modules",
				Err: fmt.Errorf(
					"there is no module %q; expected some of %s",
					name,
					strings.Join(append(moduleNames(all), viewNames()...), ", "),
				),
			}
		}
		if !slices.ContainsFunc(chosen, func(g enabledModule) bool { return g.Name == name }) {
			// A context has named it for itself, or a view consists of it.
			apart := (all[i].Runs || stands[name] && !(unasked && all[i].Default)) && !slices.Contains(v.Modules, name)
			chosen = append(chosen, enabledModule{Module: Module{name, all[i].New}, apart: apart, runs: all[i].Runs})
		}
	}
	for _, g := range all {
		switch {
		case slices.Contains(names, g.Name):
		case unasked && g.Default:
			chosen = append(chosen, enabledModule{Module: Module{g.Name, g.New}, runs: g.Runs})
		case g.Preset && (unasked && !g.Runs || v.Context == g.Name):
			chosen = append(chosen, enabledModule{Module: Module{g.Name, g.New}, apart: true, runs: g.Runs})
		case g.Name == packageModule && !o.Bare:
			chosen = append(chosen, enabledModule{Module: Module{g.Name, g.New}, apart: true, implicit: true, runs: g.Runs})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Configs)) {
		if !slices.ContainsFunc(o.Extra, func(g Module) bool { return g.Name == name }) {
			return nil, fmt.Errorf("there is a configuration for module %q, which the program did not add", name)
		}
	}
	for _, g := range o.Extra {
		if slices.Contains(
			append([]string{
				resourcesModule, jobModule, publicModule, contextModule, sshModule, greetingModule, views.SearchModule,
			}, administration.Names...),
			g.Name,
		) {
			return nil, fmt.Errorf("a module cannot be called %q: the host has one", g.Name)
		}
		if slices.ContainsFunc(chosen, func(c enabledModule) bool { return c.Name == g.Name }) {
			return nil, fmt.Errorf("there are two modules called %q", g.Name)
		}
		chosen = append(chosen, enabledModule{Module: g})
	}
	return chosen, nil
}

// withViews replaces the names of views that consist of several modules by the names of those modules. stands
// holds the modules that were not named themselves.
func withViews(names []string, context string) (modules []string, stands map[string]bool) {
	stands = map[string]bool{}
	modules = slices.Clone(names)
	for _, v := range standard.Views() {
		if !slices.Contains(names, v.Name) && context != v.Name {
			continue
		}
		modules = slices.DeleteFunc(modules, func(name string) bool { return name == v.Name })
		for _, m := range v.Modules {
			if !slices.Contains(modules, m) {
				modules, stands[m] = append(modules, m), true
			}
		}
	}
	return modules, stands
}

// viewNames returns the names of the views that consist of several modules.
func viewNames() (names []string) {
	for _, v := range standard.Views() {
		names = append(names, v.Name)
	}
	return names
}

// preset returns the module of this name if it is a preset that replaces another server, or else nil.
func preset(name string) *standard.Module {
	all := standard.Modules(standard.Deps{})
	i := slices.IndexFunc(all, func(g standard.Module) bool { return g.Name == name && g.Preset })
	if i < 0 {
		return nil
	}
	return &all[i]
}

func moduleNames(all []standard.Module) (names []string) {
	for _, g := range all {
		names = append(names, g.Name)
	}
	return names
}

// defaultModules returns the modules of callers who name no context.
func defaultModules(enabled []enabledModule) []string {
	names := []string{}
	for _, g := range enabled {
		if !g.apart {
			names = append(names, g.Name)
		}
	}
	return names
}

// specs returns the contexts of a host: one with all its modules except presets, and one for each module. The
// first is the default for callers who name none: if only a preset was named, its context.
func specs(v config.View, enabled []enabledModule) []views.Spec {
	all := []views.Spec{
		{
			Name:    DefaultContext,
			Modules: append(defaultModules(enabled), greetingModule),
			Tools:   v.Tools,
			Results: v.Results,
			List:    v.List,
			Pinned:  v.Pinned,

			ProgramsAsk: v.ProgramsAsk,
		},
	}
	if len(v.Modules) == 0 && slices.ContainsFunc(enabled, func(g enabledModule) bool { return g.implicit }) {
		all[0] = withPackages(all[0])
	}
	for _, g := range enabled {
		if g.implicit {
			continue
		}
		// A preset replaces another server, and its tools have the names of that server.
		s := views.Spec{Name: g.Name, Modules: []string{g.Name}, Tools: v.Tools, Results: v.Results, List: v.List,
			Pinned: v.Pinned, ProgramsAsk: v.ProgramsAsk}
		if p := preset(g.Name); p != nil {
			s.Aliases, s.Tools = true, slices.Concat(v.Tools, []string{"!" + jobModule + "_*"})
			for _, name := range p.Without {
				s.Tools = append(s.Tools, "!"+name)
			}
			all[0].Aliases = all[0].Aliases || !g.apart && !p.Runs
		}
		all = append(all, s)
	}
	for _, one := range standard.Views() {
		if !slices.Contains(v.Modules, one.Name) && v.Context != one.Name {
			continue
		}
		all = append(all, views.Spec{
			Name: one.Name, Modules: one.Modules, Tools: narrowed(one.Tools, v.Tools), Results: views.Structured,
			Unpaged: true,
		})
	}
	first := standsIn(v)
	own := slices.DeleteFunc(slices.Clone(enabled), func(g enabledModule) bool { return g.implicit })
	if first == "" && len(own) == 1 && preset(own[0].Name) != nil {
		first = own[0].Name
	}
	if i := slices.IndexFunc(all, func(s views.Spec) bool { return s.Name == first }); i > 0 {
		all[0], all[i] = all[i], all[0]
	}
	return all
}

// withPackages adds the tools of installed packages to a context, because an administrator installs a package for
// use. The tools that manage packages are only in contexts that name the module.
func withPackages(s views.Spec) views.Spec {
	s.Modules = append(s.Modules, packageModule)
	s.Tools = slices.Concat(s.Tools, []string{"!" + packageModule + "_*"})
	return s
}

// standsIn returns the context of callers who name none, as far as the settings determine it: a context, or a view
// that was named alone.
func standsIn(v config.View) string {
	if v.Context == "" && len(v.Modules) == 1 && slices.Contains(viewNames(), v.Modules[0]) {
		return v.Modules[0]
	}
	return v.Context
}

// narrowed returns the names that match the patterns. If there are none it returns a pattern that matches nothing,
// because an empty list would mean all tools.
func narrowed(names, patterns []string) []string {
	kept := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !views.Chosen(patterns, name) })
	if len(kept) == 0 {
		return []string{""}
	}
	return kept
}

// checkView returns an error if the choice of tools is invalid.
func checkView(v config.View) error {
	for _, p := range v.Tools {
		if _, err := path.Match(strings.TrimPrefix(p, "!"), ""); err != nil || p == "" || p == "!" {
			return fmt.Errorf(
				"tools: %q is not a pattern; expected a name such as file_read, or file_* for all that begin so",
				p,
			)
		}
	}
	return nil
}
