package app

import (
	"context"
	"errors"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/modules/auth"
	"gatehouse/tool"
)

// logins implements auth.Service with the identity service of a host.
type logins struct{ app *App }

// Logins implements auth.Service.
func (l logins) Logins(ctx context.Context, user string) (all []auth.Login, err error) {
	found, err := l.app.who.Logins(ctx, user)
	for _, f := range found {
		all = append(
			all,
			auth.Login{
				ID:      f.ID,
				User:    f.User,
				Agent:   f.Agent,
				Lasting: f.Lasting,
				Created: f.Created,
				Used:    f.Used,
				Until:   f.Until,
			},
		)
	}
	return all, err
}

// EndLogin implements auth.Service.
func (l logins) EndLogin(ctx context.Context, id string) error {
	err := l.app.who.EndLogin(ctx, id)
	if errors.Is(err, identity.ErrNone) {
		err = auth.ErrNone
	}
	return err
}

// ChangePassword implements auth.Service.
func (l logins) ChangePassword(ctx context.Context, who tool.Caller, present, next string) error {
	err := l.app.who.ChangePassword(ctx, who.Principal, present, next, who.Credential)
	denied, slow := errors.AsType[*identity.Denied](err)
	switch {
	case slow:
		return &tool.Refusal{Code: tool.CodeBusy, Message: denied.Message}
	case errors.Is(err, identity.ErrPassword):
		return auth.ErrPassword
	}
	return err
}

// Rules implements auth.Service.
func (l logins) Rules(who tool.Caller) bool { return seesEverything(who) }
