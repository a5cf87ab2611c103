// Package packages is the module of other people's MCP servers: it offers
// their tools under names of this house, and lets those who rule the host
// install, look after and remove them.
package packages

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"gatehouse/internal/access/operator"
	"gatehouse/internal/dispatch/notify"
	"gatehouse/internal/dispatch/progress"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/packages"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is what the module is given.
type Config struct {
	House *packages.House `json:"-"` // nil: this host keeps no packages
	// Changed is called with what says that the tools are others.
	Changed func(func())  `json:"-"`
	Rules   operator.Func `json:"-"` // who may do what is everybody's matter; nil: nobody
	Show    progress.Show `json:"-"` // shows how far a job is
}

type keeper struct {
	cfg  Config
	deps module.Deps
	own  []tool.Tool
}

// New makes the module.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		k := &keeper{deps: d}
		k.cfg = cfg
		k.own = k.tools()
		if k.cfg.Changed != nil && d.Changed != nil {
			k.cfg.Changed(func() { d.Changed(module.Audience{}) })
		}
		return k, nil
	}
}

// Offer implements module.Module.
func (k *keeper) Offer(context.Context, module.Audience) (*module.Offer, error) {
	o := &module.Offer{Tools: k.own[:len(k.own):len(k.own)]}
	if k.cfg.House != nil {
		for _, t := range k.cfg.House.Tools() {
			o.Tools = append(o.Tools, k.relayed(t))
		}
	}
	return o, nil
}

// Close implements module.Module. The packages are the host's.
func (k *keeper) Close(context.Context) error { return nil }

// relayed is a tool of a package. Nothing is believed of what it does: it may
// write, destroy and reach anywhere.
func (k *keeper) relayed(t packages.Offered) tool.Tool {
	house := k.cfg.House
	listed := t.Raw
	if t.Text {
		listed = rawjson.Splice(listed, rawjson.Edit{Key: "outputSchema"})
	}
	return tool.Tool{
		Def: tool.Def{Name: t.Name, Raw: listed, Timeout: house.Patience()},
		Run: func(ctx context.Context, c *tool.Call) (tool.Result, error) {
			meta, _ := rawjson.Get(c.Params, "_meta")
			raw, err := house.Call(ctx, t.Package, t.Own, c.Args, meta, c.Peer.Progress)
			if err == nil && t.Text {
				raw = textAlone(raw)
			}
			return tool.Result{Raw: raw}, err
		},
	}
}

// textAlone takes the structured content out of a result. If the result has no
// other content, the structured content becomes its text, so that nothing is
// lost.
func textAlone(result json.RawMessage) json.RawMessage {
	structured, ok := rawjson.Get(result, "structuredContent")
	if !ok {
		return result
	}
	edits := []rawjson.Edit{{Key: "structuredContent"}}
	content, _ := rawjson.Get(result, "content")
	blocks := 0
	for range rawjson.Elements(content) {
		blocks++
	}
	if blocks == 0 {
		block := rawjson.AppendString([]byte(`[{"type":"text","text":`), string(structured))
		edits = append(edits, rawjson.Edit{Key: "content", Value: append(block, `}]`...)})
	}
	return rawjson.Splice(result, edits...)
}

const (
	installHelp = `Installs an MCP server as a package, after the person has agreed: its tools are then offered as <id>_<tool>, or by their own names where these begin with <id>_ already.

- source is "command" (a program of this machine), "npm:name@version" (installed by the host's npm into the package's own folder, without running scripts), "folder:path" or "archive:path" (.tar.gz, .tgz, .tar, .zip), which are copied. Paths lie in the folders of this host.
- command is what is started. It may be left out where a package.json names the program. ./name lies in the program's folder; ${program} and ${data} in command, args and env stand for the package's folders.
- results "text" leaves the structured content out of its results, and the output schemas out of its list: Claude Code and Codex hand the model the structured content of a result alone, so that of a server whose text says more the model would see less.
- env may refer to secrets of the host as ${secret:NAME}; they are kept with gatehouse secret set NAME, where no model sees them, and never belong in args.
- The server runs with the rights of this host, in no sandbox. Its home and working folder are the package's data, which stay when it is rebuilt.
- It answers with a job at once; job_wait follows it, and gatehouse:///public/packageData shows its phases. A server that does not answer initialize is not kept.`
	startHelp   = "A package that is started on demand is started by the first call of one of its tools, and ends after a while without calls. One that keeps failing is no longer started by itself, until package_start or package_restart."
	confirmHelp = "The person is asked by the client; where it cannot ask, ask them yourself and give the id as confirm."
	logsHelp    = "What the server prints to its standard error, what it logs, and what this host has to say of it ([host]). About 1 MiB is kept of each package; secrets from its environment are masked. Without a cursor the newest lines are shown; with one, those after it or, with before, those before it."
)

