// Package auth is the module with which users manage their own login sessions and
// their password.
//
// Users, roles and tokens are managed with the command line.
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

// A Service manages login sessions and passwords. It is safe for concurrent use.
type Service interface {
	// Logins returns the open logins of a user, or of all users for "", oldest
	// first.
	Logins(ctx context.Context, user string) ([]Login, error)
	// EndLogin ends a login. It returns ErrNone if there is no such login, also if
	// another call has just ended it.
	EndLogin(ctx context.Context, id string) error
	// ChangePassword replaces the password of a user if the present password is
	// right, and ends the user's logins, that of the caller last. The error is
	// ErrPassword, a *tool.Refusal, or an error about the new password.
	ChangePassword(ctx context.Context, who tool.Caller, present, next string) error
	// Passkeys returns the passkeys of a user, or of all users for "", oldest first.
	Passkeys(ctx context.Context, user string) ([]Passkey, error)
	// RenamePasskey gives a passkey of a user, or of any user for "", another name. It returns ErrNoPasskey if there
	// is no such passkey.
	RenamePasskey(ctx context.Context, user, id, name string) error
	// RemovePasskey removes a passkey of a user, or of any user for "", and ends the logins of that user. It returns
	// ErrNoPasskey if there is no such passkey.
	RemovePasskey(ctx context.Context, user, id string) error
	// Rules reports whether a caller may see and end the logins of all users.
	Rules(who tool.Caller) bool
}

// Errors of a Service.
var (
	ErrNone     = errors.New("there is no such login")
	ErrPassword = errors.New("the password is wrong")

	ErrNoPasskey = errors.New("there is no such passkey")
)

// Login is the session of a user who logged in with a password.
type Login struct {
	ID      string
	User    string
	Agent   string // the browser's User-Agent
	Lasting bool   // it outlives the host and the browser session
	Created time.Time
	Used    time.Time
	Until   time.Time
}

// Config is what the module is given.
type Config struct {
	Service Service `json:"-"` // nil means that users cannot log in to this host
}

type auth struct {
	service Service
	offer   module.Offer
}

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		if cfg.Service == nil {
			cfg.Service = noService{}
		}
		a := &auth{service: cfg.Service}
		a.offer.Tools = []tool.Tool{
			tool.New(tool.Def{
				Name: "auth_session_list", Title: "List sessions", Effects: tool.Reads, Task: tool.TaskNever,
				Aliases:     []string{"auth.session.list"},
				Description: "Lists your login sessions, and marks the one of this call.",
				Help: "A session begins with a login at /auth/login; tokens and certificates have none. " +
					"Administrators may list the sessions of all users. lastActive may be up to a minute old. " +
					"Sessions that end with the host and the browser session are listed by their own host only.",
			}, a.listLogins),
			tool.New(tool.Def{
				Name: "auth_session_kill", Title: "End sessions",
				Effects: tool.Writes | tool.Destroys | tool.Idempotent, Task: tool.TaskNever,
				Aliases:     []string{"auth.session.kill"},
				Description: "Ends login sessions of yours, and closes what was opened in them.",
				Help: "If one of them does not exist or is not yours, none is ended. Administrators may end " +
					"the sessions of all users. To end the session of this call, log out with a POST to /auth/logout.",
			}, a.endLogins),
			tool.New(tool.Def{
				Name: "auth_password", Title: "Change a password", Effects: tool.Writes | tool.Destroys,
				Task: tool.TaskNever, Aliases: []string{"auth.reset-password"},
				Description: "Changes your password. All your sessions end, including this one; tokens stay valid.",
				Help: "The present password is required from every caller. After three failed tries within " +
					"20 seconds, the next try must wait. If the password is lost, an administrator can set a new " +
					"one with gatehouse user.",
			}, a.password),
			tool.New(tool.Def{
				Name: "auth_passkey_list", Title: "List passkeys", Effects: tool.Reads, Task: tool.TaskNever,
				Description: "Lists your passkeys.",
				Help: "A passkey is registered on the page of this host, by a person who logged in there. " +
					"Administrators may list the passkeys of all users.",
			}, a.listPasskeys),
			tool.New(tool.Def{
				Name: "auth_passkey_rename", Title: "Rename a passkey", Effects: tool.Writes | tool.Idempotent,
				Task: tool.TaskNever, Description: "Gives one of your passkeys another name.",
				Help: "Administrators may rename the passkeys of all users.",
			}, a.renamePasskey),
			tool.New(tool.Def{
				Name: "auth_passkey_remove", Title: "Remove a passkey", Effects: tool.Writes | tool.Destroys,
				Task: tool.TaskNever, Description: "Removes one of your passkeys, and ends all your sessions.",
				Help: "Administrators may remove the passkeys of all users. Tokens stay valid.",
			}, a.removePasskey),
		}
		return a, nil
	}
}

// Offer implements module.Module.
func (a *auth) Offer(context.Context, module.Audience) (*module.Offer, error) { return &a.offer, nil }

