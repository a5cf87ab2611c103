// Package packages is the module for third-party MCP servers: it offers their
// tools under names of this host, and lets administrators install, manage and
// remove them.
package packages

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/operator"
	"gatehouse/internal/dispatch/notify"
	"gatehouse/internal/dispatch/progress"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/packages"
	"gatehouse/internal/packages/catalog"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is what the module is given.
type Config struct {
	Packages *packages.Manager `json:"-"` // nil means that this host has no packages
	// Changed is called once with a function to call when the tools have changed.
	Changed func(func())  `json:"-"`
	Rules   operator.Func `json:"-"` // decides who may manage packages; nil means no caller
	// Hosts returns the addresses at which clients reach this host; nil means that there are none.
	Hosts func() []Host `json:"-"`
	Show  progress.Show `json:"-"` // shows the progress of jobs
	// Catalog is searched for packages; nil means that none is.
	Catalog *catalog.Catalog `json:"-"`
	// Unsynced makes no tool synchronize subscriptions. A host that has such a tool
	// publishes every call, which costs more than few calls of these tools gain.
	Unsynced bool `json:"-"`
	// Alone offers what the one package of Packages has and nothing else: no tool that manages
	// packages, and no address besides those that the server lists.
	Alone bool `json:"-"`
}

type manager struct {
	cfg  Config
	deps module.Deps
	own  []tool.Tool
}

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		k := &manager{deps: d}
		k.cfg = cfg
		if !cfg.Alone {
			k.own = slices.Concat(k.definitions(), k.approvalTools(), k.supplyTools(), k.actionTools())
		}
		for i := range k.own {
			k.own[i].Sync = k.own[i].Sync && !cfg.Unsynced
		}
		if k.cfg.Changed != nil && d.Changed != nil {
			k.cfg.Changed(func() { d.Changed(module.Audience{}) })
		}
		return k, nil
	}
}

// Offer implements module.Module.
func (k *manager) Offer(context.Context, module.Audience) (*module.Offer, error) {
	o := &module.Offer{Tools: k.own[:len(k.own):len(k.own)]}
	if k.cfg.Packages != nil {
		for _, t := range k.cfg.Packages.Tools() {
			o.Tools = append(o.Tools, k.relayTool(t))
		}
		for _, of := range k.cfg.Packages.Offers() {
			k.addOffer(o, of)
		}
	}
	return o, nil
}

// Close implements module.Module. It does not stop the packages, which belong to
// the host.
func (k *manager) Close(context.Context) error { return nil }

// relayTool returns a tool of a package. It ignores what the server declares about
// the effects of the tool, and assumes that it can write, destroy and access the
// network, unless an administrator believes the server.
func (k *manager) relayTool(t packages.Offered) tool.Tool {
	servers := k.cfg.Packages
	listed := t.Raw
	if t.Text {
		listed = rawjson.Splice(listed, rawjson.Edit{Key: "outputSchema"})
	}
	d := tool.Def{Name: t.Name, Raw: listed, Effects: t.Effects,
		Timeout: cmp.Or(t.Timeout, servers.Patience(t.Package)),
		Staged:  t.Unstaged == "", Programs: t.Unstaged == "", Unstaged: t.Unstaged}
	if t.Task {
		d.Task, d.Timeout = tool.TaskAlways, taskTimeout
	}
	return tool.Tool{
		Def: d,
		Run: func(ctx context.Context, c *tool.Call) (tool.Result, error) {
			raw, err := k.callTool(packages.Forwarding(ctx, c.Forward), c, t)
			if err == nil && t.Text {
				raw = textOnly(raw)
			}
			return relayed(raw, err)
		},
	}
}

