package packages

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/dispatch/progress"
	"gatehouse/internal/packages/attest"
	"gatehouse/internal/packages/pins"
	"gatehouse/tool"
)

// Phases of an installation.
const (
	PhaseFetch = "fetch"
	PhaseTry   = "try"
	PhaseKeep  = "keep"
)

// Report is told how far something is; nil is told nothing.
type Report func(progress.Progress)

// Plan describes a package to install.
type Plan struct {
	Record
	// Open opens the folder that contains the source folder or archive, and
	// returns the source's name in it, so that a path that changed since it
	// was checked is not followed. nil opens the path of the source.
	Open func() (*os.Root, string, error)

	// Expect is what a lock file says of the package: it is not installed if its digest is another,
	// and only what the lock file has pinned is approved. nil expects nothing.
	Expect *pins.Pins

	locked *pins.Locked // has the lock files of npm or uv by which the program is installed; nil for none

	// AcceptSource installs an update although its attestation has vanished or names another source.
	AcceptSource bool

	fresh bool // npm looks for the newest version that the source allows, not for that of the lock file
}

// Check validates a plan without executing it.
func (h *Manager) Check(plan *Plan) error {
	r := &plan.Record
	if r.Start == "" {
		r.Start = OnDemand
	}
	if r.Confinement == "" && !r.Source.IsRemote() {
		r.Confinement = h.opts.Confinement
	}
	if err := r.checkRecord(); err != nil {
		return err
	}
	if granted, err := r.Grants.Resolve(); err != nil {
		return err
	} else {
		r.Grants = granted
	}
	if missing := append(r.ungranted(), r.ungrantedMounts()...); len(missing) > 0 {
		return &tool.Refusal{
			Code: tool.CodeInvalidArguments,
			Message: fmt.Sprintf(
				"args and mounts name %s of this machine, which the sandbox of the package does not have",
				strings.Join(missing, " and "),
			),
			Next: fmt.Sprintf(
				"Grant it with --allow-folder %s, or %[1]s:ro to read alone (grants.folders of the tool); "+
					"--trust runs the package in no sandbox.",
				missing[0],
			),
		}
	}
	if err := h.checkPlacement(r); err != nil {
		return err
	}
	if name, bad := collides(r.ID, reserved); bad {
		return invalid("id %q: names that begin with %s are reserved for this host; choose another", r.ID, name)
	}
	if h.opts.Taken != nil {
		if name, bad := collides(r.ID, h.opts.Taken()); bad {
			return invalid("id %q: its tools could be taken for those of the module %s; choose another", r.ID, name)
		}
	}
	if h.opts.Lazy {
		if _, err := h.acquire(); err != nil { // before the first package no host has the folder
			return fmt.Errorf("packages: %w", err)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	others := slices.Sorted(maps.Keys(h.all))
	switch {
	case h.release == nil:
		return h.errOtherHost()
	case h.all[r.ID] != nil:
		return &tool.Refusal{
			Code:    tool.CodeExists,
			Message: fmt.Sprintf("there is a package %q already", r.ID),
			Next:    "package_rebuild installs it again, also another version; package_remove removes it.",
		}
	case len(h.all) >= h.opts.Most:
		return tool.Refuse(tool.CodeTooLarge, "there are %d packages, which is as many as can be", len(h.all))
	}
	if name, bad := collides(r.ID, others); bad {
		return invalid("id %q: its tools could be taken for those of the package %s; choose another", r.ID, name)
	}
	return nil
}

// Install fetches a program, checks that it is an MCP server, and keeps it. If it fails
// it removes everything except the data of an earlier package with that id.
func (h *Manager) Install(ctx context.Context, plan Plan, report Report) (i Info, err error) {
	leave, err := h.addWork()
	if err != nil {
		return i, err
	}
	defer leave()
	if err := h.Check(&plan); err != nil {
		return i, err
	}
	r := plan.Record
	r.State, r.Installed, r.Server, r.Program = Installing, time.Now().UTC().Truncate(time.Second), Server{}, ""
	p := h.newPackage(r)
	if _, err := os.Stat(p.data()); err == nil {
		p.rec.Keep = true
	}
	r = p.rec
	plan.Record = r
	p.activity = Installing
	if !h.addPackage(p) {
		return i, h.Check(&plan)
	}
	release, err := h.lockPackage(p.id)
	if err != nil {
		h.unregister(p)
		return i, err
	}
	defer release()
	if err := p.saveRecord(r); err != nil {
		h.unregister(p)
		return i, err
	}
	if err := p.install(ctx, plan, report); err != nil {
		return i, errors.Join(err, p.removeFailed())
	}
	h.invalidateTools()
	p.mu.Lock()
	p.activity, p.progress = "", nil
	p.mu.Unlock()
	p.publishState()
	p.startIfWanted(false)
	return p.info(), nil
}

// addPackage adds a package. It returns false if the id is in use.
func (h *Manager) addPackage(p *managedPackage) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all[p.id] != nil {
		return false
	}
	h.all[p.id] = p
	return true
}

// unregister removes a package from the manager.
func (h *Manager) unregister(p *managedPackage) {
	p.mu.Lock()
	p.removed = true
	p.mu.Unlock()
	p.journal.closeFiles()
	h.mu.Lock()
	if h.all[p.id] == p {
		delete(h.all, p.id)
	}
	h.mu.Unlock()
	h.invalidateTools()
	p.publishState()
}

// removeFailed removes a package whose first installation failed.
func (p *managedPackage) removeFailed() error {
	err := p.stopServers()
	keepThere := p.rec.Keep || p.manager.opts.Cluster != nil && p.manager.keptData(p.id)
	err = errors.Join(err, p.erase(p.rec.Keep), p.manager.forgetShared(p.id, keepThere),
		p.manager.deleteRecord(p.id, p.stored)) // no other goroutine changes the record
	p.manager.unregister(p)
	p.manager.collect() // a command that installs ends soon after
	return err
}

// install fetches a program into a new folder, tries it, and makes it the package's
// program. The server that ran before has been stopped when it returns.
func (p *managedPackage) install(ctx context.Context, plan Plan, report Report) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	p.setAbort(end)
	defer p.setAbort(nil)
	defer context.AfterFunc(p.manager.ctx, func() { end(errClosing) })()
	ctx, cancel := context.WithTimeoutCause(
		ctx,
		p.manager.opts.Install,
		fmt.Errorf("it was not installed within %v", p.manager.opts.Install),
	)
	defer cancel()
	track := progress.New(func(now progress.Progress) {
		p.mu.Lock()
		p.progress = &now
		p.mu.Unlock()
		p.publishState()
		if report != nil {
			report(now)
		}
	}, PhaseFetch, PhaseTry, PhaseKeep)

	r := plan.Record
	track.At(PhaseFetch, 0, 0, "")
	if r.Source.Kind != Command && !r.Source.IsRemote() {
		r.Program = programPrefix + strings.ToLower(rand.Text()[:12])
		if err := p.fetch(ctx, &r, plan,
			func(done, total int64, units string) { track.At(PhaseFetch, done, total, units) }); err != nil {
			return p.discard(r, cause(ctx, err))
		}
	}
	digest, err := p.digest(ctx, &r)
	if err == nil {
		err = plan.checkDigest(digest)
	}
	var attested *attest.Identity
	if err == nil {
		attested, err = p.checkAttested(ctx, &r, &plan)
	}
	if err != nil {
		return p.discard(r, cause(ctx, err))
	}
	track.At(PhaseTry, 0, 0, "")
	if err := p.stopServers(); err != nil {
		return p.discard(r, err)
	}
	u, listed, err := p.tryProgram(ctx, &r)
	need, login := loginRequired(err)
	switch {
	case login: // it is listed when a user has logged in
		p.noteLogin(r.loginOf(r.By), need)
		r.AsksLogin, err = true, nil
	case err != nil:
		return p.discard(r, cause(ctx, err))
	default:
		r.Server = u.server
		err = u.stopProcess(stopGrace)
	}
	track.At(PhaseKeep, 0, 0, "")
	if err == nil {
		r.State, r.Keep = Installed, false
		if !login || plan.Expect != nil || r.Pins != nil { // otherwise what is listed first is pinned
			p.pinInstalled(&r, &plan, &listed, digest)
			r.Pins.Attested = attested
		}
		err = p.shareLock(ctx, &r)
	}
	if err == nil {
		err = p.saveRecord(r)
	}
	if err != nil {
		return p.discard(r, err)
	}
	p.resetFailures()
	if !login {
		p.setListing(listed, true)
	}
	p.removeOldPrograms()
	p.manager.goCollect()
	track.Finish()
	return nil
}

