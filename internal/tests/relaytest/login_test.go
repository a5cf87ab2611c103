package relaytest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/packages"
	"gatehouse/internal/tests/oauthtest"
	"gatehouse/tool"
)

// loggedIn is a manager with one package, "up", whose server requires a login at a real provider.
func loggedIn(t *testing.T, login string) (*packages.Manager, *oauthtest.Host) {
	t.Helper()
	up := oauthtest.NewHost(t)
	r := packages.Record{Source: packages.Source{Kind: packages.URL, From: up.URL}, Login: login, By: "admin"}
	if login == packages.SharedLogin {
		r.NewTools = packages.AllowNew // a login for more scopes has more tools
	}
	m, _ := installWith(t, packages.Options{
		Logins:        secret.Logins(t.TempDir(), ""),
		Administrator: func(who tool.Caller) bool { return who.Principal == "admin" },
	}, r)
	return m, up
}

// logIn logs in as a principal whose browser approves.
func logIn(t *testing.T, m *packages.Manager, who string) {
	t.Helper()
	l, err := m.BeginLogin(t.Context(), "up", person(who), "http://127.0.0.1:1/callback")
	if err != nil {
		t.Fatal(err)
	}
	back := oauthtest.Approve(t, l.URL, false)
	if err := m.FinishLogin(t.Context(), "up", person("mallory"), back); err == nil {
		t.Error("the login of a principal was finished by another")
	}
	if err := m.FinishLogin(t.Context(), "up", person(who), back+"x"); err == nil ||
		strings.Contains(back, "&state=") &&
			!strings.Contains(err.Error(), "waits for that answer") && !strings.Contains(err.Error(), "login") {
		t.Errorf("an answer that is not the provider's: %v", err)
	}
	if l, err = m.BeginLogin(t.Context(), "up", person(who), "http://127.0.0.1:1/callback"); err != nil {
		t.Fatal(err)
	}
	if err := m.FinishLogin(t.Context(), "up", person(who), oauthtest.Approve(t, l.URL, false)); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, m *packages.Manager, up *oauthtest.Host, who string) (string, error) {
	t.Helper()
	args, _ := json.Marshal(map[string]string{"path": filepath.Join(up.Folder, "a.txt")})
	raw, err := m.Call(t.Context(), "up", "file_read", args, nil, &packages.Peer{Caller: person(who)})
	return string(raw), err
}

// tokensOf returns the tokens with which a host was called since n requests.
func tokensOf(up *oauthtest.Host, n int) map[string]bool {
	out := map[string]bool{}
	for _, r := range up.Seen()[n:] {
		if strings.Contains(r.Body, "tools/call") {
			out[r.Token] = true
		}
	}
	return out
}

// Two principals have a login each: neither is called with the token of the other, and one without
// a login is told how to log in.
func TestEachPrincipalHasALogin(t *testing.T) {
	m, up := loggedIn(t, packages.PrincipalLogin)
	if _, err := readFile(t, m, up, "ann"); err == nil || !strings.Contains(err.Error(), "login") {
		t.Errorf("without a login: %v", err)
	}
	logIn(t, m, "ann")
	logIn(t, m, "bob")
	used := map[string]map[string]bool{}
	for _, who := range []string{"ann", "bob", "ann"} {
		before := len(up.Seen())
		if got, err := readFile(t, m, up, who); err != nil || !strings.Contains(got, "hello") {
			t.Fatalf("%s: %s %v", who, got, err)
		}
		used[who] = tokensOf(up, before)
	}
	if len(used["ann"]) != 1 || len(used["bob"]) != 1 {
		t.Errorf("calls were made with %d and %d tokens", len(used["ann"]), len(used["bob"]))
	}
	for token := range used["ann"] {
		if used["bob"][token] || token == "" {
			t.Error("both principals were served with one token")
		}
	}
	if _, err := readFile(t, m, up, "carol"); err == nil {
		t.Error("a principal without a login was served")
	}
	if was, err := m.Logout("up", person("ann")); !was || err != nil {
		t.Errorf("logout: %v %v", was, err)
	}
	if _, err := readFile(t, m, up, "ann"); err == nil {
		t.Error("a principal that has logged out was served")
	}
	if got, err := readFile(t, m, up, "bob"); err != nil {
		t.Errorf("the other: %s %v", got, err)
	}
}

