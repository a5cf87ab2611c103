package identity

import (
	"path/filepath"
	"testing"
	"time"

	"gatehouse/internal/tests/hosttest/wallclock"
)

// set makes this package use a clock that a test can set.
func set(t *testing.T) *wallclock.Clock {
	c := new(wallclock.Clock)
	was := clock
	clock = c.Now
	t.Cleanup(func() { clock = was })
	return c
}

// A credential that another process has revoked ends in this process, also if the clock was set back
// meanwhile, because the interval of the check does not depend on the time of day.
//
//redteam:attack One principal, however it comes: the clock is set back, and a token is revoked
func TestAClockSetBackLetsNoRevokedTokenGoOn(t *testing.T) {
	c := set(t)
	path := filepath.Join(t.TempDir(), "identity.db")
	s := empty(t, path, Options{})
	ask := other(t, path)
	becomes := func(what, want string, headers ...string) string {
		t.Helper()
		got := ""
		for end := time.Now().Add(time.Minute); got != want &&
			time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			got = outcome(s, request("GET", "/mcp", here, headers...))
		}
		if got != want {
			t.Fatalf("%s: got %s, want %s", what, got, want)
		}
		return got
	}
	ask("add alice")
	token := "X-API-Key: " + ask("token alice")
	becomes("a token", "alice by token", token)
	p, _ := s.HTTP(request("GET", "/mcp", here, token))
	c.Set(-24 * time.Hour)
	ask("revoke " + p.Credential)
	becomes("a revoked token, the clock set back", invalid401, token)
}

// Guesses are counted by the monotonic clock.
//
//redteam:attack One principal, however it comes: the clock is set forward between guesses of a password
func TestAClockThatJumpsGivesNoGuess(t *testing.T) {
	c := set(t)
	l := newLimiter(3, time.Hour)
	for range 3 {
		if wait := l.countTry("ann"); wait != 0 {
			t.Fatalf("wait %v", wait)
		}
	}
	for _, off := range []time.Duration{0, 48 * time.Hour, -48 * time.Hour, 1000 * time.Hour} {
		c.Set(off)
		if wait := l.countTry("ann"); wait <= 0 || wait > time.Hour {
			t.Errorf("the clock %v off: a fourth guess waits %v, want up to an hour", off, wait)
		}
	}
}