// callTool calls a tool of a package. If the server runs the call as a task it is followed to
// its end, also over the rounds in which its questions are answered.
func (k *manager) callTool(ctx context.Context, c *tool.Call, t packages.Offered) (json.RawMessage, error) {
	servers := k.cfg.Packages
	var task string
	if raw, ok := c.Peer.Recall(taskKey); ok && json.Unmarshal(raw, &task) == nil {
		return k.followTask(ctx, c, t.Package, task)
	}
	meta, _ := rawjson.Get(c.Params, "_meta")
	from := peerOf(c)
	if t.Task && servers.IsLegacy(t.Package) {
		from = askedNothing(c) // the task belongs to the instance that begins it
		from.Task = true
	}
	if from.Staged != nil {
		from.Staged.Changes = !t.Effects.ReadOnly()
	}
	args := c.Args
	if _, sent := rawjson.Get(c.Params, "arguments"); !sent && string(args) == "{}" {
		args = nil // the client sent none
	}
	raw, err := servers.Call(ctx, t.Package, t.Own, args, meta, from)
	if err != nil {
		return nil, err
	}
	began, ok := packages.TaskOf(raw)
	if !ok {
		return raw, nil
	}
	if err := c.Peer.Record(taskKey, began.ID); err != nil {
		servers.CancelTask(ctx, t.Package, began.ID, askedNothing(c))
		return nil, err
	}
	tool.Detach(ctx, c) // a client that can follow a task gets one, as from the server
	return k.followTask(ctx, c, t.Package, began.ID)
}

// peerOf returns the caller of a relayed request.
func peerOf(c *tool.Call) *packages.Peer {
	who := c.Caller // an open call outlives the handler's
	from := &packages.Peer{
		Caller: &who, State: c.State, Answers: c.Answers, Progress: c.Peer.Progress, Logs: c.Logs,
		Log: func(level slog.Level, params tool.LogMessage) { c.Peer.Log(level, params) },
	}
	if c.Task != "" {
		from.Staged = &packages.Staging{Task: c.Task, Caller: who, View: roots.ViewOf(c.Roots)}
	}
	return from
}

// askedNothing is peerOf for a request during which the protocol lets no client be asked.
func askedNothing(c *tool.Call) *packages.Peer {
	from := peerOf(c)
	from.Caller.Can, from.State, from.Answers = 0, nil, nil
	return from
}

// relayed returns the outcome of a relayed request, which may be that the server asks.
func relayed(raw json.RawMessage, err error) (tool.Result, error) {
	if asked, ok := errors.AsType[*packages.InputRequired](err); ok {
		return tool.Result{Input: &asked.Input}, nil
	}
	return tool.Result{Raw: raw}, err
}

// addOffer adds the resources and prompts of a package.
func (k *manager) addOffer(o *module.Offer, of *packages.Offer) {
	for _, r := range of.Resources {
		o.Resources = append(o.Resources, k.relayResource(r))
	}
	for _, r := range of.Templates {
		t := k.relayResource(r)
		t.Complete = k.relayCompletion(r.Package, func() json.RawMessage {
			own := strings.TrimPrefix(r.URI, k.cfg.Packages.Address(r.Package))
			return reference("ref/resource", "uri", own)
		})
		o.Templates = append(o.Templates, t)
	}
	if of.Reads {
		id := of.Package
		o.Templates = append(o.Templates, module.Resource{
			URI: k.cfg.Packages.Address(id) + "{+uri}", Name: id + " resource",
			Description: "Any resource of the package " + id + " by its own URI, such as one that a result links to.",
			Read:        k.reader(id), Watch: k.watcher(id), Timeout: k.cfg.Packages.Patience(id),
			Unlisted: k.cfg.Alone,
		})
	}
	for _, p := range of.Prompts {
		o.Prompts = append(o.Prompts, module.Prompt{
			Name: p.Name, Raw: p.Raw,
			Get: func(ctx context.Context, c *tool.Call) (tool.Result, error) {
				meta, _ := rawjson.Get(c.Params, "_meta")
				raw, err := k.cfg.Packages.Prompt(packages.Forwarding(ctx, c.Forward), p.Package, p.Own, c.Args, meta,
					peerOf(c))
				return relayed(raw, err)
			},
			Complete: k.relayCompletion(p.Package, func() json.RawMessage {
				return reference("ref/prompt", "name", p.Own)
			}),
		})
	}
}

func (k *manager) relayResource(r packages.OfferedResource) module.Resource {
	return module.Resource{
		URI: r.URI, Raw: r.Raw, Read: k.reader(r.Package), Watch: k.watcher(r.Package),
		Timeout: k.cfg.Packages.Patience(r.Package),
	}
}

// reader returns the handler that reads resources of a package by their addresses here.
func (k *manager) reader(id string) tool.Handler {
	return func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		meta, _ := rawjson.Get(c.Params, "_meta")
		raw, err := k.cfg.Packages.Read(packages.Forwarding(ctx, c.Forward), id, c.Name, meta, peerOf(c))
		return relayed(raw, err)
	}
}