// Without a user, tokens are got by the client's own credentials or for another token, and a
// server is called with nothing else. A wrong secret gets none.
func TestTokensAreGotWithoutAUser(t *testing.T) {
	up := oauthtest.NewHost(t)
	values := map[string]string{
		"${secret:SERVICE}": "service-secret", "${secret:SUBJECT}": "subject", "${secret:WRONG}": "another",
	}
	filled := func(given map[string]string) (map[string]secret.Text, error) {
		out := map[string]secret.Text{}
		for name, value := range given {
			out[name] = secret.New(cmp.Or(values[value], value))
		}
		return out, nil
	}
	for _, c := range []struct {
		name, refused string
		oauth         packages.OAuth
	}{
		{"client credentials", "", packages.OAuth{ClientSecret: "${secret:SERVICE}", Grant: packages.ClientCredentials}},
		{"token exchange", "", packages.OAuth{
			ClientSecret: "${secret:SERVICE}", Grant: packages.TokenExchange, SubjectToken: "${secret:SUBJECT}",
		}},
		{"a wrong secret", "invalid_client", packages.OAuth{
			ClientSecret: "${secret:WRONG}", Grant: packages.ClientCredentials,
		}},
		{"a token that cannot be exchanged", "invalid_grant", packages.OAuth{
			ClientSecret: "${secret:SERVICE}", Grant: packages.TokenExchange, SubjectToken: "${secret:WRONG}",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.oauth.ClientID, c.oauth.Scopes = "service", []string{"mcp.read"}
			before := len(up.Seen())
			m, _, err := tryInstall(t, packages.Options{Secrets: filled, Logins: secret.Logins(t.TempDir(), "")},
				packages.Record{
					Source: packages.Source{Kind: packages.URL, From: up.URL}, By: "admin", OAuth: &c.oauth,
				})
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("got %v, expected %s", err, c.refused)
				}
			} else if err != nil {
				t.Fatal(err)
			} else {
				got, err := readFile(t, m, up, "ann")
				if err != nil || !strings.Contains(got, "hello") {
					t.Errorf("%s, %v", got, err)
				}
				if len(tokensOf(up, before)) != 1 {
					t.Errorf("calls were made with %d tokens", len(tokensOf(up, before)))
				}
			}
			for _, r := range up.Seen()[before:] {
				if r.Token == "subject" || r.Token == "service-secret" || strings.Contains(r.Body, "service-secret") {
					t.Error("the server was sent the client's secret or the token that was exchanged")
				}
			}
		})
	}
}

// A host with a public address is known to the provider by the document at that address, and registers nothing.
func TestTheHostIsKnownByItsDocument(t *testing.T) {
	const id = "https://tools.example.test/oauth-client.json"
	document, err := packages.ClientDocument(id, "a host")
	if err != nil {
		t.Fatal(err)
	}
	up := oauthtest.NewHost(t, "OIDC_DOCUMENT="+string(document))
	m, _ := installWith(t, packages.Options{
		Logins: secret.Logins(t.TempDir(), ""), ClientDocument: id,
		Administrator: func(who tool.Caller) bool { return who.Principal == "admin" },
	}, packages.Record{
		Source: packages.Source{Kind: packages.URL, From: up.URL}, Login: packages.PrincipalLogin, By: "admin",
	})
	l, err := m.BeginLogin(t.Context(), "up", person("ann"), "http://127.0.0.1:1/callback")
	if err != nil {
		t.Fatal(err)
	}
	if at, err := url.Parse(l.URL); err != nil || at.Query().Get("client_id") != id {
		t.Fatalf("the user is sent to %s", l.URL)
	}
	logIn(t, m, "ann")
	if got, err := readFile(t, m, up, "ann"); err != nil || !strings.Contains(got, "hello") {
		t.Errorf("%s, %v", got, err)
	}
}

// The tokens of logins are not in the environment of another package's server, nor in what it is sent.
func TestTokensReachNoOtherServer(t *testing.T) {
	m, up := loggedIn(t, packages.PrincipalLogin)
	logIn(t, m, "ann")
	if got, err := readFile(t, m, up, "ann"); err != nil {
		t.Fatalf("%s %v", got, err)
	}
	var sent bytes.Buffer
	var mu sync.Mutex
	other := serveFixture(t, false)
	refuse := func(_ http.ResponseWriter, r *http.Request, body []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		r.Header.Write(&sent)
		sent.Write(body)
		return false
	}
	other.refuse.Store(&refuse)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []packages.Record{
		{ID: "child", Start: packages.OnDemand, Source: packages.Source{Kind: packages.Command}, Command: self,
			Env: childEnv(t, "1")},
		{ID: "remote", Start: packages.OnDemand, Source: packages.Source{Kind: packages.URL, From: other.URL + "/mcp"}},
	} {
		if _, err := m.Install(t.Context(), packages.Plan{Record: r}, nil); err != nil {
			t.Fatal(err)
		}
		_, err := m.Call(
			t.Context(),
			r.ID,
			"test_simple_text",
			json.RawMessage(`{}`),
			nil,
			&packages.Peer{Caller: person("ann")},
		)
		if err != nil {
			t.Fatalf("%s: %v", r.ID, err)
		}
	}
	mu.Lock()
	seen := map[string][]byte{"requests": bytes.Clone(sent.Bytes())}
	mu.Unlock()
	if runtime.GOOS == "linux" {
		i, err := m.Info("child")
		if err != nil || i.PID == 0 {
			t.Fatalf("the server has the process %d; %v", i.PID, err)
		}
		if seen["environment"], err = os.ReadFile(fmt.Sprintf("/proc/%d/environ", i.PID)); err != nil {
			t.Fatal(err)
		}
	}
	tokens := tokensOf(up, 0)
	if len(tokens) == 0 || tokens[""] {
		t.Fatalf("the server that requires logins got %d tokens", len(tokens))
	}
	for what, text := range seen {
		if len(text) == 0 {
			t.Errorf("the %s of the other servers are not known", what)
		}
		for token := range tokens {
			if bytes.Contains(text, []byte(token)) {
				t.Errorf("the %s of another server have a token", what)
			}
		}
	}
}

