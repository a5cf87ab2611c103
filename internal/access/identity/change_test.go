package identity

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAPasswordIsChangedByWhoKnowsIt(t *testing.T) {
	s := newTestService(t, Options{})
	ended := make(chan Revocation, 10)
	s.OnRevoked(func(r Revocation) { ended <- r })
	brief, lasting := logIn(t, s, "bob", "battery staple", false), logIn(t, s, "bob", "battery staple", true)
	others := logIn(t, s, "alice", "correct horse", true)
	s.tries = newTries()

	if err := s.ChangePassword(t.Context(), "bob", "battery staples", "a new password", ""); !errors.Is(
		err,
		ErrPassword,
	) {
		t.Errorf("with a wrong password: %v", err)
	}
	if err := s.ChangePassword(t.Context(), "bob", "battery staple", "short", ""); err == nil ||
		errors.Is(err, ErrPassword) ||
		!strings.Contains(err.Error(), "8 to 1024 bytes") {
		t.Errorf("a short one: %v", err)
	}
	if got := outcome(s, request("GET", "/mcp", away, "Cookie: "+brief)); strings.HasPrefix(got, "Unauthorized") {
		t.Error("what changed nothing ended a login")
	}
	if err := s.ChangePassword(t.Context(), "bob", "battery staple", "a new password", ""); err != nil {
		t.Fatal(err)
	}
	for kind, cookie := range map[string]string{"brief": brief, "lasting": lasting} {
		if got := outcome(s, request("GET", "/mcp", away, "Cookie: "+cookie)); !strings.HasPrefix(
			got,
			"Unauthorized: ",
		) {
			t.Errorf("the %s login is %s", kind, got)
		}
	}
	if all, err := s.Logins(t.Context(), "bob"); err != nil || len(all) != 0 {
		t.Errorf("bob has %v, %v", all, err)
	}
	if got := outcome(s, request("GET", "/mcp", away, "Cookie: "+others)); strings.HasPrefix(got, "Unauthorized") {
		t.Error("alice was logged out")
	}
	if got := <-ended; got.Principal != "bob" || got.Credential == "" {
		t.Errorf("ended first is %+v, want one of the logins", got)
	}
	if got := <-ended; got.Principal != "bob" || got.Credential == "" {
		t.Errorf("ended next is %+v, want the other login", got)
	}
	logIn(t, s, "bob", "a new password", false)
}

// Guessing the present password is as slow as guessing at the login, and reveals as little.
func TestGuessingAPasswordWhileLoggedIn(t *testing.T) {
	s := newTestService(t, Options{})
	if err := s.AddUser(t.Context(), "robot", nil, ""); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"bob", "robot", "nobody"} {
		for range loginTries {
			if err := s.ChangePassword(t.Context(), user, "what is it", "a new password", ""); !errors.Is(
				err,
				ErrPassword,
			) {
				t.Errorf("%s: %v", user, err)
			}
		}
		denied, ok := errors.AsType[*Denied](
			s.ChangePassword(t.Context(), user, "battery staple", "a new password", ""),
		)
		if !ok || denied.Status != 429 || !strings.Contains(denied.Message, "wait") {
			t.Errorf("%s after too many tries: %v", user, denied)
		}
	}
}

// What was opened with the login in which the password is changed stays open until the answer is sent,
// and then ends like the rest, at the latest when the host ends.
func TestTheLoginOfAChangeEndsLast(t *testing.T) {
	path := filepath.Join(t.TempDir(), "identity.db")
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.pass.cost, s.pass.decoy.cost = cheap, cheap
	add(t, s, "bob", "battery staple")
	for _, lasting := range []bool{true, false} {
		logIn(t, s, "bob", "battery staple", lasting)
		logIn(t, s, "bob", "battery staple", lasting)
	}
	s.tries = newTries()
	all, err := s.Logins(t.Context(), "bob")
	if err != nil || len(all) != 4 {
		t.Fatal(all, err)
	}
	here := all[0].ID
	var ended []string
	s.OnRevoked(
		func(r Revocation) { ended = append(ended, r.Credential) },
	) // called by this goroutine only, because the service does not run
	if err := s.ChangePassword(t.Context(), "bob", "battery staple", "a new password", here); err != nil {
		t.Fatal(err)
	}
	slices.Sort(ended)
	want := []string{all[1].ID, all[2].ID, all[3].ID}
	if slices.Sort(want); !slices.Equal(ended, want) {
		t.Errorf("ended are %v, want %v", ended, want)
	}
	other := empty(t, path, Options{})
	told := make(chan Revocation, 10)
	other.OnRevoked(func(r Revocation) { told <- r })
	ended = nil
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(ended, []string{here}) {
		t.Errorf("at the end %q ended, want the login of the change", ended)
	}
	other.refreshCaches(true)
	if r := <-told; r != (Revocation{"bob", here}) {
		t.Errorf("another process receives %+v", r)
	}
}

