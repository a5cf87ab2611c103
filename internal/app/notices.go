package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/notify"
	"gatehouse/internal/modules/notification"
	"gatehouse/internal/state"
)

const (
	noticeQueue   = 1024            // facts of one kind that may wait
	noticeTime    = 5 * time.Second // for one to be kept
	approvalsLook = 2 * time.Second // for requests that wait for an operator
)

func (a *App) notificationDeps() (notification.Config, error) {
	a.startNotices()
	return notification.Config{Shelf: a.tree.shelf, Rules: a.rules}, nil
}

// startNotices has the shelf filled, for those who read it and those who mail
// it.
func (a *App) startNotices() {
	if a.noticing {
		return
	}
	a.noticing = true
	ctx, stop := context.WithCancel(context.Background())
	n := &notices{app: a, told: map[string]bool{}}
	n.follow(ctx)
	a.room(Part{"notices", func(end context.Context) error {
		defer context.AfterFunc(end, stop)()
		n.run(ctx)
		return nil
	}})
}

// notices turns facts of the house into notifications.
type notices struct {
	app   *App
	kinds []iter.Seq[bus.Event]
	told  map[string]bool // approvals that wait; belongs to run
}

func (n *notices) follow(ctx context.Context) {
	for _, pattern := range []string{"auth.*", "config.changed", "module.*." + notify.Subject} {
		n.kinds = append(n.kinds, n.app.bus.Follow(ctx, pattern, noticeQueue))
	}
}

func (n *notices) run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, facts := range n.kinds {
		all.Go(func() {
			for f := range facts {
				if news, ok := notificationOf(f); ok {
					n.add(ctx, news)
				}
			}
		})
	}
	look := time.NewTicker(approvalsLook)
	defer look.Stop()
	for {
		n.approvals(ctx)
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

func (n *notices) add(ctx context.Context, news notify.News) {
	ctx, cancel := context.WithTimeout(ctx, noticeTime)
	defer cancel()
	note, err := n.app.tree.shelf.Add(ctx, news)
	if err != nil {
		n.app.log.Warn("a notification is lost", "code", news.Code, "title", news.Title, "err", err)
		return
	}
	if note.ID != 0 {
		if n.app.mailer != nil {
			n.app.mailer.Wake()
		}
		n.app.publish("notification.added", map[string]any{"id": note.ID, "code": note.Code, "level": note.Level, "title": note.Title})
	}
}

// approvals tells of requests that wait for an operator. Every host of the
// same folder of data sees them; the shelf takes each once.
func (n *notices) approvals(ctx context.Context) {
	waiting, err := n.app.book.Pending(false)
	if err != nil {
		return // whoever decides them is told
	}
	there := map[string]bool{}
	for _, r := range waiting {
		there[r.ID] = true
		if n.told[r.ID] {
			continue
		}
		data, _ := json.Marshal(map[string]any{"approval": r.ID, "tool": r.Tool, "owner": r.Owner, "until": r.Until})
		n.add(ctx, notify.News{
			Code: "approval.waiting", Level: notify.Warning, Once: "approval " + r.ID,
			Title: r.Tool + " waits for an operator's approval", Data: data,
			Message: fmt.Sprintf("%s wants to call it; the request ends %s. Decide with: gatehouse approvals approve %s", r.Owner, r.Until.UTC().Format("2006-01-02 15:04 MST"), r.ID),
		})
	}
	n.told = there
}

// Notify adds notifications of facts to what hosts of the folders share: for a
// command that changes something no host is told of. Folders of which no host
// was ever started have no notifications.
func Notify(ctx context.Context, f config.Folders, facts ...bus.Event) (err error) {
	if _, err := os.Stat(stateFileOf(f)); err != nil || f.Data == "" {
		return nil
	}
	var all []notify.News
	for _, fact := range facts {
		if news, ok := notificationOf(fact); ok {
			all = append(all, news)
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
	m, err := state.Attach[notification.Kept](ctx, t, "/private/notifications", state.Durable)
	if err != nil {
		return err
	}
	shelf := notification.NewShelf(m, nil)
	for _, news := range all {
		if _, err := shelf.Add(ctx, news); err != nil {
			return err
		}
	}
	return nil
}

// newsOf is what a fact is to those who rule the host, if anything.
func notificationOf(f bus.Event) (notify.News, bool) {
	if rest, ok := strings.CutPrefix(f.Subject, "module."); ok {
		news, ok := bus.Decode[notify.News](f)
		if !ok {
			return news, false
		}
		module, _, _ := strings.Cut(rest, ".")
		news.PackageID = module // a module speaks under its own name
		if news.Once != "" {
			news.Once = module + " " + news.Once
		}
		return news, true
	}
	if d, ok := configChanged.Decode(f); ok {
		return notify.News{
			Code: f.Subject, Level: notify.Warning, Title: "Some settings need a new start", Data: f.Data,
			Message: "They were changed while the host runs and are looked at when it is started again: " + strings.Join(d.Restart, ", "),
		}, len(d.Restart) > 0
	}
	return authNotificationOf(f)
}

// authNews are the events of identity that are told, with a title that is
// followed by whom they are about.
var authNews = map[string]struct {
	level notify.Level
	title string
}{
	"auth.login_limited":     {notify.Warning, "Too many tries to log in as"},
	"auth.paired":            {notify.Info, "The first administrator was made:"},
	"auth.user_added":        {notify.Info, "A user was added:"},
	"auth.user_removed":      {notify.Info, "A user was removed:"},
	"auth.owned_ended":       {notify.Info, "What belonged to a removed user was ended:"},
	"auth.owned_handed_over": {notify.Info, "What belonged to a removed user went to another one:"},
	"auth.roles_changed":     {notify.Info, "Roles were changed of"},
	"auth.password_changed":  {notify.Info, "The password was changed of"},
	"auth.token_created":     {notify.Info, "A token was made for"},
	"auth.token_revoked":     {notify.Info, "A token was revoked of"},
	"auth.link_added":        {notify.Info, "A certificate or OAuth subject now stands for"},
	"auth.link_removed":      {notify.Info, "A certificate or OAuth subject stands no longer for"},
}

const limitedPer = 10 * time.Minute // one notification of many tries

func authNotificationOf(f bus.Event) (news notify.News, ok bool) {
	kind, ok := authNews[f.Subject]
	if !ok {
		return news, false
	}
	e, ok := bus.Decode[identity.Event](f)
	if !ok {
		return news, false
	}
	news = notify.News{Code: f.Subject, Level: kind.level, Title: kind.title + " " + e.Principal, Data: f.Data}
	if e.From != "" {
		news.Message = "It came from " + e.From + "."
	}
	if f.Subject == "auth.login_limited" {
		news.Once = fmt.Sprintf("%s %s %d", f.Subject, e.Principal, f.At.Unix()/int64(limitedPer/time.Second))
	}
	return news, true
}
