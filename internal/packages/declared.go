package packages

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/tool"
)

// Declared is a package that the settings of a host name. The host installs it, and
// removes it when it is no longer named.
type Declared struct {
	Name        string            `doc:"Prefix of its tools: a-z, 0-9 and -." need:"yes"`
	Source      string            `doc:"npm:name@version, pypi:name==version, crate:name@version, go:module/path@version, mcpb:path, binary:path, folder:path, archive:path, openapi:path, url:address or command; left out, command."`
	Command     string            `doc:"The program; may be left out if a package.json names it."`
	Args        []string          `doc:"Its arguments; ${data} stands for the package's data folder, ${program} for its program's."`
	Env         map[string]string `doc:"Its environment; ${secret:NAME} stands for a secret."`
	Headers     map[string]string `doc:"Headers of requests to a remote server; ${secret:NAME} stands for a secret."`
	PassHeaders []string          `yaml:"pass_headers" doc:"Headers of a client's request that go on to a remote server with it, by name."`
	Login       string            `doc:"Whose login is used at a remote server that requires one. shared: one that an administrator makes (the default); principal: each caller's own." enum:"shared,principal"`
	OAuth       OAuth             `yaml:"oauth" doc:"How this host identifies itself to the authorization server of a remote server; left out, it registers itself."`
	Start       string            `doc:"demand: at the first call (the default); always: with the host." enum:"demand,always"`
	Results     string            `doc:"text: omit structured content from its results." enum:"text"`
	Instances   string            `doc:"Whom one instance of its server serves. auto: callers that can answer questions get instances of their own (the default); shared: all callers, whom the server cannot ask; principal: one caller; session: one session." enum:"auto,shared,principal,session"`
	Timeout     string            `doc:"Time for one call, such as 30s; left out, that of house.answer."`
	TrustHints  bool              `doc:"Believe what the server says that its tools do: hints such as readOnlyHint are passed on, rules and --read-only use them, and a call of a tool that is read-only or idempotent is sent again after a lost connection."`
	NewTools    string            `doc:"What becomes of tools and prompts that an update or the server adds: ask leaves them out until an administrator approves them, allow offers them; left out, ask."`
	Title       string            `doc:"Display name; left out, the server's."`
	Off         []string          `doc:"Tools that are not offered, by their names on this host."`
	Nodes       string            `doc:"In a cluster, where its server runs. one: on one node for all (the default); each: on each node, for the callers of that." enum:"one,each"`
	Labels      []string          `doc:"In a cluster, what a node must have to run its server, as key=value."`
	Trust       bool              `doc:"Run it as the user of this host, in no sandbox."`
	Grants      Grants            `doc:"What it may use in its sandbox, beside its own folders and the programs of the machine."`
}

// Record returns the record of a declared package, checked.
func (d Declared) Record() (Record, error) {
	source, err := ParseSource(d.Source)
	if err != nil {
		return Record{}, err
	}
	off := slices.Sorted(slices.Values(d.Off))
	r := Record{
		ID: d.Name, Title: d.Title, Source: source, Command: d.Command, Args: d.Args, Env: d.Env,
		Headers: d.Headers, PassHeaders: d.PassHeaders, Login: d.Login, OAuth: d.OAuth.Given(),
		Start: cmp.Or(d.Start, OnDemand), Results: d.Results, Instances: d.Instances, Timeout: d.Timeout,
		TrustHints: d.TrustHints, NewTools: d.NewTools, Off: slices.Compact(off), Declared: true, Grants: d.Grants,
		Nodes: d.Nodes, Labels: d.Labels,
	}
	if d.Trust {
		r.Confinement = Trusted
	}
	err = r.checkRecord()
	return r, err
}

// What Apply does to a package.
const (
	ToInstall = "install"
	ToUpdate  = "update" // it is installed again
	ToSet     = "set"    // only its record changes
	ToRemove  = "remove"
)

// Step is one thing that Apply does.
type Step struct {
	ID     string   `json:"id"`
	Action string   `json:"action"`
	Lines  []string `json:"lines,omitempty"` // the difference: "- was" and "+ will be", without values of variables
	Error  string   `json:"error,omitempty"`

	record Record
}

