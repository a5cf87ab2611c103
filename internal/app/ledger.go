package app

import (
	"context"
	"os"
	"path/filepath"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/dispatch"
)

// openLedger opens what remembers what is done. It is opened before and closed
// after every part that writes to it. A private host keeps none.
func (a *App) openLedger(context.Context) error {
	if a.opts.Private {
		return nil
	}
	c, dir := a.cfg.Audit, a.cfg.Folders.Data
	path := filepath.Join(dir, audit.FileName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		a.log.Warn(
			"what is done is remembered only until this host ends: cannot keep the ledger on disk",
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

// callLedger is where calls are written down; nil when they are not.
func (a *App) callLedger() dispatch.Ledger {
	if a.ledger == nil {
		return nil // and not an interface that holds nothing
	}
	return a.ledger
}

// watchLedger has the facts of the house written down from now on: who came,
// who was turned away, and what was changed.
func (a *App) watchLedger() {
	if a.ledger == nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	write := a.ledger.Watch(ctx, a.bus)
	a.addPart("facts for the ledger", func(end context.Context) error {
		defer context.AfterFunc(end, stop)()
		return write()
	})
}
