package hosttest_test

import (
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/config"
)

// The metrics are for admins and for tokens made to read them, which are good
// for nothing else; without authentication, for all clients.
func TestWhoReadsTheMetrics(t *testing.T) {
	withMetrics := func(c *config.Config) { c.Observe.Metrics = true }
	g := guardedGate(t, false, withMetrics)
	token := func(user string, scopes ...string) credential {
		secret, _ := g.token(identity.Token{User: user, Scopes: scopes})
		return headers("Authorization", "Bearer "+secret)
	}
	oauth := func(subject, scope string) credential {
		return headers("Authorization", "Bearer "+g.issuer.issue(subject, time.Hour, map[string]any{"scope": scope}))
	}
	must(t, g.users.Link(t.Context(), identity.LinkOAuth, "9999", "zoe"))
	for name, c := range map[string]struct {
		cred credential
		want int
	}{
		"nobody":                       {credential{}, 401},
		"a wrong token":                {headers("X-API-Key", "gh_no"), 401},
		"a user":                       {token("alice"), 403},
		"a user's token for all":       {token("alice", "*"), 403},
		"a user's token for reading":   {token("alice", "read"), 403},
		"a user's token for metrics":   {token("alice", "metrics"), 200},
		"a token for tools as well":    {token("alice", "tools:probe_*", "metrics"), 200},
		"an admin":                     {token("zoe"), 200},
		"an admin's token for all":     {token("zoe", "*"), 200},
		"an admin's token for tools":   {token("zoe", "tools:*"), 403},
		"an admin's token for metrics": {token("zoe", "metrics"), 200},
		"the local token":              {headers("Authorization", "Bearer "+g.app.LocalToken()), 200},
		"the token set by hand":        {headers("Authorization", "Bearer "+gateFlag), 403},
		"a provider's user":            {oauth(gateSubject, "read"), 403},
		"a provider's admin":           {oauth("9999", ""), 200},
		"a provider's admin, scoped":   {oauth("9999", "read"), 403},
		"a provider's scope":           {oauth(gateSubject, "metrics"), 200},
	} {
		b := g.byHTTP("HTTP", c.cred, false)
		for _, method := range []string{"GET", "HEAD"} {
			status, h := b.status(method, "/metrics", "")
			if status != c.want || (status == 403 || status == 401) != (h.Get("WWW-Authenticate") != "") {
				t.Errorf(
					"%s, %s: %d with the challenge %q, want %d",
					name,
					method,
					status,
					h.Get("WWW-Authenticate"),
					c.want,
				)
			}
		}
		if status, _ := b.status("POST", "/metrics", ""); status == 200 {
			t.Errorf("%s: metrics by POST", name)
		}
	}
	only := g.byHTTP("HTTP", token("alice", "metrics"), false)
	for _, op := range gateOps[1:3] {
		if got := only.try(modernEra, op); got == "alice" {
			t.Errorf("with a token for metrics, %s comes to %s", op, got)
		}
	}

	open := &gateHost{t: t, cfg: gateSettings(t)}
	withMetrics(&open.cfg)
	open.run("127.0.0.1", false)
	if status, _ := open.byHTTP("HTTP", credential{}, false).status("GET", "/metrics", ""); status != 200 {
		t.Errorf("on a host that asks nobody: %d", status)
	}
	must(t, open.users.AddUser(t.Context(), "first", nil, ""))
	until(t, "the metrics are for somebody", func() bool {
		status, _ := open.byHTTP("HTTP", credential{}, false).status("GET", "/metrics", "")
		return status == 401
	})
}

// A provider's scope that is good for the metrics is named to a caller that lacks it.
func TestAScopeForMetricsIsNamed(t *testing.T) {
	g := guardedGate(t, false, func(c *config.Config) {
		c.Observe.Metrics = true
		c.Auth.OAuth.Grants = map[string][]string{"mcp": {"*"}, "watch": {"metrics"}}
	})
	b := g.byHTTP(
		"HTTP",
		headers("Authorization", "Bearer "+g.issuer.issue(gateSubject, time.Hour, map[string]any{"scope": "mcp"})),
		false,
	)
	status, h := b.status("GET", "/metrics", "")
	if want := `error="insufficient_scope", scope="watch"`; status != 403 ||
		!strings.Contains(h.Get("WWW-Authenticate"), want) {
		t.Errorf("got %d, %s; want 403 with %s", status, h.Get("WWW-Authenticate"), want)
	}
	b.brings(
		headers("Authorization", "Bearer "+g.issuer.issue(gateSubject, time.Hour, map[string]any{"scope": "watch"})),
	)
	if status, _ := b.status("GET", "/metrics", ""); status != 200 {
		t.Errorf("with it: %d", status)
	}
}
