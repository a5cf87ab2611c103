package app

import (
	"context"
	"slices"
	"strings"
	"sync"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/internal/dispatch/views"
	"gatehouse/tool"
)

// moduleState is a member of /public/modules.
type moduleState struct {
	Version string   `json:"version"`
	State   string   `json:"state"`           // running, or failed if it cannot list what it offers
	Error   string   `json:"error,omitempty"` // why it failed, for administrators
	Tools   []string `json:"tools"`           // by the module's own names; the last known ones if it failed
}

// mostModuleError limits the text of an error in the tree, in bytes. A panic contains a stack trace, which belongs
// in the log.
const mostModuleError = 300

// shortError returns the first line of an error.
func shortError(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return displaytext.Line(displaytext.Cut(line, mostModuleError, ""))
}

// showModules writes the state of the modules to the tree.
func (l *liveTree) showModules(all []modulehost.Status) {
	shown := make(map[string]moduleState, len(all))
	var failed []modulehost.Offered
	for _, m := range all {
		s := moduleState{Version: Version, State: "running", Tools: []string{}}
		if m.Err != nil {
			s.State, s.Error = "failed", shortError(m.Err)
			if m.Offered.Offer != nil {
				failed = append(failed, m.Offered)
			}
		}
		if o := m.Offered.Offer; o != nil {
			if o.Version != "" {
				s.Version = o.Version
			}
			for i := range o.Tools {
				s.Tools = append(s.Tools, o.Tools[i].Name)
			}
			slices.Sort(s.Tools)
		}
		shown[m.Module] = s
	}
	l.failed.Store(&failed)
	if _, err := l.modules.Set(context.Background(), shown); err != nil {
		l.app.log.Warn("modules are not shown", "err", err)
	}
}

// partOfModule lets a caller see the modules of which its context offers it something, with the tools that it may
// call under the names of its context, and without the reason of a failure.
func (l *liveTree) partOfModule(who tool.Caller) func(string, any) (any, bool) {
	mine := sync.OnceValue(func() map[string][]any { return l.toolsOfModules(who) })
	return func(name string, member any) (any, bool) {
		tools, sees := mine()[name]
		m, ok := member.(map[string]any)
		if !sees || !ok {
			return nil, false
		}
		return map[string]any{"version": m["version"], "state": m["state"], "tools": tools}, true
	}
}

// toolsOfModules returns the tools of a caller's view by module. A module without tools is included if it has a
// resource or prompt for the caller.
func (l *liveTree) toolsOfModules(who tool.Caller) map[string][]any {
	current := l.app.views
	all := map[string][]any{}
	add := func(v *views.View) {
		for _, kind := range []views.Kind{views.Tools, views.Prompts, views.Resources, views.Templates} {
			for _, e := range v.Entries(kind) {
				if all[e.Module] == nil {
					all[e.Module] = []any{}
				}
				if kind == views.Tools {
					all[e.Module] = append(all[e.Module], e.Listed)
				}
			}
		}
	}
	v, err := current.View(context.Background(), &who, current.Cut(who))
	if err != nil {
		return all
	}
	add(v)
	if failed := l.failed.Load(); failed != nil && len(*failed) > 0 {
		if v, err := current.Of(who, *failed); err == nil {
			add(v)
		}
	}
	return all
}
