package packages

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gatehouse/internal/access/confirm"
	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/packages"
	"gatehouse/tool"
)

type installIn struct {
	ID          string            `json:"id" doc:"prefix of its tools: a-z, 0-9 and -" min:"1" max:"32"`
	Source      string            `json:"source,omitempty" doc:"command, npm:name@version, pypi:name==version, crate:name@version, go:module/path@version, oci:host/name:tag, mcpb:path, binary:path, folder:path, archive:path, openapi:path or url:https://HOST/PATH; mcpb, binary, archive and openapi also take an https address" default:"command" max:"4096" names:"code"`
	Command     string            `json:"command,omitempty" doc:"the program; may be missing if the package names it; of a package with several programs the name of one" max:"4096"`
	Args        []string          `json:"args,omitempty" doc:"its arguments"`
	Env         map[string]string `json:"env,omitempty" doc:"its environment; a value may refer to a secret: ${secret:NAME}"`
	Config      packages.Config   `json:"config,omitempty" doc:"values of what a bundle lets its user configure; sensitive ones refer to a secret: ${secret:NAME}"`
	Headers     map[string]string `json:"headers,omitempty" doc:"headers of requests to a remote server; a value may refer to a secret: Bearer ${secret:NAME}"`
	PassHeaders []string          `json:"pass_headers,omitempty" doc:"headers of a client's request that go on to a remote server with it"`
	Login       string            `json:"login,omitempty" doc:"whose login is used at a remote server that requires one; shared, the default: one that an administrator makes; principal: each caller's own" enum:"shared,principal"`
	OAuth       packages.OAuth    `json:"oauth,omitzero" doc:"how this host identifies itself to the authorization server of a remote server; left out, it registers itself"`
	Start       string            `json:"start,omitempty" doc:"demand: at the first call; always: with this host" enum:"demand,always" default:"demand"`
	Results     string            `json:"results,omitempty" doc:"text: omit structured content and output schemas, for clients that give models one half of a result" enum:"text"`
	Instances   string            `json:"instances,omitempty" doc:"whom one instance of its server serves; auto: callers that can answer questions get instances of their own; shared: all callers, and the server can ask none; principal: one caller; session: one session" enum:"auto,shared,principal,session"`
	Timeout     string            `json:"timeout,omitempty" doc:"time for one call, such as 30s; default: that of the host" max:"20"`
	Hints       bool              `json:"trust_hints,omitempty" doc:"believe what the server says that its tools do"`
	NewTools    string            `json:"new_tools,omitempty" doc:"tools that its server adds later: ask leaves them out until an administrator approves them, allow offers them; default: ask" enum:"ask,allow"`
	Nodes       string            `json:"nodes,omitempty" doc:"where its server runs in a cluster; one, the default: on one node for all; each: on each node, for the callers of that" enum:"one,each"`
	Labels      []string          `json:"labels,omitempty" doc:"what a node of the cluster must have to run its server, such as driver=firecracker or a label of cluster.labels" max:"20"`
	Actions     []actionDef       `json:"actions,omitempty" doc:"what administrators can do with it besides calling its tools" max:"50"`
	Title       string            `json:"title,omitempty" doc:"display name; default: the server's" max:"200"`
	Trust       bool              `json:"trust,omitempty" doc:"run it with the rights of this host's user, in no sandbox"`
	Grants      packages.Grants   `json:"grants,omitzero" doc:"what it may use in its sandbox"`
	Image       imageIn           `json:"image,omitzero" doc:"what is changed of the configuration of an image"`
	Version     string            `json:"version,omitempty" doc:"displayed version; default: the program's or the server's" max:"100"`
	Confirm     string            `json:"confirm,omitempty" doc:"the id, once the user has agreed; needs the setting approvals.callers_word" max:"32"`
}

// imageIn is packages.ImageOptions as an argument.
type imageIn struct {
	User       string       `json:"user,omitempty" doc:"that runs it; it is compared with the image's, and shown" max:"100"`
	Dir        string       `json:"dir,omitempty" doc:"its working folder" max:"4096"`
	Entrypoint string       `json:"entrypoint,omitempty" doc:"the program that it runs" max:"4096"`
	Mounts     []imageMount `json:"mounts,omitempty" doc:"files and folders of the host in it, which have to be granted too" max:"100"`
}

