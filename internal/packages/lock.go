package packages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/packages/pins"
	"gatehouse/tool"
)

// Lock returns packages as a lock file; all without ids. warnings say which values of variables were
// replaced by references to secrets.
func (h *Manager) Lock(ids []string) (l pins.Lock, warnings []string, err error) {
	all, err := h.List()
	if err != nil {
		return l, nil, err
	}
	l = pins.Lock{Version: pins.LockVersion, Packages: []pins.Locked{}}
	for _, i := range all {
		if len(ids) > 0 && !slices.Contains(ids, i.ID) {
			continue
		}
		if i.State != Installed {
			return l, nil, tool.Refuse(tool.CodeBusy, "package %s is %s; try again when that has ended", i.ID, i.State)
		}
		one, replaced, err := h.lockOne(&i.Record)
		if err != nil {
			return l, nil, fmt.Errorf("package %s: %w", i.ID, err)
		}
		for _, name := range replaced {
			warnings = append(warnings, fmt.Sprintf("%s: %s looks like a secret, so the lock file has %s in its place",
				i.ID, name, SecretReference(SecretName(i.ID, name))))
		}
		l.Packages = append(l.Packages, one)
	}
	for _, id := range ids {
		if !slices.ContainsFunc(l.Packages, func(p pins.Locked) bool { return p.Name == id }) {
			_, err := h.findPackage(id)
			return l, nil, err
		}
	}
	return l, warnings, nil
}

func (h *Manager) lockOne(r *Record) (l pins.Locked, replaced []string, err error) {
	source := r.Source
	if source.fromRegistry() && r.Version != "" {
		source = source.WithVersion(r.Version)
	}
	l = pins.Locked{
		Name: r.ID, Source: source.String(), Version: r.version(), Command: r.Command, Args: r.Args,
		PassHeaders: r.PassHeaders, Results: r.Results, Instances: r.Instances, Timeout: r.Timeout,
		TrustHints: r.TrustHints, NewTools: r.NewTools, Title: r.Title, Off: r.Off,
	}
	if r.Image != nil {
		if l.Image, err = json.Marshal(r.Image); err != nil {
			return l, nil, err
		}
	}
	if r.Start != OnDemand {
		l.Start = r.Start
	}
	secrets := r.Readable()
	values := func(of map[string]string) map[string]string {
		of = maps.Clone(of)
		for name := range of {
			if slices.Contains(secrets, name) {
				of[name] = SecretReference(SecretName(r.ID, name))
				replaced = append(replaced, name)
			}
		}
		return of
	}
	l.Env, l.Headers = values(r.Env), values(r.Headers)
	slices.Sort(replaced)
	l.SetPins(r.Pins)
	dir := filepath.Join(h.folder(r.ID), programTop(r.Program))
	switch r.Source.Kind {
	case NPM:
		l.NPMLock, err = readNPMLock(dir)
	case PyPI:
		l.PyPILock, err = readPyPILock(dir)
	}
	return l, replaced, err
}

const npmLock = "package-lock.json"

// readPyPILock returns the requirements of a program from PyPI, without comments.
func readPyPILock(dir string) (lines []string, err error) {
	b, err := os.ReadFile(filepath.Join(dir, pypiLock))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimRight(line, " \r\n"); line != "" && !strings.HasPrefix(strings.TrimSpace(line), "#") {
			lines = append(lines, line)
		}
	}
	return lines, err
}

// writeLocks writes the lock files of a package of a registry into the folder of a new program.
func writeLocks(dir string, r *Record, l *pins.Locked) error {
	switch {
	case r.Source.Kind == NPM && len(l.NPMLock) > 0:
		return writeNPMLock(dir, l.NPMLock)
	case r.Source.Kind == PyPI && len(l.PyPILock) > 0:
		for _, line := range l.PyPILock {
			text := strings.TrimSpace(line)
			if strings.HasPrefix(text, "-") && !strings.HasPrefix(text, "--hash=sha256:") ||
				strings.Contains(text, "://") || strings.ContainsAny(text, "\r\n") {
				return invalid("pypi_lock of the lock file: %q is no requirement with a version; nothing was installed",
					shorten(text, 200))
			}
		}
		err := os.WriteFile(filepath.Join(dir, wantedFile), []byte(requirementLines(r.Source.From)), 0o600)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, pypiLock), []byte(strings.Join(l.PyPILock, "\n")+"\n"), 0o600)
		}
		return err
	}
	return nil
}

