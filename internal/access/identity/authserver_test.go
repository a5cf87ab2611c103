package identity

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const (
	here3000   = "http://127.0.0.1:3000"
	callback   = "http://127.0.0.1:9999/callback"
	verifier   = "a-verifier-that-is-long-enough-for-the-standard-1234"
	otherProof = "another-verifier-that-is-long-enough-for-it-12345678"
)

func challengeOf(v string) string {
	sum := sha256.Sum256([]byte(v))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// page is a browser and a client at one host that issues tokens.
type page struct {
	t *testing.T
	s *Service
}

func issuing(t *testing.T, o Options) page {
	o.Server = here3000
	return page{t, newTestService(t, o)}
}

func (p page) do(method, path string, form url.Values, headers ...string) (int, http.Header, string) {
	p.t.Helper()
	var body io.Reader
	if form != nil && method == "POST" {
		body = strings.NewReader(form.Encode())
	} else if form != nil {
		path += "?" + form.Encode()
	}
	r := httptest.NewRequest(method, here3000+path, body)
	r.RemoteAddr = away
	if body != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, h := range headers {
		setHeader(r, h)
	}
	w := httptest.NewRecorder()
	p.s.tries = newTries()
	p.s.Handler().ServeHTTP(w, r)
	return w.Code, w.Header(), w.Body.String()
}

func (p page) register(redirects ...string) (id string, status int) {
	p.t.Helper()
	in, _ := json.Marshal(map[string]any{"client_name": "A <b>client</b>", "redirect_uris": redirects})
	r := httptest.NewRequest("POST", here3000+"/auth/register", strings.NewReader(string(in)))
	r.RemoteAddr = away
	w := httptest.NewRecorder()
	p.s.Handler().ServeHTTP(w, r)
	var out struct {
		ID     string `json:"client_id"`
		Secret string `json:"client_secret"`
	}
	json.Unmarshal(w.Body.Bytes(), &out)
	if out.Secret != "" {
		p.t.Error("a client got a secret")
	}
	return out.ID, w.Code
}

func request3(client string) url.Values {
	return url.Values{
		"response_type": {"code"}, "client_id": {client}, "redirect_uri": {callback}, "state": {"xyz"},
		"code_challenge": {challengeOf(verifier)}, "code_challenge_method": {"S256"}, "resource": {here3000 + "/mcp"},
	}
}

// allow fills in the consent page and returns the query with which the browser comes back.
func (p page) allow(form url.Values) url.Values {
	p.t.Helper()
	form.Set("user", "alice")
	form.Set("password", "correct horse")
	form.Set("decision", "allow")
	status, h, body := p.do("POST", "/auth/authorize", form, "Origin: "+here3000)
	at, err := url.Parse(h.Get("Location"))
	if status != 303 || err != nil || !strings.HasPrefix(h.Get("Location"), callback) {
		p.t.Fatalf("the consent page: %d %s %s", status, h.Get("Location"), body)
	}
	return at.Query()
}

type tokens struct {
	Access  string `json:"access_token"`
	Refresh string `json:"refresh_token"`
	Scope   string
	Error   string
}

func (p page) tokens(pairs ...string) (out tokens) {
	p.t.Helper()
	form := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	_, _, body := p.do("POST", "/auth/token", form)
	if err := json.Unmarshal([]byte(body), &out); err != nil {
		p.t.Fatal(body)
	}
	return out
}

func (p page) redeem(code, client string, more ...string) tokens {
	p.t.Helper()
	return p.tokens(append([]string{"grant_type", "authorization_code", "code", code, "client_id", client,
		"redirect_uri", callback, "code_verifier", verifier, "resource", here3000 + "/mcp"}, more...)...)
}

func (p page) who(token string) string {
	p.t.Helper()
	return outcome(p.s, request("POST", "/mcp", away, "Authorization: Bearer "+token))
}

func TestAClientIsAllowedRefreshesAndIsRevoked(t *testing.T) {
	p := issuing(t, Options{})
	id, status := p.register(callback)
	if status != 201 || id == "" {
		t.Fatal(status)
	}
	status, h, body := p.do("GET", "/auth/authorize", request3(id))
	if status != 200 || strings.Contains(body, "<b>") || !strings.Contains(body, "&lt;b&gt;client") ||
		!strings.Contains(
			h.Get("Content-Security-Policy"),
			"frame-ancestors 'none'; form-action 'self' http://127.0.0.1:9999",
		) ||
		strings.Contains(h.Get("Content-Security-Policy"), "script") || h.Get("X-Frame-Options") != "DENY" {
		t.Fatalf("the consent page: %d %v %s", status, h, body)
	}
	back := p.allow(request3(id))
	if back.Get("state") != "xyz" || back.Get("iss") != here3000 || back.Get("code") == "" {
		t.Fatalf("back with %v", back)
	}
	first := p.redeem(back.Get("code"), id)
	who, denied := p.s.HTTP(request("POST", "/mcp", away, "Authorization: Bearer "+first.Access))
	if denied != nil || who.Name != "alice" || first.Scope != "*" || len(who.Scopes) != 1 || who.Person() {
		t.Fatalf("%+v: %+v, %v", first, who, denied)
	}
	second := p.tokens("grant_type", "refresh_token", "refresh_token", first.Refresh, "client_id", id)
	if p.who(second.Access) != "alice by token" || second.Refresh == first.Refresh {
		t.Fatalf("refreshed: %+v", second)
	}
	if status, _, _ := p.do("POST", "/auth/revoke", url.Values{"token": {second.Refresh}}); status != 200 {
		t.Error(status)
	}
	for _, token := range []string{first.Access, second.Access} {
		if got := p.who(token); got != invalid401 {
			t.Errorf("after the revocation: %s", got)
		}
	}
	reading := request3(id)
	reading.Set("grant", "read")
	if got := p.redeem(p.allow(reading).Get("code"), id); got.Scope != "read" {
		t.Errorf("only reading: %+v", got)
	}
	bound := request3(id)
	bound.Set("resource", here3000+"/mcp/build")
	got := p.redeem(p.allow(bound).Get("code"), id, "resource", here3000+"/mcp/build")
	if who, denied := p.s.HTTP(request("POST", "/mcp", away, "Authorization: Bearer "+got.Access)); denied != nil ||
		who.Context != "build" {
		t.Errorf("bound to a context: %+v %v", who, denied)
	}
}

func TestClientsFindTheAuthorizationServer(t *testing.T) {
	p := issuing(t, Options{Mode: Required})
	_, denied := p.s.HTTP(request("POST", "/mcp", away))
	if denied == nil ||
		!strings.Contains(denied.Header.Get("WWW-Authenticate"), `resource_metadata="`+here3000+wellKnown+`/mcp"`) {
		t.Fatalf("the challenge is %v", denied)
	}
	for path, want := range map[string]string{
		wellKnown + "/mcp":       `"resource":"` + here3000 + `/mcp"`,
		wellKnown + "/mcp/build": `"resource":"` + here3000 + `/mcp/build"`,
		serverWellKnown:          `"code_challenge_methods_supported":["S256"]`,
	} {
		if status, _, body := p.do("GET", path, nil); status != 200 || !strings.Contains(body, want) ||
			!strings.Contains(body, here3000) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

//redteam:attack Tokens for clients are what their user allowed: a code is stolen, and used by another client, twice, late, or without its verifier
func TestAStolenCode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := issuing(t, Options{})
		id, _ := p.register(callback)
		thief, _ := p.register(callback)
		for name, more := range map[string][]string{
			"another client":       {"client_id", thief},
			"another verifier":     {"code_verifier", otherProof},
			"no verifier":          {"code_verifier", ""},
			"the challenge":        {"code_verifier", challengeOf(verifier)},
			"another redirect":     {"redirect_uri", "http://127.0.0.1:9999/other"},
			"another context":      {"resource", here3000 + "/mcp/build"},
			"another server":       {"resource", "https://evil.example/mcp"},
			"a server with prefix": {"resource", here3000 + "1/mcp"},
		} {
			if got := p.redeem(p.allow(request3(id)).Get("code"), id, more...); got.Access != "" || got.Error == "" {
				t.Errorf("%s: %+v", name, got)
			}
		}
		late := p.allow(request3(id)).Get("code")
		time.Sleep(authCodeLife + time.Second)
		if got := p.redeem(late, id); got.Error != "invalid_grant" {
			t.Errorf("late: %+v", got)
		}
		code := p.allow(request3(id)).Get("code")
		owner := p.redeem(code, id)
		if got := p.redeem(code, id); got.Error != "invalid_grant" {
			t.Errorf("the second time: %+v", got)
		}
		if got := p.who(owner.Access); got != invalid401 {
			t.Errorf("the grant of a code that was used twice goes on: %s", got)
		}
	})
}

