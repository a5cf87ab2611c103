package auth

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

func TestTheModuleKeepsTheContract(t *testing.T) {
	moduletest.Run(t, New(Config{}), moduletest.Options{})
}

// fixture is a service with two users.
type fixture struct {
	logins   []Login
	password string
	passkeys []Passkey
}

func (d *fixture) Passkeys(_ context.Context, user string) (all []Passkey, err error) {
	for _, k := range d.passkeys {
		if user == "" || k.User == user {
			all = append(all, k)
		}
	}
	return all, nil
}

func (d *fixture) RenamePasskey(_ context.Context, user, id, name string) error {
	for i, k := range d.passkeys {
		if k.ID == id && (user == "" || k.User == user) {
			d.passkeys[i].Name = name
			return nil
		}
	}
	return ErrNoPasskey
}

func (d *fixture) RemovePasskey(_ context.Context, user, id string) error {
	n := len(d.passkeys)
	d.passkeys = slices.DeleteFunc(d.passkeys,
		func(k Passkey) bool { return k.ID == id && (user == "" || k.User == user) })
	if len(d.passkeys) == n {
		return ErrNoPasskey
	}
	return nil
}

func (d *fixture) Logins(_ context.Context, user string) (all []Login, err error) {
	for _, l := range d.logins {
		if user == "" || l.User == user {
			all = append(all, l)
		}
	}
	return all, nil
}

func (d *fixture) EndLogin(_ context.Context, id string) error {
	n := len(d.logins)
	d.logins = slices.DeleteFunc(d.logins, func(l Login) bool { return l.ID == id })
	if len(d.logins) == n || id == "s_gone" {
		return ErrNone
	}
	return nil
}

func (d *fixture) ChangePassword(_ context.Context, who tool.Caller, present, next string) error {
	switch {
	case who.Principal != "ann" || present != d.password:
		return ErrPassword
	case len(next) < 8:
		return errors.New("a password has 8 to 1024 bytes")
	case next == "too often":
		return tool.Refuse("busy", "wait")
	}
	d.password = next
	return nil
}

func (d *fixture) Rules(who tool.Caller) bool { return slices.Contains(who.Roles, "admin") }

func newFixture() *fixture {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	one := func(id, user string) Login {
		return Login{
			ID:      id,
			User:    user,
			Agent:   "browser",
			Created: at,
			Used:    at.Add(time.Hour),
			Until:   at.Add(2 * time.Hour),
		}
	}
	return &fixture{
		[]Login{one("s_1", "ann"), one("s_2", "bob"), one("s_3", "ann"), one("s_gone", "ann")},
		"old password",
		[]Passkey{{ID: "p_1", User: "ann"}, {ID: "p_2", User: "bob"}},
	}
}

// call gives a result as JSON, or the text of a refusal.
func (d *fixture) call(t *testing.T, who tool.Caller, name, args string) string {
	t.Helper()
	deps := moduletest.NewHost(t).Deps()
	m, err := New(Config{Service: d})(t.Context(), deps)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(context.Background())
	c := moduletest.NewCall(t, args)
	c.Caller.Principal, c.Caller.Roles, c.Caller.Scopes, c.Caller.Credential = who.Principal, who.Roles, who.Scopes,
		who.Credential
	res, err := c.Tool(t.Context(), moduletest.Tool(t, m, name))
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return string(r.Code) + ": " + r.Message
	}
	if err != nil {
		return "error: " + err.Error()
	}
	b, _ := json.Marshal(res.Structured)
	return string(b)
}

