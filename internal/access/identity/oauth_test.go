package identity

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const audience = "https://tools.example.com/mcp"

// issuer is a provider that signs any claims. It is reached without a network.
type issuer struct {
	url     string
	mu      sync.Mutex
	keys    map[string]crypto.Signer // by key ID
	broken  bool
	fetches atomic.Int32 // of the keys
	slow    time.Duration
}

func newIssuer(t testing.TB) *issuer {
	t.Helper()
	i := &issuer{url: "https://id.example.com/tenant", keys: map[string]crypto.Signer{}}
	i.keys["es"] = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	return i
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// RoundTrip makes an issuer the transport of its own client.
func (i *issuer) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(i.slow)
	w := httptest.NewRecorder()
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.broken:
		w.WriteHeader(500)
	case r.URL.String() == i.url+"/.well-known/openid-configuration":
		json.NewEncoder(w).Encode(map[string]string{"issuer": i.url, "jwks_uri": i.url + "/keys"})
	case r.URL.String() == i.url+"/keys":
		i.fetches.Add(1)
		// Sets of real providers also hold keys for encryption and keys of unknown types.
		set := []any{
			map[string]string{"kty": "XX", "kid": "strange"},
			map[string]string{"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
		}
		for kid, key := range i.keys {
			set = append(set, jose.JSONWebKey{Key: key.Public(), KeyID: kid, Use: "sig"})
		}
		json.NewEncoder(w).Encode(map[string]any{"keys": set})
	default:
		w.WriteHeader(404)
	}
	return w.Result(), nil
}

func (i *issuer) options() *OAuth {
	return &OAuth{Issuer: i.url, Resource: audience, Client: &http.Client{Transport: i}}
}

type said = map[string]any

// good returns the claims of a valid token.
func (i *issuer) good() said {
	now := time.Now()
	return said{
		"iss":   i.url,
		"sub":   "1234",
		"aud":   audience,
		"exp":   now.Add(time.Hour).Unix(),
		"iat":   now.Unix(),
		"scope": "read tools:*",
	}
}

// with returns a copy of claims with some changed; nil removes one.
func with(c said, changes said) said {
	c = maps.Clone(c)
	for k, v := range changes {
		if c[k] = v; v == nil {
			delete(c, k)
		}
	}
	return c
}

func (i *issuer) sign(t testing.TB, kid string, alg jose.SignatureAlgorithm, c said, header ...string) string {
	t.Helper()
	return signWith(t, i.keys[kid], kid, alg, c, header...)
}

func signWith(t testing.TB, key any, kid string, alg jose.SignatureAlgorithm, c said, header ...string) string {
	t.Helper()
	o := &jose.SignerOptions{}
	for n := 0; n+1 < len(header); n += 2 {
		o = o.WithHeader(jose.HeaderKey(header[n]), header[n+1])
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: kid}}, o)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(s).Claims(c).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func protected(t testing.TB, i *issuer, change func(*OAuth)) *Service {
	t.Helper()
	o := i.options()
	if change != nil {
		change(o)
	}
	return empty(t, "", Options{OAuth: o})
}

func bearer(token string) string { return "Authorization: Bearer " + token }

func TestEverySignatureThatIsBelieved(t *testing.T) {
	i := newIssuer(t)
	rsaKey := must(rsa.GenerateKey(rand.Reader, 2048))
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i.keys["rs"], i.keys["ed"] = rsaKey, ed
	i.keys["es384"] = must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	i.keys["es521"] = must(ecdsa.GenerateKey(elliptic.P521(), rand.Reader))
	s := protected(t, i, nil)
	for alg, kid := range map[jose.SignatureAlgorithm]string{
		jose.RS256: "rs", jose.RS384: "rs", jose.RS512: "rs", jose.PS256: "rs", jose.PS384: "rs", jose.PS512: "rs",
		jose.ES256: "es", jose.ES384: "es384", jose.ES512: "es521", jose.EdDSA: "ed",
	} {
		for _, typ := range []string{"", "JWT", "at+jwt", "application/at+JWT"} {
			token := i.sign(t, kid, alg, i.good())
			if typ != "" {
				token = i.sign(t, kid, alg, i.good(), "typ", typ)
			}
			if got := outcome(s, request("GET", "/mcp", away, bearer(token))); got != "1234@id.example.com by oauth" {
				t.Errorf("%s, type %q: got %s", alg, typ, got)
			}
		}
		token := signWith(t, i.keys[kid], "", alg, i.good())
		if got := outcome(s, request("GET", "/mcp", away, bearer(token))); got != "1234@id.example.com by oauth" {
			t.Errorf("%s without the name of a key: got %s", alg, got)
		}
	}
	if n := i.fetches.Load(); n != 1 {
		t.Errorf("the keys were fetched %d times, want once", n)
	}
}

