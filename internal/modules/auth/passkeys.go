package auth

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gatehouse/internal/access/operator"
	"gatehouse/tool"
)

// Passkey is a passkey of a user.
type Passkey struct {
	ID      string    `json:"id"`
	User    string    `json:"user"`
	Name    string    `json:"name" doc:"to recognize it by"`
	Origin  string    `json:"origin" doc:"the only address of pages at which it works"`
	Decides bool      `json:"decides" doc:"counts for approvals, because this host knew it when it started"`
	Created time.Time `json:"created"`
	Used    time.Time `json:"lastUsed,omitzero"`
}

type passkeysOut struct {
	Passkeys []Passkey `json:"passkeys" doc:"oldest first"`
}

func (a *auth) listPasskeys(ctx context.Context, c *tool.Call, in listIn) (out passkeysOut, err error) {
	if err := checkCredential(c); err != nil {
		return out, err
	}
	user := c.Caller.Principal
	if in.All {
		if !a.service.Rules(c.Caller) {
			return out, operator.Denied("see the passkeys of all users", "Leave out all to list your own.")
		}
		user = ""
	}
	out.Passkeys, err = a.service.Passkeys(ctx, user)
	return out, err
}

type renameIn struct {
	ID   string `json:"id" doc:"the id from auth_passkey_list" min:"1"`
	Name string `json:"name" doc:"the new name" min:"1" max:"64"`
}

type renameOut struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

func (a *auth) renamePasskey(ctx context.Context, c *tool.Call, in renameIn) (renameOut, error) {
	err := a.changePasskey(c, in.ID, func(user string) error {
		return a.service.RenamePasskey(ctx, user, in.ID, in.Name)
	})
	return renameOut(in), err
}

type removeIn struct {
	ID string `json:"id" doc:"the id from auth_passkey_list" min:"1"`
}

type removeOut struct {
	Removed string `json:"removed"`
}

func (a *auth) removePasskey(ctx context.Context, c *tool.Call, in removeIn) (removeOut, error) {
	err := a.changePasskey(c, in.ID, func(user string) error { return a.service.RemovePasskey(ctx, user, in.ID) })
	return removeOut{in.ID}, err
}

// changePasskey calls change with the user whose passkeys the caller may change, "" for those of all users.
func (a *auth) changePasskey(c *tool.Call, id string, change func(user string) error) error {
	if err := checkCredential(c); err != nil {
		return err
	}
	user := c.Caller.Principal
	if a.service.Rules(c.Caller) {
		user = ""
	}
	err := change(user)
	if errors.Is(err, ErrNoPasskey) {
		return &tool.Refusal{
			Code: tool.CodeNotFound, Message: fmt.Sprintf("you have no passkey %.64q", id),
			Next: "List your passkeys with auth_passkey_list.",
		}
	}
	return err
}
