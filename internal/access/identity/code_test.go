package identity

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// loggedIn is the answer to a login, with the cookie.
type loggedIn struct {
	User, Key string
	Lasting   bool
	cookie    string
}

func byLink(t testing.TB, s *Service, code string, headers ...string) (loggedIn, int) {
	t.Helper()
	w := post(s, "/auth/link", `{"code":"`+code+`"}`, headers...)
	var in loggedIn
	if w.Code == 200 {
		if err := json.Unmarshal(w.Body.Bytes(), &in); err != nil {
			t.Fatal(err)
		}
		c := w.Result().Cookies()[0]
		in.cookie = c.Name + "=" + c.Value
	}
	return in, w.Code
}

// A link opens one login, within its time. Only one that a person saw counts as a person's.
func TestALinkLogsInOnce(t *testing.T) {
	s := newTestService(t, Options{})
	for _, c := range []struct {
		user     string
		terminal bool
		want     string
	}{{"alice", true, "alice"}, {"alice", false, "alice"}, {"", true, s.owner}} {
		l, err := s.CreateLink(t.Context(), c.user, c.terminal)
		if err != nil {
			t.Fatal(err)
		}
		in, status := byLink(t, s, l.Code)
		if status != 200 || in.User != c.want || in.Lasting {
			t.Fatalf("got %d %+v", status, in)
		}
		p, denied := s.HTTP(request("POST", "/mcp", away, "Cookie: "+in.cookie+keyMark+in.Key))
		if denied != nil || p.Name != c.want || p.Person() != c.terminal || !p.Has(Admin) {
			t.Errorf("%+v: got %+v, %v", c, p, denied)
		}
		if _, status := byLink(t, s, l.Code); status != 401 {
			t.Errorf("the second time: %d", status)
		}
	}
	if _, err := s.CreateLink(t.Context(), "eve", true); err == nil {
		t.Error("there is a link for a user who does not exist")
	}
}

//redteam:attack A login has two halves: a link is used late, guessed, or after its user was removed
func TestALinkThatDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestService(t, Options{})
		late, err := s.CreateLink(t.Context(), "alice", true)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(codeLife + time.Second)
		gone, err := s.CreateLink(t.Context(), "bob", true)
		if err == nil {
			err = s.RemoveUser(t.Context(), "bob")
		}
		if err != nil {
			t.Fatal(err)
		}
		for name, code := range map[string]string{
			"late": late.Code, "removed": gone.Code, "guessed": newLoginSecret(), "empty": "", "id": late.ID,
		} {
			if _, status := byLink(t, s, code); status != 401 {
				t.Errorf("%s: %d", name, status)
			}
		}
	})
}

// A browser sends a cookie to every port of a host, so that the cookie alone is nothing: neither at this server nor
// with the key of another login.
//
//redteam:attack A login has two halves: a server at another port uses the cookie that a browser sends it
//redteam:attack A login has two halves: a page sets the cookie of its own login in another browser
func TestACookieAloneDoesNothing(t *testing.T) {
	s := newTestService(t, Options{Mode: Required})
	alice, bob := logIn(t, s, "alice", "correct horse", false), logIn(t, s, "bob", "battery staple", true)
	cookieOf := func(l string) string { return strings.Split(l, keyMark)[0] }
	keyOf := func(l string) string { return strings.Split(l, keyMark)[1] }
	for name, header := range map[string]string{
		"no key":            cookieOf(alice),
		"empty key":         cookieOf(alice) + keyMark,
		"key of another":    cookieOf(alice) + keyMark + keyOf(bob),
		"cookie of another": cookieOf(bob) + keyMark + keyOf(alice),
		"guessed key":       cookieOf(alice) + keyMark + newCookie(),
		"cookie as key":     cookieOf(alice) + keyMark + strings.Split(cookieOf(alice), "=")[1],
	} {
		for _, path := range []string{"/mcp", "/ws", "/auth/me", "/metrics"} {
			if got := outcome(s, request("GET", path, here, "Cookie: "+header)); !strings.HasPrefix(
				got,
				"Unauthorized",
			) {
				t.Errorf("%s at %s: %s", name, path, got)
			}
		}
	}
	if got := outcome(s, request("GET", "/mcp", here, KeyHeader+": "+keyOf(alice))); got != unnamed401 {
		t.Errorf("a key alone: %s", got)
	}
	two := request("GET", "/mcp", here, "Cookie: "+alice)
	two.Header.Add(KeyHeader, keyOf(bob))
	if got := outcome(s, two); got != invalid401 {
		t.Errorf("two keys: %s", got)
	}
}

//redteam:attack Origin and Host: a page of another origin logs a browser in or out, or with a link of its own
func TestAnotherOriginLogsNobodyInByLink(t *testing.T) {
	s := newTestService(t, Options{})
	l, err := s.CreateLink(t.Context(), "alice", true)
	if err != nil {
		t.Fatal(err)
	}
	for _, header := range []string{"Origin: https://evil.example", "Sec-Fetch-Site: cross-site",
		"Content-Type: text/plain"} {
		if _, status := byLink(t, s, l.Code, header); status != 403 && status != 415 {
			t.Errorf("%s: %d", header, status)
		}
	}
	if _, status := byLink(t, s, l.Code); status != 200 {
		t.Errorf("the link is used up: %d", status)
	}
}

// A program that listens in the place of the host does not get the link.
//
//redteam:attack A login has two halves: a program at the port of a host is given the link of its user
func TestALinkIsGivenOnlyToItsHost(t *testing.T) {
	s := newTestService(t, Options{})
	l, err := s.CreateLink(t.Context(), "alice", true)
	if err != nil {
		t.Fatal(err)
	}
	real := httptest.NewServer(s.Handler())
	defer real.Close()
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, real.URL+r.URL.String(), http.StatusFound)
	}))
	defer relay.Close()
	other := httptest.NewServer(newTestService(t, Options{}).Handler())
	defer other.Close()
	for name, c := range map[string]struct {
		at   *httptest.Server
		want bool
	}{"the host": {real, true}, "a relay": {relay, false}, "another host": {other, false}} {
		challenge := newCookie()
		res, err := http.Get(c.at.URL + "/auth/link/proof?link=" + l.ID + "&challenge=" + challenge)
		if err != nil {
			t.Fatal(err)
		}
		var said struct{ Proof string }
		json.NewDecoder(res.Body).Decode(&said)
		res.Body.Close()
		_, port, _ := net.SplitHostPort(c.at.Listener.Addr().String())
		if got := l.Proves(challenge, port, said.Proof); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestAPageLearnsWhoItIs(t *testing.T) {
	s := newTestService(t, Options{Mode: Required})
	get := func(path string, headers ...string) (map[string]any, int) {
		r := request("GET", path, away, headers...)
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		var out map[string]any
		json.Unmarshal(w.Body.Bytes(), &out)
		return out, w.Code
	}
	if _, status := get("/auth/me"); status != 401 {
		t.Errorf("without a login: %d", status)
	}
	if out, status := get("/auth/me", "Cookie: "+logIn(t, s, "alice", "correct horse", false)); status != 200 ||
		out["user"] != "alice" || out["person"] != true || out["way"] != "cookie" {
		t.Errorf("got %d %v", status, out)
	}
	secret, _ := newToken(t, s, Token{User: "alice"})
	if out, _ := get("/auth/me", "X-API-Key: "+secret); out["person"] != false || out["way"] != "token" {
		t.Errorf("a token: %v", out)
	}
	if out, status := get("/auth/ways"); status != 200 || out["password"] != true || out["anonymous"] != false {
		t.Errorf("ways: %d %v", status, out)
	}
}
