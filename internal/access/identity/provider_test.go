package identity

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"gatehouse/internal/tests/oidctest"
	"io"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
)

// client is an OAuth client that is configured with nothing but the address of a resource.
type client struct {
	t    *testing.T
	http *http.Client
}

func newClient(t *testing.T) *client {
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &client{
		t: t,
		http: &http.Client{
			Jar:     jar,
			Timeout: 20 * time.Second,
			CheckRedirect: func(r *http.Request, _ []*http.Request) error {
				if r.URL.Host == "callback.test" {
					return http.ErrUseLastResponse
				}
				return nil
			},
		},
	}
}

func (c *client) do(method, url, token string, body io.Reader, kind string) (*http.Response, []byte) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, url, body)
	if err != nil {
		c.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	res, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return res, b
}

func (c *client) document(url string, into any) {
	c.t.Helper()
	res, body := c.do("GET", url, "", nil, "")
	if err := json.Unmarshal(body, into); err != nil || res.StatusCode != 200 {
		c.t.Fatalf("%s: %d, %v: %s", url, res.StatusCode, err, body)
	}
}

// challenge returns one parameter of WWW-Authenticate.
func challenge(res *http.Response, name string) string {
	m := regexp.MustCompile(name + `="([^"]*)"`).FindStringSubmatch(res.Header.Get("WWW-Authenticate"))
	if m == nil {
		return ""
	}
	return m[1]
}

// server is the metadata of an authorization server that a client uses.
type server struct {
	Authorize string `json:"authorization_endpoint"`
	Token     string `json:"token_endpoint"`
	Register  string `json:"registration_endpoint"`
}

// register registers the client (RFC 7591).
func (c *client) register(s server) (id string) {
	c.t.Helper()
	body, _ := json.Marshal(map[string]any{
		"redirect_uris": []string{"https://callback.test/done"}, "token_endpoint_auth_method": "none",
		"grant_types": []string{"authorization_code"}, "response_types": []string{"code"},
	})
	res, answer := c.do("POST", s.Register, "", bytes.NewReader(body), "application/json")
	var made struct {
		ID string `json:"client_id"`
	}
	if err := json.Unmarshal(answer, &made); err != nil || res.StatusCode != 201 {
		c.t.Fatalf("registering: %d, %v: %s", res.StatusCode, err, answer)
	}
	return made.ID
}

// authorize runs the code flow with PKCE and returns an access token.
func (c *client) authorize(s server, id, resource, scope string) string {
	c.t.Helper()
	verifier := rand.Text() + rand.Text()
	sum := sha256.Sum256([]byte(verifier))
	ask := url.Values{
		"client_id": {
			id,
		}, "response_type": {"code"}, "redirect_uri": {"https://callback.test/done"}, "scope": {scope},
		"state":          {"kept"},
		"code_challenge": {base64.RawURLEncoding.EncodeToString(sum[:])}, "code_challenge_method": {"S256"},
	}
	if resource != "" {
		ask.Set("resource", resource)
	}
	res, body := c.do("GET", s.Authorize+"?"+ask.Encode(), "", nil, "")
	back, err := url.Parse(res.Header.Get("Location"))
	if err != nil || back.Host != "callback.test" || back.Query().Get("state") != "kept" ||
		back.Query().Get("code") == "" {
		c.t.Fatalf("authorizing ended at %v, %d: %s", back, res.StatusCode, body)
	}
	form := url.Values{
		"grant_type": {
			"authorization_code",
		}, "code": {back.Query().Get("code")}, "redirect_uri": {"https://callback.test/done"},
		"client_id": {id}, "code_verifier": {verifier},
	}
	if resource != "" {
		form.Set("resource", resource)
	}
	res, body = c.do("POST", s.Token, "", strings.NewReader(form.Encode()), "application/x-www-form-urlencoded")
	var issued struct {
		Token string `json:"access_token"`
	}
	if err := json.Unmarshal(body, &issued); err != nil || res.StatusCode != 200 || issued.Token == "" {
		c.t.Fatalf("the token: %d, %v: %s", res.StatusCode, err, body)
	}
	return issued.Token
}