// NeedsPath reports whether the step installs from a path of this machine.
func (s *Step) NeedsPath() bool {
	return (s.Action == ToInstall || s.Action == ToUpdate) && s.record.Source.FromPath()
}

// Part is what a job does of a comparison. The zero value is all of it, outside of a job.
type Part struct {
	Job  string   // for ReclaimAll
	By   string   // the settings that declare the packages; "" for those of this host
	Only []string // ids of packages; nil for all
}

func (w *Part) leavesOut(s Step) bool { return w.Only != nil && !slices.Contains(w.Only, s.ID) }

// DeclaredBy returns the name of this host's settings, for Part.By.
func (h *Manager) DeclaredBy() string { return h.opts.SettingsFile }

// Steps compares declared packages with those that are installed. It changes nothing. by are the settings that declare
// them; "" for those of this host.
func (h *Manager) Steps(declared []Declared, by string) (steps []Step, err error) {
	installed := map[string]Record{}
	if all, err := h.List(); err != nil {
		return nil, err
	} else {
		for _, i := range all {
			installed[i.ID] = i.Record
		}
	}
	named := map[string]bool{}
	for _, d := range declared {
		want, err := d.Record()
		if err != nil {
			return nil, fmt.Errorf("package %s: %w", shorten(d.Name, longestID), err)
		}
		if named[want.ID] {
			return nil, invalid("package %s is declared twice", want.ID)
		}
		named[want.ID] = true
		want.DeclaredBy = cmp.Or(by, h.opts.SettingsFile)
		was, there := installed[want.ID]
		if step, differs := compareRecords(was, want, there); differs {
			steps = append(steps, step)
		}
	}
	for id, was := range installed {
		if was.Declared && !named[id] {
			steps = append(steps, Step{ID: id, Action: ToRemove, Lines: describeRecord("-", was)})
		}
	}
	slices.SortFunc(steps, func(a, b Step) int { return compare(a.ID, b.ID) })
	return steps, nil
}

func compareRecords(was, want Record, there bool) (s Step, differs bool) {
	if !there {
		return Step{ID: want.ID, Action: ToInstall, Lines: describeRecord("+", want), record: want}, true
	}
	// What the settings do not say stays.
	want.Title, want.By = cmp.Or(want.Title, was.Title), was.By
	next := was
	next.Title, next.Source, next.Command, next.Args, next.Env = want.Title, want.Source, want.Command, want.Args,
		want.Env
	next.Headers, next.PassHeaders = want.Headers, want.PassHeaders
	next.Login, next.OAuth = want.Login, want.OAuth
	next.Timeout, next.TrustHints = want.Timeout, want.TrustHints
	next.Start, next.Results, next.Off, next.Declared = want.Start, want.Results, want.Off, true
	next.DeclaredBy = want.DeclaredBy
	next.Instances, next.NewTools = want.Instances, want.NewTools
	next.Grants = want.Grants
	next.Nodes, next.Labels = want.Nodes, want.Labels
	if want.Confinement != "" || was.Confinement == Trusted {
		next.Confinement = cmp.Or(want.Confinement, Sandboxed)
	}
	s = Step{ID: want.ID, Action: ToSet, record: next}
	if was.Source != want.Source || was.Command != want.Command || !slices.Equal(was.Args, want.Args) ||
		!maps.Equal(was.Env, want.Env) || !maps.Equal(was.Headers, want.Headers) {
		s.Action = ToUpdate
		if was.Source != want.Source {
			s.record.Version = ""
		}
	}
	before, after := describeRecord("-", was), describeRecord("+", next)
	for _, line := range before {
		if !slices.Contains(after, "+"+line[1:]) {
			s.Lines = append(s.Lines, line)
		}
	}
	for _, line := range after {
		if !slices.Contains(before, "-"+line[1:]) {
			s.Lines = append(s.Lines, line)
		}
	}
	if was.Declared && was.DeclaredBy == "" && next.DeclaredBy != "" {
		s.Lines = append(s.Lines, "+ declared by: "+next.DeclaredBy)
	}
	for _, name := range slices.Sorted(maps.Keys(want.Env)) {
		if old, ok := was.Env[name]; ok && old != want.Env[name] {
			s.Lines = append(s.Lines, "~ env "+name)
		}
	}
	return s, s.Action == ToUpdate || len(s.Lines) > 0
}

