package identity

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"gatehouse/internal/access/passkey"
)

const (
	site      = "https://tools.example.com"
	siteParty = "tools.example.com"
)

// authenticator makes and uses one passkey, as a device does. Its fields can be made wrong.
type authenticator struct {
	t       *testing.T
	sign    func(signed []byte) []byte
	public  []byte
	id      []byte
	handle  string
	counter uint32
	flags   byte
	origin  string
	party   string
	kind    string // of the ceremony; "" for the right one
}

func newAuthenticator(t *testing.T, alg string) *authenticator {
	t.Helper()
	a := &authenticator{t: t, id: random(20), flags: 1 | 4, origin: site, party: siteParty}
	var public any
	var err error
	switch alg {
	case "ES256":
		var key *ecdsa.PrivateKey
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		public = key.Public()
		a.sign = func(b []byte) []byte {
			sum := sha256.Sum256(b)
			s, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
			check(t, err)
			return s
		}
	case "EdDSA":
		var key ed25519.PrivateKey
		public, key, err = ed25519.GenerateKey(rand.Reader)
		a.sign = func(b []byte) []byte { return ed25519.Sign(key, b) }
	case "RS256":
		var key *rsa.PrivateKey
		key, err = rsa.GenerateKey(rand.Reader, 2048)
		public = key.Public()
		a.sign = func(b []byte) []byte {
			sum := sha256.Sum256(b)
			s, err := rsa.SignPKCS1v15(rand.Reader, key, 5, sum[:]) // SHA-256
			check(t, err)
			return s
		}
	}
	check(t, err)
	a.public, err = x509.MarshalPKIXPublicKey(public)
	check(t, err)
	return a
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (a *authenticator) data(made bool) []byte {
	sum := sha256.Sum256([]byte(a.party))
	flags := a.flags
	if made {
		flags |= 1 << 6
	}
	b := binary.BigEndian.AppendUint32(append(sum[:], flags), a.counter)
	if made {
		b = binary.BigEndian.AppendUint16(append(b, make([]byte, 16)...), uint16(len(a.id)))
		b = append(append(b, a.id...), 0xa0) // the key, which is not read
	}
	return b
}

func (a *authenticator) client(kind, challenge string) string {
	if a.kind != "" {
		kind = a.kind
	}
	b, err := json.Marshal(
		map[string]any{"type": kind, "challenge": challenge, "origin": a.origin, "crossOrigin": false},
	)
	check(a.t, err)
	return passkey.Text.EncodeToString(b)
}

func (a *authenticator) register(challenge string) (r passkey.Registration) {
	r.ID = passkey.Text.EncodeToString(a.id)
	r.Response.ClientDataJSON = a.client("webauthn.create", challenge)
	r.Response.AuthenticatorData = passkey.Text.EncodeToString(a.data(true))
	r.Response.PublicKey = passkey.Text.EncodeToString(a.public)
	return r
}

func (a *authenticator) assert(challenge string) (r passkey.Assertion) {
	a.counter++
	data, client := a.data(false), a.client("webauthn.get", challenge)
	text, err := passkey.Text.DecodeString(client)
	check(a.t, err)
	sum := sha256.Sum256(text)
	r.ID = passkey.Text.EncodeToString(a.id)
	r.Response.ClientDataJSON = client
	r.Response.AuthenticatorData = passkey.Text.EncodeToString(data)
	r.Response.Signature = passkey.Text.EncodeToString(a.sign(append(data, sum[:]...)))
	r.Response.UserHandle = a.handle
	return r
}

// ceremonies talks to a host about passkeys, as its page does.
type ceremonies struct {
	t *testing.T
	s *Service
}

func (c ceremonies) post(path string, in any, headers ...string) (int, map[string]any) {
	c.t.Helper()
	text, err := json.Marshal(in)
	check(c.t, err)
	r := httptest.NewRequest("POST", site+path, strings.NewReader(string(text)))
	r.RemoteAddr = away
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Origin", site)
	for _, h := range headers {
		setHeader(r, h)
	}
	w := httptest.NewRecorder()
	c.s.tries = newTries()
	c.s.Handler().ServeHTTP(w, r)
	out := map[string]any{}
	json.Unmarshal(w.Body.Bytes(), &out)
	return w.Code, out
}

// begin returns the ceremony and its challenge.
func (c ceremonies) begin(path string, headers ...string) (id, challenge, handle string) {
	c.t.Helper()
	status, out := c.post(path, struct{}{}, headers...)
	if status != 200 {
		c.t.Fatalf("%s: %d %v", path, status, out)
	}
	options := out["options"].(map[string]any)["publicKey"].(map[string]any)
	if user, ok := options["user"].(map[string]any); ok {
		handle = user["id"].(string)
	}
	return out["ceremony"].(string), options["challenge"].(string), handle
}

// add registers an authenticator for a user, and returns the status.
func (c ceremonies) add(a *authenticator, cookie string) (int, map[string]any) {
	c.t.Helper()
	id, challenge, handle := c.begin("/auth/passkey/register", "Cookie: "+cookie)
	a.handle = handle
	return c.post("/auth/passkey/register/finish", map[string]any{
		"ceremony": id, "name": "my key", "response": a.register(challenge),
	}, "Cookie: "+cookie)
}

// enter logs in with an authenticator.
func (c ceremonies) enter(a *authenticator) (int, map[string]any) {
	c.t.Helper()
	id, challenge, _ := c.begin("/auth/passkey/login")
	return c.post("/auth/passkey/login/finish", map[string]any{"ceremony": id, "response": a.assert(challenge)})
}

func TestALoginWithAPasskey(t *testing.T) {
	for _, alg := range []string{"ES256", "EdDSA", "RS256"} {
		t.Run(alg, func(t *testing.T) {
			var saw events
			s := newTestService(t, Options{Mode: Required, Secure: true, OnEvent: saw.add})
			c, a := ceremonies{t, s}, newAuthenticator(t, alg)
			cookie := logIn(t, s, "alice", "correct horse", false)
			status, made := c.add(a, cookie)
			if status != 201 || made["user"] != "alice" || made["name"] != "my key" || made["decides"] != false {
				t.Fatalf("%d %v", status, made)
			}
			status, in := c.enter(a)
			if status != 200 || in["user"] != "alice" {
				t.Fatalf("%d %v", status, in)
			}
			all, err := s.Passkeys(t.Context(), "alice")
			if err != nil || len(all) != 1 || all[0].Used.IsZero() || all[0].Origin != site {
				t.Errorf("%+v, %v", all, err)
			}
			check(t, s.RenamePasskey(t.Context(), "alice", all[0].ID, "the red one"))
			if err := s.RemovePasskey(t.Context(), "bob", all[0].ID); !errors.Is(err, ErrNone) {
				t.Errorf("bob removes alice's passkey: %v", err)
			}
			check(t, s.RemovePasskey(t.Context(), "alice", all[0].ID))
			if status, out := c.enter(a); status != 401 {
				t.Errorf("a removed passkey: %d %v", status, out)
			}
			if got := outcome(s, request("POST", "/mcp", away, "Cookie: "+cookie)); strings.Contains(got, "alice") {
				t.Errorf("the logins outlive the passkey: %s", got)
			}
			if got := saw.kinds(); !strings.Contains(got, "passkey_added") ||
				!strings.Contains(got, "passkey_removed") {
				t.Errorf("the ledger sees %s", got)
			}
		})
	}
}

// events collects what a service publishes.
type events struct {
	mu  sync.Mutex
	all []Event
}

func (e *events) add(one Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, one)
}