// watcher returns the function that watches resources of a package by their addresses here.
func (k *manager) watcher(id string) module.Watch {
	return func(c tool.Caller, uri string, changed func(json.RawMessage)) (func(), error) {
		return k.cfg.Packages.Watch(c, id, uri, changed)
	}
}

// relayCompletion returns the handler that completes an argument of what ref names.
func (k *manager) relayCompletion(id string, ref func() json.RawMessage) tool.Handler {
	return func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		argument, _ := rawjson.Get(c.Params, "argument")
		known, _ := rawjson.Get(c.Params, "context")
		raw, err := k.cfg.Packages.Complete(packages.Forwarding(ctx, c.Forward), id, ref(), argument, known,
			askedNothing(c))
		return relayed(raw, err)
	}
}

func reference(kind, member, value string) json.RawMessage {
	return rawjson.Splice(
		[]byte(`{}`),
		rawjson.Edit{Key: "type", Value: rawjson.AppendString(nil, kind)},
		rawjson.Edit{Key: member, Value: rawjson.AppendString(nil, value)},
	)
}

// textOnly removes the structured content from a result. If the result has no
// other content, the structured content becomes its text, so that nothing is
// lost.
func textOnly(result json.RawMessage) json.RawMessage {
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
	installHelp = `Installs an MCP server as a package, after the user has agreed. Its tools are then offered as
<id>_<tool>, or by their own names if these begin with <id>_ already.

- source is "command" (a program of this machine), "npm:name@version" (installed by the host's npm into the package's
  own folder, without running scripts), "folder:path" or "archive:path" (.tar.gz, .tgz, .tar, .zip), which are copied,
  or the address of a running server: "url:https://HOST/PATH", "unix:/PATH" of its socket, or "tcp:HOST:PORT". Paths are in the folders of this host.
- command is the program to start. It may be missing if a package.json names the program. ./name is in the program's
  folder; ${program} and ${data} in command, args and env stand for the package's folders.
- instances: a server that asks its user something in the middle of a call can ask callers only through instances that
  serve one caller each. auto, the default, starts these for callers that can answer questions.
- results "text" removes the structured content from its results, and the output schemas from its tools. Claude Code and
  Codex give the model only the structured content of a result, so that the model would not see text that says more.
- trust_hints believes what the server says that its tools do (readOnlyHint, destructiveHint, idempotentHint,
  openWorldHint): rules and --read-only use it, and clients see it. Leave it out unless the user trusts the server.
- timeout is for one call, such as 30s. A server that does not answer several calls in a row is not called for a while.
- Its resources are offered as package://<id>/<its own URI>, its prompts by the names of tools.
- env, and headers for a remote server, may refer to secrets of the host as ${secret:NAME}. Store them with gatehouse secret set NAME, where no model sees
  them; do not put them into args.
- The server runs in a sandbox: it has the programs of this machine, and its home and working directory are the package's
  data folder, which a rebuild keeps. Of the host's files it sees the folders of grants, at the same paths, and it
  reaches the hosts of grants alone. Grant what its arguments name and what its service needs, and nothing else. trust
  runs it with the rights of this host's user instead; leave it out unless the user asks for it.
- It returns a job at once; wait for it with job_wait. gatehouse:///public/packageData shows its phases. If the server
  does not answer initialize, the package is removed again.`
	startHelp = "A package with start demand is started by the first call of one of its tools, and is stopped " +
		"after a while without calls. One that fails repeatedly is no longer started automatically, until " +
		"package_start or package_restart."
	confirmHelp = "The client asks the user. If it cannot ask, ask the user yourself and give the id as confirm."
	logsHelp    = "The log has the server's standard error, its log messages, and messages of this host about it " +
		"([host]). About 1 MiB is kept for each package; secrets from its environment are masked. Without a cursor " +
		"the newest lines are returned; with a cursor, the lines after it or, with before, before it."
)

func (k *manager) definitions() []tool.Tool { return slices.Concat(k.lifeTools(), k.choiceTools()) }

