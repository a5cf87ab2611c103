package hosttest_test

import (
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/config"
)

// A session serves each request with what the credential of that request is
// good for, whichever of its principal's began it.
func TestASessionIsNoBetterThanTheCredentialAtHand(t *testing.T) {
	g := guardedGate(t, false)
	all, _ := g.token(identity.Token{User: "alice"})
	some, _ := g.token(identity.Token{User: "alice", Scopes: []string{"resources:*"}})
	broad, narrow := headers("Authorization", "Bearer "+all), headers("Authorization", "Bearer "+some)
	for name, c := range map[string]struct {
		opens, uses credential
		call        string
	}{
		"broad then narrow": {broad, narrow, "-32602"}, "narrow then broad": {narrow, broad, "alice"},
		"broad": {broad, broad, "alice"}, "narrow": {narrow, narrow, "-32602"},
	} {
		b := g.byHTTP("HTTP", c.opens, false)
		if got := b.open(); got != "ok" {
			t.Fatal(got)
		}
		b.brings(c.uses)
		if got := b.try(legacyEra, "call"); got != c.call {
			t.Errorf("%s: calling comes to %s, want %s", name, got, c.call)
		}
		if got := b.try(legacyEra, "read"); got != "alice" {
			t.Errorf("%s: reading comes to %s", name, got)
		}
	}
}

// Access tokens are short-lived and are replaced: what a session streams ends
// with the token that was shown last, the session goes on with the next.
func TestASessionOutlivesItsFirstToken(t *testing.T) {
	g := guardedGate(t, false, func(c *config.Config) { c.Sessions.Sweep = 10 * time.Millisecond })
	next, _ := g.token(identity.Token{User: "alice"})
	b, life := (*byHTTP)(nil), 2*time.Second
	var stream <-chan struct{}
	for {
		brief, _ := g.token(identity.Token{User: "alice", Until: time.Now().Add(life)})
		b = g.byHTTP("HTTP", headers("Authorization", "Bearer "+brief), false)
		if b.open() == "ok" {
			r := b.request(t.Context(), "GET", b.url, "")
			r.Header.Set("Mcp-Session-Id", b.session)
			if stream = b.followed(r); stream != nil {
				break
			}
		}
		life *= 4 // it has run out before it was used
	}
	select {
	case <-stream:
	case <-time.After(gateWait):
		t.Fatal("the stream has not ended with its token")
	}
	if got := b.try(legacyEra, "call"); got != "401 invalid_token" {
		t.Errorf("with the old token: %s", got)
	}
	b.brings(headers("Authorization", "Bearer "+next))
	if got := b.try(legacyEra, "call"); got != "alice" {
		t.Errorf("with the next token: %s", got)
	}
}

// A caller that lacks a scope that the provider could grant is told which, in the
// status that makes clients ask for it; no other caller is.
func TestScopesThatAreLackingAreNamed(t *testing.T) {
	g := guardedGate(t, false, func(c *config.Config) {
		c.Auth.OAuth.Required = []string{"mcp"}
		c.Auth.OAuth.Grants = map[string][]string{
			"mcp": {
				"prompts:*",
			}, "mcp.all": {"*"}, "mcp.call": {"tools:probe_*",
				"resources:none"}, "mcp.read": {"resources:*"}, "mcp.no": {"tools:other_*"},
		}
	})
	lacking := func(scope string) string {
		return `Bearer realm="gatehouse", error="insufficient_scope", scope="` + scope +
			`", resource_metadata="http://127.0.0.1/.well-known/oauth-protected-resource/mcp"`
	}
	token := func(scope string) credential {
		return headers(
			"Authorization",
			"Bearer "+g.issuer.issue(gateSubject, time.Hour, map[string]any{"scope": scope}),
		)
	}
	ours, _ := g.token(identity.Token{User: "alice", Scopes: []string{"resources:*"}})
	for _, c := range []struct {
		name string
		cred credential
		op   string
		want string // the challenge, or what comes of it
	}{
		{"enough", token("mcp mcp.call"), "call", ""},
		{"everything", token("mcp mcp.all"), "call", ""},
		{"calls", token("mcp"), "call", lacking("mcp mcp.call")},
		{"calls, with another scope", token("mcp mcp.read"), "call", lacking("mcp mcp.call")},
		{"reads", token("mcp"), "read", lacking("mcp mcp.read")},
		{"subscriptions", token("mcp"), "subscribe", lacking("mcp mcp.read")},
		{"a token of this host", headers("X-API-Key", ours), "call", "unknown"},
	} {
		for _, era := range gateEras {
			if c.op == "subscribe" && era == modernEra {
				continue // what cannot be had is left out of the subscription
			}
			b := g.byHTTP("HTTP", c.cred, false)
			if got := b.open(); got != "ok" {
				t.Fatal(got)
			}
			status, challenge := b.challenge(era, c.op)
			switch {
			case c.want == "" && status == 200 && challenge == "",
				c.want == "unknown" && status != 403 && challenge == "",
				c.want == challenge && status == 403 && challenge != "":
			default:
				t.Errorf("%s, %s: %d %s, want %s", c.name, era, status, challenge, c.want)
			}
		}
	}
	// All that every token needs is said before anything else.
	b := g.byHTTP("HTTP", token("mcp.call"), false)
	if status, challenge := b.challenge(modernEra, "call"); status != 403 || challenge != lacking("mcp") {
		t.Errorf("without what every token needs: %d %s", status, challenge)
	}
	// In the staff's context nothing is known to alice, whatever she could ask for.
	b = g.byHTTP("HTTP", token("mcp"), false)
	b.names("staff")
	if status, challenge := b.challenge(modernEra, "call"); status != 404 || challenge != "" {
		t.Errorf("in a context that is not hers: %d %s", status, challenge)
	}
}

// challenge tries something and gives the status with the challenge.
func (b *byHTTP) challenge(era, op string) (int, string) {
	b.t.Helper()
	res, err := b.http.Do(b.asking(b.t.Context(), era, op))
	must(b.t, err)
	res.Body.Close()
	return res.StatusCode, strings.Join(res.Header["Www-Authenticate"], "; ")
}
