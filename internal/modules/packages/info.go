package packages

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/packages"
	"gatehouse/internal/packages/attest"
	"gatehouse/internal/packages/pins"
	"gatehouse/tool"
)

type listOut struct {
	Packages []entryOut `json:"packages"`
}

type entryOut struct {
	ID      string `json:"id"`
	Title   string `json:"title"`
	Version string `json:"version,omitempty"`
	State   string `json:"state" doc:"installing, installed, updating or removing"`
	Status  string `json:"status" doc:"status of its server: stopped, idle, starting, running, waiting or broken"`
	Tools   int    `json:"tools"`
	Error   string `json:"error,omitempty"`
	Login   string `json:"login,omitempty" doc:"why a user has to log in with package_login; missing if none has to"`

	Confinement string `json:"confinement" doc:"sandbox; trusted: it runs as this host's user; unconfined: as trusted, installed before there was a choice; remote"`

	Node string `json:"node,omitempty" doc:"of the cluster, on which its server runs or ran last"`

	Quarantined int `json:"quarantined,omitempty" doc:"tools and prompts that are not offered until an administrator approves them as they are; see package_changes"`

	Health packages.Health `json:"health" doc:"how its server serves"`
}

func entry(i packages.Info) entryOut {
	p := i.Public
	return entryOut{
		i.ID, p.Title, p.Version, p.State, p.Status, p.Tools, p.Error, p.Login, p.Confinement, i.Node, p.Quarantined, p.Health,
	}
}

func (k *manager) listPackages(_ context.Context, c *tool.Call, _ struct{}) (listOut, error) {
	if err := k.checkOperator(c); err != nil {
		return listOut{}, err
	}
	all, err := k.cfg.Packages.List()
	out := listOut{Packages: []entryOut{}}
	for _, i := range all {
		out.Packages = append(out.Packages, entry(i))
	}
	return out, err
}

type idIn struct {
	ID string `json:"id" min:"1" max:"32"`
}

// infoOut is the answer of package_info. One struct, because each field is one line that the command shows.
type infoOut struct {
	entryOut
	Source    string            `json:"source"`
	Command   string            `json:"command,omitempty"`
	Args      []string          `json:"args,omitempty"`
	Env       map[string]string `json:"env,omitempty" doc:"variables, each with the secrets it refers to"`
	Start     string            `json:"start"`
	Instances string            `json:"instances" doc:"whom one instance of its server serves"`
	Timeout   string            `json:"timeout,omitempty" doc:"time for one call, if it is not that of the host"`
	Hints     bool              `json:"trust_hints,omitempty" doc:"what the server says that its tools do is believed"`
	May       []string          `json:"may" doc:"what it may use, in words"`
	Grants    packages.Grants   `json:"grants,omitzero" doc:"what it was granted"`
	Data      string            `json:"data" doc:"its data folder"`
	Installed string            `json:"installed"`
	By        string            `json:"by,omitempty"`
	Protocol  string            `json:"protocol,omitempty" doc:"protocol version of the server"`
	PID       int               `json:"pid,omitempty"`
	Fails     int               `json:"fails,omitempty" doc:"consecutive failures of its server"`
	Next      string            `json:"next_start,omitempty"`
	Names     []string          `json:"names" doc:"names of its tools on this host"`
	Bytes     int64             `json:"bytes,omitempty" doc:"size of its program"`
	Also      int64             `json:"also_bytes,omitempty" doc:"part of bytes that other packages have too; the disk has it once"`
	Off       []string          `json:"off,omitempty" doc:"tools that package_tools turned off"`
	Left      []string          `json:"left_out,omitempty" doc:"tools that cannot be offered, with the reason"`
	NewTools  string            `json:"new_tools" doc:"what becomes of tools that its server did not list before: ask or allow"`
	Digest    string            `json:"digest,omitempty" doc:"of its program"`
	Attested  *attest.Identity  `json:"attested,omitempty" doc:"where its program was built, as a verified attestation says"`
	Previous  string            `json:"previous,omitempty" doc:"version that package_rollback brings back"`
	Tasks     []packageTask     `json:"tasks,omitempty" doc:"what it still needs"`
	Actions   []actionEntry     `json:"actions,omitempty" doc:"what package_action_run runs"`
	Outbound  string            `json:"outbound_gateway,omitempty" doc:"interface that its connections use"`
	Waiting   []string          `json:"waiting,omitempty" doc:"tools and prompts that are not offered for want of an approval, each with the reason"`
}

