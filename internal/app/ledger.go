package app

import (
	"context"
	"os"
	"path/filepath"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/dispatch"
)

// openLedger opens the audit ledger. It is opened before and closed after every part that writes to it. A private
// host has none.
func (a *App) openLedger(context.Context) error {
	if a.opts.Private {
		return nil
	}
	c, dir := a.cfg.Audit, a.cfg.Folders.Data
	path := filepath.Join(dir, audit.FileName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		a.log.Warn(
			"the ledger is lost when this host ends: cannot write it to disk",
			"folder",
			dir,
			"err",
			err,
		)
		path = ""
	}
	a.ledger = audit.Open(path, audit.Options{
		Log: a.log, Node: c.Node, Lenient: c.Lenient, Keep: c.Keep, MaxSize: c.MaxSize, Archive: c.Archive,
	})
	a.closing("ledger", a.ledger.Close)
	return nil
}

// callLedger returns the ledger of calls, or nil if they are not recorded.
func (a *App) callLedger() dispatch.Ledger {
	if a.ledger == nil {
		return nil // an untyped nil, not an interface that holds a nil pointer
	}
	return a.ledger
}

// watchLedger records the host's events in the ledger from now on: connections, refusals and changes.
func (a *App) watchLedger() {
	if a.ledger == nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	write := a.ledger.RecordEvents(ctx, a.bus)
	a.addPart("events for the ledger", func(end context.Context) error {
		defer context.AfterFunc(end, stop)()
		return write()
	})
}
