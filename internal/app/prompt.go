package app

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	"gatehouse/internal/dispatch/views"
	"gatehouse/tool"
)

// prompt tells a model where it is: what this host is, what its view of it
// holds, and what to ask people before. It says nothing the caller could not
// find out by listing.
func (t *tree) prompt(ctx context.Context, who tool.Caller) string {
	info, _, err := t.info.Get()
	if err != nil || info.Name == "" {
		i := introduce(t.app.opts.Info)
		info.Name, info.Title, info.Version, info.Platform = i.Name, i.Title, i.Version, runtime.GOOS+"/"+runtime.GOARCH
	}
	var b strings.Builder
	fmt.Fprintf(&b, "You are connected to %s %s", info.Name, info.Version)
	if info.Title != "" && !strings.EqualFold(info.Title, info.Name) {
		fmt.Fprintf(&b, " (%s)", info.Title)
	}
	fmt.Fprintf(&b, ", a host of tools on %s", info.Platform)
	if !info.Started.IsZero() {
		fmt.Fprintf(&b, ", running since %s", info.Started.Format("2006-01-02 15:04 MST"))
	}
	b.WriteString(".\n")
	if info.Language != "" {
		fmt.Fprintf(&b, "Answer the people here in the language %s, unless they write in another.\n", info.Language)
	}
	views := t.app.views
	v, err := views.View(ctx, &who, views.Cut(who))
	if err != nil {
		return b.String()
	}
	fmt.Fprintf(&b, "You work in the context %s as %s.\n", who.Context, who.Principal)
	describeTools(&b, v)
	b.WriteString("\n" + `Before you do anything that destroys or cannot be undone, tell the person
what it will do and to what, and go on only when they have said yes to exactly
that. A yes to one act is no yes to the next. When in doubt, look first.
`)
	var open []string
	for _, s := range views.Open(who) {
		open = append(open, s.Name)
	}
	if len(open) > 1 {
		fmt.Fprintf(&b, "\nContexts you may enter: %s.\n", strings.Join(open, ", "))
	}
	if e, _ := v.Resource("gatehouse:///public"); e != nil {
		b.WriteString("\nThe resource gatehouse:///public shows what this host is and does at the moment.\n")
	}
	return b.String()
}

// describeTools lists the modules of a view with their tools, and which of
// those destroy something.
func describeTools(b *strings.Builder, v *views.View) {
	tools := map[string][]string{}
	var destroy []string
	for _, e := range v.Entries(views.Tools) {
		tools[e.Module] = append(tools[e.Module], e.Listed)
		if f := e.Tool.Effects; f == 0 || f&tool.Destroys != 0 {
			destroy = append(destroy, e.Listed)
		}
	}
	if len(tools) == 0 {
		b.WriteString("There are no tools for you here.\n")
		return
	}
	b.WriteString("\nModules and their tools:\n")
	for _, m := range slices.Sorted(maps.Keys(tools)) {
		fmt.Fprintf(b, "- %s: %s\n", m, strings.Join(tools[m], ", "))
	}
	if len(destroy) > 0 {
		fmt.Fprintf(b, "Of these, some can destroy: %s.\n", strings.Join(destroy, ", "))
	}
}
