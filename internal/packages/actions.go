package packages

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/schema"
	"gatehouse/tool"
)

// Action is something that an administrator can do with a package, besides calling its tools: set it up, repair
// it, clean it. It is declared in the record.
type Action struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Warning     string `json:"warning,omitempty"` // shown before it runs, which then needs a yes
	// AnyStatus, OnlyRunning or OnlyStopped; "" means any
	Allowed string          `json:"allowed_statuses,omitempty"`
	Input   json.RawMessage `json:"input,omitempty"` // JSON Schema of an object; nil means no input

	// One of these runs: a tool or prompt by the server's name, with the input as arguments, or a command line for
	// sh, which runs as Manager.Shell does, with the input as JSON in GATEHOUSE_ACTION_INPUT.
	Tool    string `json:"tool,omitempty"`
	Prompt  string `json:"prompt,omitempty"`
	Command string `json:"command,omitempty"`

	// Severity makes it a task until it has been run: SeverityOptional, SeverityImportant or SeverityCritical.
	Severity string `json:"severity,omitempty"`
	Reason   string `json:"reason,omitempty"` // why, if it is a task
}

// In which statuses of its server an action may run.
const (
	AnyStatus   = "any"
	OnlyRunning = "only-running"
	OnlyStopped = "only-stopped"
)

// Severities of tasks.
const (
	SeverityOptional  = "optional"
	SeverityImportant = "important"
	SeverityCritical  = "critical"
)

const (
	mostActions    = 50
	maxActionInput = 64 << 10 // bytes
)

var actionForm = lazy(`^[a-z][a-z0-9-]{0,63}$`)

// checkActions validates the actions of a record.
func (r *Record) checkActions() error {
	if len(r.Actions) > mostActions {
		return invalid("actions: at most %d", mostActions)
	}
	seen := map[string]bool{}
	for _, a := range r.Actions {
		runs := 0
		for _, one := range []string{a.Tool, a.Prompt, a.Command} {
			if one != "" {
				runs++
			}
		}
		switch {
		case !actionForm().MatchString(a.ID) || seen[a.ID]:
			return invalid("actions: id %q: expected a-z, 0-9 and -, once", shorten(a.ID, 100))
		case a.Name == "" || len(a.Name)+len(a.Description)+len(a.Warning)+len(a.Reason) > mostDescription:
			return invalid("action %s: expected a name, and at most %d bytes of text", a.ID, mostDescription)
		case runs != 1:
			return invalid("action %s: expected one of tool, prompt and command", a.ID)
		case len(a.Command) > maxText || strings.ContainsRune(a.Command, 0):
			return invalid("action %s: command: at most %d bytes, none of them zero", a.ID, maxText)
		case !slices.Contains([]string{"", AnyStatus, OnlyRunning, OnlyStopped}, a.Allowed):
			return invalid("action %s: allowed_statuses %q: expected %s, %s or %s", a.ID, a.Allowed, AnyStatus,
				OnlyRunning, OnlyStopped)
		case !slices.Contains([]string{"", SeverityOptional, SeverityImportant, SeverityCritical}, a.Severity):
			return invalid("action %s: severity %q: expected %s, %s or %s", a.ID, a.Severity, SeverityOptional,
				SeverityImportant, SeverityCritical)
		}
		seen[a.ID] = true
		if len(a.Input) > 0 {
			if kind, _ := stringMember(a.Input, "type"); kind != "object" || rawjson.Check(a.Input, 0) != nil {
				return invalid("action %s: input: expected a JSON Schema of type object", a.ID)
			}
			if _, err := schema.Compile(a.Input); err != nil {
				return invalid("action %s: input: %v", a.ID, err)
			}
		}
	}
	return nil
}

// PackageTask is what a package still needs.
type PackageTask struct {
	ID       string `json:"id" doc:"for package_action_clear_task"`
	Kind     string `json:"kind" doc:"secret, login, review or action" enum:"secret,login,review,action"`
	Severity string `json:"severity" enum:"optional,important,critical"`
	Reason   string `json:"reason" doc:"what is missing, and what to do"`
	Action   string `json:"action,omitempty" doc:"the action that does it"`
}

// PublicAction is an action as every user may see it.
type PublicAction struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Warning     string `json:"warning,omitempty"`
	Allowed     string `json:"allowed_statuses"`
	Input       bool   `json:"has_input"`
	Disabled    string `json:"disabled,omitempty" doc:"why it cannot be run now"`
}

