package hosttest_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/identity"
)

// gateMethods are all methods of HTTP, and an unknown one.
var gateMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND", "NONSENSE"}

// status sends one request and returns its status and challenge. It does not wait for a stream.
func (b *byHTTP) status(method, path, session string) (int, http.Header) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), gateWait)
	defer cancel()
	body := ""
	if method == "POST" || method == "PUT" || method == "PATCH" {
		body = message(1, legacyEra, "ping", "", "")
	}
	r := b.request(ctx, method, strings.TrimSuffix(b.url, "/mcp")+path, body)
	if session != "" {
		r.Header.Set("Mcp-Session-Id", session)
	}
	res, err := b.http.Do(r)
	must(b.t, err)
	res.Body.Close()
	return res.StatusCode, res.Header
}

// Every method requires credentials at every path except the public ones, whether or not the path exists.
//
//redteam:attack One principal, however it comes: every MCP method without credentials
func TestEveryMethodAsksWhoIsThere(t *testing.T) {
	g := guardedGate(t, false)
	good, _ := g.token(identity.Token{User: "alice"})
	nobody, wrong := g.byHTTP(
		"HTTP",
		credential{},
		false,
	), g.byHTTP(
		"HTTP",
		headers("Authorization", "Bearer gh_nonsense"),
		false,
	)
	alice := g.byHTTP("HTTP", headers("Authorization", "Bearer "+good), false)
	guarded := []string{
		"/mcp", "/mcp/staff", "/mcp/nowhere", "/mcp/", "/mcp/a/b", "/mcp/../mcp", "//mcp", "/MCP", "/sse", "/messages",
		"/messages?session=x",
		"/metrics", "/auth/logout", "/auth/", "/auth/nothing", "/nothing", "/health/", "/ready/x", "/auth/login/",
		"/.well-knownx", "/%2e%2e/mcp",
	}
	for _, path := range guarded {
		for _, method := range gateMethods {
			for who, b := range map[string]*byHTTP{"nobody": nobody, "a wrong token": wrong} {
				code, h := b.status(method, path, "")
				if code != 401 || !strings.HasPrefix(h.Get("WWW-Authenticate"), "Bearer ") {
					t.Errorf(
						"%s %s by %s: %d, %q; want 401 with a challenge",
						method,
						path,
						who,
						code,
						h.Get("WWW-Authenticate"),
					)
				}
			}
			if code, h := alice.status(method, path, ""); code == 401 && path != "/auth/logout" ||
				code >= 500 && code != 501 {
				t.Errorf("%s %s by alice: %d %v", method, path, code, h)
			}
		}
	}
	for _, path := range []string{"/", "/health", "/ready", "/.well-known/mcp", "/.well-known/oauth-protected-resource",
		"/.well-known/oauth-protected-resource/mcp"} {
		if code, _ := nobody.status("GET", path, ""); code != 200 {
			t.Errorf("GET %s: %d, want 200: it is public", path, code)
		}
	}
	for _, path := range guarded {
		if code, h := nobody.status("OPTIONS", path, ""); code >= 500 || h.Get("Mcp-Session-Id") != "" {
			t.Errorf("OPTIONS %s: %d %v", path, code, h)
		}
	}
}

// Every method answers for the session of another user as for one that never existed.
//
//redteam:attack What is not yours is not there: sessions of other principals are named
func TestOthersSessionsAreNotThere(t *testing.T) {
	g := guardedGate(t, false)
	alices, _ := g.token(identity.Token{User: "alice"})
	zoes, _ := g.token(identity.Token{User: "zoe"})
	alice, zoe := g.byHTTP(
		"HTTP",
		headers("Authorization", "Bearer "+alices),
		false,
	), g.byHTTP(
		"HTTP",
		headers("X-API-Key", zoes),
		false,
	)
	if got := alice.open(); got != "ok" {
		t.Fatal(got)
	}
	for _, method := range []string{"GET", "POST", "DELETE"} {
		theirs, h1 := zoe.status(method, "/mcp", alice.session)
		none, h2 := zoe.status(method, "/mcp", strings.Repeat("A", len(alice.session)))
		h1.Del("Date")
		h2.Del("Date")
		if theirs != 404 || none != 404 || len(h1) != len(h2) {
			t.Errorf(
				"%s: %d for a session of somebody else, %d for one that is not there; want 404 for both\n%v\n%v",
				method,
				theirs,
				none,
				h1,
				h2,
			)
		}
	}
	if got := alice.try(legacyEra, "call"); got != "alice" {
		t.Errorf("alice's session: %s", got)
	}
}

// A stream ends with the credential that opened it: that of a session, and a subscription of the newest era. Other
// streams stay open.
func TestStreamsEndWithTheirCredential(t *testing.T) {
	g := guardedGate(t, false)
	stays, _ := g.token(identity.Token{User: "alice"})
	goes, id := g.token(identity.Token{User: "alice"})
	ends := map[string]<-chan struct{}{}
	for name, secret := range map[string]string{"stays": stays, "goes": goes} {
		b := g.byHTTP("HTTP", headers("Authorization", "Bearer "+secret), false)
		if got := b.open(); got != "ok" {
			t.Fatal(got)
		}
		r := b.request(t.Context(), "GET", b.url, "")
		r.Header.Set("Mcp-Session-Id", b.session)
		ends["the session that "+name] = b.follow(r)
		ends["the subscription that "+name] = b.follow(b.asking(t.Context(), modernEra, "subscribe"))
	}
	must(t, g.users.RevokeToken(t.Context(), id))
	for _, what := range []string{"the session that goes", "the subscription that goes"} {
		select {
		case <-ends[what]:
		case <-time.After(gateWait):
			t.Errorf("%s has not ended", what)
		}
	}
	for _, what := range []string{"the session that stays", "the subscription that stays"} {
		select {
		case <-ends[what]:
			t.Errorf("%s has ended", what)
		default:
		}
	}
}

// follow opens a stream and reports its end.
func (b *byHTTP) follow(r *http.Request) <-chan struct{} {
	b.t.Helper()
	ended := b.followed(r)
	if ended == nil {
		b.t.Fatalf("%s is no stream", r.Method)
	}
	return ended
}

// followed is follow, but returns nil if the answer is not a stream.
func (b *byHTTP) followed(r *http.Request) <-chan struct{} {
	b.t.Helper()
	client := &http.Client{Transport: b.http.Transport} // without a time limit
	res, err := client.Do(r)
	must(b.t, err)
	if res.StatusCode != 200 || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		res.Body.Close()
		return nil
	}
	ended := make(chan struct{})
	b.t.Cleanup(func() { res.Body.Close(); <-ended })
	go func() {
		defer close(ended)
		io.Copy(io.Discard, bufio.NewReader(res.Body))
	}()
	return ended
}
