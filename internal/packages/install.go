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
	"gatehouse/internal/state"
	"gatehouse/tool"
)

// Phases of an installation.
const (
	PhaseFetch = "fetch"
	PhaseTry   = "try"
	PhaseKeep  = "keep"
)

// Tell is told how far something is; nil is told nothing.
type Tell func(progress.Progress)

// Plan is what is to be installed.
type Plan struct {
	Record
	// Open opens what a folder or archive is in, and says its name there, so
	// that the kernel finds it and not a path that was looked at before; nil
	// opens it by the path of its source.
	Open func() (*os.Root, string, error)
}

// Check says what is wrong with a plan, if anything, without doing any of it.
func (h *House) Check(plan *Plan) error {
	r := &plan.Record
	if r.Start == "" {
		r.Start = OnDemand
	}
	if err := r.check(); err != nil {
		return err
	}
	if name, bad := collides(r.ID, reserved); bad {
		return invalid("id %q: names that begin with %s are this host's own; choose another", r.ID, name)
	}
	if h.opts.Taken != nil {
		if name, bad := collides(r.ID, h.opts.Taken()); bad {
			return invalid("id %q: its tools could be taken for those of the module %s; choose another", r.ID, name)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	others := slices.Sorted(maps.Keys(h.all))
	switch {
	case h.release == nil:
		return elsewhere()
	case h.all[r.ID] != nil:
		return &tool.Refusal{Code: "exists", Message: fmt.Sprintf("there is a package %q already", r.ID), Next: "package_rebuild installs it again, also another version; package_remove removes it."}
	case len(h.all) >= h.opts.Most:
		return tool.Refuse("too_large", "there are %d packages, which is as many as can be", len(h.all))
	}
	if name, bad := collides(r.ID, others); bad {
		return invalid("id %q: its tools could be taken for those of the package %s; choose another", r.ID, name)
	}
	return nil
}

// Install fetches a program, tries whether it is a server, and keeps it. What
// fails leaves nothing but data of an earlier package of that id.
func (h *House) Install(ctx context.Context, plan Plan, tell Tell) (i Info, err error) {
	leave, err := h.enter()
	if err != nil {
		return i, err
	}
	defer leave()
	if err := h.Check(&plan); err != nil {
		return i, err
	}
	r := plan.Record
	r.State, r.Installed, r.Server, r.Program = Installing, time.Now().UTC().Truncate(time.Second), Server{}, ""
	p := h.newPack(r)
	if _, err := os.Stat(p.data()); err == nil {
		p.rec.Keep = true
	}
	r = p.rec
	plan.Record = r
	p.doing = Installing
	if !h.add(p) {
		return i, h.Check(&plan)
	}
	if err := h.keepRecord(r); err != nil {
		h.drop(p)
		return i, err
	}
	if err := p.renew(ctx, plan, tell); err != nil {
		return i, errors.Join(err, p.undo())
	}
	h.stale()
	p.mu.Lock()
	p.doing, p.progress = "", nil
	p.mu.Unlock()
	p.show()
	p.begin(false)
	return p.info(), nil
}

// add takes a package in, unless one of its id came first.
func (h *House) add(p *pack) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all[p.id] != nil {
		return false
	}
	h.all[p.id] = p
	return true
}

// drop lets go of a package.
func (h *House) drop(p *pack) {
	p.mu.Lock()
	p.gone = true
	p.mu.Unlock()
	p.journal.close()
	h.mu.Lock()
	if h.all[p.id] == p {
		delete(h.all, p.id)
	}
	h.mu.Unlock()
	h.stale()
	p.show()
}

// undo takes back what was installed for the first time.
func (p *pack) undo() error {
	err := p.halt()
	err = errors.Join(err, p.erase(p.rec.Keep), p.house.forgetRecord(p.id)) // nobody else changes the record
	p.house.drop(p)
	return err
}

func (h *House) forgetRecord(id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), keepWait)
	defer cancel()
	return state.Drop(ctx, h.opts.Records, id)
}

// renew fetches a program into a folder of its own, tries it, and makes it the
// package's. The server that ran before has ended then, and runs again.
func (p *pack) renew(ctx context.Context, plan Plan, tell Tell) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(p.house.ctx, func() { end(errClosing) })()
	ctx, cancel := context.WithTimeoutCause(ctx, p.house.opts.Install, fmt.Errorf("it was not installed within %v", p.house.opts.Install))
	defer cancel()
	track := progress.New(func(now progress.Progress) {
		p.mu.Lock()
		p.progress = &now
		p.mu.Unlock()
		p.show()
		if tell != nil {
			tell(now)
		}
	}, PhaseFetch, PhaseTry, PhaseKeep)

	r := plan.Record
	track.At(PhaseFetch, 0, 0, "")
	if r.Source.Kind != Command {
		r.Program = programPrefix + strings.ToLower(rand.Text()[:12])
		if err := p.fetch(ctx, &r, plan, func(done, total int64, units string) { track.At(PhaseFetch, done, total, units) }); err != nil {
			return p.discard(r, cause(ctx, err))
		}
	}
	track.At(PhaseTry, 0, 0, "")
	if err := p.halt(); err != nil {
		return p.discard(r, err)
	}
	u, entries, err := p.launch(ctx, &r)
	if err != nil {
		return p.discard(r, cause(ctx, err))
	}
	r.Server = u.server
	err = u.stop(stopGrace)
	track.At(PhaseKeep, 0, 0, "")
	if err == nil {
		r.State, r.Keep = Installed, false
		err = p.keep(r)
	}
	if err != nil {
		return p.discard(r, err)
	}
	p.forgive()
	p.learn(entries, true)
	p.tidy()
	track.Finish()
	return nil
}