//redteam:attack Tokens for clients are what their user allowed: a refresh token is stolen and used again, by another client, or after its end
func TestAStolenRefreshToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := issuing(t, Options{})
		id, _ := p.register(callback)
		thief, _ := p.register(callback)
		fresh := func() tokens { return p.redeem(p.allow(request3(id)).Get("code"), id) }
		refresh := func(secret, client string, more ...string) tokens {
			return p.tokens(
				append(
					[]string{"grant_type", "refresh_token", "refresh_token", secret, "client_id", client},
					more...)...)
		}
		a := fresh()
		if got := refresh(a.Refresh, thief); got.Error != "invalid_grant" {
			t.Errorf("another client: %+v", got)
		}
		if got := refresh(a.Refresh, id, "scope", "tools:file_*"); got.Error != "invalid_grant" {
			t.Errorf("more scopes: %+v", got)
		}
		b := refresh(a.Refresh, id)
		if got := refresh(a.Refresh, id); got.Error != "invalid_grant" {
			t.Errorf("used again: %+v", got)
		}
		if got := refresh(b.Refresh, id); got.Error != "invalid_grant" || p.who(b.Access) != invalid401 {
			t.Errorf("the grant goes on after its theft: %+v", got)
		}
		c := fresh()
		all, err := p.s.Tokens(t.Context(), "alice")
		if err != nil || len(all) == 0 {
			t.Fatal(all, err)
		}
		for _, k := range all {
			if err := p.s.RevokeToken(t.Context(), k.ID); err != nil {
				t.Fatal(err)
			}
		}
		if got := refresh(c.Refresh, id); got.Error != "invalid_grant" {
			t.Errorf("after an administrator revoked the token: %+v", got)
		}
		d := fresh()
		time.Sleep(grantLife + time.Minute)
		if got := refresh(d.Refresh, id); got.Error != "invalid_grant" {
			t.Errorf("late: %+v", got)
		}
		e := fresh()
		if err := p.s.RemoveUser(t.Context(), "alice"); err != nil {
			t.Fatal(err)
		}
		if got := refresh(e.Refresh, id); got.Error != "invalid_grant" || p.who(e.Access) != invalid401 {
			t.Errorf("after the user was removed: %+v", got)
		}
	})
}

