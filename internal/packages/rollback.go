package packages

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"gatehouse/internal/dispatch/progress"
	"gatehouse/tool"
)

// previousOf returns what Rollback needs of a record.
func previousOf(r *Record) *Previous {
	return &Previous{
		Version: r.version(), Source: r.Source, Command: r.Command, Args: slices.Clone(r.Args), Program: r.Program,
		Shared: r.Shared, Writable: r.Writable, Installed: r.Installed, By: r.By, Server: r.Server,
		Pins:   r.Pins.Clone(),
		Digest: r.Digest, Image: r.Image,
	}
}

// Rollback brings back the program that the last update replaced, with what was approved of it. The
// program that it replaces becomes the previous one, so that a second Rollback undoes the first. Data and
// variables stay as they are. If the previous program does not start, the package is unchanged. job is that in which it
// is done, for Reclaim; "" for none.
func (h *Manager) Rollback(ctx context.Context, id, job string, report Report) (i Info, err error) {
	leave, err := h.addWork()
	if err != nil {
		return i, err
	}
	defer leave()
	return h.changePackage(id, Updating, func(p *managedPackage, was Record) error {
		return p.rollback(ctx, was, job, report)
	})
}

func (p *managedPackage) rollback(ctx context.Context, was Record, job string, report Report) error {
	prev := was.Previous
	switch {
	case was.State != Installed:
		return tool.Refuse(tool.CodeUnavailable, "package %s is not completely installed", p.id)
	case prev == nil ||
		p.manager.opts.Cluster == nil && !isFolder(filepath.Join(p.folder(), prev.Program)):
		return &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: fmt.Sprintf("package %s has no previous version; nothing was changed", p.id),
			Next:    "gatehouse package update NAME VERSION installs a version by its number.",
		}
	case was.Declared && prev.Source != was.Source:
		return &tool.Refusal{
			Code: tool.CodeDenied,
			Message: fmt.Sprintf("the settings declare package %s, and would update it again; nothing was changed",
				p.id),
			Next: fmt.Sprintf("Set its source in the settings to %s, and call gatehouse package apply.", prev.Source),
		}
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(p.manager.ctx, func() { end(errClosing) })()
	track := progress.New(func(now progress.Progress) {
		if report != nil {
			report(now)
		}
	}, PhaseTry, PhaseKeep)
	now := was
	now.Source, now.Command, now.Args, now.Program = prev.Source, prev.Command, prev.Args, prev.Program
	now.Shared, now.Writable, now.Installed, now.By = prev.Shared, prev.Writable, prev.Installed, prev.By
	now.Digest, now.Image, now.Job = prev.Digest, prev.Image, job
	now.Version, now.Server, now.Pins, now.Previous = prev.Version, prev.Server, prev.Pins.Clone(), previousOf(&was)
	if err := p.ensureProgram(ctx, &now); err != nil {
		return err
	}
	updating := was
	updating.State, updating.Job = Updating, job
	if err := p.saveRecord(updating); err != nil {
		return err
	}
	p.publishState()
	track.At(PhaseTry, 0, 0, "")
	undo := func(err error) error { return errors.Join(cause(ctx, err), p.saveRecord(was)) }
	if err := p.stopServers(); err != nil {
		return undo(err)
	}
	u, listed, err := p.tryProgram(ctx, &now)
	if err != nil {
		return undo(err)
	}
	now.Server = u.server
	track.At(PhaseKeep, 0, 0, "")
	if err = u.stopProcess(stopGrace); err == nil {
		err = p.saveRecord(now)
	}
	if err != nil {
		return undo(err)
	}
	p.resetFailures()
	p.keepDefinitions(now.Pins, &listed)
	p.setListing(listed, true)
	p.manager.invalidateTools()
	track.Finish()
	return nil
}