// readNPMLock returns npm's lock file of a program without the addresses of registries.
func readNPMLock(dir string) (json.RawMessage, error) {
	b, err := os.ReadFile(filepath.Join(dir, npmLock))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var lock map[string]any
	if err := json.Unmarshal(b, &lock); err != nil {
		return nil, fmt.Errorf("npm's lock file: %w", err)
	}
	lock["name"] = "package" // npm takes that of the folder
	all, _ := lock["packages"].(map[string]any)
	for _, p := range all {
		if one, ok := p.(map[string]any); ok {
			delete(one, "resolved")
			delete(one, "name")
		}
	}
	delete(lock, "dependencies") // of older versions of npm, with addresses
	return json.Marshal(lock)
}

// writeNPMLock writes npm's lock file, and the package.json that fits it, into the folder of a new program.
func writeNPMLock(dir string, lock json.RawMessage) error {
	var l struct {
		Packages map[string]struct {
			Resolved     string            `json:"resolved"`
			Link         bool              `json:"link"`
			Dependencies map[string]string `json:"dependencies"`
		} `json:"packages"`
	}
	if err := json.Unmarshal(lock, &l); err != nil {
		return fmt.Errorf("npm_lock of the lock file: %w", err)
	}
	for name, p := range l.Packages {
		if p.Resolved != "" || p.Link {
			return invalid("npm_lock of the lock file: %s has an address of its own; nothing was installed",
				shorten(name, 200))
		}
	}
	manifest, err := json.Marshal(map[string]any{"private": true, "dependencies": l.Packages[""].Dependencies})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "package.json"), manifest, 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, npmLock), lock, 0o600)
	}
	return err
}

// lockedRecord returns the record of a package of a lock file.
func lockedRecord(l *pins.Locked) (Record, error) {
	r, err := Declared{
		Name: l.Name, Source: l.Source, Command: l.Command, Args: l.Args, Env: l.Env, Headers: l.Headers,
		PassHeaders: l.PassHeaders, Start: l.Start, Results: l.Results, Instances: l.Instances, Timeout: l.Timeout,
		TrustHints: l.TrustHints, NewTools: l.NewTools, Title: l.Title, Off: l.Off,
	}.Record()
	if err == nil && len(l.Image) > 0 {
		err = json.Unmarshal(l.Image, &r.Image)
	}
	return r, err
}

// SyncSteps returns what Sync would do.
func (h *Manager) SyncSteps(l pins.Lock) ([]Step, error) {
	plans, err := h.syncPlans(l)
	var steps []Step
	for _, p := range plans {
		steps = append(steps, p.step)
	}
	return steps, err
}

// syncPlan is what Sync does to one package.
type syncPlan struct {
	step   Step
	locked *pins.Locked
}

func (h *Manager) syncPlans(l pins.Lock) (plans []syncPlan, err error) {
	all, err := h.List()
	if err != nil {
		return nil, err
	}
	for n := range l.Packages {
		locked := &l.Packages[n]
		want, err := lockedRecord(locked)
		if err != nil {
			return nil, fmt.Errorf("package %s of the lock file: %w", shorten(locked.Name, longestID), err)
		}
		want.Declared = false // the settings do not name it
		plan := syncPlan{Step{ID: want.ID, Action: ToInstall, record: want}, locked}
		i := slices.IndexFunc(all, func(i Info) bool { return i.ID == want.ID })
		if i < 0 {
			plan.step.Lines = append(describeRecord("+", want), describeLocked("+", locked)...)
			plans = append(plans, plan)
			continue
		}
		is, _, err := h.lockOne(&all[i].Record)
		if err != nil {
			return nil, fmt.Errorf("package %s: %w", want.ID, err)
		}
		was := all[i].Record
		keepReadable(want.Env, was.Env, is.Env)
		keepReadable(want.Headers, was.Headers, is.Headers)
		declared, by := was.Declared, was.DeclaredBy
		was.Declared, want.DeclaredBy = true, by // what compareRecords makes it
		if source, err := ParseSource(is.Source); err == nil {
			was.Source = source
		}
		want.Nodes, want.Labels = was.Nodes, was.Labels // a lock file does not say where
		plan.step, _ = compareRecords(was, want, true)
		plan.step.record.Declared, plan.step.record.DeclaredBy = declared, by
		before, after := describeLocked("-", &is), describeLocked("+", locked)
		for _, line := range before {
			if !slices.Contains(after, "+"+line[1:]) {
				plan.step.Lines = append(plan.step.Lines, line)
			}
		}
		for _, line := range after {
			if !slices.Contains(before, "-"+line[1:]) {
				plan.step.Lines = append(plan.step.Lines, line)
			}
		}
		if locked.Digest != "" && locked.Digest != is.Digest {
			plan.step.Action = ToUpdate
		}
		if len(plan.step.Lines) > 0 || plan.step.Action == ToUpdate {
			plans = append(plans, plan)
		}
	}
	return plans, nil
}