// setAbort sets what ends the running installation; nil ends nothing.
func (p *managedPackage) setAbort(end context.CancelCauseFunc) {
	p.mu.Lock()
	p.abort = end
	p.mu.Unlock()
}

// tryProgram starts a new program with the files that it shares with other packages. A
// server that fails because it writes there gets copies of its own.
func (p *managedPackage) tryProgram(ctx context.Context, r *Record) (*upstream, listing, error) {
	top := filepath.Join(p.folder(), programTop(r.Program))
	// The files of an image belong to others in its sandbox, so that they keep their permissions.
	sharing := p.manager.opts.Share && r.Program != "" && !r.Writable && r.Source.Kind != OCI
	if sharing {
		if _, err := p.manager.store.share(ctx, top); err != nil {
			return nil, listing{}, err
		}
	}
	r.Shared = sharing
	o := p.shared.connOptions()
	if r.listsAsked() {
		o = p.askedOptions()
	}
	u, listed, err := p.launchServer(ctx, r, o, true)
	if err == nil || !sharing || ctx.Err() != nil || !deniedWrite().MatchString(Words(err)) {
		return u, listed, err
	}
	p.journal.writeLine("[host] the server writes in the folder of its program, so it gets files of its own")
	r.Writable, r.Shared = true, false
	if err := p.manager.store.separate(ctx, top); err != nil {
		return nil, listing{}, err
	}
	return p.launchServer(ctx, r, o, true)
}