// describeRecord returns the lines of a record that settings can change, each after a
// mark. A variable shows the secrets that it refers to, and never its value.
func describeRecord(mark string, r Record) (lines []string) {
	add := func(name, value string) {
		if value != "" {
			lines = append(lines, fmt.Sprintf("%s %s: %s", mark, name, value))
		}
	}
	list := func(all []string) string {
		if len(all) == 0 {
			return ""
		}
		b, _ := json.Marshal(all) // strings only
		return string(b)
	}
	add("source", r.Source.String())
	add("command", r.Command)
	add("args", list(r.Args))
	values := func(what string, of map[string]string) {
		for _, name := range slices.Sorted(maps.Keys(of)) {
			shown := "set"
			if refers, _ := secret.Names(of[name]); len(refers) > 0 {
				shown = "secret " + strings.Join(refers, ", ")
			}
			add(what+" "+name, shown)
		}
	}
	values("env", r.Env)
	values("header", r.Headers)
	add("pass_headers", list(r.PassHeaders))
	add("login", r.Login)
	if o := r.OAuth; o != nil {
		b, _ := json.Marshal(o) // strings only; secrets are references
		add("oauth", string(b))
	}
	add("start", r.Start)
	add("results", r.Results)
	add("instances", r.Instances)
	add("timeout", r.Timeout)
	if r.TrustHints {
		add("trust_hints", "yes")
	}
	add("new_tools", r.NewTools)
	add("nodes", r.Nodes)
	add("labels", list(r.Labels))
	add("title", r.Title)
	add("confinement", r.Confinement)
	grants := r.Grants
	for _, one := range []struct {
		name string
		list []string
	}{
		{"folders", grants.Folders}, {"hosts", grants.Hosts}, {"sockets", grants.Sockets}, {"devices", grants.Devices},
	} {
		add(one.name, list(one.list))
	}
	for _, one := range []struct {
		name  string
		limit int
	}{{"memory_mib", grants.Memory}, {"processes", grants.Processes}, {"disk_mib", grants.Disk}} {
		if one.limit != 0 {
			add(one.name, fmt.Sprint(one.limit))
		}
	}
	add("off", list(r.Off))
	if r.Declared {
		add("declared", "yes")
	}
	return lines
}

// Apply makes the installed packages those that are declared: it installs what is
// missing, changes what differs, and removes packages that an earlier Apply installed
// and that are no longer declared; their data are kept. Packages that were installed
// otherwise stay. A step that fails does not prevent the others.
func (h *Manager) Apply(ctx context.Context, declared []Declared, work Part, report Report) ([]Step, error) {
	return h.applySteps(ctx, declared, work, work.leavesOut, report)
}

// applySteps leaves out the steps for which skip returns true.
func (h *Manager) applySteps(
	ctx context.Context, declared []Declared, work Part, skip func(Step) bool, report Report,
) ([]Step, error) {
	leave, err := h.addWork()
	if err != nil {
		return nil, err
	}
	defer leave()
	h.applying.Lock()
	defer h.applying.Unlock()
	steps, err := h.Steps(declared, work.By)
	if err != nil {
		return nil, err
	}
	steps = slices.DeleteFunc(steps, skip)
	var errs []error
	for i := range steps {
		if ctx.Err() != nil {
			return steps[:i], context.Cause(ctx)
		}
		if err := h.applyStep(ctx, &steps[i], work.Job, report); err != nil {
			steps[i].Error = shorten(err.Error(), 500)
			errs = append(errs, fmt.Errorf("package %s: %w", steps[i].ID, err))
		}
	}
	return steps, errors.Join(errs...)
}