// cause prefers why a context ended to what came of that. What the program
// printed until then stays.
func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); why != nil {
		return withWords(why, Words(err))
	}
	return err
}

// discard removes a program that is not kept.
func (p *pack) discard(r Record, err error) error {
	if r.Program != "" {
		err = errors.Join(err, os.RemoveAll(filepath.Join(p.folder(), programTop(r.Program))))
	}
	return err
}

const programPrefix = "program-"

// programTop is the folder that a program lies in, of which it may be a part.
func programTop(program string) string {
	top, _, _ := strings.Cut(filepath.ToSlash(program), "/")
	return top
}

// tidy removes programs that are not the package's.
func (p *pack) tidy() {
	p.mu.Lock()
	now := programTop(p.rec.Program)
	p.mu.Unlock()
	entries, err := os.ReadDir(p.folder())
	if err != nil {
		return
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), programPrefix) && e.Name() != now {
			if err := os.RemoveAll(filepath.Join(p.folder(), e.Name())); err != nil {
				p.house.log.Warn("an old program of a package is left", "package", p.id, "err", err)
			}
		}
	}
}

// erase removes the package's folder; keep leaves the data, if there are any.
func (p *pack) erase(keep bool) error {
	entries, err := os.ReadDir(p.folder())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	p.journal.close()
	var errs []error
	for _, e := range entries {
		path := filepath.Join(p.folder(), e.Name())
		if keep && path == p.data() {
			os.Remove(path) // only if it is empty
			continue
		}
		errs = append(errs, os.RemoveAll(path))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := os.Remove(p.folder()); err != nil && !keep {
		return err
	}
	return nil
}

// Rebuild installs a package again from its source or, with from, from another
// of the same kind. Its data stay. After an error the package is as it was.
func (h *House) Rebuild(ctx context.Context, id, from string, tell Tell) (i Info, err error) {
	leave, err := h.enter()
	if err != nil {
		return i, err
	}
	defer leave()
	p, err := h.find(id)
	if err != nil {
		return i, err
	}
	done, err := p.claim(Updating)
	if err != nil {
		return i, err
	}
	p.mu.Lock()
	ran := p.up != nil
	p.mu.Unlock()
	err = p.rebuild(ctx, from, tell)
	done()
	p.begin(ran)
	return p.info(), err
}

func (p *pack) rebuild(ctx context.Context, from string, tell Tell) error {
	p.mu.Lock()
	was := p.rec
	p.mu.Unlock()
	plan := Plan{Record: was}
	if from != "" {
		source, err := ParseSource(from)
		if err != nil {
			return invalid("%v", err)
		}
		if source.Kind != was.Source.Kind || source.Kind == NPM && npmPackage(source.From) != npmPackage(was.Source.From) {
			return invalid("source %q: package %s comes from %s, and only its version can be another", from, p.id, was.Source)
		}
		plan.Source, plan.Version = source, ""
	}
	now := was
	now.State = Updating
	if err := p.keep(now); err != nil {
		return err
	}
	p.show()
	if err := p.renew(ctx, plan, tell); err != nil {
		return errors.Join(err, p.keep(was))
	}
	p.house.stale()
	return nil
}

// Remove ends a package and removes it; keepData leaves its data for the next
// package of its id.
func (h *House) Remove(id string, keepData bool) error {
	leave, err := h.enter()
	if err != nil {
		return err
	}
	defer leave()
	p, err := h.find(id)
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
	r.State, r.Keep = Removing, keepData
	if err := p.keep(r); err != nil {
		return err
	}
	p.show()
	if err := errors.Join(p.halt(), p.erase(keepData), h.forgetRecord(id)); err != nil {
		return fmt.Errorf("package %s is removed in part, and wholly when this host is started again: %w", id, err)
	}
	h.drop(p)
	return nil
}

// recover finishes or undoes what a host before this one left half done, and
// takes its packages in; h.mu is held.
func (h *House) recover() error {
	if err := h.adopt(); err != nil {
		return err
	}
	records, _, err := h.opts.Records.Get()
	if err != nil {
		return err
	}
	for id, r := range records {
		if err := h.takeIn(id, r); err != nil {
			return err
		}
	}
	h.offered = nil
	h.epoch++
	return nil
}

// takeIn makes a package of a record, or finishes what that says was interrupted;
// h.mu is held.
func (h *House) takeIn(id string, r Record) error {
	if r.ID != id || !idForm.MatchString(id) {
		h.log.Warn("a record of a package is left out", "package", id)
		return nil
	}
	p := h.newPack(r)
	switch r.State {
	case Installing, Removing:
		if err := errors.Join(p.erase(r.Keep), h.forgetRecord(id)); err != nil {
			h.log.Warn("a package cannot be removed", "package", id, "err", err)
		} else {
			h.log.Info("what was left of a package was removed", "package", id, "state", r.State)
		}
		return nil
	case Updating:
		p.rec.State = Installed
		if err := h.keepRecord(p.rec); err != nil {
			return err
		}
		h.log.Info("the update of a package was interrupted: it is as it was", "package", id)
	}
	p.tidy()
	p.recall()
	h.all[id] = p
	return nil
}

// PutRestored brings packages back that a restore left waiting, and gives their
// ids. Those of them that run end first; all run again as their records say. It
// is called within seconds after a restore of packages alone, also by another
// process, was left; the error is a *tool.Refusal if another host has the
// packages, or one of them is busy, and then the restore goes on waiting.
func (h *House) PutRestored() (ids []string, err error) {
	if h.opts.Waiting == nil {
		return nil, nil
	}
	leave, err := h.enter()
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

// putRestored is PutRestored for the host itself, which logs a reason once.
func (h *House) putRestored() {
	_, err := h.PutRestored()
	h.restoring.Lock()
	defer h.restoring.Unlock()
	switch {
	case err == nil:
		h.waits = ""
	case err.Error() != h.waits:
		h.waits = err.Error()
		h.log.Warn("packages of a backup are not brought back yet", "err", err)
	}
}

// replace ends packages, has put replace their folders, and takes in what is
// there then. After an error of put they are taken in as they are.
func (h *House) replace(ids []string, put func() error) error {
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
		old = append(old, func() { done(); p.begin(false) })
	}
	var ended []*pack
	for _, id := range ids {
		h.mu.Lock()
		p := h.all[id]
		h.mu.Unlock()
		if p == nil {
			continue
		}
		if err := p.halt(); err != nil {
			h.log.Warn("a package does not end", "package", id, "err", err)
		}
		p.mu.Lock()
		p.gone = true // for whoever still holds it; the one in its place has its id
		p.mu.Unlock()
		p.journal.close()
		ended = append(ended, p)
	}
	err := put()
	now, e := h.takeAgain(ids)
	for _, p := range ended {
		p.show()
	}
	h.stale()
	for _, p := range now {
		p.show()
		p.begin(false)
	}
	return errors.Join(err, e)
}

// takeAgain makes packages anew of the records that there are of them now.
func (h *House) takeAgain(ids []string) (now []*pack, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.adopt(); err != nil {
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
		if err := h.takeIn(id, r); err != nil {
			return now, err
		}
		if p := h.all[id]; p != nil {
			now = append(now, p)
		}
	}
	return now, nil
}

// adopt keeps the records of packages that a restore has brought back. A record
// of a package that was not whole then is left out, with its files.
func (h *House) adopt() error {
	if h.opts.Restored == nil {
		return nil
	}
	records, kept, err := h.opts.Restored()
	if err != nil {
		return err
	}
	for id, r := range records {
		if r.ID != id || r.check() != nil || r.State != Installed && r.State != Updating {
			h.log.Warn("a package that was restored is left out: its record is not one of an installed package", "package", id)
			continue
		}
		if err := h.keepRecord(r); err != nil {
			return err
		}
		h.log.Info("a package was restored", "package", id)
	}
	return kept()
}

// Outcome is what came of installing one of several packages again.
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

// RebuildAll ends every server, installs every package again from its source,
// and starts what ran. One that cannot be installed again is as it was.
func (h *House) RebuildAll(ctx context.Context, tell Tell) ([]Outcome, error) {
	leave, err := h.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	if tell == nil {
		tell = func(progress.Progress) {}
	}
	track := progress.New(tell, PhaseStop, PhaseReinstall, PhaseStart)
	all := h.packs()
	track.At(PhaseStop, 0, int64(len(all)), "steps")
	ran := map[*pack]bool{}
	for i, p := range all {
		p.mu.Lock()
		ran[p] = p.up != nil
		p.mu.Unlock()
		if err := p.halt(); err != nil {
			h.log.Warn("a package does not end", "package", p.id, "err", err)
		}
		p.show()
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
			err = p.rebuild(ctx, "", nil)
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
		p.begin(ran[p])
	}
	track.Finish()
	return out, nil
}