func (e *events) kinds() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var b strings.Builder
	for _, one := range e.all {
		b.WriteString(one.Kind + " ")
	}
	return b.String()
}

//redteam:attack A passkey is used by its user alone: an assertion used twice, made for another origin, relying party, kind of ceremony or challenge, without a verified user, with an older counter, a changed signature, another user's handle
func TestPasskeysAttacked(t *testing.T) { bothWays(t, attackPasskeys) }

func attackPasskeys(t *testing.T, nodes Nodes) {
	var saw events
	s := newTestService(t, Options{Mode: Required, Secure: true, OnEvent: saw.add, Nodes: nodes})
	c, a := ceremonies{t, s}, newAuthenticator(t, "ES256")
	if status, out := c.add(a, logIn(t, s, "alice", "correct horse", false)); status != 201 {
		t.Fatal(out)
	}
	bobs := newAuthenticator(t, "ES256")
	if status, out := c.add(bobs, logIn(t, s, "bob", "battery staple", false)); status != 201 {
		t.Fatal(out)
	}
	if status, out := c.enter(a); status != 200 {
		t.Fatal(out)
	}
	right := *a
	for name, change := range map[string]func(*authenticator){
		"the origin of another port":    func(a *authenticator) { a.origin = site + ":9999" },
		"the origin without TLS":        func(a *authenticator) { a.origin = "http://tools.example.com" },
		"a look-alike origin":           func(a *authenticator) { a.origin = "https://tools.example.com.evil.example" },
		"another relying party":         func(a *authenticator) { a.party = "example.com" },
		"a registration":                func(a *authenticator) { a.kind = "webauthn.create" },
		"no user is verified":           func(a *authenticator) { a.flags = 1 },
		"no user is there":              func(a *authenticator) { a.flags = 4 },
		"a backup that cannot be":       func(a *authenticator) { a.flags |= 1 << 4 },
		"another user's handle":         func(a *authenticator) { a.handle = bobs.handle },
		"another user's key":            func(a *authenticator) { a.sign = bobs.sign },
		"another user's credential":     func(a *authenticator) { a.id = bobs.id },
		"an unknown credential":         func(a *authenticator) { a.id = random(20) },
		"the same counter":              func(a *authenticator) { a.counter-- },
		"no counter any more":           func(a *authenticator) { a.counter = 1<<32 - 1 },
		"a counter from before it used": func(a *authenticator) { a.counter = 0 },
	} {
		bad := right
		change(&bad)
		if status, out := c.enter(&bad); status != 401 {
			t.Errorf("%s: %d %v", name, status, out)
		}
	}
	if !strings.Contains(saw.kinds(), "passkey_copied") {
		t.Error("the ledger does not see that a counter went back")
	}

	id, challenge, _ := c.begin("/auth/passkey/login")
	used := map[string]any{"ceremony": id, "response": a.assert(challenge)}
	if status, _ := c.post("/auth/passkey/login/finish", used); status != 200 {
		t.Fatal("the right one is refused")
	}
	if status, _ := c.post("/auth/passkey/login/finish", used); status != 401 {
		t.Error("an assertion is accepted twice")
	}
	id, _, _ = c.begin("/auth/passkey/login")
	used["ceremony"] = id
	if status, _ := c.post("/auth/passkey/login/finish", used); status != 401 {
		t.Error("an assertion is accepted in another ceremony")
	}
	if status, _ := c.post("/auth/passkey/login/finish", map[string]any{
		"ceremony": id, "response": a.assert(challenge),
	}); status != 401 {
		t.Error("a challenge is accepted twice")
	}
	if status, out := c.post("/auth/passkey/login", struct{}{},
		"Origin: http://tools.example.com:9999"); status != 403 {
		t.Errorf("a page of another port begins a login: %d %v", status, out)
	}
}