// A client that knows only the address of this server finds the provider from a 401, registers, is
// authorized, and is admitted; with a token for another server, or for none, it is refused.
func TestARealProvider(t *testing.T) {
	var s *Service
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if Public(r) {
			s.Handler().ServeHTTP(w, r)
			return
		}
		p, d := s.HTTP(r)
		if d != nil {
			maps.Copy(w.Header(), d.Header)
			w.WriteHeader(d.Status)
			fmt.Fprint(w, d.Message)
			return
		}
		fmt.Fprintf(w, "%s %v", p.Name, p.Scopes)
	}))
	defer srv.Close()
	resource := srv.URL + "/mcp"
	issuer := oidctest.Start(t, resource)
	s = empty(
		t,
		"",
		Options{
			OAuth: &OAuth{
				Issuer:   issuer,
				Resource: resource,
				Scopes:   strings.Fields(oidctest.Scopes),
				Required: []string{"mcp.read"},
				Grants:   map[string][]string{"mcp.read": {"read"}, "mcp.write": {"*"}},
			},
		},
	)
	c := newClient(t)

	res, _ := c.do("POST", resource, "", nil, "")
	if res.StatusCode != 401 || challenge(res, "error") != "" || challenge(res, "scope") != "mcp.read" {
		t.Fatalf("without a token: %d, %s", res.StatusCode, res.Header.Get("WWW-Authenticate"))
	}
	var meta struct {
		Resource string
		Servers  []string `json:"authorization_servers"`
	}
	c.document(challenge(res, "resource_metadata"), &meta)
	if meta.Resource != resource || len(meta.Servers) != 1 || meta.Servers[0] != issuer {
		t.Fatalf("the metadata say %+v", meta)
	}
	var found server
	c.document(meta.Servers[0]+"/.well-known/openid-configuration", &found)
	id := c.register(found)

	host := strings.TrimPrefix(issuer, "http://")
	token := c.authorize(found, id, meta.Resource, "mcp.read")
	for _, method := range []string{"POST", "GET", "DELETE"} {
		res, body := c.do(method, resource, token, nil, "")
		if want := "248289761001@" + host + " [read]"; res.StatusCode != 200 || string(body) != want {
			t.Errorf("%s with the token: %d, %s, want %s", method, res.StatusCode, body, want)
		}
	}
	both := c.authorize(found, id, meta.Resource, oidctest.Scopes)
	if res, body := c.do("GET", resource, both, nil, ""); res.StatusCode != 200 ||
		!strings.HasSuffix(string(body), "[* read]") {
		t.Errorf("with both scopes: %d, %s", res.StatusCode, body)
	}
	less := c.authorize(found, id, meta.Resource, "mcp.write")
	if res, _ := c.do("GET", resource, less, nil, ""); res.StatusCode != 403 ||
		challenge(res, "error") != "insufficient_scope" ||
		challenge(res, "scope") != "mcp.read" {
		t.Errorf("without the scope: %d, %s", res.StatusCode, res.Header.Get("WWW-Authenticate"))
	}
	for name, token := range map[string]string{
		"for another server": c.authorize(found, id, "https://other.example.com/mcp", "mcp.read"),
		"for the provider":   c.authorize(found, id, "", "openid"),
		"altered":            token[:len(token)-8] + "AAAAAAAA",
	} {
		if res, _ := c.do("GET", resource, token, nil, ""); res.StatusCode != 401 ||
			challenge(res, "error") != "invalid_token" {
			t.Errorf("with a token %s: %d, %s", name, res.StatusCode, res.Header.Get("WWW-Authenticate"))
		}
	}

	add(t, s, "alice", "", Admin)
	if err := s.Link(t.Context(), LinkOAuth, "248289761001", "alice"); err != nil {
		t.Fatal(err)
	}
	if res, body := c.do("GET", resource, token, nil, ""); res.StatusCode != 200 || string(body) != "alice [read]" {
		t.Errorf("linked to a user: %d, %s", res.StatusCode, body)
	}
}