// deniedWrite finds in the output of a server that it could not write.
var deniedWrite = lazy(`(?i)EROFS|EACCES|EPERM|read-only file ?system|permission denied`)

// cause returns the cause of ctx's end if it has ended, otherwise err. It keeps the
// program's output.
func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); why != nil {
		return withOutput(why, Words(err))
	}
	return err
}

// discard removes a program that was not installed.
func (p *managedPackage) discard(r Record, err error) error {
	if r.Program != "" {
		err = errors.Join(err, os.RemoveAll(filepath.Join(p.folder(), programTop(r.Program))))
	}
	return err
}

const programPrefix = "program-"

// programTop returns the top folder of a program, which may lie deeper in it.
func programTop(program string) string {
	top, _, _ := strings.Cut(filepath.ToSlash(program), "/")
	return top
}

// removeOldPrograms removes the programs of earlier installations, except the previous one.
func (p *managedPackage) removeOldPrograms() {
	p.mu.Lock()
	kept := []string{programTop(p.rec.Program)}
	if p.rec.Previous != nil {
		kept = append(kept, programTop(p.rec.Previous.Program))
	}
	p.mu.Unlock()
	entries, err := os.ReadDir(p.folder())
	if err != nil {
		return
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), programPrefix) && !slices.Contains(kept, e.Name()) {
			if err := os.RemoveAll(filepath.Join(p.folder(), e.Name())); err != nil {
				p.manager.log.Warn("an old program of a package is left", "package", p.id, "err", err)
			}
		}
	}
}