//redteam:attack A passkey is used by its user alone: registered without a login, by a program's login, in another user's ceremony, with a credential that is registered, or a key of no accepted kind
func TestRegistrationsAttacked(t *testing.T) {
	s := newTestService(t, Options{Mode: Required, Secure: true})
	c := ceremonies{t, s}
	alice, bob := logIn(t, s, "alice", "correct horse", false), logIn(t, s, "bob", "battery staple", false)
	if status, _ := c.post("/auth/passkey/register", struct{}{}); status != 401 {
		t.Errorf("without a login: %d", status)
	}
	token, _, err := s.CreateToken(t.Context(), Token{User: "alice"})
	check(t, err)
	if status, _ := c.post("/auth/passkey/register", struct{}{}, "Authorization: Bearer "+token); status != 403 {
		t.Errorf("with a token: %d", status)
	}
	link, err := s.CreateLink(t.Context(), "alice", false)
	check(t, err)
	r := httptest.NewRequest("POST", site+"/auth/link", strings.NewReader(`{"code":"`+link.Code+`"}`))
	r.RemoteAddr = away
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	var in struct{ Key string }
	check(t, json.Unmarshal(w.Body.Bytes(), &in))
	k := w.Result().Cookies()[0]
	if status, _ := c.post("/auth/passkey/register", struct{}{},
		"Cookie: "+k.Name+"="+k.Value+keyMark+in.Key); status != 403 {
		t.Errorf("with a link that a program got: %d", status)
	}

	a := newAuthenticator(t, "ES256")
	id, challenge, _ := c.begin("/auth/passkey/register", "Cookie: "+alice)
	if status, _ := c.post("/auth/passkey/register/finish",
		map[string]any{"ceremony": id, "response": a.register(challenge)}, "Cookie: "+bob); status != 400 {
		t.Errorf("bob ends alice's ceremony: %d", status)
	}
	if status, out := c.add(a, alice); status != 201 {
		t.Fatal(out)
	}
	if status, _ := c.add(a, bob); status != 409 {
		t.Error("a credential is registered for a second user")
	}
	small, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	check(t, err)
	weak := newAuthenticator(t, "ES256")
	weak.public, err = x509.MarshalPKIXPublicKey(small.Public())
	check(t, err)
	if status, _ := c.add(weak, alice); status != 400 {
		t.Errorf("a key of another curve: %d", status)
	}
	other := newAuthenticator(t, "ES256")
	other.flags = 1
	if status, _ := c.add(other, alice); status != 400 {
		t.Errorf("a registration without a verified user: %d", status)
	}
	other.flags, other.origin = 1|4, site+":9999"
	if status, _ := c.add(other, alice); status != 400 {
		t.Errorf("a registration at another port: %d", status)
	}
}

