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
	"gatehouse/internal/modules/standard"
)

// DefaultContext is the name of the view that holds all modules of a host.
const DefaultContext = "default"

// instructions are read by every client's model once. They speak of paths where
// a tool of the view takes one.
func instructions(v *views.View) string {
	var said []string
	if slices.ContainsFunc(v.Entries(views.Tools), takesPath) {
		said = append(said, "Relative paths start in the first allowed folder.")
	}
	if v.Len(views.Tools) > 0 {
		said = append(said, "Long results end with how to get the rest.")
	}
	return strings.Join(said, " ")
}

// folderTools are the modules whose tools work in the allowed folders.
var folderTools = []string{"file", "dir", "lang", "filesystem", "shell", "process", "sandbox"}

func takesPath(e *views.Entry) bool { return slices.Contains(folderTools, e.Module) }

// introduce fills in how the host introduces itself.
func introduce(i protocol.Info) protocol.Info {
	if i.Name == "" {
		i.Name, i.Title = "gatehouse", "Gatehouse"
	}
	if i.Version == "" {
		i.Version = Version
	}
	return i
}

// guest is a module of this host. One that is apart is in no context but its
// own and those that name it. One that is implicit was not named: it is in the
// administrators' context, and has none of its own.
type guest struct {
	Guest
	apart    bool
	implicit bool
}

// choose picks the modules of a host: those that were named, or the standard
// ones that are served unasked, and the extra ones in either case. A module
// that is named twice is there once. Presets are there where nothing was
// named, or where their context was, so that naming modules holds nothing
// back; those that run programs only in the latter case. all are the modules of
// the binary.
func choose(cfg config.Config, o Options, all []standard.Module) ([]guest, error) {
	var chosen []guest
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
					strings.Join(append(guestNames(all), viewNames()...), ", "),
				),
			}
		}
		if !slices.ContainsFunc(chosen, func(g guest) bool { return g.Name == name }) {
			// A context has named it for itself, or a view is made of it.
			apart := (all[i].Runs || stands[name] && !(unasked && all[i].Default)) && !slices.Contains(v.Modules, name)
			chosen = append(chosen, guest{Guest: Guest{name, all[i].New}, apart: apart})
		}
	}
	for _, g := range all {
		switch {
		case slices.Contains(names, g.Name):
		case unasked && g.Default:
			chosen = append(chosen, guest{Guest: Guest{g.Name, g.New}})
		case g.Preset && (unasked && !g.Runs || v.Context == g.Name):
			chosen = append(chosen, guest{Guest: Guest{g.Name, g.New}, apart: true})
		case g.Name == packageModule && !o.Bare:
			chosen = append(chosen, guest{Guest: Guest{g.Name, g.New}, apart: true, implicit: true})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Configs)) {
		if !slices.ContainsFunc(o.Extra, func(g Guest) bool { return g.Name == name }) {
			return nil, fmt.Errorf("there is a configuration for module %q, which the program does not add", name)
		}
	}
	for _, g := range o.Extra {
		if slices.Contains(
			[]string{resourcesModule, jobModule, publicModule, contextModule, sshModule, greetingModule},
			g.Name,
		) {
			return nil, fmt.Errorf("a module cannot be called %q: the host has one", g.Name)
		}
		if slices.ContainsFunc(chosen, func(c guest) bool { return c.Name == g.Name }) {
			return nil, fmt.Errorf("there are two modules called %q", g.Name)
		}
		chosen = append(chosen, guest{Guest: g})
	}
	return chosen, nil
}

// withViews puts the modules that views of the guest list are made of in the
// place of those views' names. stands tells which were not named themselves.
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

// viewNames are those of the views of the guest list.
func viewNames() (names []string) {
	for _, v := range standard.Views() {
		names = append(names, v.Name)
	}
	return names
}

// preset finds a module that stands in for another server; nil when it
// does not.
func preset(name string) *standard.Module {
	all := standard.Modules(standard.Deps{})
	i := slices.IndexFunc(all, func(g standard.Module) bool { return g.Name == name && g.Preset })
	if i < 0 {
		return nil
	}
	return &all[i]
}

func guestNames(all []standard.Module) (names []string) {
	for _, g := range all {
		names = append(names, g.Name)
	}
	return names
}

// defaultModules are those of callers who name no context.
func defaultModules(guests []guest) []string {
	names := []string{}
	for _, g := range guests {
		if !g.apart {
			names = append(names, g.Name)
		}
	}
	return names
}

// specs are the contexts of a host: one with all its modules but presets, and
// one for each alone. The first is the one callers get who name none: where a
// preset alone was named, its own.
func specs(v config.View, guests []guest) []views.Spec {
	all := []views.Spec{
		{
			Name:    DefaultContext,
			Modules: append(defaultModules(guests), greetingModule),
			Tools:   v.Tools,
			Results: v.Results,
		},
	}
	if len(v.Modules) == 0 && slices.ContainsFunc(guests, func(g guest) bool { return g.implicit }) {
		all[0] = withPackages(all[0])
	}
	for _, g := range guests {
		if g.implicit {
			continue
		}
		// A preset stands in for another server, whose names its tools have.
		s := views.Spec{Name: g.Name, Modules: []string{g.Name}, Tools: v.Tools, Results: v.Results}
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
			Name: one.Name, Modules: one.Modules, Tools: narrowed(one.Tools, v.Tools), Results: views.Structured, Unpaged: true,
		})
	}
	first := standsIn(v)
	own := slices.DeleteFunc(slices.Clone(guests), func(g guest) bool { return g.implicit })
	if first == "" && len(own) == 1 && preset(own[0].Name) != nil {
		first = own[0].Name
	}
	if i := slices.IndexFunc(all, func(s views.Spec) bool { return s.Name == first }); i > 0 {
		all[0], all[i] = all[i], all[0]
	}
	return all
}

// withPackages adds the tools of installed packages to a context, because an
// administrator who installs a package wants it used. The tools that manage
// packages are in contexts that name the module alone.
func withPackages(s views.Spec) views.Spec {
	s.Modules = append(s.Modules, packageModule)
	s.Tools = slices.Concat(s.Tools, []string{"!" + packageModule + "_*"})
	return s
}

// standsIn is the context of callers who name none, as far as the settings name
// it: a context, or a view of the guest list that was named alone.
func standsIn(v config.View) string {
	if v.Context == "" && len(v.Modules) == 1 && slices.Contains(viewNames(), v.Modules[0]) {
		return v.Modules[0]
	}
	return v.Context
}

// narrowed are those of some names that patterns choose, which may be none; a
// list without any would mean all tools.
func narrowed(names, patterns []string) []string {
	kept := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !views.Chosen(patterns, name) })
	if len(kept) == 0 {
		return []string{""}
	}
	return kept
}

// checkView says what is wrong with the choice of tools.
func checkView(v config.View) error {
	for _, p := range v.Tools {
		if _, err := path.Match(strings.TrimPrefix(p, "!"), ""); err != nil || p == "" || p == "!" {
			return fmt.Errorf(
				"tools: %q is no pattern; expected a name such as file_read, or file_* for all that begin so",
				p,
			)
		}
	}
	return nil
}
