// Package notification is the module with which administrators read the
// notifications of the host: events that happened while they were away.
//
// The host makes notifications from events on the bus. A module makes one with
// notify.Tell.
package notification

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"gatehouse/internal/access/operator"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is what the module is given.
type Config struct {
	// Store has the notifications. The module does not close it; nil means an
	// empty store in memory.
	Store *Store        `json:"-"`
	Rules operator.Func `json:"-"` // decides who may read notifications; nil means no caller
}

type reader struct {
	cfg   Config
	offer module.Offer
}

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(ctx context.Context, d module.Deps) (module.Module, error) {
		r := &reader{}
		r.cfg = cfg
		if r.cfg.Store == nil {
			var err error
			if r.cfg.Store, err = newMemoryStore(ctx); err != nil {
				return nil, err
			}
		}
		r.offer.Tools = r.notificationTools()
		return r, nil
	}
}

// Offer implements module.Module.
func (r *reader) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &r.offer, nil
}

// Close implements module.Module. It does not close the store.
func (r *reader) Close(context.Context) error { return nil }

const help = "For administrators only. The newest 1,000 notifications are kept until they are removed. The number " +
	"of unread ones is the resource gatehouse:///public/serverInfo/unreadNotificationCount, which supports " +
	"subscriptions."

func (r *reader) notificationTools() []tool.Tool {
	const change = tool.Writes | tool.Idempotent
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "notification_list", Title: "List notifications", Effects: tool.Reads, Task: tool.TaskNever,
			Aliases:     []string{"notification.list"},
			Description: "Lists the notifications of this host, newest first.",
			Help: help + "\n\nFor the next page give the smallest id as before. level is success, info, " +
				"warning or error; code names the event for programs.",
		}, r.listNotifications),
		tool.New(tool.Def{
			Name: "notification_remove", Title: "Remove a notification", Effects: change | tool.Destroys,
			Task: tool.TaskNever, Sync: true, Aliases: []string{"notification.remove"},
			Description: "Removes notifications. Ids that do not exist are ignored.",
			Help:        help,
		}, r.removeNotifications),
		tool.New(tool.Def{
			Name: "notification_remove_before", Title: "Remove older notifications", Effects: change | tool.Destroys,
			Task: tool.TaskNever, Sync: true, Aliases: []string{"notification.remove-before"},
			Description: "Removes all notifications with a smaller id than the given one.",
			Help:        help,
		}, r.removeBefore),
		tool.New(tool.Def{
			Name: "notification_mark_seen", Title: "Mark a notification seen", Effects: change, Task: tool.TaskNever,
			Sync: true, Aliases: []string{"notification.mark-seen"},
			Description: "Marks notifications as seen. If one of them does not exist, none is marked.",
			Help:        help,
		}, r.mark(true)),
		tool.New(tool.Def{
			Name: "notification_mark_unseen", Title: "Mark a notification unseen", Effects: change,
			Task: tool.TaskNever, Sync: true, Aliases: []string{"notification.mark-unseen"},
			Description: "Marks notifications as not seen. If one of them does not exist, none is marked.",
			Help:        help,
		}, r.mark(false)),
		tool.New(tool.Def{
			Name: "notification_mark_seen_before", Title: "Mark older notifications seen", Effects: change,
			Task: tool.TaskNever, Sync: true, Aliases: []string{"notification.mark-seen-before"},
			Description: "Marks all notifications with a smaller id than the given one as seen.",
			Help:        help,
		}, r.markBefore),
	}
}

func (r *reader) checkCaller(c *tool.Call) error {
	return r.cfg.Rules.Check(c, "use its notifications")
}

type listIn struct {
	Before int64 `json:"before,omitempty" doc:"only smaller ids" min:"1"`
	Limit  int   `json:"limit,omitempty" doc:"maximum of notifications" default:"40" min:"1" max:"200"`
	Unseen bool  `json:"unseen,omitempty" doc:"only unseen ones"`
}

