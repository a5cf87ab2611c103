package identity

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Three tries in any twenty seconds, for each address and for each account.
//
//redteam:attack One principal, however it comes: passwords are guessed
func TestThreeTriesInTwentySeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(3, 20*time.Second)
		for i, step := range []struct {
			after, want time.Duration
		}{
			{0, 0}, {time.Second, 0}, {time.Second, 0},
			{0, 18 * time.Second},
			{17 * time.Second, time.Second},
			{time.Second, 0}, // the first try has expired
			{0, time.Second},
			{time.Second, 0}, {time.Second, 0},
			{0, 18 * time.Second},
		} {
			time.Sleep(step.after)
			if got := l.countTry("a"); got != step.want {
				t.Errorf("try %d waits %v, want %v", i, got, step.want)
			}
		}
		if got := l.countTry("b"); got != 0 {
			t.Errorf("another key waits %v", got)
		}
	})
}

func TestTheLimiterForgetsAndIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(3, 20*time.Second)
		for i := range mostWatched {
			l.countTry(fmt.Sprint(i))
		}
		if l.countTry("one more") == 0 || l.countTry("7") != 0 {
			t.Error("a full limiter lets a new key in, or a known one wait")
		}
		time.Sleep(20 * time.Second)
		if l.countTry("one more") != 0 || len(l.tried) != 1 {
			t.Errorf("%d keys are remembered, want 1", len(l.tried))
		}
	})
}

func TestAddressesOfOneCustomerAreOne(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7",
		"2001:db8:1:2:3::4": "2001:db8:1:2::/64", "2001:db8:1:2:ffff::": "2001:db8:1:2::/64", "::1": "::1",
		"fe80::1%eth0": "fe80::/64",
	} {
		if got := network(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s counts as %s, want %s", addr, got, want)
		}
	}
}

func TestLoginsAreLimited(t *testing.T) {
	wrong := func(user string) string { return `{"user":"` + user + `","password":"some password"}` }
	const right = `{"user":"alice","password":"correct horse"}`
	t.Run("by address", func(t *testing.T) {
		s := newTestService(t, Options{})
		for i := range 3 {
			if w := post(s, "/auth/login", wrong(fmt.Sprint("user", i))); w.Code != 401 {
				t.Fatalf("got %d", w.Code)
			}
		}
		w := post(s, "/auth/login", right)
		if w.Code != 429 || w.Header().Get("Retry-After") != "20" {
			t.Errorf("got %d, Retry-After %s", w.Code, w.Header().Get("Retry-After"))
		}
		if w := post(s, "/auth/pair", right); w.Code != 429 {
			t.Errorf("pairing got %d", w.Code)
		}
		if w := postFrom(s, "198.51.100.1:1", "/auth/login", right); w.Code != 200 {
			t.Errorf("from elsewhere: got %d", w.Code)
		}
	})
	t.Run("by account in all networks, known or not", func(t *testing.T) {
		s := newTestService(t, Options{})
		s.tries.account = newLimiter(4, loginWindow)
		var said []string
		for _, user := range []string{"alice", "nobody"} {
			for i := range 5 {
				w := postFrom(s, fmt.Sprintf("198.51.100.%d:1", i), "/auth/login", wrong(user))
				said = append(said, fmt.Sprint(w.Code, w.Header().Get("Retry-After"), w.Body))
			}
		}
		if a, b := strings.Join(said[:5], ""), strings.Join(said[5:], ""); a != b ||
			!strings.HasPrefix(said[4], "429") {
			t.Errorf("a known account got %s, an unknown one %s", a, b)
		}
	})
}