type imageMount struct {
	From  string `json:"from" doc:"path of the host, or ${data}/volumes/NAME" max:"4096"`
	To    string `json:"to" doc:"path in the image" max:"4096"`
	Write bool   `json:"write,omitempty"`
}

func (i imageIn) options() *packages.ImageOptions {
	o := packages.ImageOptions{User: i.User, Dir: i.Dir, Entrypoint: i.Entrypoint}
	for _, m := range i.Mounts {
		o.Mounts = append(o.Mounts, packages.ImageMount(m))
	}
	return packages.ImageRun{Options: &o}.Changes()
}

// installed is the result of a job that installed a package.
type installed struct {
	ID      string   `json:"id"`
	Title   string   `json:"title"`
	Version string   `json:"version,omitempty"`
	Tools   []string `json:"tools"`
	Left    []string `json:"left_out,omitempty"` // tools that cannot be offered, each with the reason
	Waiting []string `json:"waiting,omitempty"`  // tools and prompts that need an approval, each with the reason
	// Confinement is as package_list shows it.
	Confinement string `json:"confinement"`
	// Warnings are the problems of the record. They do not contain values.
	Warnings []string `json:"warnings,omitempty"`
}

func (k *manager) install(ctx context.Context, c *tool.Call, in installIn) (jobOut, error) {
	if err := k.checkOperator(c); err != nil {
		return jobOut{}, err
	}
	source, err := packages.ParseSource(in.Source)
	if err != nil {
		return jobOut{}, &tool.Refusal{Code: tool.CodeInvalidArguments, Message: err.Error()}
	}
	r := packages.Record{
		ID: in.ID, Title: in.Title, Version: in.Version, Source: source, Command: in.Command,
		Args: in.Args, Env: in.Env, Config: in.Config, Headers: in.Headers, PassHeaders: in.PassHeaders,
		Start: in.Start, Results: in.Results, Login: in.Login, OAuth: in.OAuth.Given(),
		Instances: in.Instances, Timeout: in.Timeout, TrustHints: in.Hints, By: c.Caller.Principal,
		Image: in.Image.options(), Grants: in.Grants, NewTools: in.NewTools, Actions: actionsOf(in.Actions),
		Nodes: in.Nodes, Labels: in.Labels,
	}
	if in.Trust {
		r.Confinement = packages.Trusted
	}
	if source, err = resolveSource(c, source); err != nil {
		return jobOut{}, err
	}
	if source.FromPath() {
		tool.Stay(c) // no other node has the path
	}
	asked := r.Source
	r.Source = source
	plan := packages.Plan{Record: r}
	if i, done, err := k.reclaim(ctx, c, in.ID); err != nil {
		return jobOut{}, err
	} else if done {
		return k.startJob(c, "installation of package "+in.ID, in.ID,
			func(context.Context, *tool.Call, packages.Report) (any, error) { return newInstalled(i), nil })
	}
	if err := k.cfg.Packages.Check(&plan); err != nil {
		return jobOut{}, err
	}
	r = plan.Record // with its confinement, and the real paths of what is granted
	if err := confirm.Ask(c, in.ID, question(r, k.cfg.Packages.Describe(ctx, &r)), in.Confirm); err != nil {
		return jobOut{}, err
	}
	return k.startJob(
		c,
		"installation of package "+in.ID,
		in.ID,
		func(ctx context.Context, c *tool.Call, say packages.Report) (any, error) {
			r.Job, _ = tool.JobOf(c)
			i, err := k.cfg.Packages.Install(ctx, packages.Plan{Record: r, Open: opener(c, asked)}, say)
			if err != nil {
				return nil, err
			}
			k.publish("installed", r.ID, c)
			done := newInstalled(i)
			if names := r.Readable(); len(names) > 0 {
				done.Warnings = append(done.Warnings, secretWarning(names))
			}
			if i.Public.Login != "" {
				done.Warnings = append(done.Warnings, "It has no tools yet: "+i.Public.Login+
					". Log in with gatehouse package login "+i.ID+", or package_login.")
			}
			return done, nil
		},
	)
}