// A password change, by a login or by the command line, ends what was opened with the old password, in
// every process, and nothing else: neither a login with the new password made before the moment of
// grace is over, nor tokens.
func TestANewPasswordEndsOnlyWhatTheOldOneOpened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "identity.db")
	s := empty(t, path, Options{})
	add(t, s, "bob", "battery staple")
	other := empty(t, path, Options{})
	_, token, err := s.CreateToken(t.Context(), Token{User: "bob"})
	if err != nil {
		t.Fatal(err)
	}
	var ended, elsewhere []string
	s.OnRevoked(func(r Revocation) { ended = append(ended, r.Credential) })
	other.OnRevoked(func(r Revocation) { elsewhere = append(elsewhere, r.Credential) })
	fresh := func(s *Service) { s.tries.network = newLimiter(100, loginWindow) }
	fresh(s)
	fresh(other)
	logIn(t, s, "bob", "battery staple", false)
	logIn(t, other, "bob", "battery staple", false)
	mine, _ := s.Logins(t.Context(), "bob")
	theirs, _ := other.Logins(t.Context(), "bob")

	if err := s.ChangePassword(t.Context(), "bob", "battery staple", "a second password", mine[0].ID); err != nil {
		t.Fatal(err)
	}
	brief, lasting := logIn(t, s, "bob", "a second password", false), logIn(t, s, "bob", "a second password", true)
	other.refreshCaches(true)
	if !slices.Equal(elsewhere, []string{theirs[0].ID}) {
		t.Errorf("in another process ended %q, want its login with the old password alone", elsewhere)
	}
	s.endAllNow() // ends the moment of grace
	if !slices.Equal(ended, []string{mine[0].ID}) {
		t.Errorf("ended are %q, want the login of the change alone (a token is %s)", ended, token.ID)
	}
	for _, cookie := range []string{brief, lasting} {
		if got := outcome(s, request("GET", "/mcp", away, "Cookie: "+cookie)); strings.HasPrefix(got, "Unauthorized") {
			t.Errorf("a login with the new password is %s", got)
		}
	}
	// Connections opened by a token do not depend on a password.
	ended = nil
	if err := s.ChangePassword(t.Context(), "bob", "a second password", "a third password", token.ID); err != nil {
		t.Fatal(err)
	}
	s.endAllNow()
	if slices.Contains(ended, token.ID) || slices.Contains(ended, "") || len(ended) != 2 {
		t.Errorf("ended are %q, want the two logins", ended)
	}
	// This change is made by the command line.
	logIn(t, s, "bob", "a third password", false)
	ended = nil
	if err := other.SetPassword(t.Context(), "bob", "a fourth password"); err != nil {
		t.Fatal(err)
	}
	logIn(t, s, "bob", "a fourth password", false)
	s.refreshCaches(true)
	if len(ended) != 1 || ended[0] == "" {
		t.Errorf("ended are %q, want the one login with the old password", ended)
	}
}

// A token that is marked as one of a program which no person is beside says so of its bearer, and no other does.
func TestTokensOfPrograms(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users.db")
	s := empty(t, path, Options{})
	if err := s.AddUser(t.Context(), "ci", nil, ""); err != nil {
		t.Fatal(err)
	}
	for _, marked := range []bool{false, true} {
		secret, made, err := s.CreateToken(t.Context(), Token{User: "ci", Unattended: marked})
		if err != nil || made.Unattended != marked {
			t.Fatal(made, err)
		}
		for _, host := range []*Service{s, empty(t, path, Options{})} { // another process reads the file
			if p, denied := host.HTTP(request("GET", "/mcp", away, bearer(secret))); denied != nil || p.Unattended != marked {
				t.Errorf("marked %v: unattended is %v, %v", marked, p.Unattended, denied)
			}
		}
		all, err := s.Tokens(t.Context(), "ci")
		if err != nil || all[len(all)-1].Unattended != marked {
			t.Errorf("listed as %+v, %v", all, err)
		}
		if err := s.RevokeToken(t.Context(), made.ID); err != nil {
			t.Error(err)
		}
	}
}
