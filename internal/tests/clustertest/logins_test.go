package clustertest

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/tests/oauthtest"
)

// TestLoginsFinishOnAnyNode begins the login at the server of a package on one node and finishes it on another, once
// and for its principal alone; all nodes then call the package with it. A login with a password that ends with the
// browser is one of all nodes, until it is ended on any.
func TestLoginsFinishOnAnyNode(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, "package")
	token := administrator(t, nodes[0])
	other := otherAdministrator(t, nodes[1])
	passwordLogin(t, nodes)

	up := oauthtest.NewHost(t) // without the provider of tests the rest is skipped
	begun := nodes[0].callAs(t, token, "package_install", map[string]any{
		"id": "up", "source": "url:" + up.URL, "confirm": "up",
	})
	job := find(t, `"job":"([a-z2-7]+_[a-z2-7]{10})"`, begun)
	if got := nodes[0].callAs(t, token, "job_wait", map[string]any{"id": job}); !strings.Contains(got, "Log in with") {
		t.Fatalf("the installation: %.1500s", got)
	}
	eventually(t, "another node has the package", func() bool {
		return strings.Contains(nodes[2].callAs(t, token, "package_info", map[string]any{"id": "up"}), up.URL)
	})
	begin := func(n *node) string {
		t.Helper()
		got := n.callAs(t, token, "package_login", map[string]any{"id": "up", "redirect": "http://127.0.0.1:1/callback"})
		var address string
		if err := json.Unmarshal([]byte(`"`+find(t, `"url":"([^"]+)"`, got)+`"`), &address); err != nil {
			t.Fatal(err)
		}
		return oauthtest.Approve(t, address, false)
	}
	finish := func(n *node, token, back string) string {
		t.Helper()
		return n.callAs(t, token, "package_login", map[string]any{"id": "up", "redirected": back})
	}
	back := begin(nodes[0])
	if got := finish(nodes[1], other, back); !strings.Contains(got, "waits for that answer") {
		t.Errorf("another principal finishes the login: %.500s", got)
	}
	u, err := url.Parse(back)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("iss", "https://issuer.invalid")
	u.RawQuery = q.Encode()
	if got := finish(nodes[1], token, u.String()); !strings.Contains(got, "issuer") {
		t.Errorf("an answer of another issuer: %.500s", got)
	}
	if got := finish(nodes[2], token, back); !strings.Contains(got, "waits for that answer") {
		t.Errorf("a login that has failed is finished: %.500s", got)
	}
	back = begin(nodes[0])
	if got := finish(nodes[1], token, back); !strings.Contains(got, `"done":true`) {
		t.Fatalf("another node finishes the login: %.800s", got)
	}
	for i, n := range []*node{nodes[0], nodes[2]} {
		if got := finish(n, token, back); strings.Contains(got, `"done":true`) {
			t.Errorf("node %d finishes the login again: %.500s", i, got)
		}
	}
	for _, n := range nodes {
		eventually(t, "every node calls the package with the login", func() bool {
			return strings.Contains(n.callAs(t, token, "up_file_read", map[string]any{"path": up.Folder + "/a.txt"}), "hello")
		})
	}
}

func otherAdministrator(t *testing.T, n *node) string {
	t.Helper()
	n.command(t, "user", "add", "eve", "--no-password", "--role", "admin")
	return strings.TrimSpace(n.command(t, "token", "create", "--user", "eve", "--name", "test"))
}

// passwordLogin logs in with a password at one node, uses the login at the others, and ends it at a third one.
func passwordLogin(t *testing.T, nodes []*node) {
	t.Helper()
	cmd := nodes[0].run(t, "user", "add", "ann", "--password-stdin")
	cmd.Stdin = strings.NewReader(oauthtest.Password + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	page := func(n *node, method, path, body string, with func(*http.Request)) (*http.Response, string) {
		t.Helper()
		r, err := http.NewRequest(method, strings.TrimSuffix(n.url, "/mcp")+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		with(r)
		a, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		raw, err := io.ReadAll(a.Body)
		if err != nil {
			t.Fatal(err)
		}
		return a, string(raw)
	}
	in, body := page(nodes[0], "POST", "/auth/login", `{"user":"ann","password":"`+oauthtest.Password+`"}`,
		func(*http.Request) {})
	if in.StatusCode != 200 || !strings.Contains(body, `"lasting":false`) {
		t.Fatalf("the login: %s %s", in.Status, body)
	}
	cookies, key := in.Cookies(), find(t, `"key":"([^"]+)"`, body)
	as := func(r *http.Request) {
		for _, c := range cookies {
			r.AddCookie(c)
		}
		r.Header.Set(identity.KeyHeader, key)
	}
	for i, n := range nodes {
		eventually(t, "every node knows the login", func() bool {
			a, got := page(n, "GET", "/auth/me", "", as)
			return a.StatusCode == 200 && strings.Contains(got, `"ann"`)
		})
		if a, got := page(n, "GET", "/auth/me", "", func(r *http.Request) { as(r); r.Header.Set(identity.KeyHeader, key+"x") }); strings.Contains(
			got, `"ann"`) {
			t.Errorf("node %d accepts a wrong key: %s %s", i, a.Status, got)
		}
	}
	// A challenge that one node has given out for a passkey is known to another one, once.
	atName := func(r *http.Request) {
		r.URL.Host = strings.Replace(r.URL.Host, "127.0.0.1", "localhost", 1)
		r.Host = r.URL.Host
	}
	_, challenge := page(nodes[0], "POST", "/auth/passkey/login", "{}", atName)
	finish := `{"ceremony":"` + find(t, `"ceremony":"([^"]+)"`, challenge) + `","response":{}}`
	for i, n := range []*node{nodes[1], nodes[2]} {
		_, got := page(n, "POST", "/auth/passkey/login/finish", finish, atName)
		if over := strings.Contains(got, "is over or was never begun"); over != (i == 1) || !strings.Contains(got, "invalid_passkey") {
			t.Errorf("use %d of a challenge of another node: %s", i, got)
		}
	}
	if a, got := page(nodes[2], "POST", "/auth/logout", "{}", as); a.StatusCode >= 300 {
		t.Fatalf("the logout: %s %s", a.Status, got)
	}
	for i, n := range nodes { // it has returned
		if _, got := page(n, "GET", "/auth/me", "", as); strings.Contains(got, `"ann"`) {
			t.Errorf("node %d accepts a login that was ended: %s", i, got)
		}
	}
}
