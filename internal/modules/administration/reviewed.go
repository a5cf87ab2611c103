package administration

import (
	"cmp"
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/audit"
)

// Did is a program, a host, a secret or a package of a task.
type Did struct {
	Name   string `json:"name"`
	Times  int    `json:"times"`
	Direct bool   `json:"direct,omitempty" doc:"by a call that was not staged"`
	Denied bool   `json:"denied,omitempty" doc:"it was refused each time"`
}

const (
	mostCalls = 1000 // of a task that are shown
	mostDone  = 200  // programs, and so on
)

// readers are frequent tools that change nothing.
var readers = []string{"file_read", "file_search", "file_stat", "file_exists", "dir_list", "dir_tree", "dir_size"}

// told collects what the ledger says of a task.
type told struct {
	out   *Review
	used  []use
	since time.Time
}

// use is the time in which a call that was not staged used something that has a network of its own.
type use struct {
	from, to           time.Time
	tool               string // of a package; "" means a sandbox or a browser
	principal, context string
}

// tell adds to a review what the ledger says of the task.
func (r Reviews) tell(ctx context.Context, out *Review) error {
	out.Calls = []Ran{}
	if r.Ledger == nil {
		return nil
	}
	if err := r.Ledger.Sync(ctx); err != nil {
		return err
	}
	w := told{out: out}
	lines := 0
	for line, err := range r.Ledger.Query(ctx, audit.Filter{Task: out.Task.ID, Last: mostCalls}) {
		if err != nil {
			return err
		}
		if lines++; line.Outcome == audit.Started || line.Kind == "call" && slices.Contains(readers, line.Tool) {
			continue
		}
		out.Calls = append(out.Calls, Ran{line.At, line.Kind, line.Tool, line.Args, line.Outcome, line.Direct})
		w.line(&line)
	}
	if lines == mostCalls {
		out.Note = "earlier calls are not shown: gatehouse audit has them"
	} else if out.Task.Network {
		out.Note = "its programs had the network of this host, and which hosts they reached is not known"
	}
	if len(w.used) == 0 {
		return nil
	}
	for line, err := range r.Ledger.Query(ctx, audit.Filter{Since: w.since}) {
		if err != nil {
			return err
		}
		w.network(&line)
	}
	return nil
}

// line adds what one line of the task says.
func (w *told) line(l *audit.Line) {
	var args struct {
		Command, Program, Package, Host, URL, Address, ID string
		Args, Argv, Names                                 []string
		Times                                             int
	}
	_ = json.Unmarshal(l.Args, &args) // those of another type say nothing here
	denied := l.Outcome == audit.Denied || l.Outcome == audit.Pending || l.Outcome == audit.Asked
	// A program that was started several times has a line for the first time, and one with the number at the end.
	d := Did{Times: max(args.Times-1, 1), Direct: l.Direct, Denied: denied}
	switch {
	case l.Kind == "secret.used":
		for _, name := range args.Names {
			add(&w.out.Secrets, d, name)
		}
		return
	case strings.HasPrefix(l.Kind, "module.shell.program."):
		add(&w.out.Programs, d, strings.Join(append([]string{args.Program}, args.Argv[min(1, len(args.Argv)):]...), " "))
		return
	case l.Kind != "call":
		return
	}
	switch l.Module {
	case "shell", "process", "build":
		if args.Command != "" {
			add(&w.out.Programs, d, strings.Join(append([]string{args.Command}, args.Args...), " "))
		} else if strings.HasSuffix(l.Tool, "_run") {
			add(&w.out.Programs, d, l.Tool)
		}
	case "package":
		name := l.Tool
		if strings.HasPrefix(name, "package_") && args.ID != "" {
			name += " " + args.ID
		}
		add(&w.out.Packages, d, name)
	}
	if l.Module == "shell" || l.Module == "process" {
		return // their arguments name no hosts
	}
	if u, err := url.Parse(args.URL); err == nil && u.Host != "" {
		args.Host = u.Host
	}
	if host := cmp.Or(args.Host, args.Address); host != "" {
		add(&w.out.Hosts, d, host)
	}
	w.uses(l)
}

// uses notes that a call may have reached hosts through a package, a sandbox or a browser.
func (w *told) uses(l *audit.Line) {
	u := use{principal: l.Principal, context: l.Context, to: l.At}
	switch l.Module {
	case "package":
		u.tool = l.Tool
	case "sandbox", "code", "webview":
	default:
		return
	}
	u.from = l.At.Add(-time.Duration(l.Millis * float64(time.Millisecond)))
	if w.used = append(w.used, u); w.since.IsZero() || u.from.Before(w.since) {
		w.since = u.from
	}
}

// network adds what a package, a sandbox or a browser reached while a call of the task used it.
func (w *told) network(l *audit.Line) {
	var d struct {
		Package, Target string
		Allowed         bool
	}
	switch l.Kind {
	case "package.network", "module.sandbox.sandbox.network", "module.webview.browser.network":
	default:
		return
	}
	if json.Unmarshal(l.Args, &d) != nil || d.Target == "" {
		return
	}
	for _, u := range w.used {
		if l.At.Before(u.from) || l.At.After(u.to) {
			continue
		}
		own := u.tool == "" && d.Package == "" && u.principal == l.Principal && u.context == l.Context
		ofPackage := d.Package != "" && (strings.HasPrefix(u.tool, d.Package+"_") ||
			strings.HasPrefix(u.tool, strings.ReplaceAll(d.Package, "-", "_")+"_"))
		if own || ofPackage {
			add(&w.out.Hosts, Did{Times: 1, Direct: true, Denied: !d.Allowed}, d.Target)
			return
		}
	}
}

// add counts something of a task.
func add(all *[]Did, d Did, name string) {
	if name == "" {
		return
	}
	for i := range *all {
		if one := &(*all)[i]; one.Name == name && one.Direct == d.Direct {
			one.Times, one.Denied = one.Times+d.Times, one.Denied && d.Denied
			return
		}
	}
	if d.Name = name; len(*all) < mostDone {
		*all = append(*all, d)
	}
}