// A shared login is made by administrators alone. In the middle of a session a 401 is answered by a
// refreshed token, and a 403 that requires more scopes by a login for them.
func TestTheServerAsksInTheMiddleOfASession(t *testing.T) {
	m, up := loggedIn(t, packages.SharedLogin)
	if _, err := m.BeginLogin(t.Context(), "up", person("ann"), "http://127.0.0.1:1/callback"); err == nil {
		t.Error("a caller that is no administrator may log in for all")
	}
	logIn(t, m, "admin")
	if got, err := readFile(t, m, up, "ann"); err != nil {
		t.Fatalf("%s %v", got, err)
	}
	first := up.Seen()[len(up.Seen())-1].Token
	up.Refuse(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") != "Bearer "+first {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	if got, err := readFile(t, m, up, "ann"); err != nil || !strings.Contains(got, "hello") {
		t.Errorf("after a 401: %s %v", got, err)
	}
	if now := up.Seen()[len(up.Seen())-1].Token; now == first || now == "" {
		t.Error("the token was not refreshed")
	}
	up.Refuse(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("WWW-Authenticate", `Bearer error="insufficient_scope", scope="mcp.read mcp.write"`)
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	_, err := readFile(t, m, up, "ann")
	if ref, ok := err.(*tool.Refusal); !ok || !strings.Contains(ref.Message, "mcp.write") ||
		!strings.Contains(ref.Next, "gatehouse package login up") {
		t.Errorf("after a 403: %v", err)
	}
	up.Refuse(nil)
	l, err := m.BeginLogin(t.Context(), "up", person("admin"), "http://127.0.0.1:1/callback")
	if err != nil || !strings.Contains(strings.Join(l.Scopes, " "), "mcp.write") {
		t.Fatalf("the next login asks for %v: %v", l.Scopes, err)
	}
	if err := m.FinishLogin(t.Context(), "up", person("admin"), oauthtest.Approve(t, l.URL, false)); err != nil {
		t.Fatal(err)
	}
	args, _ := json.Marshal(map[string]string{"path": filepath.Join(up.Folder, "b.txt"), "content": "written"})
	write := func() (json.RawMessage, error) {
		return m.Call(t.Context(), "up", "file_write", args, nil, &packages.Peer{Caller: person("ann")})
	}
	raw, err := write()
	for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); raw, err = write() {
		time.Sleep(20 * time.Millisecond) // the server is being listed with the new login
	}
	if err != nil {
		t.Errorf("with more scopes: %s %v", raw, err)
	} else if b, err := os.ReadFile(filepath.Join(up.Folder, "b.txt")); err != nil || string(b) != "written" {
		t.Errorf("b.txt holds %q, %v; the call said %s", b, err, raw)
	}
}

// A caller that can be sent to an address logs in there in the middle of its call, which then continues.
func TestACallSendsItsUserToLogIn(t *testing.T) {
	m, up := loggedIn(t, packages.PrincipalLogin)
	who := person("ann")
	who.Can = tool.CanElicitURL
	args, _ := json.Marshal(map[string]string{"path": filepath.Join(up.Folder, "a.txt")})
	call := func(p *packages.Peer) (string, error) {
		p.Caller = who
		raw, err := m.Call(t.Context(), "up", "file_read", args, nil, p)
		return string(raw), err
	}
	_, err := call(&packages.Peer{})
	asked, ok := err.(*packages.InputRequired)
	if !ok || len(asked.Input.Questions) != 1 {
		t.Fatalf("got %v", err)
	}
	q := asked.Input.Questions[0]
	var params struct{ Mode, URL string }
	if err := json.Unmarshal(q.Params, &params); err != nil || params.Mode != "url" ||
		!strings.HasPrefix(params.URL, up.Issuer) {
		t.Fatalf("the question is %s", q.Params)
	}
	time.AfterFunc(100*time.Millisecond, func() { oauthtest.Approve(t, params.URL, true) })
	got, err := call(&packages.Peer{
		State: asked.Input.State, Answers: map[string]tool.Answer{q.Key: tool.Answer(`{"action":"accept"}`)},
	})
	if err != nil || !strings.Contains(got, "hello") {
		t.Errorf("after the login: %s %v", got, err)
	}
}