// needs returns what the package still needs; p.mu is held.
func (p *managedPackage) needs() (all []PackageTask) {
	r := &p.rec
	if r.State != Installed {
		return nil
	}
	add := func(t PackageTask) {
		if !slices.Contains(r.Cleared, t.ID) {
			all = append(all, t)
		}
	}
	for _, name := range p.missingSecrets() {
		add(PackageTask{ID: "secret:" + name, Kind: "secret", Severity: SeverityCritical,
			Reason: fmt.Sprintf("the secret %s is not stored: gatehouse secret set %[1]s", name)})
	}
	if why := p.loginNeeded(r); why != "" {
		add(PackageTask{ID: "login", Kind: "login", Severity: SeverityImportant,
			Reason: fmt.Sprintf("%s: gatehouse package login %s", why, p.id)})
	}
	if n := len(p.unapproved()); n > 0 && slices.ContainsFunc(p.unapproved(),
		func(c Change) bool { return c.State != "refused" }) {
		add(PackageTask{ID: "review", Kind: "review", Severity: SeverityImportant,
			Reason: fmt.Sprintf("%d tools are not offered until they are approved: gatehouse package changes %s", n,
				p.id)})
	}
	for _, a := range r.Actions {
		if a.Severity != "" {
			add(PackageTask{ID: "action:" + a.ID, Kind: "action", Severity: a.Severity, Action: a.ID,
				Reason: cmp.Or(a.Reason, a.Name)})
		}
	}
	return all
}

// secretsKept is how long it is kept which secrets are missing.
const secretsKept = 5 * time.Second

// missingSecrets returns the secrets that the record refers to and that are not stored; p.mu is held.
func (p *managedPackage) missingSecrets() []string {
	if p.manager.opts.Secrets == nil || len(p.rec.Env)+len(p.rec.Headers) == 0 {
		return nil
	}
	if time.Since(p.missingAt) < secretsKept {
		return p.missing
	}
	var named []string
	for _, of := range []map[string]string{p.rec.Env, p.rec.Headers} {
		for _, value := range of {
			names, _ := secret.Names(value)
			named = append(named, names...)
		}
	}
	slices.Sort(named)
	p.missing, p.missingAt = nil, time.Now()
	for _, name := range slices.Compact(named) {
		if _, err := p.manager.opts.Secrets(map[string]string{"value": SecretReference(name)}); err != nil {
			p.missing = append(p.missing, name)
		}
	}
	return p.missing
}

// publicActions returns the actions as they are shown; p.mu is held.
func (p *managedPackage) publicActions() map[string]PublicAction {
	if len(p.rec.Actions) == 0 {
		return nil
	}
	all := map[string]PublicAction{}
	for _, a := range p.rec.Actions {
		all[a.ID] = PublicAction{a.Name, a.Description, a.Warning, cmp.Or(a.Allowed, AnyStatus), len(a.Input) > 0,
			p.actionDisabled(&a)}
	}
	return all
}

// actionDisabled returns why an action cannot run now, or ""; p.mu is held.
func (p *managedPackage) actionDisabled(a *Action) string {
	running := p.shared.running != nil || p.shared.starting != nil
	switch {
	case p.rec.State != Installed || p.activity != "":
		return "the package is busy"
	case a.Allowed == OnlyRunning && !running:
		return "its server does not run; package_start starts it"
	case a.Allowed == OnlyStopped && running:
		return "its server runs; package_stop stops it"
	}
	return ""
}

