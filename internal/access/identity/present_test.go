package identity

import (
	"slices"
	"strings"
	"testing"

	"gatehouse/tool"
)

// A caller of an earlier time has the roles of its user now, and is refused if the user or its token is gone.
func TestPresent(t *testing.T) {
	s := newTestService(t, Options{})
	_, token, err := s.CreateToken(t.Context(), Token{User: "alice", Name: "one"})
	if err != nil {
		t.Fatal(err)
	}
	alice := tool.Caller{Principal: "alice", Roles: []string{Admin}, Credential: token.ID}
	bob := tool.Caller{Principal: "bob", Roles: []string{"reader"}}
	foreign := tool.Caller{Principal: "carol@issuer", Roles: []string{"guest"}}
	expect := func(when string, who tool.Caller, roles []string, refused string) {
		t.Helper()
		got, err := s.Present(t.Context(), who)
		switch {
		case refused != "":
			if err == nil || !strings.Contains(err.Error(), refused) {
				t.Errorf("%s: got %v, want a refusal with %q", when, err, refused)
			}
		case err != nil || !slices.Equal(got.Roles, roles):
			t.Errorf("%s: roles %q, %v; want %q", when, got.Roles, err, roles)
		}
	}
	expect("at first", alice, []string{Admin}, "")
	expect("no user of this host", foreign, []string{"guest"}, "")
	if err := s.SetRoles(t.Context(), "alice", []string{"reader"}); err != nil {
		t.Fatal(err)
	}
	expect("with other roles", alice, []string{"reader"}, "")
	if err := s.RevokeToken(t.Context(), token.ID); err != nil {
		t.Fatal(err)
	}
	expect("with a revoked token", alice, nil, "revoked")
	if err := s.RemoveUser(t.Context(), "bob"); err != nil {
		t.Fatal(err)
	}
	expect("removed", bob, nil, "user bob was removed")
	add(t, s, "bob", "battery staple", Admin) // another user of that name
	expect("removed, and the name is used again", bob, nil, "user bob was removed")
}
