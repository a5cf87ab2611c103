package identity

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/internal/mcp/seal"
)

// sealedNodes are the nodes of a cluster, as far as a login needs them.
type sealedNodes struct {
	*seal.Ring
	used sync.Map
}

func (n *sealedNodes) Once(_ context.Context, key string) (bool, error) {
	_, used := n.used.LoadOrStore(key, true)
	return !used, nil
}

// bothWays runs a test for a host alone and for one of a cluster.
func bothWays(t *testing.T, test func(*testing.T, Nodes)) {
	t.Run("alone", func(t *testing.T) { test(t, nil) })
	t.Run("in a cluster", func(t *testing.T) { test(t, &sealedNodes{Ring: seal.Ephemeral()}) })
}

// alternate serves the requests of browsers by each of some hosts in turn.
func alternate(all *[]*Service) http.Handler {
	var n atomic.Uint64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*all)[n.Add(1)%uint64(len(*all))].Handler().ServeHTTP(w, r)
	})
}

// twoNodes returns two hosts with the same users.
func twoNodes(t *testing.T, o Options) []*Service {
	t.Helper()
	o.Nodes = &sealedNodes{Ring: seal.Ephemeral()}
	path := filepath.Join(t.TempDir(), "identity.db")
	all := []*Service{empty(t, path, o), empty(t, path, o)}
	add(t, all[0], "alice", "correct horse", Admin)
	return all
}

// A link is opened at one node, and the login that it opens is one of all: with both halves, until it is ended at any
// node or the password is changed.
func TestALoginByALinkIsThatOfAllNodes(t *testing.T) {
	all := twoNodes(t, Options{Mode: Required})
	a, b := all[0], all[1]
	use := func(s *Service, code string) (cookie string, status int) {
		r := httptest.NewRequest("POST", "/auth/link", strings.NewReader(`{"code":"`+code+`"}`))
		r.RemoteAddr = away
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		var in loggedIn
		json.Unmarshal(w.Body.Bytes(), &in)
		for _, k := range w.Result().Cookies() {
			if k.Name == cookieName {
				cookie = k.Name + "=" + k.Value + keyMark + in.Key
			}
		}
		return cookie, w.Code
	}
	logIn := func() string {
		t.Helper()
		user, ok, err := a.findAccount(t.Context(), "name = ?", "alice")
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		code, err := a.newCode(t.Context(), user.number, codeProvider, false)
		if err != nil {
			t.Fatal(err)
		}
		cookie, status := use(b, code)
		if status != 200 {
			t.Fatalf("the link: %d", status)
		}
		if _, status := use(a, code); status != 401 {
			t.Errorf("the link, again: %d", status)
		}
		return cookie
	}
	expect := func(when, cookie string, in bool) {
		t.Helper()
		for i, s := range all {
			if err := s.refreshCaches(true); err != nil {
				t.Fatal(err)
			}
			if got := outcome(s, request("POST", "/mcp", away, "Cookie: "+cookie)); in != (got == "alice by cookie") {
				t.Errorf("%s, node %d: %s", when, i, got)
			}
		}
	}
	first, second := logIn(), logIn()
	expect("logged in", first, true)
	cookie, key, _ := strings.Cut(first, keyMark)
	_, others, _ := strings.Cut(second, keyMark)
	expect("with the key of another login", cookie+keyMark+others, false)
	expect("with a changed key", cookie+keyMark+"x"+key[1:], false)
	r := request("POST", "/auth/logout", away, "Cookie: "+first)
	w := httptest.NewRecorder()
	a.Handler().ServeHTTP(w, r)
	if w.Code != 204 {
		t.Errorf("logout at the node that did not open the login: %d %s", w.Code, w.Body)
	}
	expect("logged out", first, false)
	expect("another login", second, true)
	if err := a.SetPassword(t.Context(), "alice", "another horse"); err != nil {
		t.Fatal(err)
	}
	expect("with another password", second, false)
	later := logIn()
	UseClock(func() time.Time { return time.Now().Add(briefLife + time.Minute) })
	defer UseClock(time.Now)
	expect("after its end", later, false)
}

// A passkey is used at one node after another node has given out the challenge, once.
func TestAPasskeyIsUsedAtAnotherNode(t *testing.T) {
	all := twoNodes(t, Options{Mode: Required, Secure: true})
	a, b := ceremonies{t, all[0]}, ceremonies{t, all[1]}
	key := newAuthenticator(t, "ES256")
	cookie := "Cookie: " + logIn(t, all[0], "alice", "correct horse", true)
	id, challenge, handle := a.begin("/auth/passkey/register", cookie)
	key.handle = handle
	finish := map[string]any{"ceremony": id, "name": "my key", "response": key.register(challenge)}
	if status, out := b.post("/auth/passkey/register/finish", finish, cookie); status != 201 {
		t.Fatalf("%d %v", status, out)
	}
	id, challenge, _ = a.begin("/auth/passkey/login")
	for i, want := range []int{200, 401} {
		status, out := b.post("/auth/passkey/login/finish", map[string]any{"ceremony": id, "response": key.assert(challenge)})
		if status != want {
			t.Errorf("use %d: %d %v", i, status, out)
		}
	}
}
