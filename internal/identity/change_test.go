package identity

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestAPasswordIsChangedByWhoKnowsIt(t *testing.T) {
	s := house(t, Options{})
	ended := make(chan Revocation, 10)
	s.OnRevoked(func(r Revocation) { ended <- r })
	brief, lasting := logIn(t, s, "bob", "battery staple", false), logIn(t, s, "bob", "battery staple", true)
	others := logIn(t, s, "alice", "correct horse", true)
	s.perAcc = newLimiter(loginTries, loginWindow)

	if err := s.ChangePassword(t.Context(), "bob", "battery staples", "a new password"); !errors.Is(err, ErrPassword) {
		t.Errorf("with a wrong password: %v", err)
	}
	if err := s.ChangePassword(t.Context(), "bob", "battery staple", "short"); err == nil || errors.Is(err, ErrPassword) || !strings.Contains(err.Error(), "8 to 1024 bytes") {
		t.Errorf("a short one: %v", err)
	}
	if got := outcome(s, request("GET", "/mcp", away, "Cookie: "+brief)); strings.HasPrefix(got, "Unauthorized") {
		t.Error("what changed nothing ended a login")
	}
	if err := s.ChangePassword(t.Context(), "bob", "battery staple", "a new password"); err != nil {
		t.Fatal(err)
	}
	for kind, cookie := range map[string]string{"brief": brief, "lasting": lasting} {
		if got := outcome(s, request("GET", "/mcp", away, "Cookie: "+cookie)); !strings.HasPrefix(got, "Unauthorized: ") {
			t.Errorf("the %s login is %s", kind, got)
		}
	}
	if all, err := s.Logins(t.Context(), "bob"); err != nil || len(all) != 0 {
		t.Errorf("bob has %v, %v", all, err)
	}
	if got := outcome(s, request("GET", "/mcp", away, "Cookie: "+others)); strings.HasPrefix(got, "Unauthorized") {
		t.Error("alice was logged out")
	}
	select {
	case r := <-ended:
		if r != (Revocation{Principal: "bob"}) {
			t.Errorf("ended is %+v", r)
		}
	case <-time.After(30 * time.Second):
		t.Error("what bob had open was never ended")
	}
	logIn(t, s, "bob", "a new password", false)
}

// Guessing is as slow here as at the door, and says as little.
func TestGuessingAPasswordWhileLoggedIn(t *testing.T) {
	s := house(t, Options{})
	if err := s.AddUser(t.Context(), "robot", nil, ""); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"bob", "robot", "nobody"} {
		for range loginTries {
			if err := s.ChangePassword(t.Context(), user, "what is it", "a new password"); !errors.Is(err, ErrPassword) {
				t.Errorf("%s: %v", user, err)
			}
		}
		denied, ok := errors.AsType[*Denied](s.ChangePassword(t.Context(), user, "battery staple", "a new password"))
		if !ok || denied.Status != 429 || !strings.Contains(denied.Message, "wait") {
			t.Errorf("%s after too many tries: %v", user, denied)
		}
	}
}

// A service that closes tells nobody anything afterwards.
func TestAChangeAndTheEnd(t *testing.T) {
	s, err := Open("", Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.pass.cost, s.pass.decoy.cost = cheap, cheap
	add(t, s, "bob", "battery staple")
	if err := s.ChangePassword(t.Context(), "bob", "battery staple", "a new password"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s.later.Stop() {
		t.Error("it still had something to tell")
	}
}