type actionEntry struct {
	Action   string `json:"action"`
	Name     string `json:"name"`
	Warning  string `json:"warning,omitempty"`
	Allowed  string `json:"allowed_statuses" doc:"of the server: any, only-running or only-stopped"`
	Input    bool   `json:"has_input"`
	Disabled string `json:"disabled,omitempty" doc:"why it cannot be run now"`
}

func (k *manager) packageInfo(ctx context.Context, c *tool.Call, in idIn) (infoOut, error) {
	if err := k.checkOperator(c); err != nil {
		return infoOut{}, err
	}
	i, err := k.cfg.Packages.Info(in.ID)
	if err != nil {
		return infoOut{}, err
	}
	bytes, also, err := k.cfg.Packages.Usage(ctx, in.ID)
	if err != nil {
		return infoOut{}, err
	}
	out := infoOut{
		Bytes: bytes, Also: also,
		entryOut: entry(i), Source: i.Source.String(), Command: i.Command, Args: i.Args, Env: variables(i.Env),
		Start: i.Record.Start, Instances: cmp.Or(i.Record.Instances, packages.AutoInstances),
		Timeout: i.Timeout, Hints: i.TrustHints, May: i.Lines(), Grants: i.Grants,
		Data: i.Data, Installed: stamp(i.Installed), By: i.By, Protocol: i.Server.Protocol, PID: i.PID, Fails: i.Fails,
		Next: stamp(i.Next), Names: i.Names, Left: i.Left, Off: i.Off,
	}
	if out.Names == nil {
		out.Names = []string{}
	}
	out.Tasks, out.Outbound = i.Public.Tasks, i.Outbound
	for _, id := range slices.Sorted(maps.Keys(i.Public.Actions)) {
		a := i.Public.Actions[id]
		out.Actions = append(out.Actions, actionEntry{id, a.Name, a.Warning, a.Allowed, a.Input, a.Disabled})
	}
	out.NewTools = cmp.Or(i.NewTools, packages.AskNew)
	if i.Pins != nil {
		out.Digest, out.Attested = i.Pins.Digest, i.Pins.Attested
	}
	if i.Previous != nil {
		out.Previous = cmp.Or(i.Previous.Version, i.Previous.Source.String())
	}
	for _, w := range i.Quarantined {
		out.Waiting = append(out.Waiting, w.Name+": "+w.State)
	}
	return out, nil
}