func (h *Manager) applyStep(ctx context.Context, s *Step, job string, report Report) error {
	if s.Action != ToSet {
		s.record.Job = job
	}
	switch s.Action {
	case ToInstall:
		s.record.By = bySettings
		_, err := h.Install(ctx, Plan{Record: s.record}, report)
		return err
	case ToRemove:
		return h.remove(s.ID, true, job)
	}
	_, err := h.changePackage(s.ID, Updating, func(p *managedPackage, was Record) error {
		if was.State != Installed {
			return tool.Refuse(tool.CodeUnavailable, "package %s is not completely installed", p.id)
		}
		if s.Action == ToUpdate {
			return p.reinstall(ctx, Plan{Record: s.record, fresh: was.Source != s.record.Source}, report)
		}
		return p.applyRecord(was, s.record)
	})
	return err
}

// applyRecord stores the record that the settings declare, of the program that is installed.
func (p *managedPackage) applyRecord(was, now Record) error {
	now.Pins, now.Previous = was.Pins, was.Previous
	if now.Program != was.Program {
		return fmt.Errorf("package %s was updated since the settings were compared; apply them again", p.id)
	}
	if err := p.saveRecord(now); err != nil {
		return err
	}
	p.manager.invalidateTools()
	if sameConfinement(was, now) {
		return nil
	}
	return p.stopServers()
}

// bySettings is who installed a package that the settings declare.
const bySettings = "settings"

// Declare sets the packages that the settings name. Run applies them, and again after
// each call.
func (h *Manager) Declare(declared []Declared) {
	h.mu.Lock()
	h.declared = declared
	h.mu.Unlock()
	h.wakeApply()
}

// wakeApply has Run apply the declared packages.
func (h *Manager) wakeApply() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

func (h *Manager) declaredNow() []Declared {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.declared
}

// declares reports whether the settings name packages, or named some that are there.
func (h *Manager) declares() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.declared) > 0
}

// declaredElsewhere reports whether a step would change what the settings of another
// host on this data folder declare. Otherwise two hosts would undo each other's changes.
func (h *Manager) declaredElsewhere(s Step) bool {
	p, err := h.findPackage(s.ID)
	if err != nil {
		return false
	}
	p.mu.Lock()
	by := p.rec.DeclaredBy
	p.mu.Unlock()
	if by == "" || by == h.opts.SettingsFile {
		return false
	}
	here := by
	if c := h.opts.Cluster; c != nil {
		here = strings.TrimPrefix(by, c.ID()+":")
	}
	if _, err := os.Stat(here); errors.Is(err, fs.ErrNotExist) && !h.declaredByNode(by) {
		return false // it was moved or removed
	}
	h.log.Warn("a package stays as it is because other settings declare it; "+
		"use one data folder for each, or gatehouse package apply",
		"package", s.ID, "declared_by", by, "not_done", s.Action)
	return true
}

// applyPause is how long a node waits for another one that applies the same settings.
const applyPause = 2 * time.Second

// anotherNode reports whether an error may be because another node changes the same packages.
func (h *Manager) anotherNode(err error) bool {
	r, ok := errors.AsType[*tool.Refusal](err)
	return ok && h.opts.Cluster != nil &&
		(r.Code == tool.CodeBusy || r.Code == tool.CodeExists || r.Code == tool.CodeStale)
}

// applyDeclared applies the declared packages in the background and reports the result.
func (h *Manager) applyDeclared() {
	steps, err := h.applySteps(h.ctx, h.declaredNow(), Part{}, h.declaredElsewhere, nil)
	for end := time.Now().Add(h.opts.Install); err != nil && h.anotherNode(err) && time.Now().Before(end); {
		if sleep(h.ctx, applyPause) != nil {
			return
		}
		steps, err = h.applySteps(h.ctx, h.declaredNow(), Part{}, h.declaredElsewhere, nil)
	}
	for _, s := range steps {
		if s.Error == "" {
			h.log.Info("the settings changed a package", "package", s.ID, "action", s.Action)
		}
	}
	if err != nil && h.ctx.Err() == nil {
		h.log.Error("packages of the settings", "err", err)
		if h.opts.Unapplied != nil {
			h.opts.Unapplied(err)
		}
	}
}
