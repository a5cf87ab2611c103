// Package notifier turns events on the bus, and approvals that wait, into notifications for the administrators of
// a host.
//
// It does not store notifications: Options.Add receives each. Only app imports this package.
package notifier

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/access/identity"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/notify"
)

const (
	eventQueue        = 1024            // events of one pattern that may wait
	approvalsInterval = 2 * time.Second // between two reads of the approvals that wait
)

// ConfigChanged is the topic of settings that were reloaded.
const ConfigChanged = bus.Topic[ChangedSettings]("config.changed")

// ChangedSettings names the settings that differ from the previous ones.
type ChangedSettings struct {
	Live    []string `json:"live"`    // in force now
	Restart []string `json:"restart"` // in force after a restart
}

// Options configures a Notifier. All fields are required.
type Options struct {
	Bus bus.Bus
	// Pending lists the approvals that wait for an operator.
	Pending func() ([]approvals.Request, error)
	// Add stores a notification. It may be called concurrently.
	Add func(ctx context.Context, note notify.Notification)
}

// Notifier creates notifications. New returns one; Run serves it.
type Notifier struct {
	opts     Options
	patterns []iter.Seq[bus.Event]
	notified map[string]bool // approvals that wait, by id; used by Run alone
	stop     context.CancelFunc
}

// New subscribes to the events, so that those from now on are not missed.
func New(o Options) *Notifier {
	ctx, stop := context.WithCancel(context.Background())
	n := &Notifier{opts: o, notified: map[string]bool{}, stop: stop}
	for _, pattern := range []string{"auth.*", string(ConfigChanged), "module.*." + notify.Subject} {
		n.patterns = append(n.patterns, o.Bus.Follow(ctx, pattern, eventQueue))
	}
	return n
}

// Run creates notifications until ctx is done.
func (n *Notifier) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, n.stop)()
	var all sync.WaitGroup
	defer all.Wait()
	for _, events := range n.patterns {
		all.Go(func() {
			for event := range events {
				if note, ok := Of(event); ok {
					n.opts.Add(ctx, note)
				}
			}
		})
	}
	tick := time.NewTicker(approvalsInterval)
	defer tick.Stop()
	for {
		n.addApprovals(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// addApprovals adds a notification of each request that waits for an operator. Every host of the same data folder
// sees the requests; Once prevents that one is added twice.
func (n *Notifier) addApprovals(ctx context.Context) {
	waiting, err := n.opts.Pending()
	if err != nil {
		return // the caller of the command that decides them gets the error
	}
	pending := map[string]bool{}
	for _, r := range waiting {
		pending[r.ID] = true
		if n.notified[r.ID] {
			continue
		}
		data, _ := json.Marshal(map[string]any{"approval": r.ID, "tool": r.Tool, "owner": r.Owner, "until": r.Until})
		n.opts.Add(ctx, notify.Notification{
			Code:  "approval.waiting",
			Level: notify.Warning,
			Once:  "approval " + r.ID,
			Title: r.Tool + " waits for an operator's approval",
			Message: fmt.Sprintf(
				"%s called it; the request ends %s. Decide with: gatehouse approvals approve %s",
				r.Owner,
				r.Until.UTC().Format("2006-01-02 15:04 MST"),
				r.ID,
			),
			Data: data,
		})
	}
	n.notified = pending
}

// Of returns the notification of an event, if administrators get one.
func Of(f bus.Event) (notify.Notification, bool) {
	if rest, ok := strings.CutPrefix(f.Subject, "module."); ok {
		note, ok := bus.Decode[notify.Notification](f)
		if !ok {
			return note, false
		}
		module, _, _ := strings.Cut(rest, ".")
		note.PackageID = module // a module cannot notify under another name
		if note.Once != "" {
			note.Once = module + " " + note.Once
		}
		return note, true
	}
	if d, ok := ConfigChanged.Decode(f); ok {
		return notify.Notification{
			Code: f.Subject, Level: notify.Warning, Title: "Some settings need a restart", Data: f.Data,
			Message: "They were changed while the host runs and apply after a restart: " + strings.Join(
				d.Restart,
				", ",
			),
		}, len(d.Restart) > 0
	}
	return ofAuth(f)
}

// authNotifications are the events of identity of which administrators are notified. The title is
// followed by the name of the user.
var authNotifications = map[string]struct {
	level notify.Level
	title string
}{
	"auth.login_limited":     {notify.Warning, "Too many attempts to log in as"},
	"auth.paired":            {notify.Info, "The first administrator was created:"},
	"auth.user_added":        {notify.Info, "A user was added:"},
	"auth.user_removed":      {notify.Info, "A user was removed:"},
	"auth.owned_ended":       {notify.Info, "Everything of a removed user was ended:"},
	"auth.owned_handed_over": {notify.Info, "What belonged to a removed user was handed over:"},
	"auth.roles_changed":     {notify.Info, "Roles were changed for"},
	"auth.password_changed":  {notify.Info, "The password was changed for"},
	"auth.token_created":     {notify.Info, "A token was created for"},
	"auth.token_revoked":     {notify.Info, "A token was revoked for"},
	"auth.link_added":        {notify.Info, "A certificate or OAuth subject was linked to"},
	"auth.link_removed":      {notify.Info, "A certificate or OAuth subject was unlinked from"},
}

const limitedPer = 10 * time.Minute // one notification for many attempts

func ofAuth(f bus.Event) (note notify.Notification, ok bool) {
	kind, ok := authNotifications[f.Subject]
	if !ok {
		return note, false
	}
	e, ok := bus.Decode[identity.Event](f)
	if !ok {
		return note, false
	}
	note = notify.Notification{Code: f.Subject, Level: kind.level, Title: kind.title + " " + e.Principal, Data: f.Data}
	if e.From != "" {
		note.Message = "It came from " + e.From + "."
	}
	if f.Subject == "auth.login_limited" {
		note.Once = fmt.Sprintf("%s %s %d", f.Subject, e.Principal, f.At.Unix()/int64(limitedPer/time.Second))
	}
	return note, true
}