//redteam:attack Tokens for clients are what their user allowed: a page sends the browser to another address, or has it allow a client
func TestTheConsentPageIsNotDeceived(t *testing.T) {
	p := issuing(t, Options{})
	id, _ := p.register(callback)
	for _, bad := range []string{
		"javascript:alert(1)", "data:text/html,x", "http://evil.example/cb", "https://", "file:///etc/passwd",
		"https://ok.example/#x", "https://a@ok.example/", "", "https://ok.example/\r\nSet-Cookie: a=b",
		"https://ok.example;x",
	} {
		if got, status := p.register(bad); status != 400 || got != "" {
			t.Errorf("%q is registered: %d", bad, status)
		}
	}
	for name, change := range map[string]func(url.Values){
		"another address": func(v url.Values) { v.Set("redirect_uri", "https://evil.example/cb") },
		"a path below":    func(v url.Values) { v.Set("redirect_uri", callback+"/../x") },
		"a host with a prefix": func(v url.Values) {
			v.Set("redirect_uri",
				"http://127.0.0.1.evil.example:9999/callback")
		},
		"unknown client":   func(v url.Values) { v.Set("client_id", "c_none") },
		"no PKCE":          func(v url.Values) { v.Del("code_challenge") },
		"plain PKCE":       func(v url.Values) { v.Set("code_challenge_method", "plain") },
		"implicit":         func(v url.Values) { v.Set("response_type", "token") },
		"another resource": func(v url.Values) { v.Set("resource", "https://evil.example/mcp") },
		"two clients":      func(v url.Values) { v.Add("client_id", "c_none") },
		"a scope of none":  func(v url.Values) { v.Set("scope", "admin") },
	} {
		form := request3(id)
		change(form)
		if status, h, body := p.do("GET", "/auth/authorize", form); status != 400 || h.Get("Location") != "" ||
			strings.Contains(body, "<form") {
			t.Errorf("%s: %d %s", name, status, h.Get("Location"))
		}
	}
	form := request3(id)
	form.Set("user", "alice")
	form.Set("decision", "allow")
	form.Set("password", "correct horse")
	for _, header := range []string{"Origin: https://evil.example", "Sec-Fetch-Site: cross-site", "Origin: null"} {
		if status, h, _ := p.do("POST", "/auth/authorize", form, header); status != 403 || h.Get("Location") != "" {
			t.Errorf("%s: %d", header, status)
		}
	}
	form.Set("password", "wrong")
	login := logIn(t, p.s, "alice", "correct horse", false)
	if status, h, _ := p.do("POST", "/auth/authorize", form, "Cookie: "+login); status != 401 ||
		h.Get("Location") != "" {
		t.Errorf("a login instead of the password: %d", status)
	}
	form.Set("decision", "deny")
	if status, h, _ := p.do("POST", "/auth/authorize", form); status != 303 ||
		!strings.Contains(h.Get("Location"), "error=access_denied") {
		t.Errorf("denied: %d %s", status, h.Get("Location"))
	}
}