// erase removes the package's folder; keep leaves its data.
func (p *managedPackage) erase(keep bool) error {
	entries, err := os.ReadDir(p.folder())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	p.journal.closeFiles()
	var errs []error
	for _, e := range entries {
		path := filepath.Join(p.folder(), e.Name())
		if keep && path == p.data() {
			os.Remove(path) // only if it is empty
			continue
		}
		if e.Name() == ownersFile && (keep || errors.Join(errs...) != nil) || keep && e.Name() == ownedArchive {
			continue // they are about the data
		}
		errs = append(errs, p.removeOwned(path))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := os.Remove(p.folder()); err != nil && !keep {
		return err
	}
	return nil
}

// Rebuild installs a package again from its source, or from another source of the same
// kind. Its data are kept. If it fails the package is unchanged.
func (h *Manager) Rebuild(ctx context.Context, id, from string, report Report) (i Info, err error) {
	return h.RebuildAccepting(ctx, id, from, "", false, report)
}

// RebuildAccepting is Rebuild, also if accept is set and the attestation of the new version has
// vanished or names another source than was approved. job is that in which it is done, for Reclaim.
func (h *Manager) RebuildAccepting(
	ctx context.Context, id, from, job string, accept bool, report Report,
) (i Info, err error) {
	leave, err := h.addWork()
	if err != nil {
		return i, err
	}
	defer leave()
	return h.changePackage(id, Updating, func(p *managedPackage, _ Record) error {
		return p.rebuild(ctx, from, job, accept, report)
	})
}

func (p *managedPackage) rebuild(ctx context.Context, from, job string, accept bool, report Report) error {
	p.mu.Lock()
	was := p.rec
	p.mu.Unlock()
	plan := Plan{Record: was, AcceptSource: accept}
	plan.Job = job
	if from != "" {
		source, err := ParseSource(from)
		if err != nil {
			return invalid("%v", err)
		}
		if source.Kind != was.Source.Kind ||
			source.fromRegistry() && source.Name() != was.Source.Name() {
			return invalid(
				"source %q: package %s comes from %s, and only its version can be another",
				from,
				p.id,
				was.Source,
			)
		}
		plan.Source, plan.Version, plan.fresh = source, "", true
	}
	return p.reinstall(ctx, plan, report)
}

// reinstall installs a package by another plan. If it fails the package is unchanged.
func (p *managedPackage) reinstall(ctx context.Context, plan Plan, report Report) error {
	p.mu.Lock()
	was := p.rec
	p.mu.Unlock()
	now := was
	now.State, now.Job = Updating, plan.Job
	if err := p.saveRecord(now); err != nil {
		return err
	}
	p.publishState()
	plan.Pins, plan.Previous = was.Pins, was.Previous // what was approved since the plan was made counts
	if err := p.install(ctx, plan, report); err != nil {
		return errors.Join(err, p.saveRecord(was))
	}
	p.manager.invalidateTools()
	return nil
}

// Remove stops a package and removes it. keepData leaves its data for the next package
// with its id.
func (h *Manager) Remove(id string, keepData bool) error { return h.remove(id, keepData, "") }

// remove is Remove in a job, for Reclaim.
func (h *Manager) remove(id string, keepData bool, job string) error {
	leave, err := h.addWork()
	if err != nil {
		return err
	}
	defer leave()
	p, err := h.findPackage(id)
	if err != nil {
		return err
	}
	done, err := p.claim(Removing)
	if err != nil {
		return err
	}
	defer done()
	p.mu.Lock()
	r := p.rec
	p.mu.Unlock()
	r.State, r.Keep, r.Job = Removing, keepData, job
	if err := p.saveRecord(r); err != nil {
		return err
	}
	p.publishState()
	if err := errors.Join(p.stopServers(), p.forgetLogins(), p.erase(keepData), h.forgetShared(id, keepData),
		h.deleteRecord(id, encodeRecord(r))); err != nil {
		return fmt.Errorf("package %s is removed in part; this host removes the rest when it starts again: %w", id, err)
	}
	h.unregister(p)
	h.collect() // a command that removes ends soon after
	return nil
}

// recover finishes or undoes what an earlier host left incomplete, and loads its
// packages; h.mu is held.
func (h *Manager) recover() error {
	if err := h.storeRestored(); err != nil {
		return err
	}
	records, _, err := h.opts.Records.Get()
	if err != nil {
		return err
	}
	if h.opts.Cluster != nil {
		err = h.loadNode(records)
		records = nil
	}
	for id, r := range records {
		if err = errors.Join(err, h.load(id, r)); err != nil {
			break
		}
	}
	if err != nil {
		return err
	}
	h.offered = nil
	h.forwards.Store(nil)
	h.epoch++
	return nil
}

// load makes a package of a record, or finishes the operation that the record says was
// interrupted; h.mu is held.
func (h *Manager) load(id string, r Record) error {
	if r.ID != id || !idForm().MatchString(id) {
		h.log.Warn("a record of a package is left out", "package", id)
		return nil
	}
	if h.opts.Cluster != nil {
		h.loadOfNode(r)
		return nil
	}
	p := h.newPackage(r)
	switch r.State {
	case Installing, Removing:
		if err := errors.Join(p.erase(r.Keep), h.deleteRecord(id, nil)); err != nil {
			h.log.Warn("a package cannot be removed", "package", id, "err", err)
		} else {
			h.log.Info("what was left of a package was removed", "package", id, "state", r.State)
		}
		return nil
	case Updating:
		p.rec.State = Installed
		if err := h.putRecord(p.rec, nil); err != nil {
			return err
		}
		h.log.Info("the update of a package was interrupted: it is as it was", "package", id)
	}
	p.removeOldPrograms()
	p.loadListing()
	h.all[id] = p
	return nil
}

// PutRestored brings back the packages of a waiting restore and returns their ids.
// Running ones are stopped first; then all run as their records say. The error is a
// *tool.Refusal if another host has the packages or one of them is busy; the restore
// stays waiting then.
func (h *Manager) PutRestored() (ids []string, err error) {
	if h.opts.Waiting == nil {
		return nil, nil
	}
	leave, err := h.addWork()
	if err != nil {
		return nil, err
	}
	defer leave()
	h.restoring.Lock()
	defer h.restoring.Unlock()
	ids, put, err := h.opts.Waiting()
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	return ids, h.replace(ids, put)
}

// tryPutRestored calls PutRestored and logs each reason for a failure once.
func (h *Manager) tryPutRestored() {
	_, err := h.PutRestored()
	h.restoring.Lock()
	defer h.restoring.Unlock()
	switch {
	case err == nil:
		h.restoreError = ""
	case err.Error() != h.restoreError:
		h.restoreError = err.Error()
		h.log.Warn("packages of a backup are not brought back yet", "err", err)
	}
}

// replace stops packages, calls put to replace their folders, and loads the packages
// that are there then. If put fails it loads them as they are.
func (h *Manager) replace(ids []string, put func() error) error {
	var old []func()
	for _, id := range ids {
		h.mu.Lock()
		p := h.all[id]
		h.mu.Unlock()
		if p == nil {
			continue
		}
		done, err := p.claim(Updating)
		if err != nil {
			for _, done := range old {
				done()
			}
			return err
		}
		old = append(old, func() { done(); p.startIfWanted(false) })
	}
	var ended []*managedPackage
	for _, id := range ids {
		h.mu.Lock()
		p := h.all[id]
		h.mu.Unlock()
		if p == nil {
			continue
		}
		if err := p.stopServers(); err != nil {
			h.log.Warn("a package does not end", "package", id, "err", err)
		}
		p.mu.Lock()
		p.removed = true // for goroutines that still use it; its replacement has the same id
		p.mu.Unlock()
		p.journal.closeFiles()
		ended = append(ended, p)
	}
	err := put()
	now, e := h.reload(ids)
	for _, p := range ended {
		p.publishState()
	}
	h.invalidateTools()
	for _, p := range now {
		p.publishState()
		p.startIfWanted(false)
	}
	return errors.Join(err, e)
}

// reload loads packages from the current records of the ids.
func (h *Manager) reload(ids []string) (now []*managedPackage, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.storeRestored(); err != nil {
		return nil, err
	}
	records, _, err := h.opts.Records.Get()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		delete(h.all, id)
		r, there := records[id]
		if !there {
			continue
		}
		if err := h.load(id, r); err != nil {
			return now, err
		}
		if p := h.all[id]; p != nil {
			now = append(now, p)
		}
	}
	return now, nil
}

