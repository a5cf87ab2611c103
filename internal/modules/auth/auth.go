// Package auth is the module with which people look after their own way in:
// the sessions in which they are logged in, and their password.
//
// Users, roles and tokens are made and taken away with the command line.
package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"gatehouse/internal/access/operator"
	"gatehouse/module"
	"gatehouse/tool"
)

// A Service knows who is logged in. Safe for concurrent use.
type Service interface {
	// Logins are the open logins of a user, or of everybody for "", oldest
	// first.
	Logins(ctx context.Context, user string) ([]Login, error)
	// EndLogin ends one; of two that end the same one may get ErrNone.
	EndLogin(ctx context.Context, id string) error
	// ChangePassword replaces the password of a user who knows the present
	// one, and ends the user's logins, the one it is asked for in last. The
	// error is ErrPassword, a *tool.Refusal, or another that says what is
	// wrong with the new password.
	ChangePassword(ctx context.Context, who tool.Caller, present, next string) error
	// Rules reports whether a caller may see and end everybody's logins.
	Rules(who tool.Caller) bool
}

// Errors of a Service.
var (
	ErrNone     = errors.New("there is no such login")
	ErrPassword = errors.New("the password is wrong")
)

// Login is a session of somebody who logged in with a password.
type Login struct {
	ID      string
	User    string
	Agent   string // what the browser calls itself
	Lasting bool   // it outlives the host and the browser's window
	Created time.Time
	Used    time.Time
	Until   time.Time
}

// Config is what the module is given.
type Config struct {
	Service Service `json:"-"` // nil means that nobody logs in here
}

type auth struct {
	service Service
	offer   module.Offer
}

// New makes the module.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		if cfg.Service == nil {
			cfg.Service = nobody{}
		}
		a := &auth{service: cfg.Service}
		a.offer.Tools = []tool.Tool{
			tool.New(tool.Def{
				Name: "auth_session_list", Title: "List sessions", Effects: tool.Reads, Task: tool.TaskNever, Aliases: []string{"auth.session.list"},
				Description: "Lists the sessions in which you are logged in, and says which one this is.",
				Help:        "A session begins with a password at /auth/login; tokens and certificates have none. Those who rule this host may list everybody's. lastActive is up to a minute behind. Sessions that end with the host and the browser's window are known to their own host only.",
			}, a.list),
			tool.New(tool.Def{
				Name: "auth_session_kill", Title: "End sessions", Effects: tool.Writes | tool.Destroys | tool.Idempotent, Task: tool.TaskNever, Aliases: []string{"auth.session.kill"},
				Description: "Ends sessions in which you are logged in, and what was opened in them.",
				Help:        "All of them, or none where one is not there or not yours; those who rule this host may end everybody's. The session this call came in is ended by logging out, which is a POST to /auth/logout.",
			}, a.kill),
			tool.New(tool.Def{
				Name: "auth_password", Title: "Change a password", Effects: tool.Writes | tool.Destroys, Task: tool.TaskNever, Aliases: []string{"auth.reset-password"},
				Description: "Changes your password. All your sessions end, this one too; tokens stay.",
				Help:        "It takes the present password, whoever calls, and after three tries of one login within 20 seconds the next has to wait. A user who has lost it asks an administrator: gatehouse user sets a new one.",
			}, a.password),
		}
		return a, nil
	}
}

// Offer implements module.Module.
func (a *auth) Offer(context.Context, module.Audience) (*module.Offer, error) { return &a.offer, nil }

// Close implements module.Module.
func (a *auth) Close(context.Context) error { return nil }

type listIn struct {
	All bool `json:"all,omitempty" doc:"everybody's, for those who rule this host"`
}

type listOut struct {
	Current  string             `json:"current,omitempty" doc:"the id of this one; none where nobody logged in for it"`
	Sessions map[string]session `json:"sessions" doc:"by id"`
}

type session struct {
	User       string `json:"user"`
	LoggedIn   string `json:"loggedIn"`
	LastActive string `json:"lastActive"`
	UserAgent  string `json:"userAgent,omitempty"`
	Expires    string `json:"expires"`
	Lasting    bool   `json:"lasting,omitempty" doc:"outlives the host and the browser's window"`
}