//redteam:attack One principal, however it comes: OAuth tokens with other algorithms, keys, issuers, audiences and times
func TestTokensThatAreNotBelieved(t *testing.T) {
	i := newIssuer(t)
	weak := must(rsa.GenerateKey(rand.Reader, 1024))
	i.keys["weak"] = weak
	s := protected(t, i, nil)
	now := time.Now()
	es := func(changes said, header ...string) string {
		return i.sign(t, "es", jose.ES256, with(i.good(), changes), header...)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	unsigned := func(header string) string {
		claims, _ := json.Marshal(i.good())
		return b64([]byte(header)) + "." + b64(claims) + "."
	}
	signed := strings.Split(es(nil), ".")
	altered, _ := json.Marshal(with(i.good(), said{"sub": "admin"}))
	public := must(json.Marshal(jose.JSONWebKey{Key: i.keys["es"].Public()}))
	another := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	embedded := func() string {
		sig, err := jose.NewSigner(
			jose.SigningKey{Algorithm: jose.ES256, Key: another},
			&jose.SignerOptions{EmbedJWK: true},
		)
		if err != nil {
			t.Fatal(err)
		}
		return must(jwt.Signed(sig).Claims(i.good()).Serialize())
	}
	for name, token := range map[string]string{
		"alg none":           unsigned(`{"alg":"none"}`),
		"alg None":           unsigned(`{"alg":"None","kid":"es"}`),
		"no alg":             unsigned(`{"kid":"es"}`),
		"signature left out": signed[0] + "." + signed[1] + ".",
		"claims altered":     signed[0] + "." + b64(altered) + "." + signed[2],
		"a shared secret": signWith(t, []byte("0123456789abcdef0123456789abcdef"), "shared",
			jose.HS256, i.good()),
		"the public key as secret":  signWith(t, public, "es", jose.HS256, i.good()),
		"another key of that name":  signWith(t, another, "es", jose.ES256, i.good()),
		"its own key inside":        embedded(),
		"a key of no name we know":  signWith(t, another, "other", jose.ES256, i.good()),
		"a weak key":                i.sign(t, "weak", jose.RS256, i.good()),
		"another issuer":            es(said{"iss": "https://id.example.com"}),
		"issuer with a slash more":  es(said{"iss": i.url + "/"}),
		"no issuer":                 es(said{"iss": nil}),
		"for another host":          es(said{"aud": "https://other.example.com/mcp"}),
		"for a longer name":         es(said{"aud": audience + "/more"}),
		"for several others":        es(said{"aud": []string{"a", "b"}}),
		"for no host":               es(said{"aud": nil}),
		"for an empty list":         es(said{"aud": []string{}}),
		"too old":                   es(said{"exp": now.Add(-skew - 2*time.Second).Unix()}),
		"without an end":            es(said{"exp": nil}),
		"not yet":                   es(said{"nbf": now.Add(skew + 2*time.Second).Unix()}),
		"from the future":           es(said{"iat": now.Add(skew + 2*time.Second).Unix()}),
		"without a subject":         es(said{"sub": nil}),
		"subject is a number":       es(said{"sub": 7}),
		"subject is endless":        es(said{"sub": strings.Repeat("x", mostSubject+1)}),
		"an id token by its type":   es(nil, "typ", "id_token+jwt"),
		"a proof by its type":       es(nil, "typ", "dpop+jwt"),
		"a critical header":         signWith(t, i.keys["es"], "es", jose.ES256, i.good(), "crit", "x"),
		"not base64":                "a.b.c",
		"points alone":              "..",
		"more points":               es(nil) + ".x",
		"space inside":              signed[0] + " ." + signed[1] + "." + signed[2],
		"encrypted, by its looks":   "a.b.c.d.e",
		"a token of ours, mistyped": newSecret(tokenPrefix) + "a",
	} {
		if got := outcome(s, request("GET", "/mcp", away, bearer(token))); got != invalid401 {
			t.Errorf("%s: got %s", name, got)
		}
	}
	for name, token := range map[string]string{
		"old, within the skew":     es(said{"exp": now.Add(-skew + 10*time.Second).Unix()}),
		"not yet, within the skew": es(said{"nbf": now.Add(skew - 10*time.Second).Unix()}),
		"for us among others":      es(said{"aud": []string{"https://other.example.com", audience}}),
	} {
		if got := outcome(s, request("GET", "/mcp", away, bearer(token))); got != "1234@id.example.com by oauth" {
			t.Errorf("%s: got %s", name, got)
		}
	}
	if got := outcome(s, request("GET", "/mcp", away,
		"Cookie: "+cookieName+"="+es(nil)+keyMark+newCookie())); got != invalid401 {
		t.Errorf("an access token in a cookie: got %s", got)
	}
}

func TestWhatATokenMakesOfItsBearer(t *testing.T) {
	i := newIssuer(t)
	get := func(t *testing.T, s *Service, c said) (Principal, *Denied) {
		t.Helper()
		return s.HTTP(request("GET", "/mcp", away, bearer(i.sign(t, "es", jose.ES256, c))))
	}
	t.Run("a name that is no user's here", func(t *testing.T) {
		s := protected(t, i, nil)
		for sub, want := range map[string]string{
			"1234": "1234@id.example.com", "alice": "alice@id.example.com", "a/b c@d": "a%2Fb%20c@d@id.example.com",
			"auth0|1": "auth0%7C1@id.example.com",
		} {
			p, d := get(t, s, with(i.good(), said{"sub": sub}))
			if d != nil || p.Name != want || len(p.Roles) != 0 {
				t.Errorf("%s is %+v, %v; want the name %s and no role", sub, p, d, want)
			}
		}
	})
	t.Run("a linked user", func(t *testing.T) {
		s := protected(t, i, func(o *OAuth) { o.RolesClaim = "groups" })
		add(t, s, "alice", "", "writer")
		if err := s.Link(t.Context(), LinkOAuth, "1234", "alice"); err != nil {
			t.Fatal(err)
		}
		c := with(i.good(), said{"groups": []string{"admin"}})
		p, d := get(t, s, c)
		if d != nil || p.Name != "alice" || !slices.Equal(p.Roles, []string{"writer"}) {
			t.Errorf("got %+v, %v", p, d)
		}
		if err := s.Unlink(t.Context(), LinkOAuth, "1234"); err != nil {
			t.Fatal(err)
		}
		if p, d := get(t, s, c); d != nil || p.Name != "1234@id.example.com" {
			t.Errorf("after unlinking: %+v, %v", p, d)
		}
	})
	t.Run("roles and names from claims", func(t *testing.T) {
		s := protected(t, i, func(o *OAuth) { o.RolesClaim, o.UserClaim = "groups", "email" })
		for _, c := range []struct {
			groups any
			want   []string
		}{
			{[]string{"writer", "reader", "writer"}, []string{"reader", "writer"}},
			{"reader admin", []string{"admin", "reader"}},
			{[]string{"Domain Users", "reader"}, []string{"reader"}}, {7, nil}, {nil, nil}, {[]any{"reader", 7}, nil},
		} {
			p, d := get(t, s, with(i.good(), said{"groups": c.groups, "email": "a@example.com"}))
			if d != nil || p.Name != "a@example.com@id.example.com" || !slices.Equal(p.Roles, c.want) {
				t.Errorf("%v: got %+v, %v", c.groups, p, d)
			}
		}
	})
	t.Run("an end and an id", func(t *testing.T) {
		s := protected(t, i, nil)
		c := i.good()
		p, d := get(t, s, c)
		if d != nil || p.Until.Unix() != c["exp"].(int64)+60 || !strings.HasPrefix(p.Credential, "o_") {
			t.Errorf("got %+v, %v", p, d)
		}
	})
}

func TestScopes(t *testing.T) {
	i := newIssuer(t)
	grants := map[string][]string{"mcp": {"*"}, "mcp.read": {"read", "tools:file_*"}}
	for name, c := range map[string]struct {
		change func(*OAuth)
		claims said
		want   string // scopes, or the challenge
	}{
		"as they come":      {nil, said{"scope": "read tools:*"}, "[read tools:*]"},
		"a list":            {nil, said{"scope": nil, "scp": []string{"b", "a", "b"}}, "[a b]"},
		"words in scp":      {nil, said{"scope": nil, "scp": "b a"}, "[a b]"},
		"none":              {nil, said{"scope": nil}, "[]"},
		"required and here": {func(o *OAuth) { o.Required = []string{"read"} }, said{}, "[read tools:*]"},
		"required": {func(o *OAuth) { o.Required = []string{"mcp"} }, said{},
			`error="insufficient_scope", scope="mcp"`},
		"translated": {func(o *OAuth) { o.Grants = grants }, said{"scope": "openid mcp.read"},
			"[read tools:file_*]"},
		"nothing to translate": {func(o *OAuth) { o.Grants = grants }, said{"scope": "openid read"},
			`error="insufficient_scope", scope="mcp mcp.read"`},
	} {
		s := protected(t, i, c.change)
		p, d := s.HTTP(request("GET", "/mcp", away, bearer(i.sign(t, "es", jose.ES256, with(i.good(), c.claims)))))
		got := fmt.Sprint(p.Scopes)
		if d != nil {
			got = d.Header.Get("WWW-Authenticate")
			if d.Status != 403 || d.Code != "insufficient_scope" {
				t.Errorf("%s: got %d %s", name, d.Status, d.Code)
			}
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

func TestMetadataAndChallenges(t *testing.T) {
	i := newIssuer(t)
	s := protected(t, i, func(o *OAuth) { o.Required, o.Scopes = []string{"mcp"}, []string{"mcp.admin"} })
	for _, path := range []string{wellKnown, wellKnown + "/mcp", wellKnown + "/mcp/anything"} {
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		var doc map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil || w.Code != 200 ||
			w.Header().Get("Content-Type") != "application/json" {
			t.Fatalf("%s: %d, %v", path, w.Code, err)
		}
		if doc["resource"] != audience || fmt.Sprint(doc["authorization_servers"]) != "["+i.url+"]" ||
			fmt.Sprint(
				doc["scopes_supported"],
			) != "[mcp.admin mcp]" || fmt.Sprint(doc["bearer_methods_supported"]) != "[header]" {
			t.Errorf("%s: %s", path, w.Body)
		}
	}
	const tail = `scope="mcp", resource_metadata="https://tools.example.com/.well-known/oauth-protected-resource/mcp"`
	for header, want := range map[string]string{
		"":                        `Bearer realm="gatehouse", ` + tail,
		"Authorization: Bearer x": `Bearer realm="gatehouse", error="invalid_token", ` + tail,
	} {
		var headers []string
		if header != "" {
			headers = []string{header}
		}
		_, d := s.HTTP(request("POST", "/mcp", away, headers...))
		if got := d.Header.Get("WWW-Authenticate"); d.Status != 401 || got != want {
			t.Errorf("%q: got %d, %s, want %s", header, d.Status, got, want)
		}
	}
	d := s.InsufficientScope("tools:file_write")
	if got := d.Header.Get("WWW-Authenticate"); d.Status != 403 ||
		!strings.Contains(got, `error="insufficient_scope", scope="tools:file_write", resource_metadata=`) {
		t.Errorf("got %d, %s", d.Status, got)
	}
	plain := empty(t, "", Options{})
	w := httptest.NewRecorder()
	plain.Handler().ServeHTTP(w, httptest.NewRequest("GET", wellKnown, nil))
	if w.Code != 404 {
		t.Errorf("without a provider the metadata are %d", w.Code)
	}
}

// New keys of a provider are fetched; strangers cannot cause fetches more often than once a minute, and
// known keys cause none.
func TestKeysChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		s, err := Open("", Options{OAuth: i.options()})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ask := func(token string) string { return outcome(s, request("GET", "/mcp", away, bearer(token))) }
		const good = "1234@id.example.com by oauth"
		long := with(i.good(), said{"exp": time.Now().Add(1000 * time.Hour).Unix()})
		first := i.sign(t, "es", jose.ES256, long)
		for range 10 {
			if got := ask(first); got != good {
				t.Fatal(got)
			}
		}
		i.mu.Lock()
		i.keys["new"] = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
		i.mu.Unlock()
		next := i.sign(t, "new", jose.ES256, long)
		if got := ask(next); got != invalid401 {
			t.Errorf("a new key within a minute of the last fetch: %s", got)
		}
		time.Sleep(keysPause)
		if got := ask(next); got != good {
			t.Errorf("a new key a minute later: %s", got)
		}
		stranger := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
		for n := range 100 {
			if got := ask(signWith(t, stranger, fmt.Sprint(n), jose.ES256, long)); got != invalid401 {
				t.Fatal(got)
			}
		}
		if n := i.fetches.Load(); n != 2 {
			t.Errorf("the keys were fetched %d times, want 2", n)
		}

		// A withdrawn key is refused after the next fetch.
		i.mu.Lock()
		delete(i.keys, "es")
		i.mu.Unlock()
		time.Sleep(keysEvery)
		s.oauth.keys.refresh(t.Context())
		if got := ask(first); got != invalid401 {
			t.Errorf("signed by a key that was taken back: %s", got)
		}
		if got := ask(next); got != good {
			t.Errorf("signed by the key that is left: %s", got)
		}

		// Tokens stay valid if the provider is unreachable for hours, but not for a day.
		i.mu.Lock()
		i.broken = true
		i.mu.Unlock()
		time.Sleep(23 * time.Hour)
		s.oauth.keys.refresh(t.Context())
		if got := ask(next); got != good {
			t.Errorf("while the provider is unreachable: %s", got)
		}
		time.Sleep(2 * time.Hour)
		s.oauth.keys.refresh(t.Context())
		if got := ask(next); got == good {
			t.Errorf("after a day without the provider: %s", got)
		}
		if got, want := ask(i.sign(t, "new", jose.ES256, with(long, said{"jti": "x"}))),
			"Service Unavailable: unavailable"; got != want {
			t.Errorf("a token that cannot be checked: got %s, want %s", got, want)
		}
		i.mu.Lock()
		i.broken = false
		i.mu.Unlock()
		time.Sleep(keysRetry)
		if got := ask(next); got != good {
			t.Errorf("when the provider is back: %s", got)
		}
	})
}

// Many concurrent callers share one fetch, and a caller that gives up does not cancel it for the
// others.
func TestOneFetchForMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		i.slow = time.Second
		s, err := Open("", Options{OAuth: i.options()})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		hasty, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		results := make(chan string)
		for n := range 50 {
			r := request(
				"GET",
				"/mcp",
				away,
				bearer(i.sign(t, "es", jose.ES256, with(i.good(), said{"sub": fmt.Sprint(n)}))),
			)
			if n == 0 {
				r = r.WithContext(hasty)
			}
			go func() { results <- outcome(s, r) }()
			if n == 0 {
				synctest.Wait() // this caller starts the fetch
			}
		}
		good := 0
		for range 50 {
			if strings.HasSuffix(<-results, "by oauth") {
				good++
			}
		}
		if n := i.fetches.Load(); n != 1 || good != 49 {
			t.Errorf("%d fetches, %d good answers; want 1, 49", n, good)
		}
	})
}