// A stranger's guesses, at any rate, lock a user out neither in another network nor at a device of the
// user, and each of them stays slow.
//
//redteam:attack One principal, however it comes: a stranger guesses so that the user is locked out
func TestGuessingLocksNoUserOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestService(t, Options{})
		defer s.Close()
		cookies := func() (pairs []string) {
			s.tries = newTries()
			w := post(s, "/auth/login", `{"user":"alice","password":"correct horse"}`)
			if w.Code != 200 {
				t.Fatalf("alice cannot log in: %d", w.Code)
			}
			for _, c := range w.Result().Cookies() {
				pairs = append(pairs, c.Name+"="+c.Value)
			}
			return pairs
		}()
		known := "Cookie: " + cookies[1] // the session has ended before
		const right, wrong = `{"user":"alice","password":"correct horse"}`,
			`{"user":"alice","password":"not the horse"}`
		s.tries = newTries()
		judged := 0
		for i := range 120 { // two minutes of one guess a second, also from the network of the user's device
			for _, from := range []string{"198.51.100.1:1", away} {
				if w := postFrom(s, from, "/auth/login", wrong); w.Code == 401 {
					judged++
				}
			}
			time.Sleep(time.Second)
			if i%30 != 29 {
				continue
			}
			if w := postFrom(s, "203.0.113.9:1", "/auth/login", right); w.Code != 200 {
				t.Errorf("after %d s alice is answered %d in another network", i, w.Code)
			}
			if w := post(s, "/auth/login", right, known); w.Code != 200 {
				t.Errorf("after %d s alice is answered %d at her own device, in the guesser's network", i, w.Code)
			}
		}
		if judged > 2*3*7 {
			t.Errorf("%d guesses were judged in two minutes from two networks", judged)
		}
		// The device has three tries of its own, for alice only.
		time.Sleep(loginWindow)
		for i, want := range []int{401, 401, 401, 429} {
			if w := post(s, "/auth/login", wrong, known); w.Code != want {
				t.Errorf("guess %d at the device is answered %d, want %d", i+1, w.Code, want)
			}
		}
		for range 3 {
			post(s, "/auth/login", `{"user":"bob","password":"not his horse"}`, known)
		}
		if w := post(s, "/auth/login", `{"user":"bob","password":"battery staple"}`, known); w.Code != 429 {
			t.Errorf("with alice's device a guesser of bob's password is answered %d", w.Code)
		}
	})
}

func TestPairing(t *testing.T) {
	s := empty(t, "", Options{Mode: Required})
	entry := func(code, user, password string) string {
		return `{"code":"` + code + `","user":"` + user + `","password":"` + password + `"}`
	}
	reset := func() { s.tries = newTries() }
	if w := post(s, "/auth/pair", entry("", "alice", "correct horse")); w.Code != 403 {
		t.Errorf("without a code: %d", w.Code)
	}
	old, err := s.Pairing(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	code, err := s.Pairing(t.Context())
	if err != nil || len(code) != 14 || code == old {
		t.Fatalf("the code is %q, %v", code, err)
	}
	for _, c := range []struct {
		body string
		want int
	}{
		{entry(old, "alice", "correct horse"), 403},
		{entry("aaaa-bbbb-cccc", "Alice", "short"), 403}, // further errors of the request are not reported
		{entry(code, "Alice", "correct horse"), 400},
		{entry(code, "alice", "short"), 400},
		{entry(strings.ToUpper(code), "alice", "correct horse"), 201},
		{entry(code, "eve", "correct horse"), 403},
	} {
		reset()
		if w := post(s, "/auth/pair", c.body); w.Code != c.want {
			t.Errorf("%s: got %d %s, want %d", c.body, w.Code, w.Body, c.want)
		}
	}
	p, d := s.HTTP(request("GET", "/mcp", away, "Cookie: "+logIn(t, s, "alice", "correct horse", false)))
	if d != nil || !p.Has(Admin) {
		t.Errorf("the first user is %+v, %v", p, d)
	}
	if code, err := s.Pairing(t.Context()); code != "" || err != nil {
		t.Errorf("with a user there is a code %q, %v", code, err)
	}
	users, err := s.Users(t.Context())
	if err != nil || len(users) != 1 {
		t.Errorf("the users are %+v, %v", users, err)
	}
	if err := s.RemoveUser(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	if err := s.Pair(t.Context(), code, "eve", "correct horse"); err != ErrPairing {
		t.Errorf("a used code, when there is no user again: %v", err)
	}
}

// If many callers send the code at once, one is admitted.
func TestACodeWorksOnce(t *testing.T) {
	s := empty(t, "", Options{})
	code, err := s.Pairing(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error)
	for i := range 8 {
		go func() { results <- s.Pair(t.Context(), code, fmt.Sprint("user", i), "correct horse") }()
	}
	won := 0
	for range 8 {
		if err := <-results; err == nil {
			won++
		}
	}
	if won != 1 {
		t.Errorf("%d were paired, want 1", won)
	}
}

func TestACodeRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := Open("", Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.pass.cost = cheap
		code, err := s.Pairing(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(pairLife)
		if err := s.Pair(t.Context(), code, "alice", "correct horse"); err != ErrPairing {
			t.Errorf("got %v", err)
		}
	})
}

// If another user was created first, the code of the host is no longer valid.
func TestACodeDoesNotMakeASecondUser(t *testing.T) {
	s := empty(t, "", Options{})
	code, err := s.Pairing(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	add(t, s, "bob", "")
	if err := s.Pair(t.Context(), code, "alice", "correct horse"); err != ErrPairing {
		t.Errorf("got %v", err)
	}
}
