package identity

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"gatehouse/internal/tests/oidctest"
)

// signingIn starts a host, or two of a cluster of which each serves every other request, with the real provider, at
// which it is registered.
func signingIn(t *testing.T, nodes Nodes) (all []*Service, site *httptest.Server) {
	t.Helper()
	site = httptest.NewServer(alternate(&all))
	t.Cleanup(site.Close)
	issuer := oidctest.Start(t, site.URL)
	res, err := http.Post(
		issuer+"/reg",
		"application/json",
		strings.NewReader(`{"redirect_uris":["`+site.URL+`/auth/oidc/callback"],
		"token_endpoint_auth_method":"client_secret_post","grant_types":["authorization_code"],"response_types":["code"],
		"application_type":"native"}`),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var made struct {
		ID     string `json:"client_id"`
		Secret string `json:"client_secret"`
	}
	text, _ := io.ReadAll(res.Body)
	if err := json.Unmarshal(text, &made); err != nil || made.ID == "" {
		t.Fatalf("%s: %v", text, err)
	}
	o := Options{Mode: Required, SignIn: &SignIn{
		Issuer: issuer, ClientID: made.ID, Secret: made.Secret, Server: site.URL, RolesClaim: "roles",
	}}
	if nodes == nil {
		return []*Service{newTestService(t, o)}, site
	}
	return twoNodes(t, o), site
}

// comeBack logs in at the provider and returns the address of the callback, without opening it.
func comeBack(t *testing.T, c *client, from string) string {
	t.Helper()
	c.http.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
		if strings.HasPrefix(r.URL.Path, "/auth/oidc/callback") {
			return http.ErrUseLastResponse
		}
		return nil
	}
	res, err := c.http.Get(from)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	at := res.Header.Get("Location")
	if !strings.Contains(at, "/auth/oidc/callback?") {
		text, _ := io.ReadAll(res.Body)
		t.Fatalf("the provider answers %d %s %s", res.StatusCode, at, text)
	}
	return at
}

// open opens an address without following it, and returns where it leads.
func (c *client) open(t *testing.T, address string) (status int, to string) {
	t.Helper()
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	res, err := c.http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode, res.Header.Get("Location")
}

// useLink logs in with the code in the fragment of an address.
func (c *client) useLink(t *testing.T, site, address string) (in loggedIn, status int) {
	t.Helper()
	_, code, _ := strings.Cut(address, "#login=")
	res, err := c.http.Post(site+"/auth/link", "application/json", strings.NewReader(`{"code":"`+code+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	json.NewDecoder(res.Body).Decode(&in)
	for _, k := range res.Cookies() {
		if k.Name == cookieName {
			in.cookie = k.Name + "=" + k.Value
		}
	}
	return in, res.StatusCode
}

// A person logs in at a real provider: as a name of the provider's, and as a user once linked.
func TestPeopleLogInAtAProvider(t *testing.T) { bothWays(t, logInAtAProvider) }

func logInAtAProvider(t *testing.T, nodes Nodes) {
	all, site := signingIn(t, nodes)
	s := all[0]
	for _, linked := range []bool{false, true} {
		if linked {
			if err := s.Link(t.Context(), LinkOAuth, "248289761001", "alice"); err != nil {
				t.Fatal(err)
			}
		}
		c := newClient(t)
		status, to := c.open(t, comeBack(t, c, site.URL+"/auth/oidc/start?next=/ui/tools"))
		if status != 303 || !strings.HasPrefix(to, "/ui/tools#login=") {
			t.Fatalf("%d %s", status, to)
		}
		in, status := c.useLink(t, site.URL, to)
		if status != 200 {
			t.Fatalf("the code: %d", status)
		}
		for _, s := range all {
			p, denied := s.HTTP(request("POST", "/mcp", away, "Cookie: "+in.cookie+keyMark+in.Key))
			if denied != nil || p.Person() || p.Way != Cookie || linked != (p.Name == "alice") ||
				!linked && (p.Name != "248289761001@"+s.signIn.p.host || len(p.Roles) > 0) {
				t.Errorf("linked %v: %+v, %v", linked, p, denied)
			}
		}
		if _, status := c.useLink(t, site.URL, to); status != 401 {
			t.Errorf("the code, again: %d", status)
		}
	}
}

//redteam:attack A login has two halves: a login at the provider ends in another browser, twice, with another state, or at another site
func TestALoginAtAProviderThatWasNotBegunHere(t *testing.T) { bothWays(t, logInNotBegunHere) }

func logInNotBegunHere(t *testing.T, nodes Nodes) {
	all, site := signingIn(t, nodes)
	s := all[0]
	mine, theirs := newClient(t), newClient(t)
	back := comeBack(t, mine, site.URL+"/auth/oidc/start")
	if status, to := theirs.open(t, back); status != 401 || to != "" {
		t.Errorf("in another browser: %d %s", status, to)
	}
	// In a cluster the browser holds the state, and the host records only that it was used.
	if status, _ := mine.open(t, back); nodes == nil && status != 401 {
		t.Errorf("after another browser used its state: %d", status)
	}
	if status, _ := mine.open(t, back); status != 401 {
		t.Errorf("a state that was used: %d", status)
	}
	back = comeBack(t, mine, site.URL+"/auth/oidc/start")
	u, _ := url.Parse(back)
	for name, change := range map[string]func(url.Values){
		"another state": func(v url.Values) { v.Set("state", newCookie()) },
		"no state":      func(v url.Values) { v.Del("state") },
	} {
		v := u.Query()
		change(v)
		if status, _ := mine.open(t, u.Scheme+"://"+u.Host+u.Path+"?"+v.Encode()); status != 401 {
			t.Errorf("%s: %d", name, status)
		}
	}
	status, to := mine.open(t, back)
	if status != 303 {
		t.Fatal(status)
	}
	if _, status := theirs.useLink(t, site.URL, to); status != 401 {
		t.Errorf("the code in another browser: %d", status)
	}
	wrong := comeBack(t, mine, site.URL+"/auth/oidc/start")
	u, _ = url.Parse(wrong)
	v := u.Query()
	v.Set("code", "stolen")
	if status, _ := mine.open(t, u.Scheme+"://"+u.Host+u.Path+"?"+v.Encode()); status != 401 {
		t.Errorf("a wrong code: %d", status)
	}
	for _, next := range []string{"//evil.example", "https://evil.example", `/\evil.example`, "/x#login=y",
		"javascript:x", ""} {
		if got := localPath(next); got != "/" {
			t.Errorf("next %q leads to %q", next, got)
		}
	}
	if _, err := s.signIn.verify(t.Context(), "e30.e30.x", "n"); err == nil {
		t.Error("a token without a signature is believed")
	}
}