// lifeTools are the tools that install, start, stop and remove packages.
func (k *manager) lifeTools() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "package_install", Title: "Install a package", Effects: tool.Writes | tool.Destroys | tool.OpenWorld,
			Task: tool.TaskNever, Restartable: true, Sync: true, Aliases: []string{"package.install"},
			Description: "Installs a third-party MCP server as a package of this host, after the user has agreed. " +
				"It returns a job.",
			Help: installHelp + "\n- " + confirmHelp,
		}, k.install),
		tool.New(tool.Def{
			Name: "package_list", Title: "List packages", Effects: tool.Reads, Task: tool.TaskNever,
			Aliases:     []string{"package.list"},
			Description: "Lists the packages of this host with their status and number of tools.",
		}, k.listPackages),
		tool.New(tool.Def{
			Name: "package_info", Title: "Describe a package", Effects: tool.Reads, Task: tool.TaskNever,
			Aliases:     []string{"package.installed-version"},
			Description: "Describes a package: its command, its source, its tools, and tools that cannot be offered.",
			Help:        "Of the environment, only the names of variables and of the secrets they refer to are shown.",
		}, k.packageInfo),
		tool.New(tool.Def{
			Name: "package_start", Title: "Start a package", Effects: tool.Writes | tool.Idempotent | tool.OpenWorld,
			Task: tool.TaskNever, Sync: true, Aliases: []string{"package.start"},
			Description: "Starts the server of a package, and allows it to be started on demand again.",
			Help:        startHelp,
		}, k.startPackage),
		tool.New(tool.Def{
			Name: "package_stop", Title: "Stop a package", Effects: tool.Writes | tool.Idempotent, Task: tool.TaskNever,
			Sync: true, Aliases: []string{"package.stop"},
			Description: "Stops the server of a package. It stays stopped until package_start, also after a restart " +
				"of this host.",
		}, k.stopPackage),
		tool.New(tool.Def{
			Name: "package_restart", Title: "Restart a package", Effects: tool.Writes | tool.OpenWorld,
			Task: tool.TaskNever, Sync: true, Aliases: []string{"package.restart"},
			Description: "Stops the server of a package and starts it again.", Help: startHelp,
		}, k.restart),
		tool.New(tool.Def{
			Name: "package_rebuild", Title: "Rebuild a package", Effects: tool.Writes | tool.Destroys | tool.OpenWorld,
			Task: tool.TaskNever, Restartable: true, Sync: true, Aliases: []string{"package.rebuild"},
			Description: "Installs a package again from its source, or another version of it, and keeps its data. " +
				"It returns a job.",
			Help: "source may name another version of the same npm package, or another path of the same " +
				"kind; then the user is asked. After an error the package is as before. " + confirmHelp,
		}, k.rebuild),
		tool.New(tool.Def{
			Name: "package_remove", Title: "Remove a package", Effects: tool.Writes | tool.Destroys,
			Task: tool.TaskNever, Sync: true, Aliases: []string{"package.uninstall"},
			Description: "Stops a package and removes it with its data, after the user has agreed.",
			Help:        "keep_data keeps its data folder for the next package with that id. " + confirmHelp,
		}, k.removePackage),
	}
}