// reclaim makes a package that a job was changing what the job can begin with again, if its node has died. done says
// that the job had done it.
func (k *manager) reclaim(ctx context.Context, c *tool.Call, id string) (i packages.Info, done bool, err error) {
	job, again := tool.JobOf(c)
	if !again {
		return i, false, nil
	}
	if done, err = k.cfg.Packages.Reclaim(ctx, id, job); err == nil && done {
		i, err = k.cfg.Packages.Info(id)
	}
	return i, done, err
}

func newInstalled(i packages.Info) installed {
	out := installed{ID: i.ID, Title: i.Public.Title, Version: i.Public.Version, Tools: i.Names, Left: i.Left,
		Confinement: i.Public.Confinement}
	for _, c := range i.Quarantined {
		out.Waiting = append(out.Waiting, fmt.Sprintf("%s (%s)", c.Name, c.State))
	}
	return out
}

// resolveSource returns a source with its absolute path, after checking that it is
// in the caller's folders. The package can then be installed again from there.
func resolveSource(c *tool.Call, s packages.Source) (packages.Source, error) {
	if !s.FromPath() {
		return s, nil
	}
	root, name, err := c.Roots.Resolve(s.From)
	if err != nil {
		return s, err
	}
	info, err := root.Stat(name)
	if err != nil {
		return s, &tool.Refusal{Code: tool.CodeNotFound, Message: fmt.Sprintf("source %s: %v", s.From, err)}
	}
	if info.IsDir() != (s.Kind == packages.Folder) {
		return s, tool.Refuse(tool.CodeInvalidArguments, "source %s: expected a file for %s, and a folder for folder",
			s.From, s.Kind)
	}
	s.From = filepath.Join(root.Name(), name)
	return s, nil
}

// opener returns a function that opens a source through the roots of the call, so
// that the kernel confines it to them. The caller of that function closes the
// root.
func opener(c *tool.Call, s packages.Source) func() (*os.Root, string, error) {
	if !s.FromPath() {
		return nil
	}
	return func() (*os.Root, string, error) {
		root, name, err := c.Roots.Resolve(s.From)
		if err != nil {
			return nil, "", err
		}
		own, err := root.OpenRoot(".")
		return own, name, err
	}
}

// question returns the question to the user, which shows what would run.
func question(r packages.Record, source []string) string {
	what := r.Source.String()
	if r.Command != "" {
		what = fmt.Sprintf("%s, started as %s", what, strings.Join(append([]string{r.Command}, r.Args...), " "))
	}
	what = displaytext.Cut(what, 600, "...")
	text := fmt.Sprintf(
		"Install the package %s (%s)? %s",
		r.ID,
		what,
		displaytext.Cut(strings.Join(append(source, r.Lines()...), " "), 3000,
			"..."),
	)
	if names := r.Readable(); len(names) > 0 {
		text += " Note: " + secretWarning(names)
	}
	return text
}

// secretWarning warns of variables that look like secrets and have a plain value.
func secretWarning(names []string) string {
	return fmt.Sprintf("%s looks like a secret and is stored unencrypted in the record and its backups. Store it "+
		"with gatehouse secret set NAME, "+
		"and give ${secret:NAME} instead.", strings.Join(names, ", "))
}

type rebuildIn struct {
	ID      string `json:"id" min:"1" max:"32"`
	Source  string `json:"source,omitempty" doc:"another version, npm:name@version; default: its present source" max:"4096" names:"code"`
	Accept  bool   `json:"accept_source,omitempty" doc:"install it although its attestation has vanished or names another source than was approved"`
	Confirm string `json:"confirm,omitempty" doc:"the id, once the user has agreed; needs the setting approvals.callers_word" max:"32"`
}