func (k *keeper) tools() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "package_install", Title: "Install a package", Effects: tool.Writes | tool.Destroys | tool.OpenWorld, Task: tool.TaskNever, Sync: true, Aliases: []string{"package.install"},
			Description: "Installs somebody's MCP server as a package of this host, after the person has agreed. It answers with a job.",
			Help:        installHelp + "\n- " + confirmHelp,
		}, k.install),
		tool.New(tool.Def{
			Name: "package_list", Title: "List packages", Effects: tool.Reads, Task: tool.TaskNever, Aliases: []string{"package.list"},
			Description: "Lists the packages of this host, how each is and how many tools it has.",
		}, k.list),
		tool.New(tool.Def{
			Name: "package_info", Title: "Describe a package", Effects: tool.Reads, Task: tool.TaskNever, Aliases: []string{"package.installed-version"},
			Description: "Says all there is to know of a package: what is started, from where it came, its tools, and those that cannot be offered.",
			Help:        "Of the environment only the names of variables are shown, and which secrets they refer to.",
		}, k.info),
		tool.New(tool.Def{
			Name: "package_start", Title: "Start a package", Effects: tool.Writes | tool.Idempotent | tool.OpenWorld, Task: tool.TaskNever, Sync: true, Aliases: []string{"package.start"},
			Description: "Starts the server of a package, and lets it be started from now on.", Help: startHelp,
		}, k.start),
		tool.New(tool.Def{
			Name: "package_stop", Title: "Stop a package", Effects: tool.Writes | tool.Idempotent, Task: tool.TaskNever, Sync: true, Aliases: []string{"package.stop"},
			Description: "Ends the server of a package. It stays ended, also when this host is started again, until package_start.",
		}, k.stop),
		tool.New(tool.Def{
			Name: "package_restart", Title: "Restart a package", Effects: tool.Writes | tool.OpenWorld, Task: tool.TaskNever, Sync: true, Aliases: []string{"package.restart"},
			Description: "Ends the server of a package and starts it again.", Help: startHelp,
		}, k.restart),
		tool.New(tool.Def{
			Name: "package_rebuild", Title: "Rebuild a package", Effects: tool.Writes | tool.Destroys | tool.OpenWorld, Task: tool.TaskNever, Sync: true, Aliases: []string{"package.rebuild"},
			Description: "Installs a package again from its source, or another version of it, and keeps its data. It answers with a job.",
			Help:        "source may name another version of the same npm package, or another path of the same kind; the person is asked then. After an error the package is as it was. " + confirmHelp,
		}, k.rebuild),
		tool.New(tool.Def{
			Name: "package_remove", Title: "Remove a package", Effects: tool.Writes | tool.Destroys, Task: tool.TaskNever, Sync: true, Aliases: []string{"package.uninstall"},
			Description: "Ends a package and removes it with its data, after the person has agreed.",
			Help:        "keep_data leaves its folder of data, which the next package of that id gets. " + confirmHelp,
		}, k.remove),
		tool.New(tool.Def{
			Name: "package_logs", Title: "Read a package's log", Effects: tool.Reads, Task: tool.TaskNever, Aliases: []string{"package.logs"},
			Description: "Shows what the server of a package has said, page by page.", Help: logsHelp,
		}, k.logs),
	}
}

// ready refuses who does not rule this host, and everybody where there are no
// packages.
func (k *keeper) ready(c *tool.Call) error {
	if err := k.cfg.Rules.Check(c, "deal with its packages"); err != nil {
		return err
	}
	if k.cfg.House == nil {
		return &tool.Refusal{Code: "unsupported", Message: "this host keeps nothing on disk, and so no packages", Next: "Call a host that does."}
	}
	return nil
}

// explained is an error with what the server said before it.
func explained(err error) error {
	words := packages.Words(err)
	if words == "" {
		return err
	}
	said := "It printed last:\n" + words
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return &tool.Refusal{Code: r.Code, Message: r.Message, Next: strings.TrimSpace(r.Next + "\n" + said)}
	}
	return &tool.Refusal{Code: "failed", Message: err.Error(), Next: said}
}

// jobOut is the answer of what goes on by itself.
type jobOut struct {
	progress.Started
	ID string `json:"id" doc:"of the package"`
}

// work runs something as a job, whose phases are shown.
func (k *keeper) work(c *tool.Call, title, id string, run func(context.Context, *tool.Call, packages.Tell) (any, error)) (jobOut, error) {
	started, err := k.cfg.Show.Start(k.deps, c, title, func(ctx context.Context, c *tool.Call, tell func(progress.Progress)) (any, error) {
		out, err := run(ctx, c, tell)
		switch {
		case err == nil:
			notify.Publish(k.deps, notify.News{Code: "package.changed", Level: notify.Success, Title: "Done: " + title})
		case ctx.Err() == nil:
			notify.Publish(k.deps, notify.News{Code: "package.failed", Level: notify.Error, Title: "The " + title + " failed", Message: err.Error()})
		}
		return out, explained(err)
	})
	return jobOut{started, id}, err
}

// publish tells what was done, without what it was done with.
func (k *keeper) publish(what, id string, c *tool.Call) {
	if k.deps.Publish != nil {
		k.deps.Publish(what, struct {
			Owner   string `json:"owner"`
			Package string `json:"package"`
		}{c.Caller.Owner, id})
	}
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