type listOut struct {
	Notifications []noteOut `json:"notifications"`
	Unread        int       `json:"unread" doc:"number of unseen notifications in all"`
}

type noteOut struct {
	ID        int64           `json:"id"`
	CreatedAt string          `json:"createdAt"`
	PackageID string          `json:"packageId,omitempty" doc:"package or module that made it; missing for the host"`
	Code      string          `json:"code"`
	Level     string          `json:"level"`
	Title     string          `json:"title"`
	Message   string          `json:"message,omitempty"`
	Data      json.RawMessage `json:"data,omitempty" doc:"any JSON"`
	Seen      bool            `json:"seen"`
}

func (r *reader) listNotifications(_ context.Context, c *tool.Call, in listIn) (listOut, error) {
	if err := r.checkCaller(c); err != nil {
		return listOut{}, err
	}
	all, unread, err := r.cfg.Store.all()
	out := listOut{Notifications: []noteOut{}, Unread: unread}
	for _, n := range all {
		if in.Before > 0 && n.ID >= in.Before || in.Unseen && n.Seen {
			continue
		}
		if len(out.Notifications) == in.Limit {
			break
		}
		out.Notifications = append(
			out.Notifications,
			noteOut{
				n.ID, n.CreatedAt.Format(time.RFC3339Nano), n.PackageID, n.Code, string(n.Level), n.Title, n.Message,
				n.Data, n.Seen,
			},
		)
	}
	return out, err
}

type idsIn struct {
	IDs []int64 `json:"ids" doc:"ids from notification_list"`
}

type beforeIn struct {
	Before int64 `json:"before" doc:"an id; applies to smaller ones" min:"1"`
}

type changedOut struct {
	Changed int `json:"changed" doc:"number of changed notifications"`
	Unread  int `json:"unread" doc:"number of unseen notifications left"`
}

func (r *reader) removeNotifications(ctx context.Context, c *tool.Call, in idsIn) (changedOut, error) {
	return r.changeStored(ctx, c, func(k *Stored) (n int, err error) {
		for _, id := range in.IDs {
			n += k.removeByID(id)
		}
		return n, nil
	})
}

func (r *reader) removeBefore(ctx context.Context, c *tool.Call, in beforeIn) (changedOut, error) {
	return r.changeStored(ctx, c, func(k *Stored) (n int, err error) {
		for _, note := range k.Notes {
			if note.ID < in.Before {
				n += k.removeByID(note.ID)
			}
		}
		return n, nil
	})
}

func (r *reader) mark(seen bool) func(context.Context, *tool.Call, idsIn) (changedOut, error) {
	return func(ctx context.Context, c *tool.Call, in idsIn) (changedOut, error) {
		return r.changeStored(ctx, c, func(k *Stored) (n int, err error) {
			for _, id := range in.IDs {
				if _, there := k.Notes[key(id)]; !there {
					return 0, &tool.Refusal{Code: tool.CodeNotFound,
						Message: fmt.Sprintf("there is no notification %d; "+
							"none was marked", id), Next: "notification_list lists the notifications."}
				}
			}
			for _, id := range in.IDs {
				n += k.mark(id, seen)
			}
			return n, nil
		})
	}
}

func (r *reader) markBefore(ctx context.Context, c *tool.Call, in beforeIn) (changedOut, error) {
	return r.changeStored(ctx, c, func(k *Stored) (n int, err error) {
		for _, note := range k.Notes {
			if note.ID < in.Before {
				n += k.mark(note.ID, true)
			}
		}
		return n, nil
	})
}

func (r *reader) changeStored(
	ctx context.Context, c *tool.Call, f func(*Stored) (int, error),
) (out changedOut, err error) {
	if err := r.checkCaller(c); err != nil {
		return out, err
	}
	out.Unread, err = r.cfg.Store.changeStored(ctx, func(k *Stored) (err error) {
		out.Changed, err = f(k)
		return err
	})
	return out, err
}