// choiceTools are the tools that find packages and say what each may do.
func (k *manager) choiceTools() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "package_search", Title: "Search for packages", Effects: tool.Reads | tool.OpenWorld,
			Task:        tool.TaskNever,
			Description: "Searches registries, npm, PyPI and Rust's crates for MCP servers that can be installed.",
			Help: "Several hits are for the user to choose from. facts are what the user should know before a yes; " +
				"source and command are what package_install takes. PyPI is searched by exact name. A " +
				"source with offline answered from the cache, which is of the time at.",
		}, k.search),
		tool.New(tool.Def{
			Name: "package_tools", Title: "Choose the tools of a package", Effects: tool.Writes | tool.Idempotent,
			Task: tool.TaskNever, Sync: true,
			Description: "Lists the tools of a package, and turns some of them off or on.",
			Help: "A tool is named as on this host or as the server names it. A tool that is off is in no list and " +
				"cannot be called. A rebuild keeps the choice.",
		}, k.chooseTools),
		tool.New(tool.Def{
			Name: "package_grant", Title: "Change what a package may use",
			Effects: tool.Writes | tool.Idempotent | tool.OpenWorld,
			Task:    tool.TaskNever, Sync: true,
			Description: "Grants a package folders, hosts, sockets, devices and limits, or takes them away, " +
				"after the user " +
				"has agreed. It returns what the package may use.",
			Help: "The instances of the package are stopped, so that they start again with what they may use then. Paths " +
				"are those of this host; PATH:ro is for reading alone. A host is HOST or HOST:PORT; " +
				"without a port it is " +
				"80 and 443. Without add, remove and confinement it only says what is granted. " + confirmHelp,
		}, k.grant),
		tool.New(tool.Def{
			Name: "package_apply", Title: "Apply declared packages",
			Effects: tool.Writes | tool.Destroys | tool.OpenWorld,
			Task:    tool.TaskNever, Restartable: true, Sync: true,
			Description: "Makes the packages those that settings declare, after the user has agreed, or returns the " +
				"differences. It returns a job.",
			Help: "Packages that are missing are installed, those that differ are changed, and those that an earlier " +
				"apply installed and that are no longer declared are removed, with their data kept. " +
				"Packages that were " +
				"installed otherwise stay. " + confirmHelp,
		}, k.applyPackages),
		tool.New(tool.Def{
			Name: "package_login", Title: "Log in to a package", Effects: tool.Writes | tool.OpenWorld,
			Task: tool.TaskNever, Sync: true,
			Description: "Begins the login at the remote server of a package, or finishes it with the address to which " +
				"the browser was sent back.",
			Help: loginHelp,
		}, k.login),
		tool.New(tool.Def{
			Name: "package_logout", Title: "Log out of a package", Effects: tool.Writes | tool.Idempotent,
			Task: tool.TaskNever, Sync: true,
			Description: "Forgets the login at the remote server of a package.",
			Help:        "The authorization server is not told: what it has issued stays valid there until it ends.",
		}, k.logout),
		tool.New(tool.Def{
			Name: "package_logs", Title: "Read a package's log", Effects: tool.Reads, Task: tool.TaskNever,
			Aliases:     []string{"package.logs"},
			Description: "Returns the log of a package's server, page by page.", Help: logsHelp,
		}, k.logs),
	}
}

// checkOperator refuses a caller that is not an administrator, and every caller if the host
// has no packages.
func (k *manager) checkOperator(c *tool.Call) error {
	if err := k.cfg.Rules.Check(c, "manage its packages"); err != nil {
		return err
	}
	if k.cfg.Packages == nil {
		return errNoPackages()
	}
	return nil
}

func errNoPackages() error {
	return &tool.Refusal{
		Code:    tool.CodeUnsupported,
		Message: "this host has no data folder and therefore no packages",
		Next:    "Use a host with a data folder.",
	}
}

// withServerOutput adds the last output of the server to an error.
func withServerOutput(err error) error {
	words := packages.Words(err)
	if words == "" {
		return err
	}
	said := "Its last output was:\n" + words
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return &tool.Refusal{Code: r.Code, Message: r.Message, Next: strings.TrimSpace(r.Next + "\n" + said)}
	}
	return &tool.Refusal{Code: tool.CodeFailed, Message: err.Error(), Next: said}
}

// jobOut is the result of a tool that starts a job.
type jobOut struct {
	progress.Started
	ID string `json:"id" doc:"id of the package"`
}

// startJob runs a function as a job and shows its phases.
func (k *manager) startJob(
	c *tool.Call, title, id string, run func(context.Context, *tool.Call, packages.Report) (any, error),
) (jobOut, error) {
	work := func(ctx context.Context, c *tool.Call, tell func(progress.Progress)) (any, error) {
		out, err := run(ctx, c, tell)
		switch {
		case err == nil:
			notify.Publish(k.deps, notify.Notification{Code: "package.changed", Level: notify.Success,
				Title: "Done: " + title})
		case ctx.Err() == nil:
			notify.Publish(k.deps, notify.Notification{
				Code:    "package.failed",
				Level:   notify.Error,
				Title:   "The " + title + " failed",
				Message: err.Error(),
			})
		}
		return out, withServerOutput(err)
	}
	started, err := k.cfg.Show.Start(k.deps, c, title, work)
	return jobOut{started, id}, err
}

// publish publishes that something was done to a package. The event has neither
// its command nor its environment.
func (k *manager) publish(what, id string, c *tool.Call) {
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
