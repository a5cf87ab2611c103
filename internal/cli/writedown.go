package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/access/identity"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/bus"
)

// changed describes something that a command has changed.
type changed struct {
	subject string // as a host publishes it: auth.user_added, context.created, secret.set
	fact    any
}

// notifyTime is how long a command waits for the state that hosts share.
const notifyTime = 5 * time.Second

// writeDown records what a command has changed in the ledger of this machine, which hosts write as well, and
// publishes the notification that a host publishes for its own changes. If that fails, the change has been made
// nevertheless, and the error states this.
func writeDown(w Environment, changes ...changed) error {
	if len(changes) == 0 {
		return nil
	}
	cfg, err := config.FromEnv(w.Getenv)
	if err != nil {
		return &usageError{err}
	}
	var facts []bus.Event
	l := audit.Open(filepath.Join(cfg.Folders.Data, audit.FileName), audit.Options{})
	for _, c := range changes {
		fact, err := bus.NewEvent(c.subject, c.fact)
		if err != nil {
			return err
		}
		if err := l.Keep(context.Background(), audit.EntryOf(fact)); err != nil {
			return errors.Join(
				fmt.Errorf("%s was done, but could not be recorded in the ledger: %w", c.subject, err),
				l.Close(context.Background()),
			)
		}
		facts = append(facts, fact)
	}
	err = l.Close(context.Background())
	ctx, cancel := context.WithTimeout(context.Background(), notifyTime)
	defer cancel()
	if notifyErr := app.Notify(ctx, cfg.Folders, facts...); notifyErr != nil {
		err = errors.Join(
			err,
			fmt.Errorf("it was done and recorded, but no notification could be published: %w", notifyErr),
		)
	}
	return err
}

// named returns the data of an event about something with this name.
func named(name string) any {
	return struct {
		Name string `json:"name"`
		By   string `json:"by"`
	}{name, byCommand}
}

// byCommand is the actor of changes that a command made.
const byCommand = "command line"

// auditTrail collects the events of identity while a command runs.
type auditTrail struct{ seen []changed }

func (n *auditTrail) record(e identity.Event) { n.seen = append(n.seen, changed{"auth." + e.Kind, e}) }