// A verified token is cached until it expires.
func TestAccessTokensRunOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		s, err := Open("", Options{OAuth: i.options()})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		r := request(
			"GET",
			"/mcp",
			away,
			bearer(i.sign(t, "es", jose.ES256, with(i.good(), said{"exp": time.Now().Add(time.Minute).Unix()}))),
		)
		if got := outcome(s, r); got != "1234@id.example.com by oauth" {
			t.Fatal(got)
		}
		time.Sleep(time.Minute + skew)
		if got := outcome(s, r); got != invalid401 {
			t.Errorf("got %s", got)
		}
	})
}

func TestWhereKeysAreLookedFor(t *testing.T) {
	keys := must(
		json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: newIssuer(t).keys["es"].Public(), KeyID: "es"}}}),
	)
	const url = "https://id.example.com/tenant"
	meta := func(issuer, keys string) string { return fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q}`, issuer, keys) }
	for name, c := range map[string]struct {
		places map[string]string
		want   string // in the error; "" means that it is accepted
	}{
		"OpenID Connect": {map[string]string{"/tenant/.well-known/openid-configuration": meta(url, url+"/keys"),
			"/tenant/keys": string(keys)}, ""},
		"RFC 8414": {map[string]string{"/.well-known/oauth-authorization-server/tenant": meta(url, url+"/keys"),
			"/tenant/keys": string(keys)}, ""},
		"its variant": {map[string]string{"/.well-known/openid-configuration/tenant": meta(url, url+"/keys"),
			"/tenant/keys": string(keys)}, ""},
		"nowhere": {map[string]string{}, "status 404"},
		"of another": {map[string]string{"/tenant/.well-known/openid-configuration": meta("https://id.example.com",
			url+"/keys")}, "the issuer is"},
		"unprotected": {map[string]string{"/tenant/.well-known/openid-configuration": meta(url,
			"http://id.example.com/keys")}, "expected an https URL"},
		"no JSON": {map[string]string{"/tenant/.well-known/openid-configuration": "<html>"}, "not metadata"},
		"no keys": {map[string]string{"/tenant/.well-known/openid-configuration": meta(url, url+"/keys"),
			"/tenant/keys": `{"keys":[]}`}, "no key in it"},
		"endless keys": {map[string]string{"/tenant/.well-known/openid-configuration": meta(url, url+"/keys"),
			"/tenant/keys": strings.Repeat(" ", mostFetch+1)}, "more than"},
	} {
		client := &http.Client{Transport: transport(func(r *http.Request) *http.Response {
			w := httptest.NewRecorder()
			body, ok := c.places[r.URL.Path]
			if !ok {
				w.WriteHeader(404)
			}
			w.WriteString(body)
			return w.Result()
		})}
		k := newKeys(OAuth{Issuer: url, Client: client})
		found, err := k.findKey(t.Context(), "es", "ES256")
		k.stopFetching()
		if c.want == "" && (err != nil || len(found) != 1) {
			t.Errorf("%s: got %v, %v", name, found, err)
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %s in it", name, err, c.want)
		}
	}
}

type transport func(*http.Request) *http.Response

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r), nil }

func FuzzJWT(f *testing.F) {
	i := newIssuer(f)
	s := protected(f, i, nil)
	good := i.sign(f, "es", jose.ES256, i.good())
	f.Add(good)
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		p, d := s.HTTP(request("GET", "/mcp", away, "Authorization: Bearer "+token))
		if d == nil && token != good {
			// Another encoding of the same signature is still valid.
			if p.Name != "1234@id.example.com" {
				t.Errorf("%q stands for %s", token, p.Name)
			}
		}
	})
}

func FuzzKeys(f *testing.F) {
	f.Add(
		[]byte(
			`{"keys":[{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0","kid":"1"}]}`,
		),
	)
	f.Fuzz(func(t *testing.T, body []byte) {
		set, err := parseKeys(body)
		if err == nil && (len(set) == 0 || len(set) > mostKeys) {
			t.Errorf("%d keys", len(set))
		}
		for _, key := range set {
			makes(key.Key, "ES256")
		}
	})
}

// An access token that a provider issued to a client and to no user is that of a program which no person is beside.
func TestAccessTokensOfPrograms(t *testing.T) {
	i := newIssuer(t)
	s := protected(t, i, nil)
	for name, c := range map[string]struct {
		claims said
		want   bool
	}{
		"of a user":                     {nil, false},
		"of a user by a client":         {said{"client_id": "editor"}, false},
		"the subject is the client":     {said{"sub": "ci", "client_id": "ci"}, true},
		"by Auth0":                      {said{"gty": "client-credentials"}, true},
		"by Entra":                      {said{"idtyp": "app"}, true},
		"of a user by Entra":            {said{"idtyp": "user"}, false},
		"with a claim of another shape": {said{"gty": []string{"password"}}, false},
	} {
		token := i.sign(t, "es", jose.ES256, with(i.good(), c.claims))
		for range 2 { // the second from the cache
			p, denied := s.HTTP(request("GET", "/mcp", away, bearer(token)))
			if denied != nil || p.Unattended != c.want || p.Caller().Unattended != c.want {
				t.Errorf("%s: unattended is %v, %v", name, p.Unattended, denied)
			}
		}
	}
}
