// Package notification is the module with which those who rule a host read
// what it has to tell them: what happened while nobody looked.
//
// The host writes notifications from the facts of the house. A module makes one
// with tidings.Tell.
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
	// Shelf holds the notifications and belongs to whoever gave it; nil means
	// an empty one of the module's own.
	Shelf *Shelf        `json:"-"`
	Rules operator.Func `json:"-"` // for whom the notifications are; nil: nobody
}

type reader struct {
	cfg   Config
	offer module.Offer
}

// New makes the module.
func New(cfg Config) module.New {
	return func(ctx context.Context, d module.Deps) (module.Module, error) {
		r := &reader{}
		r.cfg = cfg
		if r.cfg.Shelf == nil {
			var err error
			if r.cfg.Shelf, err = emptyShelf(ctx); err != nil {
				return nil, err
			}
		}
		r.offer.Tools = r.tools()
		return r, nil
	}
}

// Offer implements module.Module.
func (r *reader) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &r.offer, nil
}

// Close implements module.Module; the shelf is its owner's.
func (r *reader) Close(context.Context) error { return nil }

const help = "Notifications are for those who rule this host. They are kept until somebody removes them, the newest 1,000 of them. How many are unread is at gatehouse:///public/serverInfo/unreadNotificationCount, to follow."

func (r *reader) tools() []tool.Tool {
	const change = tool.Writes | tool.Idempotent
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "notification_list", Title: "List notifications", Effects: tool.Reads, Task: tool.TaskNever, Aliases: []string{"notification.list"},
			Description: "Lists what this host has to tell, newest first.",
			Help:        help + "\n\nA page ends where the next begins: give the smallest id as before. level is success, info, warning or error; code says what happened, for programs.",
		}, r.list),
		tool.New(tool.Def{
			Name: "notification_remove", Title: "Remove a notification", Effects: change | tool.Destroys, Task: tool.TaskNever, Sync: true, Aliases: []string{"notification.remove"},
			Description: "Removes notifications. Ids that are not there any more do not matter.",
			Help:        help,
		}, r.remove),
		tool.New(tool.Def{
			Name: "notification_remove_before", Title: "Remove older notifications", Effects: change | tool.Destroys, Task: tool.TaskNever, Sync: true, Aliases: []string{"notification.remove-before"},
			Description: "Removes all notifications older than one, which itself stays.",
			Help:        help,
		}, r.removeBefore),
		tool.New(tool.Def{
			Name: "notification_mark_seen", Title: "Mark a notification seen", Effects: change, Task: tool.TaskNever, Sync: true, Aliases: []string{"notification.mark-seen"},
			Description: "Marks notifications as seen: all of them, or none where one is not there.",
			Help:        help,
		}, r.mark(true)),
		tool.New(tool.Def{
			Name: "notification_mark_unseen", Title: "Mark a notification unseen", Effects: change, Task: tool.TaskNever, Sync: true, Aliases: []string{"notification.mark-unseen"},
			Description: "Marks notifications as not seen: all of them, or none where one is not there.",
			Help:        help,
		}, r.mark(false)),
		tool.New(tool.Def{
			Name: "notification_mark_seen_before", Title: "Mark older notifications seen", Effects: change, Task: tool.TaskNever, Sync: true, Aliases: []string{"notification.mark-seen-before"},
			Description: "Marks all notifications older than one as seen; that one itself stays as it is.",
			Help:        help,
		}, r.markBefore),
	}
}

func (r *reader) check(c *tool.Call) error {
	return r.cfg.Rules.Check(c, "deal with its notifications")
}

type listIn struct {
	Before int64 `json:"before,omitempty" doc:"only ids below it" min:"1"`
	Limit  int   `json:"limit,omitempty" doc:"how many" default:"40" min:"1" max:"200"`
	Unseen bool  `json:"unseen,omitempty" doc:"only those that are not marked as seen"`
}

type listOut struct {
	Notifications []shown `json:"notifications"`
	Unread        int     `json:"unread" doc:"of all there are"`
}

type shown struct {
	ID        int64           `json:"id"`
	CreatedAt string          `json:"createdAt"`
	PackageID string          `json:"packageId,omitempty" doc:"which package, or module, it is from; the host's own have none"`
	Code      string          `json:"code"`
	Level     string          `json:"level"`
	Title     string          `json:"title"`
	Message   string          `json:"message,omitempty"`
	Data      json.RawMessage `json:"data,omitempty" doc:"any JSON"`
	Seen      bool            `json:"seen"`
}

func (r *reader) list(_ context.Context, c *tool.Call, in listIn) (listOut, error) {
	if err := r.check(c); err != nil {
		return listOut{}, err
	}
	all, unread, err := r.cfg.Shelf.all()
	out := listOut{Notifications: []shown{}, Unread: unread}
	for _, n := range all {
		if in.Before > 0 && n.ID >= in.Before || in.Unseen && n.Seen {
			continue
		}
		if len(out.Notifications) == in.Limit {
			break
		}
		out.Notifications = append(out.Notifications, shown{n.ID, n.CreatedAt.Format(time.RFC3339Nano), n.PackageID, n.Code, string(n.Level), n.Title, n.Message, n.Data, n.Seen})
	}
	return out, err
}

type idsIn struct {
	IDs []int64 `json:"ids" doc:"of notification_list"`
}

type beforeIn struct {
	Before int64 `json:"before" doc:"an id; those below it are meant" min:"1"`
}

type changedOut struct {
	Changed int `json:"changed" doc:"notifications"`
	Unread  int `json:"unread" doc:"of all that are left"`
}

func (r *reader) remove(ctx context.Context, c *tool.Call, in idsIn) (changedOut, error) {
	return r.change(ctx, c, func(k *Kept) (n int, err error) {
		for _, id := range in.IDs {
			n += k.drop(id)
		}
		return n, nil
	})
}

func (r *reader) removeBefore(ctx context.Context, c *tool.Call, in beforeIn) (changedOut, error) {
	return r.change(ctx, c, func(k *Kept) (n int, err error) {
		for _, note := range k.Notes {
			if note.ID < in.Before {
				n += k.drop(note.ID)
			}
		}
		return n, nil
	})
}

func (r *reader) mark(seen bool) func(context.Context, *tool.Call, idsIn) (changedOut, error) {
	return func(ctx context.Context, c *tool.Call, in idsIn) (changedOut, error) {
		return r.change(ctx, c, func(k *Kept) (n int, err error) {
			for _, id := range in.IDs {
				if _, there := k.Notes[key(id)]; !there {
					return 0, &tool.Refusal{Code: "not_found", Message: fmt.Sprintf("there is no notification %d; nothing was marked", id), Next: "notification_list shows those there are."}
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
	return r.change(ctx, c, func(k *Kept) (n int, err error) {
		for _, note := range k.Notes {
			if note.ID < in.Before {
				n += k.mark(note.ID, true)
			}
		}
		return n, nil
	})
}

func (r *reader) change(ctx context.Context, c *tool.Call, f func(*Kept) (int, error)) (out changedOut, err error) {
	if err := r.check(c); err != nil {
		return out, err
	}
	out.Unread, err = r.cfg.Shelf.change(ctx, func(k *Kept) (err error) {
		out.Changed, err = f(k)
		return err
	})
	return out, err
}