func TestEverybodySeesAndEndsTheirOwnSessions(t *testing.T) {
	ann, bob, root := tool.Caller{Principal: "ann", Credential: "s_3"}, tool.Caller{Principal: "bob"}, tool.Caller{
		Principal: "root",
		Roles:     []string{"admin"},
	}
	d := newFixture()
	for _, step := range []struct {
		who              tool.Caller
		tool, args, want string
	}{
		{
			ann, "auth_session_list", `{}`,
			`{"current":"s_3","sessions":{"s_1":{"user":"ann","loggedIn":"2030-01-02T03:04:05Z","lastActive":"2030-01-02T04:04:05Z","userAgent":"browser","expires":"2030-01-02T05:04:05Z"},"s_3":{`,
		},
		{bob, "auth_session_list", `{}`, `{"sessions":{"s_2":{"user":"bob"`},
		{
			ann, "auth_session_list", `{"all":true}`,
			"denied: only administrators of this host may see the sessions of all users",
		},
		{root, "auth_session_list", `{}`, `{"sessions":{}}`},
		{root, "auth_session_list", `{"all":true}`, `{"sessions":{"s_1":{"user":"ann"`},
		{bob, "auth_session_kill", `{"ids":["s_2","s_1"]}`,
			`not_found: you have no session "s_1"; no session was ended`},
		{bob, "auth_session_list", `{}`, `{"sessions":{"s_2":{"user":"bob"`},
		{ann, "auth_session_kill", `{"ids":[]}`, `{"ended":[]}`},
		{ann, "auth_session_kill", `{"ids":["s_1","s_3"]}`, "denied: one of them is the session of this call"},
		{ann, "auth_session_kill", `{"ids":["s_1","s_1","s_gone"]}`, `{"ended":["s_1"]}`},
		{root, "auth_session_kill", `{"ids":["s_2"]}`, `{"ended":["s_2"]}`},
		{bob, "auth_session_list", `{}`, `{"sessions":{}}`},
	} {
		if got := d.call(t, step.who, step.tool, step.args); !strings.HasPrefix(got, step.want) {
			t.Errorf("%s %s %s: %s, want %s", step.who.Principal, step.tool, step.args, got, step.want)
		}
	}
}

func TestAPasswordIsChangedWithThePresentOne(t *testing.T) {
	d := newFixture()
	ann := tool.Caller{Principal: "ann"}
	for _, step := range []struct {
		who        tool.Caller
		args, want string
	}{
		{ann, `{"oldPassword":"guess","newPassword":"new password"}`, "denied: oldPassword is not your password"},
		{
			tool.Caller{Principal: "root", Roles: []string{"admin"}},
			`{"oldPassword":"old password","newPassword":"new password"}`, "denied: oldPassword is not your password",
		},
		{ann, `{"oldPassword":"old password","newPassword":"short"}`, "error: a password has 8"},
		{ann, `{"oldPassword":"old password","newPassword":"too often"}`, "busy: wait"},
		{
			tool.Caller{Principal: "ann", Scopes: []string{"files"}},
			`{"oldPassword":"old password","newPassword":"new password"}`, "denied: your credential is limited",
		},
		{ann, `{"oldPassword":"old password","newPassword":"new password"}`, `{"changed":true`},
	} {
		if got := d.call(t, step.who, "auth_password", step.args); !strings.HasPrefix(got, step.want) {
			t.Errorf("%s %s: %s, want %s", step.who.Principal, step.args, got, step.want)
		}
	}
	if d.password != "new password" {
		t.Errorf("it is %q", d.password)
	}
}

func TestWithoutAService(t *testing.T) {
	m, err := New(Config{})(t.Context(), moduletest.NewHost(t).Deps())
	if err != nil {
		t.Fatal(err)
	}
	res, err := moduletest.NewCall(t, `{}`).Tool(t.Context(), moduletest.Tool(t, m, "auth_session_list"))
	if out, ok := res.Structured.(listOut); err != nil || !ok || len(out.Sessions) != 0 {
		t.Errorf("got %+v, %v", res, err)
	}
}

func TestPasskeysBelongToTheirUsers(t *testing.T) {
	d := newFixture()
	ann, root := tool.Caller{Principal: "ann"}, tool.Caller{Principal: "root", Roles: []string{"admin"}}
	for _, c := range []struct {
		who              tool.Caller
		name, args, want string
	}{
		{ann, "auth_passkey_list", `{}`, `"p_1"`},
		{ann, "auth_passkey_list", `{"all":true}`, "denied"},
		{root, "auth_passkey_list", `{"all":true}`, `"p_2"`},
		{ann, "auth_passkey_rename", `{"id":"p_2","name":"mine"}`, "not_found"},
		{ann, "auth_passkey_remove", `{"id":"p_2"}`, "not_found"},
		{tool.Caller{Principal: "ann", Scopes: []string{"*"}}, "auth_passkey_remove", `{"id":"p_1"}`, "denied"},
		{ann, "auth_passkey_rename", `{"id":"p_1","name":"mine"}`, `"mine"`},
		{ann, "auth_passkey_remove", `{"id":"p_1"}`, `"removed":"p_1"`},
		{root, "auth_passkey_remove", `{"id":"p_2"}`, `"removed":"p_2"`},
	} {
		if got := d.call(t, c.who, c.name, c.args); !strings.Contains(got, c.want) {
			t.Errorf("%s %s by %s: got %s; want %s", c.name, c.args, c.who.Principal, got, c.want)
		}
	}
}