// variables returns an environment with references to secrets in place of values.
func variables(env map[string]string) map[string]string {
	out := map[string]string{}
	for name, value := range env {
		out[name] = "set"
		if refers, _ := secret.Names(value); len(refers) > 0 {
			out[name] = "secret " + strings.Join(refers, ", ")
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func (k *manager) startPackage(ctx context.Context, c *tool.Call, in idIn) (entryOut, error) {
	return k.setState(ctx, c, in.ID, "started", (*packages.Manager).Start)
}

func (k *manager) stopPackage(ctx context.Context, c *tool.Call, in idIn) (entryOut, error) {
	return k.setState(ctx, c, in.ID, "stopped", (*packages.Manager).Stop)
}

func (k *manager) restart(ctx context.Context, c *tool.Call, in idIn) (entryOut, error) {
	return k.setState(ctx, c, in.ID, "restarted", (*packages.Manager).Restart)
}

func (k *manager) setState(
	ctx context.Context, c *tool.Call, id, what string,
	do func(*packages.Manager, context.Context, string) (packages.Info, error),
) (entryOut, error) {
	if err := k.checkOperator(c); err != nil {
		return entryOut{}, err
	}
	i, err := do(k.cfg.Packages, ctx, id)
	if err != nil {
		return entryOut{}, withServerOutput(err)
	}
	k.publish(what, id, c)
	return entry(i), nil
}

type toolsIn struct {
	ID  string   `json:"id" min:"1" max:"32"`
	Off []string `json:"off,omitempty" doc:"tools to offer no longer" max:"500"`
	On  []string `json:"on,omitempty" doc:"tools to offer again" max:"500"`
}

type toolsOut struct {
	Tools []listedOut `json:"tools"`
}

type listedOut struct {
	Name        string `json:"name"`
	Own         string `json:"own,omitempty" doc:"the server's name for it, if another"`
	Off         bool   `json:"off,omitempty"`
	State       string `json:"state,omitempty" doc:"why it is not offered: new, changed or refused; missing if it is approved"`
	Description string `json:"description,omitempty"`
}

const toolsDescription = 300 // bytes of a tool's description that are shown

func (k *manager) chooseTools(_ context.Context, c *tool.Call, in toolsIn) (toolsOut, error) {
	if err := k.checkOperator(c); err != nil {
		return toolsOut{}, err
	}
	all, err := k.cfg.Packages.ChooseTools(in.ID, in.Off, in.On)
	if err != nil {
		return toolsOut{}, err
	}
	if len(in.Off)+len(in.On) > 0 {
		k.publish("tools_chosen", in.ID, c)
	}
	out := toolsOut{Tools: []listedOut{}}
	for _, t := range all {
		one := listedOut{Name: t.Name, Off: t.Off}
		if t.State != pins.Approved {
			one.State = t.State
		}
		if t.Own != t.Name {
			one.Own = t.Own
		}
		raw, _ := rawjson.Get(t.Raw, "description")
		text, _ := rawjson.String(raw)
		text = displaytext.Line(strings.Join(strings.Fields(text), " "))
		one.Description = displaytext.Cut(text, toolsDescription, "...")
		out.Tools = append(out.Tools, one)
	}
	return out, nil
}

type logsIn struct {
	ID     string `json:"id" min:"1" max:"32"`
	Limit  int    `json:"limit,omitempty" doc:"maximum of lines" default:"50" min:"1" max:"1000"`
	Cursor string `json:"cursor,omitempty" doc:"from an earlier result" max:"20" pattern:"^[0-9]*$"`
	Before bool   `json:"before,omitempty" doc:"lines before the cursor instead of those after it"`
}

type logsOut struct {
	Entries []lineOut `json:"entries" doc:"oldest first"`
	Start   string    `json:"start,omitempty" doc:"cursor for the lines before these"`
	End     string    `json:"end,omitempty" doc:"cursor for the lines after these"`
}

type lineOut struct {
	Time    string `json:"timestamp"`
	Message string `json:"message"`
}

func (k *manager) logs(_ context.Context, c *tool.Call, in logsIn) (logsOut, error) {
	if err := k.checkOperator(c); err != nil {
		return logsOut{}, err
	}
	cursor := int64(-1)
	if in.Cursor != "" {
		n, err := strconv.ParseInt(in.Cursor, 10, 64)
		if err != nil {
			return logsOut{}, tool.Refuse(
				tool.CodeInvalidArguments, "cursor %q is not one that package_logs returned", in.Cursor,
			)
		}
		cursor = n
	}
	lines, err := k.cfg.Packages.Logs(in.ID, cursor, in.Before, in.Limit)
	if err != nil {
		return logsOut{}, err
	}
	out := logsOut{Entries: []lineOut{}, Start: in.Cursor, End: in.Cursor}
	for i, l := range lines {
		if i == 0 {
			out.Start = strconv.FormatInt(l.At, 10)
		}
		out.End = strconv.FormatInt(l.End, 10)
		out.Entries = append(out.Entries, lineOut{l.Time, l.Message})
	}
	return out, nil
}