func (k *manager) rebuild(ctx context.Context, c *tool.Call, in rebuildIn) (jobOut, error) {
	if err := k.checkOperator(c); err != nil {
		return jobOut{}, err
	}
	i, err := k.cfg.Packages.Info(in.ID)
	if err != nil {
		return jobOut{}, err
	}
	if i.Source.FromPath() {
		tool.Stay(c) // no other node has the path
	}
	if in.Source != "" {
		source, err := packages.ParseSource(in.Source)
		if err != nil {
			return jobOut{}, &tool.Refusal{Code: tool.CodeInvalidArguments, Message: err.Error()}
		}
		if source, err = resolveSource(c, source); err != nil {
			return jobOut{}, err
		}
		in.Source = source.String()
		question := fmt.Sprintf(
			"Install the package %s from %s? It was installed from %s before.", in.ID, in.Source, i.Source,
		)
		if err := confirm.Ask(c, in.ID, question, in.Confirm); err != nil {
			return jobOut{}, err
		}
	}
	i, done, err := k.reclaim(ctx, c, in.ID)
	if err != nil {
		return jobOut{}, err
	}
	return k.startJob(
		c,
		"rebuild of package "+in.ID,
		in.ID,
		func(ctx context.Context, c *tool.Call, say packages.Report) (any, error) {
			if done {
				return newInstalled(i), nil
			}
			job, _ := tool.JobOf(c)
			i, err := k.cfg.Packages.RebuildAccepting(ctx, in.ID, in.Source, job, in.Accept, say)
			if err != nil {
				return nil, err
			}
			k.publish("rebuilt", in.ID, c)
			return newInstalled(i), nil
		},
	)
}

type removeIn struct {
	ID       string `json:"id" min:"1" max:"32"`
	KeepData bool   `json:"keep_data,omitempty" doc:"keep its data for the next package with that id"`
	Confirm  string `json:"confirm,omitempty" doc:"the id, once the user has agreed; needs the setting approvals.callers_word" max:"32"`
}

type removeOut struct {
	Removed string `json:"removed"`
}

func (k *manager) removePackage(_ context.Context, c *tool.Call, in removeIn) (removeOut, error) {
	if err := k.checkOperator(c); err != nil {
		return removeOut{}, err
	}
	i, err := k.cfg.Packages.Info(in.ID)
	if err != nil {
		return removeOut{}, err
	}
	question := fmt.Sprintf("Remove the package %s (%s) with all its data?", in.ID, i.Public.Title)
	if in.KeepData {
		question = fmt.Sprintf("Remove the package %s (%s) and keep its data?", in.ID, i.Public.Title)
	}
	if err := confirm.Ask(c, in.ID, question, in.Confirm); err != nil {
		return removeOut{}, err
	}
	if err := k.cfg.Packages.Remove(in.ID, in.KeepData); err != nil {
		return removeOut{}, err
	}
	k.publish("removed", in.ID, c)
	return removeOut{in.ID}, nil
}

// actionDef is packages.Action with the descriptions of its members.
type actionDef struct {
	ID          string          `json:"id" doc:"a-z, 0-9 and -" min:"1" max:"64"`
	Name        string          `json:"name" max:"200"`
	Description string          `json:"description,omitempty" max:"8000"`
	Warning     string          `json:"warning,omitempty" doc:"shown before it runs, which then needs a yes" max:"8000"`
	Allowed     string          `json:"allowed_statuses,omitempty" doc:"of the server" enum:"any,only-running,only-stopped"`
	Input       json.RawMessage `json:"input,omitempty" doc:"JSON Schema of an object; left out, it has no input"`
	Tool        string          `json:"tool,omitempty" doc:"the server's tool that runs, with the input as arguments" max:"1000"`
	Prompt      string          `json:"prompt,omitempty" doc:"or its prompt" max:"1000"`
	Command     string          `json:"command,omitempty" doc:"or a command line for sh, with the input in GATEHOUSE_ACTION_INPUT" max:"32000"`
	Severity    string          `json:"severity,omitempty" doc:"makes it a task until it has been run" enum:"optional,important,critical"`
	Reason      string          `json:"reason,omitempty" doc:"why, if it is a task" max:"8000"`
}

func actionsOf(all []actionDef) (actions []packages.Action) {
	for _, a := range all {
		actions = append(actions, packages.Action(a))
	}
	return actions
}
