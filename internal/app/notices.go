package app

import (
	"context"
	"errors"
	"os"
	"time"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/notifier"
	"gatehouse/internal/dispatch/notify"
	"gatehouse/internal/modules/notification"
	"gatehouse/internal/state"
)

// noticeTime limits how long writing a notification to the store may take.
const noticeTime = 5 * time.Second

func (a *App) notificationDeps() (notification.Config, error) {
	a.startNotices()
	return notification.Config{Store: a.tree.notices, Rules: a.rules}, nil
}

// startNotices creates the notifier, which the modules notification and smtp need.
func (a *App) startNotices() {
	if a.noticing {
		return
	}
	a.noticing = true
	n := notifier.New(notifier.Options{
		Bus:     a.bus,
		Pending: func() ([]approvals.Request, error) { return a.approvals.Pending(false) },
		Add:     a.addNotice,
	})
	a.addPart("notices", n.Run)
}

func (a *App) addNotice(ctx context.Context, n notify.Notification) {
	ctx, cancel := context.WithTimeout(ctx, noticeTime)
	defer cancel()
	note, err := a.tree.notices.Add(ctx, n)
	if err != nil {
		a.log.Warn("a notification is lost", "code", n.Code, "title", n.Title, "err", err)
		return
	}
	if note.ID == 0 {
		return // it was added already
	}
	if a.mailer != nil {
		a.mailer.Wake()
	}
	a.publish("notification.added", map[string]any{
		"id": note.ID, "code": note.Code, "level": note.Level, "title": note.Title,
	})
}

// Notify adds notifications of events to those that hosts of the folders share, for a command that changes
// something without a running host. Folders that no host has used yet have no notifications.
func Notify(ctx context.Context, f config.Folders, events ...bus.Event) (err error) {
	if _, err := os.Stat(stateFileOf(f)); err != nil || f.Data == "" {
		return nil
	}
	var all []notify.Notification
	for _, event := range events {
		if n, ok := notifier.Of(event); ok {
			all = append(all, n)
		}
	}
	if len(all) == 0 {
		return nil
	}
	log, err := state.OpenFile(stateFileOf(f), state.FileOptions{})
	if err != nil {
		return err
	}
	t := state.New(state.Options{Log: log})
	defer func() { err = errors.Join(err, t.Close(), log.Close()) }()
	m, err := state.Attach[notification.Stored](ctx, t, "/private/notifications", state.Durable)
	if err != nil {
		return err
	}
	folder := notification.NewStore(m, nil)
	for _, n := range all {
		if _, err := folder.Add(ctx, n); err != nil {
			return err
		}
	}
	return nil
}