// A passkey approves a call only if it existed when the host started, belongs to the deciding user,
// and signed that call.
//
//redteam:attack A yes is good for one call: a passkey of another user, one that was registered while the host runs, an assertion for another approval, one of a login, one that is used twice
func TestApprovalsByPasskeysAttacked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "identity.db")
	s := empty(t, path, Options{Mode: Required, Secure: true})
	add(t, s, "alice", "correct horse", Admin)
	add(t, s, "bob", "battery staple", Admin)
	a, bobs, late := newAuthenticator(t, "ES256"), newAuthenticator(t, "EdDSA"), newAuthenticator(t, "ES256")
	c := ceremonies{t, s}
	if status, out := c.add(a, logIn(t, s, "alice", "correct horse", false)); status != 201 {
		t.Fatal(out)
	}
	if status, out := c.add(bobs, logIn(t, s, "bob", "battery staple", false)); status != 201 {
		t.Fatal(out)
	}
	challenge := sha256.Sum256([]byte("an approval"))
	other := sha256.Sum256([]byte("another approval"))
	assertion := func(a *authenticator, challenge []byte) []byte {
		b, err := json.Marshal(a.assert(passkey.Text.EncodeToString(challenge)))
		check(t, err)
		return b
	}
	if s.Approve(t.Context(), "alice", challenge[:], assertion(a, challenge[:])) == nil {
		t.Error("a passkey counts that was registered after the service was opened")
	}

	s = empty(t, path, Options{Mode: Required, Secure: true})
	c.s = s
	if status, out := c.add(late, logIn(t, s, "alice", "correct horse", false)); status != 201 {
		t.Fatal(out)
	}
	_, login, _ := c.begin("/auth/passkey/login")
	loginChallenge, err := passkey.Text.DecodeString(login)
	check(t, err)
	for name, given := range map[string][]byte{
		"nothing":                 nil,
		"no JSON":                 []byte("{"),
		"another approval":        assertion(a, other[:]),
		"a login":                 assertion(a, loginChallenge),
		"bob's passkey":           assertion(bobs, challenge[:]),
		"a passkey that is young": assertion(late, challenge[:]),
	} {
		if s.Approve(t.Context(), "alice", challenge[:], given) == nil {
			t.Errorf("%s: approves", name)
		}
	}
	given := assertion(a, challenge[:])
	check(t, s.Approve(t.Context(), "alice", challenge[:], given))
	check(t, s.Approved(t.Context(), challenge[:], given))
	if s.Approve(t.Context(), "alice", challenge[:], given) == nil {
		t.Error("an assertion approves twice")
	}
	if s.Approved(t.Context(), other[:], given) == nil {
		t.Error("an assertion approves another request")
	}
	all, err := s.Passkeys(t.Context(), "alice")
	if err != nil || len(all) != 2 || !all[0].Decides || all[1].Decides {
		t.Fatalf("%+v, %v", all, err)
	}
	check(t, s.RemovePasskey(t.Context(), "", all[0].ID))
	if s.Approved(t.Context(), challenge[:], given) == nil {
		t.Error("a removed passkey approves")
	}
}