// A document is used if it describes the client at its own address, and is fetched from public addresses alone.
//
//redteam:attack Tokens for clients are what their user allowed: a client's document makes the host reach its own network
func TestClientsWithADocument(t *testing.T) {
	mux := http.NewServeMux()
	site := httptest.NewTLSServer(mux)
	defer site.Close()
	serve := func(path, id string, redirects ...string) string {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			json.NewEncoder(w).Encode(map[string]any{"client_id": id, "client_name": "Doc", "redirect_uris": redirects})
		})
		return site.URL + path
	}
	good := serve("/good", site.URL+"/good", callback)
	p := issuing(t, Options{Clients: site.Client()})
	if got := p.redeem(p.allow(request3(good)).Get("code"), good); got.Access == "" {
		t.Errorf("got %+v", got)
	}
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, documentBytes+1)) })
	for _, bad := range []string{
		serve("/theirs", site.URL+"/good", callback), serve("/script", site.URL+"/script", "javascript:x"),
		site.URL + "/none", site.URL + "/large", site.URL, "https://",
	} {
		if status, _, _ := p.do("GET", "/auth/authorize", request3(bad)); status != 400 {
			t.Errorf("%s: %d", bad, status)
		}
	}
	p = issuing(t, Options{}) // fetches public ones
	if status, _, body := p.do("GET", "/auth/authorize", request3(good)); status != 400 ||
		!strings.Contains(body, "public address") {
		t.Errorf("a document on loopback: %d %s", status, body)
	}
	for address, want := range map[string]bool{
		"127.0.0.1": false, "10.1.2.3": false, "169.254.169.254": false, "100.64.0.1": false, "::1": false,
		"fd00::1": false,
		"fe80::1": false, "0.0.0.0": false, "224.0.0.1": false, "64:ff9b::7f00:1": false, "93.184.216.34": true,
		"2606:2800::1": true,
	} {
		if publicAddress(netip.MustParseAddr(address)) != want {
			t.Errorf("%s: want %v", address, want)
		}
	}
}
