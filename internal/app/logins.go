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

// Passkeys implements auth.Service.
func (l logins) Passkeys(ctx context.Context, user string) (all []auth.Passkey, err error) {
	found, err := l.app.who.Passkeys(ctx, user)
	for _, k := range found {
		all = append(all, auth.Passkey(k))
	}
	return all, err
}

// RenamePasskey implements auth.Service.
func (l logins) RenamePasskey(ctx context.Context, user, id, name string) error {
	return noPasskey(l.app.who.RenamePasskey(ctx, user, id, name))
}

// RemovePasskey implements auth.Service.
func (l logins) RemovePasskey(ctx context.Context, user, id string) error {
	return noPasskey(l.app.who.RemovePasskey(ctx, user, id))
}

func noPasskey(err error) error {
	if errors.Is(err, identity.ErrNone) {
		err = auth.ErrNoPasskey
	}
	return err
}

// deciders implements approvals.Passkeys. The identity service is opened after the stores.
type deciders struct{ app *App }

// Approve implements approvals.Passkeys.
func (d deciders) Approve(ctx context.Context, user string, challenge, assertion []byte) error {
	return d.app.who.Approve(ctx, user, challenge, assertion)
}

// Approved implements approvals.Passkeys.
func (d deciders) Approved(ctx context.Context, challenge, assertion []byte) error {
	return d.app.who.Approved(ctx, challenge, assertion)
}

// Rules implements auth.Service.
func (l logins) Rules(who tool.Caller) bool { return seesEverything(who) }
