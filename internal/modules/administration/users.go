package administration

import (
	"context"
	"crypto/rand"
	"fmt"

	"gatehouse/internal/access/confirm"
	"gatehouse/internal/access/identity"
	"gatehouse/tool"
)

// Users administers the users of a host. It is safe for concurrent use.
type Users struct{ Service *identity.Service }

// UserList is all users, with what else identifies them.
type UserList struct {
	Users []identity.User `json:"users" doc:"by name"`
	Links []identity.Link `json:"links" doc:"certificates and subjects of the OAuth provider"`
}

// List lists the users.
func (u Users) List(ctx context.Context) (out UserList, err error) {
	if u.Service == nil {
		return out, errAbsent
	}
	if out.Users, err = u.Service.Users(ctx); err != nil {
		return out, err
	}
	out.Links, err = u.Service.Links(ctx)
	return out, err
}

// NewUser is a user to add. Without a password one is generated, unless NoPassword is set.
type NewUser struct {
	Name       string   `json:"name" doc:"a-z, 0-9 and . _ - inside, at most 64" min:"1" max:"64"`
	Roles      []string `json:"roles,omitempty" doc:"admin may administer this host"`
	Password   string   `json:"password,omitempty" doc:"at least 8 bytes; default: one is generated" format:"password" max:"1024"`
	NoPassword bool     `json:"no_password,omitempty" doc:"the user has only tokens, certificates or another provider's logins"`
}

// Made is a user with the password that was generated for it.
type Made struct {
	Name     string   `json:"name"`
	Roles    []string `json:"roles,omitempty"`
	Password string   `json:"password,omitempty" doc:"generated, and not shown again"`
}

// Add adds a user.
func (u Users) Add(ctx context.Context, in NewUser) (Made, error) {
	out := Made{Name: in.Name, Roles: in.Roles}
	switch {
	case u.Service == nil:
		return out, errAbsent
	case in.NoPassword && in.Password != "":
		return out, &Invalid{fmt.Errorf("password and no_password exclude each other")}
	case in.Password == "" && !in.NoPassword:
		out.Password = rand.Text()
		in.Password = out.Password
	}
	return out, u.Service.AddUser(ctx, in.Name, in.Roles, in.Password)
}

// SetRoles gives a user these roles and no others.
func (u Users) SetRoles(ctx context.Context, name string, roles []string) (Made, error) {
	if u.Service == nil {
		return Made{}, errAbsent
	}
	if err := u.Service.SetRoles(ctx, name, roles); err != nil {
		return Made{}, fmt.Errorf("user %s: %w", name, err)
	}
	return Made{Name: name, Roles: roles}, nil
}

// SetPassword gives a user a password; "" generates one.
func (u Users) SetPassword(ctx context.Context, name, password string) (Made, error) {
	out := Made{Name: name}
	if u.Service == nil {
		return out, errAbsent
	}
	if password == "" {
		out.Password = rand.Text()
		password = out.Password
	}
	if err := u.Service.SetPassword(ctx, name, password); err != nil {
		return Made{}, fmt.Errorf("user %s: %w", name, err)
	}
	return out, nil
}

// Remove removes a user; heir, unless it is "", receives what can be handed over.
func (u Users) Remove(ctx context.Context, name, heir string) error {
	if u.Service == nil {
		return errAbsent
	}
	if err := u.Service.RemoveUserFor(ctx, name, heir); err != nil {
		return fmt.Errorf("user %s: %w", name, err)
	}
	return nil
}

type rolesIn struct {
	Name  string   `json:"name" doc:"the user" min:"1"`
	Roles []string `json:"roles" doc:"all roles of the user; the others are taken away"`
}

type passwordIn struct {
	Name     string `json:"name" doc:"the user" min:"1"`
	Password string `json:"password,omitempty" doc:"at least 8 bytes; default: one is generated" format:"password" max:"1024"`
}

type removeUserIn struct {
	Name    string `json:"name" doc:"the user" min:"1"`
	Heir    string `json:"heir,omitempty" doc:"the user who receives what can be handed over"`
	Confirm string `json:"confirm,omitempty" doc:"the name again, if the client cannot ask its user and the host accepts that"`
}

type removed struct {
	Removed string `json:"removed"`
}

func userTools(c Config) []tool.Tool {
	u := Users{c.Users}
	return []tool.Tool{
		operation(c, "see the users", tool.Def{
			Name: "user_list", Title: "List users", Effects: tool.Reads,
			Description: "Lists the users of this host with their roles.",
		}, func(ctx context.Context, _ *tool.Call, _ struct{}) (UserList, error) { return u.List(ctx) }),
		operation(c, "add users", tool.Def{
			Name: "user_add", Title: "Add a user", Effects: tool.Writes,
			Description: "Adds a user. Without a password one is generated and returned once.",
		}, func(ctx context.Context, _ *tool.Call, in NewUser) (Made, error) { return u.Add(ctx, in) }),
		operation(c, "change roles", tool.Def{
			Name: "user_roles", Title: "Set a user's roles", Effects: tool.Writes | tool.Destroys | tool.Idempotent,
			Description: "Gives a user these roles and no others. The user's sessions end.",
		}, func(ctx context.Context, _ *tool.Call, in rolesIn) (Made, error) {
			return u.SetRoles(ctx, in.Name, in.Roles)
		}),
		operation(c, "set passwords", tool.Def{
			Name: "user_password", Title: "Set a user's password", Effects: tool.Writes | tool.Destroys,
			Description: "Gives a user a new password, and ends the user's logins. Tokens stay valid.",
		}, func(ctx context.Context, _ *tool.Call, in passwordIn) (Made, error) {
			return u.SetPassword(ctx, in.Name, in.Password)
		}),
		operation(c, "remove users", tool.Def{
			Name: "user_remove", Title: "Remove a user", Effects: tool.Writes | tool.Destroys,
			Description: "Removes a user with its tokens and logins, and ends what belongs to it.",
			Help: "With heir, running processes, port forwards, sandboxes, snapshots and kept output go to that " +
				"user where the contexts of both allow it.",
		}, func(ctx context.Context, call *tool.Call, in removeUserIn) (removed, error) {
			question := fmt.Sprintf("Remove the user %.64q with its tokens and logins, and end what it has running?",
				in.Name)
			if err := confirm.Ask(call, in.Name, question, in.Confirm); err != nil {
				return removed{}, err
			}
			return removed{in.Name}, u.Remove(ctx, in.Name, in.Heir)
		}),
	}
}
