package oauth

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// Metadata do not lead nearer than the resource is, to plain HTTP if the resource is not reached so, or to another
// origin by a redirect.
func TestMetadataLeadNowhereElse(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("a redirect was followed to another origin")
	}))
	defer other.Close()
	near := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(w, r, other.URL, http.StatusFound)
		}
	}))
	defer near.Close()
	for _, c := range []struct{ resource, address, refused string }{
		{"https://203.0.113.7/mcp", near.URL, "https alone"},
		{"https://203.0.113.7/mcp", "https://127.0.0.1:1/", "address of this machine"},
		{"https://203.0.113.7/mcp", "https://localhost:1/", "address of this machine"},
		{"https://203.0.113.7/mcp", "https://[::1]:1/", "address of this machine"},
		{"https://203.0.113.7/mcp", "https://[::ffff:127.0.0.1]:1/", "address of this machine"},
		{"https://203.0.113.7/mcp", "https://10.1.2.3:1/", "address of this machine"},
		{"https://203.0.113.7/mcp", "https://192.168.1.1:1/", "address of this machine"},
		{"https://203.0.113.7/mcp", "https://100.64.0.1:1/", "address of this machine"},
		{"https://203.0.113.7/mcp", "https://[fd00::1]:1/", "address of this machine"},
		{"https://203.0.113.7/mcp", "https://169.254.169.254/", "address of this machine"},
		{"https://10.0.0.1/mcp", "https://127.0.0.1:1/", "address of this machine"},
		{near.URL, "http://169.254.169.254/latest", "address of this machine"},
		{near.URL, "http://0.0.0.0:1/", "address of this machine"},
		{near.URL, near.URL + "/away", "another origin"},
		{near.URL, "file:///etc/passwd", "https alone"},
		{near.URL, near.URL, ""},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.address, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := newGuard(c.resource).Do(req)
		switch {
		case err == nil && c.refused == "":
			resp.Body.Close()
		case err == nil:
			resp.Body.Close()
			t.Errorf("%s of %s is fetched", c.address, c.resource)
		case c.refused == "" || !strings.Contains(err.Error(), c.refused):
			t.Errorf("%s of %s: %v", c.address, c.resource, err)
		}
		cancel()
	}
}

// A server whose metadata are of another resource, another issuer, without PKCE, or with endpoints
// that are no addresses of the web, gets no login.
func TestHostileMetadata(t *testing.T) {
	const good = `{"issuer":"ORIGIN","authorization_endpoint":"ORIGIN/a","token_endpoint":"ORIGIN/t",` +
		`"registration_endpoint":"ORIGIN/r","code_challenge_methods_supported":["S256"]}`
	for name, c := range map[string]struct{ resource, server, want string }{
		"as it should be": {`{"resource":"ORIGIN/mcp","authorization_servers":["ORIGIN"]}`, good, ""},
		"another resource": {`{"resource":"https://other.example/mcp","authorization_servers":["ORIGIN"]}`, good,
			"of the resource"},
		"another issuer": {`{"resource":"ORIGIN/mcp","authorization_servers":["ORIGIN"]}`,
			strings.Replace(good, `"ORIGIN"`, `"https://other.example"`, 1), "is of"},
		"no PKCE": {`{"resource":"ORIGIN/mcp","authorization_servers":["ORIGIN"]}`,
			strings.Replace(good, "S256", "plain", 1), "PKCE"},
		"a script": {`{"resource":"ORIGIN/mcp","authorization_servers":["ORIGIN"]}`,
			strings.Replace(good, `"ORIGIN/a"`, `"javascript:alert(1)"`, 1), "endpoint"},
		"no server": {`{"resource":"ORIGIN/mcp"}`, good, "no authorization server"},
		"another scheme": {`{"resource":"ORIGIN/mcp","authorization_servers":["file:///etc"]}`, good,
			"no authorization server"},
		"the cloud": {`{"resource":"ORIGIN/mcp","authorization_servers":["http://169.254.169.254"]}`, good,
			"this machine"},
		"no JSON": {`<html>`, good, "metadata"},
	} {
		t.Run(name, func(t *testing.T) {
			var origin string
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				say := func(text string) { fmt.Fprint(w, strings.ReplaceAll(text, "ORIGIN", origin)) }
				switch {
				case strings.HasPrefix(r.URL.Path, "/.well-known/oauth-protected-resource"):
					say(c.resource)
				case strings.HasPrefix(r.URL.Path, "/.well-known/oauth-authorization-server"):
					say(c.server)
				case r.URL.Path == "/r":
					say(`{"client_id":"id"}`)
				default:
					w.WriteHeader(http.StatusUnauthorized)
				}
			}))
			defer srv.Close()
			origin = srv.URL
			l, err := (&Transport{Resource: origin + "/mcp"}).Begin(t.Context(), "http://127.0.0.1:1/callback")
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				u, _ := url.Parse(l.URL)
				q := u.Query()
				if q.Get("state") != l.State || q.Get("code_challenge_method") != "S256" ||
					q.Get("resource") != origin+"/mcp" {
					t.Errorf("the user is sent to %s", l.URL)
				}
			} else if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