// storeRestored stores the records of packages that a restore brought back. It skips
// packages whose installation was incomplete.
func (h *Manager) storeRestored() error {
	if h.opts.Restored == nil {
		return nil
	}
	records, kept, err := h.opts.Restored()
	if err != nil {
		return err
	}
	for id, r := range records {
		if r.ID != id || r.checkRecord() != nil || r.State != Installed && r.State != Updating {
			h.log.Warn(
				"a package that was restored is left out: its record is not one of an installed package",
				"package",
				id,
			)
			continue
		}
		if err := h.putRestoredRecord(r); err != nil {
			return err
		}
		h.log.Info("a package was restored", "package", id)
	}
	return kept()
}

// Outcome is the result of installing one of several packages again.
type Outcome struct {
	ID      string `json:"id"`
	Version string `json:"version,omitempty"`
	Error   string `json:"error,omitempty"`
}

// Phases of RebuildAll.
const (
	PhaseStop      = "stop"
	PhaseReinstall = "reinstall"
	PhaseStart     = "start"
)

// RebuildAll stops every server, installs every package again from its source, and
// starts the servers that ran. A package that cannot be installed again is unchanged.
func (h *Manager) RebuildAll(ctx context.Context, report Report) ([]Outcome, error) {
	leave, err := h.addWork()
	if err != nil {
		return nil, err
	}
	defer leave()
	if report == nil {
		report = func(progress.Progress) {}
	}
	track := progress.New(report, PhaseStop, PhaseReinstall, PhaseStart)
	all := h.sortedPackages()
	track.At(PhaseStop, 0, int64(len(all)), "steps")
	ran := map[*managedPackage]bool{}
	for i, p := range all {
		p.mu.Lock()
		ran[p] = p.shared.running != nil
		p.mu.Unlock()
		if err := p.stopServers(); err != nil {
			h.log.Warn("a package does not end", "package", p.id, "err", err)
		}
		p.publishState()
		track.At(PhaseStop, int64(i+1), int64(len(all)), "steps")
	}
	out := []Outcome{}
	for i, p := range all {
		track.At(PhaseReinstall, int64(i), int64(len(all)), "steps")
		if ctx.Err() != nil {
			return out, context.Cause(ctx)
		}
		o := Outcome{ID: p.id}
		done, err := p.claim(Updating)
		if err == nil {
			err = p.rebuild(ctx, "", "", false, nil)
			done()
		}
		if err != nil {
			o.Error = shorten(err.Error(), 500)
		}
		o.Version = p.info().Public.Version
		out = append(out, o)
	}
	track.At(PhaseStart, 0, int64(len(all)), "steps")
	for _, p := range all {
		p.startIfWanted(ran[p])
	}
	track.Finish()
	return out, nil
}
