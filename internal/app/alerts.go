package app

import (
	"context"
	"net/http"
	"path/filepath"
	"slices"
	"strings"

	"gatehouse/internal/access/alert"
	"gatehouse/internal/access/approvals"
	"gatehouse/internal/access/identity"
	"gatehouse/tool"
)

// alertQueue is how many alerts may wait while one is sent.
const alertQueue = 64

// ApprovalsPage is the path of the page on which a person decides about a call; its id follows.
const ApprovalsPage = "/#/approvals/"

// ReviewPage is the path of the page on which a person reviews a task; its id follows.
const ReviewPage = "/#/review/"

// openAlerts makes what tells administrators that a call waits, and returns what is to be called with each. A private
// host tells nobody.
func (a *App) openAlerts() (asked func(approvals.Request)) {
	if a.opts.Private || a.cfg.Folders.Data == "" {
		return nil
	}
	a.alerts = alert.New(alert.Options{
		Path: filepath.Join(a.cfg.Folders.Data, "alerts.json"), Webhook: a.cfg.Approvals.Webhook,
		Link: func(path string) string { return a.pagesAddress() + path }, Allowed: a.mayGetAlerts,
		Contact: "https://gatehouse.invalid", Client: identity.PublicClient(), Log: a.log,
		Hook: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	})
	a.alertPaths = make(chan string, alertQueue)
	a.addPart("alerts", func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case path := <-a.alertPaths:
				a.alerts.Send(ctx, path)
			}
		}
	})
	return func(r approvals.Request) { a.tellPeople(ApprovalsPage + r.ID) }
}

// tellPeople sends administrators the link to a page, if they are told at all.
func (a *App) tellPeople(path string) {
	if a.alertPaths == nil {
		return
	}
	select {
	case a.alertPaths <- path:
	default:
		a.log.Warn("too many alerts wait to be sent: one is dropped", "page", path)
	}
}

// pagesAddress returns the address at which people reach the pages: the one of the settings, or else that of the first
// listener that serves them; "" if there is none.
func (a *App) pagesAddress() string {
	if server := a.cfg.Auth.Server; server != "" {
		return strings.TrimSuffix(server, "/")
	}
	if server := a.cfg.Auth.Login.Server; server != "" {
		return strings.TrimSuffix(server, "/")
	}
	for _, l := range a.Listeners() {
		if l.Kind == HTTP || l.Kind == HTTPS {
			return strings.TrimSuffix(l.Address, "/mcp")
		}
	}
	return ""
}

// mayGetAlerts reports whether a user administers the host now.
func (a *App) mayGetAlerts(ctx context.Context, name string) bool {
	if name == a.who.Owner().Name {
		return true
	}
	users, err := a.who.Users(ctx)
	if err != nil {
		return true // it is asked again at the next alert
	}
	return slices.ContainsFunc(users, func(u identity.User) bool {
		return u.Name == name && a.rules(tool.Caller{Principal: name, Roles: u.Roles})
	})
}