// FindAction returns an action of a package, and why it cannot be run now, "" if it can.
func (h *Manager) FindAction(id, action string) (a Action, disabled string, err error) {
	p, err := h.findPackage(id)
	if err != nil {
		return a, "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var ids []string
	for _, a := range p.rec.Actions {
		if a.ID == action {
			return a, p.actionDisabled(&a), nil
		}
		ids = append(ids, a.ID)
	}
	return a, "", &tool.Refusal{
		Code: tool.CodeNotFound, Message: fmt.Sprintf("package %s has no action %q", id, shorten(action, 100)),
		Next: "It has " + cmp.Or(strings.Join(ids, ", "), "none") + ".",
	}
}

// CheckInput checks the input of an action and fills in the defaults of its schema.
func (a *Action) CheckInput(input json.RawMessage) (json.RawMessage, error) {
	empty := len(bytes.TrimSpace(input)) == 0 || string(bytes.TrimSpace(input)) == "null"
	switch {
	case len(a.Input) == 0 && empty:
		return nil, nil
	case len(a.Input) == 0:
		return nil, invalid("input: the action %s has none", a.ID)
	case empty:
		input = json.RawMessage(`{}`)
	case len(input) > maxActionInput:
		return nil, tool.Refuse(tool.CodeTooLarge, "input: %d bytes; at most %d", len(input), maxActionInput)
	}
	s, err := schema.Compile(a.Input)
	if err == nil {
		err = rawjson.Check(input, 0)
	}
	if err == nil {
		input, err = s.Canonical(input)
	}
	if err != nil {
		return nil, &tool.Refusal{Code: tool.CodeInvalidArguments, Message: "input: " + err.Error(),
			Next: "package_action_get_input returns the schema of the input."}
	}
	return input, nil
}

// ActionResult is what came of an action.
type ActionResult struct {
	Text   string // what the tool, the prompt or the command has said
	Failed bool   // the tool's result is an error, or the command's exit code is not 0
}

const mostActionText = 64 << 10 // bytes

// RunAction runs an action with an input that CheckInput returned. An action that succeeds is no task any more.
func (h *Manager) RunAction(
	ctx context.Context,
	id string,
	a Action,
	input json.RawMessage,
) (r ActionResult, err error) {
	if now, disabled, err := h.FindAction(id, a.ID); err != nil {
		return r, err
	} else if disabled != "" {
		return r, tool.Refuse(tool.CodeUnavailable, "action %s of package %s: %s; nothing was run", now.ID,
			id, disabled)
	}
	var raw json.RawMessage
	switch {
	case a.Tool != "":
		raw, err = h.Call(ctx, id, a.Tool, input, nil, nil)
		r.Text = contentText(raw, "content")
		failed, _ := rawjson.Get(raw, "isError")
		r.Failed = string(failed) == "true"
	case a.Prompt != "":
		raw, err = h.Prompt(ctx, id, a.Prompt, input, nil, nil)
		r.Text = contentText(raw, "messages")
	default:
		var out boundedBuffer
		var end ShellResult
		end, err = h.runCommand(ctx, id, a.Command, []string{"GATEHOUSE_ACTION_INPUT=" + string(input)}, MaxShellTime,
			&out, &out)
		r.Text, r.Failed = strings.ToValidUTF8(out.String(), "\uFFFD"), end.Exit != 0 || end.TimedOut
	}
	if err != nil {
		return r, err
	}
	if !r.Failed {
		err = h.clearTask(id, "action:"+a.ID)
	}
	return r, err
}

// contentText returns the text in the content of a result, or of the messages of a prompt.
func contentText(raw json.RawMessage, member string) string {
	var said []string
	list, _ := rawjson.Get(raw, member)
	for block := range rawjson.Elements(list) {
		if inner, ok := rawjson.Get(block, "content"); ok && member == "messages" {
			block = inner
		}
		if text, ok := stringMember(block, "text"); ok {
			said = append(said, text)
		}
	}
	text := strings.Join(said, "\n")
	return text[:min(len(text), mostActionText)]
}

// boundedBuffer keeps the beginning of what is written to it.
type boundedBuffer struct{ bytes.Buffer }

// Write implements io.Writer.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), mostActionText-b.Len())])
	return len(p), nil
}

// ClearTask removes a task of a package, as if it were done. One that is critical needs force.
func (h *Manager) ClearTask(id, task string, force bool) error {
	p, err := h.findPackage(id)
	if err != nil {
		return err
	}
	p.mu.Lock()
	all := p.needs()
	p.mu.Unlock()
	i := slices.IndexFunc(all, func(t PackageTask) bool { return t.ID == task })
	switch {
	case i < 0:
		return &tool.Refusal{Code: tool.CodeNotFound,
			Message: fmt.Sprintf("package %s has no task %q", id, shorten(task, 100)),
			Next:    "package_info lists its tasks."}
	case all[i].Kind == "review":
		return &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: "a review is cleared by a decision; nothing was changed",
			Next:    "package_approve approves or refuses what waits.",
		}
	case all[i].Severity == SeverityCritical && !force:
		return &tool.Refusal{Code: tool.CodeDenied,
			Message: fmt.Sprintf("task %s of package %s is critical; nothing was changed", task, id),
			Next:    "Do what it says, or set force."}
	}
	return h.clearTask(id, task)
}

func (h *Manager) clearTask(id, task string) error {
	leave, err := h.addWork()
	if err != nil {
		return err
	}
	defer leave()
	p, err := h.findPackage(id)
	if err != nil {
		return err
	}
	done, err := p.claim("clearing a task")
	if err != nil {
		return err
	}
	defer done()
	p.mu.Lock()
	r := p.rec
	p.mu.Unlock()
	if slices.Contains(r.Cleared, task) {
		return nil
	}
	known := map[string]bool{} // tasks of actions and secrets that the record no longer has do not stay
	for _, a := range r.Actions {
		known["action:"+a.ID] = true
	}
	for _, of := range []map[string]string{r.Env, r.Headers} {
		for value := range maps.Values(of) {
			names, _ := secret.Names(value)
			for _, name := range names {
				known["secret:"+name] = true
			}
		}
	}
	r.Cleared = append(slices.DeleteFunc(slices.Clone(r.Cleared), func(t string) bool { return !known[t] }), task)
	return p.saveRecord(r)
}
