package views

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gatehouse/tool"
)

// Host describes the host in a system prompt.
type Host struct {
	Name, Title, Version string
	Platform             string    // as Go names it: linux/amd64
	Started              time.Time // zero while the host starts
	Language             string    // that users want answers in, as POSIX names it; "" for none
}

// SystemPrompt returns a text that describes to a model the host, the content of the caller's view, and which
// actions the user must confirm. It contains nothing that the caller could not list.
func (r *Registry) SystemPrompt(ctx context.Context, who tool.Caller, info Host) string {
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
		fmt.Fprintf(&b, "Answer the users of this host in the language %s, unless they write in another.\n",
			info.Language)
	}
	v, err := r.View(ctx, &who, r.Cut(who))
	if err != nil {
		return b.String()
	}
	fmt.Fprintf(&b, "You work in the context %s as %s.\n", who.Context, who.Principal)
	describeTools(&b, v)
	b.WriteString("\n" + `Before you do anything that destroys or cannot be undone, tell the user
what it will do and to what, and go on only when they have said yes to exactly
that. A yes to one act is no yes to the next. When in doubt, look first.
`)
	var open []string
	for _, s := range r.Open(who) {
		open = append(open, s.Name)
	}
	if len(open) > 1 {
		fmt.Fprintf(&b, "\nContexts you may use: %s.\n", strings.Join(open, ", "))
	}
	if e, _ := v.Resource("gatehouse:///public"); e != nil {
		b.WriteString("\nThe resource gatehouse:///public describes this host and its current activity.\n")
	}
	return b.String()
}

// describeTools lists the modules of a view with their tools, and which of those are destructive.
func describeTools(b *strings.Builder, v *View) {
	tools := map[string][]string{}
	var destroy []string
	for _, e := range v.Entries(Tools) {
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
		fmt.Fprintf(b, "Of these, the following can destroy data: %s.\n", strings.Join(destroy, ", "))
	}
}