// keepReadable lets values that are written out here, and are references in the lock file because they look
// like secrets, be as they are.
func keepReadable(want, was, locked map[string]string) {
	for name, value := range want {
		if here, ok := was[name]; ok && locked[name] == value {
			want[name] = here
		}
	}
}

// describeLocked returns the lines of what a lock file has beyond a record, each after a mark.
func describeLocked(mark string, l *pins.Locked) (lines []string) {
	if l.Digest != "" {
		lines = append(lines, mark+" digest: "+l.Digest)
	}
	for kind, of := range map[string]map[string]string{pins.Tool: l.Tools, pins.Prompt: l.Prompts} {
		for name, hash := range of {
			lines = append(lines, fmt.Sprintf("%s %s %s: %s", mark, kind, shorten(name, 200), hash))
		}
	}
	slices.Sort(lines)
	return lines
}

// Sync makes packages those of a lock file: it installs those that are missing, in the version and with the
// digest of the lock file, updates those that have another digest, and approves exactly what the lock file does.
// Other packages stay. A step that fails does not prevent the others.
func (h *Manager) Sync(ctx context.Context, l pins.Lock, work Part, report Report) ([]Step, error) {
	leave, err := h.addWork()
	if err != nil {
		return nil, err
	}
	defer leave()
	h.applying.Lock()
	defer h.applying.Unlock()
	plans, err := h.syncPlans(l)
	if err != nil {
		return nil, err
	}
	var steps []Step
	var errs []error
	for _, p := range plans {
		if work.leavesOut(p.step) {
			continue
		}
		if ctx.Err() != nil {
			return steps, context.Cause(ctx)
		}
		if p.step.Action != ToSet {
			p.step.record.Job = work.Job
		}
		if err := h.syncOne(ctx, &p, report); err != nil {
			p.step.Error = shorten(err.Error(), 500)
			errs = append(errs, fmt.Errorf("package %s: %w", p.step.ID, err))
		}
		steps = append(steps, p.step)
	}
	return steps, errors.Join(errs...)
}

func (h *Manager) syncOne(ctx context.Context, s *syncPlan, report Report) error {
	approved := s.locked.Pins(pins.Pin{By: byLockFile, At: time.Now().UTC().Truncate(time.Second)})
	r := s.step.record
	if s.step.Action == ToInstall {
		r.By = byLockFile
		_, err := h.Install(ctx, Plan{Record: r, Expect: approved, locked: s.locked}, report)
		return err
	}
	_, err := h.changePackage(s.step.ID, Updating, func(p *managedPackage, was Record) error {
		if was.State != Installed {
			return tool.Refuse(tool.CodeUnavailable, "package %s is not completely installed", p.id)
		}
		if s.step.Action == ToUpdate {
			r.Version = ""
			return p.reinstall(ctx, Plan{Record: r, Expect: approved, locked: s.locked, fresh: true}, report)
		}
		r.Pins, r.Previous, r.Program, r.Source = approved, was.Previous, was.Program, was.Source
		err := p.saveRecord(r)
		if err == nil {
			h.invalidateTools()
		}
		return err
	})
	return err
}