// Close implements module.Module.
func (a *auth) Close(context.Context) error { return nil }

type listIn struct {
	All bool `json:"all,omitempty" doc:"those of all users; administrators only"`
}

type listOut struct {
	Current  string             `json:"current,omitempty" doc:"id of the session of this call; missing if it has none"`
	Sessions map[string]session `json:"sessions" doc:"by id"`
}

type session struct {
	User       string `json:"user"`
	LoggedIn   string `json:"loggedIn"`
	LastActive string `json:"lastActive"`
	UserAgent  string `json:"userAgent,omitempty"`
	Expires    string `json:"expires"`
	Lasting    bool   `json:"lasting,omitempty" doc:"outlives the host and the browser session"`
}

// checkCredential refuses a caller whose credential is limited to scopes.
func checkCredential(c *tool.Call) error {
	if len(c.Caller.Scopes) == 0 {
		return nil
	}
	return &tool.Refusal{
		Code:    tool.CodeDenied,
		Message: "your credential is limited to scopes, which do not include the management of logins",
		Next:    "Use a credential without scopes.",
	}
}

func (a *auth) listLogins(ctx context.Context, c *tool.Call, in listIn) (listOut, error) {
	if err := checkCredential(c); err != nil {
		return listOut{}, err
	}
	user := c.Caller.Principal
	if in.All {
		if !a.service.Rules(c.Caller) {
			return listOut{}, operator.Denied("see the sessions of all users", "Leave out all to list your own.")
		}
		user = ""
	}
	all, err := a.service.Logins(ctx, user)
	out := listOut{Sessions: map[string]session{}}
	for _, l := range all {
		out.Sessions[l.ID] = session{
			l.User, formatTime(l.Created), formatTime(l.Used), l.Agent, formatTime(l.Until), l.Lasting,
		}
		if l.ID == c.Caller.Credential {
			out.Current = l.ID
		}
	}
	return out, err
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

type killIn struct {
	IDs []string `json:"ids" doc:"ids from auth_session_list"`
}

type killOut struct {
	Ended []string `json:"ended"`
}

func (a *auth) endLogins(ctx context.Context, c *tool.Call, in killIn) (killOut, error) {
	out := killOut{Ended: []string{}}
	if err := checkCredential(c); err != nil {
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
		return out, &tool.Refusal{Code: tool.CodeDenied,
			Message: "one of them is the session of this call, whose result " +
				"could not be sent; no session was ended", Next: "Leave it out, and log out of it with a POST to " +
				"/auth/logout."}
	}
	for _, id := range ids {
		if !slices.ContainsFunc(all, func(l Login) bool { return l.ID == id }) {
			return out, &tool.Refusal{Code: tool.CodeNotFound, Message: fmt.Sprintf("you have no session %.80q; no "+
				"session was ended", id), Next: "auth_session_list lists your sessions."}
		}
	}
	for _, id := range ids {
		switch err := a.service.EndLogin(ctx, id); {
		case errors.Is(err, ErrNone): // another call has ended it
		case err != nil:
			return out, err
		default:
			out.Ended = append(out.Ended, id)
		}
	}
	return out, nil
}

type passwordIn struct {
	Old string `json:"oldPassword" doc:"the present password" max:"1024"`
	New string `json:"newPassword" doc:"at least 8 bytes" max:"1024"`
}

type passwordOut struct {
	Changed bool   `json:"changed"`
	Message string `json:"message"`
}

func (a *auth) password(ctx context.Context, c *tool.Call, in passwordIn) (passwordOut, error) {
	if err := checkCredential(c); err != nil {
		return passwordOut{}, err
	}
	err := a.service.ChangePassword(ctx, c.Caller, in.Old, in.New)
	refusal, refused := errors.AsType[*tool.Refusal](err)
	switch {
	case err == nil:
		return passwordOut{true, "Your sessions end now: log in again with the new password. Tokens stay valid."}, nil
	case refused:
		return passwordOut{}, refusal
	case errors.Is(err, ErrPassword):
		return passwordOut{}, &tool.Refusal{
			Code:    tool.CodeDenied,
			Message: "oldPassword is not your password, or you have none on this host",
			Next:    "Ask the user for it. If it is lost, an administrator of this host can set a new one.",
		}
	}
	return passwordOut{}, err
}

// noService is the Service of a host to which users cannot log in.
type noService struct{}

func (noService) Logins(context.Context, string) ([]Login, error) { return nil, nil }
func (noService) EndLogin(context.Context, string) error          { return ErrNone }
func (noService) ChangePassword(context.Context, tool.Caller, string, string) error {
	return ErrPassword
}
func (noService) Passkeys(context.Context, string) ([]Passkey, error)         { return nil, nil }
func (noService) RenamePasskey(context.Context, string, string, string) error { return ErrNoPasskey }
func (noService) RemovePasskey(context.Context, string, string) error         { return ErrNoPasskey }

func (noService) Rules(tool.Caller) bool { return false }