// own refuses callers whose credential is good for something else.
func own(c *tool.Call) error {
	if len(c.Caller.Scopes) == 0 {
		return nil
	}
	return &tool.Refusal{Code: "denied", Message: "your credential is limited to some scopes, and logging in is in none of them", Next: "Use one that is not."}
}

func (a *auth) list(ctx context.Context, c *tool.Call, in listIn) (listOut, error) {
	if err := own(c); err != nil {
		return listOut{}, err
	}
	user := c.Caller.Principal
	if in.All {
		if !a.service.Rules(c.Caller) {
			return listOut{}, operator.Denied("see everybody's sessions", "Leave out all to see yours.")
		}
		user = ""
	}
	all, err := a.service.Logins(ctx, user)
	out := listOut{Sessions: map[string]session{}}
	for _, l := range all {
		out.Sessions[l.ID] = session{l.User, stamp(l.Created), stamp(l.Used), l.Agent, stamp(l.Until), l.Lasting}
		if l.ID == c.Caller.Credential {
			out.Current = l.ID
		}
	}
	return out, err
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

type killIn struct {
	IDs []string `json:"ids" doc:"of auth_session_list"`
}

type killOut struct {
	Ended []string `json:"ended"`
}

func (a *auth) kill(ctx context.Context, c *tool.Call, in killIn) (killOut, error) {
	out := killOut{Ended: []string{}}
	if err := own(c); err != nil {
		return out, err
	}
	user := c.Caller.Principal
	if a.service.Rules(c.Caller) {
		user = ""
	}
	all, err := a.service.Logins(ctx, user)
	if err != nil {
		return out, err
	}
	ids := slices.Compact(slices.Sorted(slices.Values(in.IDs)))
	if slices.Contains(ids, c.Caller.Credential) {
		return out, &tool.Refusal{Code: "denied", Message: "one of them is the session this call came in, and its answer could not be sent; nothing was ended", Next: "Log out of that one with a POST to /auth/logout."}
	}
	for _, id := range ids {
		if !slices.ContainsFunc(all, func(l Login) bool { return l.ID == id }) {
			return out, &tool.Refusal{Code: "not_found", Message: fmt.Sprintf("you have no session %.80q; nothing was ended", id), Next: "auth_session_list shows those you have."}
		}
	}
	for _, id := range ids {
		switch err := a.service.EndLogin(ctx, id); {
		case errors.Is(err, ErrNone): // somebody was faster
		case err != nil:
			return out, err
		default:
			out.Ended = append(out.Ended, id)
		}
	}
	return out, nil
}

type passwordIn struct {
	Old string `json:"oldPassword" doc:"the present one" max:"1024"`
	New string `json:"newPassword" doc:"8 bytes at least" max:"1024"`
}

type passwordOut struct {
	Changed bool   `json:"changed"`
	Message string `json:"message"`
}

func (a *auth) password(ctx context.Context, c *tool.Call, in passwordIn) (passwordOut, error) {
	if err := own(c); err != nil {
		return passwordOut{}, err
	}
	err := a.service.ChangePassword(ctx, c.Caller, in.Old, in.New)
	refusal, refused := errors.AsType[*tool.Refusal](err)
	switch {
	case err == nil:
		return passwordOut{true, "Your sessions end now: log in again with the new password. Tokens are good as before."}, nil
	case refused:
		return passwordOut{}, refusal
	case errors.Is(err, ErrPassword):
		return passwordOut{}, &tool.Refusal{Code: "denied", Message: "oldPassword is not your password, or you have none here", Next: "Ask the person for it. Who has lost it asks whoever runs this host."}
	}
	return passwordOut{}, err
}

// nobody is the service of a host where nobody logs in.
type nobody struct{}

func (nobody) Logins(context.Context, string) ([]Login, error) { return nil, nil }
func (nobody) EndLogin(context.Context, string) error          { return ErrNone }
func (nobody) ChangePassword(context.Context, tool.Caller, string, string) error {
	return ErrPassword
}
func (nobody) Rules(tool.Caller) bool { return false }
