package hosttest_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"database/sql"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	_ "modernc.org/sqlite"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/module"
	"gatehouse/tool"
)

const (
	gateWait     = 60 * time.Second // for what is certain to come
	gateFlag     = "a token that was set by hand"
	gateResource = "http://127.0.0.1/mcp" // what tokens of the provider are issued for
	gatePassword = "correct horse battery"
	gateSubject  = "1234" // at the provider, alice
)

// gateHost is a whole host with its listeners open, and a credential of each kind for each of them.
type gateHost struct {
	t         *testing.T
	app       *app.App
	cfg       config.Config
	users     *identity.Service // on the same file, as a command of its own would be
	listeners map[string]app.Listener
	far       string // an address of this machine that is not loopback; "" when it has none
	trust     *x509.CertPool
	ca        *gateAuthority
	issuer    *gateIssuer  // nil on an open host
	cookie    credential   // of alice's first login
	also      []app.Module // modules besides the probe
}

// gateSettings returns the settings of a host that stores everything below one folder.
func gateSettings(t testing.TB) config.Config {
	t.Helper()
	home := t.TempDir()
	c, err := config.FromEnv(func(name string) string {
		return map[string]string{"HOME": home, "XDG_RUNTIME_DIR": filepath.Join(home, "run")}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Roots.Folders = []string{t.TempDir()}
	c.Limits.StopPatience = 10 * time.Second
	c.Limits.Rate = new(float64) // none: a test asks as fast as it can
	c.Contexts = []config.Context{
		{Name: "default"},
		{Name: "staff", Roles: []string{"staff"}},
		{Name: "lab", Roles: []string{"staff"}, KnownTo: []string{"guest"}},
	}
	return c
}

// openGate runs a host that requires no credentials from loopback; guardedGate runs one that requires credentials
// and listens on other addresses too.
func openGate(t *testing.T, secure bool) *gateHost {
	g := &gateHost{t: t, cfg: gateSettings(t)}
	g.run("127.0.0.1", secure)
	return g
}

func guardedGate(t *testing.T, secure bool, change ...func(*config.Config)) *gateHost {
	g := &gateHost{t: t, cfg: gateSettings(t), ca: newGateAuthority(t), issuer: newGateIssuer(t)}
	g.cfg.Auth.Required, g.cfg.Auth.Token = true, secret.New(gateFlag)
	g.cfg.Auth.OAuth = config.OAuth{Issuer: g.issuer.srv.URL, Resource: gateResource}
	if secure {
		g.cfg.Listen.HTTP.TLS.ClientCA = g.ca.file
	}
	for _, c := range change {
		c(&g.cfg)
	}
	g.far = farAddress()
	if g.far != "" {
		g.cfg.Listen.HTTP.Hosts = []string{g.far}
	}
	g.run("0.0.0.0", secure)
	g.invite()
	return g
}

// run opens all listeners, except that a host has only one of HTTP and HTTPS.
func (g *gateHost) run(host string, secure bool) {
	t := g.t
	t.Helper()
	d := &g.cfg.Listen
	d.HTTP.Open, d.HTTP.Host, d.HTTP.Port, d.HTTP.TLS.On = true, host, 0, secure
	d.TCP = host + ":0"
	folder, err := os.MkdirTemp("", "gate") // short, and such that other users could come as far as the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	d.Unix = filepath.Join(folder, "s")
	o := app.Options{Bare: true, Extra: append([]app.Module{{Name: "probe", New: newProbe}}, g.also...)}
	o.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	if g.app, err = app.New(t.Context(), g.cfg, o); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.app.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	g.listeners = map[string]app.Listener{}
	for _, d := range g.app.Listeners() {
		g.listeners[d.Kind] = d
		if d.Trust != "" {
			pem, err := os.ReadFile(d.Trust)
			if err != nil {
				t.Fatal(err)
			}
			g.trust = x509.NewCertPool()
			g.trust.AppendCertsFromPEM(pem)
		}
	}
	if g.users, err = identity.Open(g.database(), identity.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.users.Close() })
}

func (g *gateHost) database() string { return filepath.Join(g.cfg.Folders.Data, "identity.db") }

// invite adds the users. alice may know that the lab exists; only zoe is staff.
func (g *gateHost) invite() {
	g.t.Helper()
	for name, roles := range map[string][]string{"alice": {"guest"}, "gone": {"guest"}, "zoe": {"staff", "admin"}} {
		if err := g.users.AddUser(g.t.Context(), name, roles, gatePassword); err != nil {
			g.t.Fatal(err)
		}
	}
	if err := g.users.Link(g.t.Context(), identity.LinkOAuth, gateSubject, "alice"); err != nil {
		g.t.Fatal(err)
	}
}

// token creates a token of a user.
func (g *gateHost) token(t identity.Token) (secret, id string) {
	g.t.Helper()
	secret, made, err := g.users.CreateToken(g.t.Context(), t)
	if err != nil {
		g.t.Fatal(err)
	}
	return secret, made.ID
}

// age sets the expiry of a stored credential to a past time.
func (g *gateHost) age(table, id string) {
	g.t.Helper()
	db, err := sql.Open("sqlite", g.database()+"?_pragma=busy_timeout(10000)")
	if err != nil {
		g.t.Fatal(err)
	}
	defer db.Close()
	done, err := db.ExecContext(
		g.t.Context(),
		"UPDATE "+table+" SET until = ? WHERE id = ?",
		time.Now().Add(-time.Hour).UnixMilli(),
		id,
	)
	if err != nil {
		g.t.Fatal(err)
	}
	if n, err := done.RowsAffected(); n != 1 || err != nil {
		g.t.Fatalf("%d %s with the id %s, %v", n, table, id, err)
	}
}

// reach returns the address of a TCP or HTTP listener: on loopback, or one that others could use too.
func (g *gateHost) reach(kind string, beyond bool) string {
	g.t.Helper()
	u, err := url.Parse(g.listeners[kind].Address)
	if err != nil {
		g.t.Fatal(err)
	}
	host := "127.0.0.1"
	if beyond {
		host = g.far
	}
	return net.JoinHostPort(host, u.Port())
}

// farAddress returns an address of this machine that is not loopback.
func farAddress() string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return ""
}

// gateProbe is a module that returns its caller.
type gateProbe struct{}

func newProbe(context.Context, module.Deps) (module.Module, error) { return gateProbe{}, nil }

func (gateProbe) Close(context.Context) error { return nil }

func (gateProbe) Offer(context.Context, module.Audience) (*module.Offer, error) {
	who := func(_ context.Context, c *tool.Call, _ struct{}) (tool.Result, error) {
		return tool.Result{Content: []tool.Content{tool.Text("who=" + c.Caller.Principal + ";")}}, nil
	}
	read := func(_ context.Context, c *tool.Call) (tool.Result, error) {
		return tool.Result{
			Content: []tool.Content{tool.TextResource(c.Name, "text/plain", "who="+c.Caller.Principal+";")},
		}, nil
	}
	return &module.Offer{
		Tools: []tool.Tool{
			tool.New(tool.Def{Name: "probe_who", Description: "Says who is calling.", Effects: tool.Reads}, who),
		},
		Resources: []module.Resource{
			{URI: "probe://who", Read: read, Watch: func(tool.Caller, string, func(json.RawMessage)) (func(), error) {
				return func() {}, nil
			}},
		},
	}, nil
}

// gateAuthority signs clients' certificates.
type gateAuthority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newGateAuthority(t *testing.T) *gateAuthority {
	t.Helper()
	a := &gateAuthority{t: t}
	c := a.issue("test authority", time.Hour)
	a.cert, a.key = c.Leaf, c.PrivateKey.(*ecdsa.PrivateKey)
	a.file = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(a.file,
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}), 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

// issue signs a certificate that expires after some time; the first one is the authority's own.
func (a *gateAuthority) issue(name string, life time.Duration) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(life),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// gateIssuer is an OAuth provider that issues what a test requests.
type gateIssuer struct {
	t   *testing.T
	srv *httptest.Server
	key *ecdsa.PrivateKey
}

func newGateIssuer(t *testing.T) *gateIssuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &gateIssuer{t: t, key: key}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(map[string]string{"issuer": i.srv.URL, "jwks_uri": i.srv.URL + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).
			Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Use: "sig"}}})
	})
	i.srv = httptest.NewServer(mux)
	t.Cleanup(i.srv.Close)
	return i
}

// issue signs an access token for a subject, valid for some time. Changes override its claims.
func (i *gateIssuer) issue(subject string, life time.Duration, changes map[string]any) string {
	i.t.Helper()
	now := time.Now()
	claims := map[string]any{
		"iss": i.srv.URL,
		"sub": subject,
		"aud": gateResource,
		"iat": now.Unix(),
		"exp": now.Add(life).Unix(),
	}
	maps.Copy(claims, changes)
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: "k"}},
		nil,
	)
	if err != nil {
		i.t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		i.t.Fatal(err)
	}
	return token
}

// until repeats a check until it succeeds, and fails the test after a time limit.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(gateWait); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// No caller is admitted beyond loopback before callers can be distinguished; the local token does not suffice.
//
//redteam:attack Loopback by default: a host without users is told to bind to every address
func TestAHostRefusesToBindBeyondLoopback(t *testing.T) {
	for name, change := range map[string]func(*config.Config){
		"HTTP": func(c *config.Config) {
			c.Listen.HTTP.Open, c.Listen.HTTP.Host, c.Listen.HTTP.Port = true, "0.0.0.0", 0
		},
		"HTTPS": func(c *config.Config) {
			c.Listen.HTTP.Open, c.Listen.HTTP.Host, c.Listen.HTTP.TLS.On = true, "::", true
		},
		"TCP":  func(c *config.Config) { c.Listen.TCP = "0.0.0.0:0" },
		"name": func(c *config.Config) { c.Listen.HTTP.Open, c.Listen.HTTP.Host = true, "gatehouse.example" },
	} {
		cfg := gateSettings(t)
		change(&cfg)
		_, err := app.New(t.Context(), cfg, app.Options{Bare: true})
		if _, ok := errors.AsType[*app.SettingError](err); !ok {
			t.Errorf("%s: got %v, want a SettingError", name, err)
		}
	}
	for name, change := range map[string]func(*config.Config){
		"a token by hand":  func(c *config.Config) { c.Auth.Token = secret.New(gateFlag) },
		"insecure":         func(c *config.Config) { c.Auth.Insecure = true },
		"credentials only": func(c *config.Config) { c.Auth.Required = true },
		"a provider": func(c *config.Config) {
			c.Auth.OAuth = config.OAuth{Issuer: "https://id.example.com", Resource: "https://tools.example.com/mcp"}
		},
	} {
		cfg := gateSettings(t)
		cfg.Listen.TCP = "0.0.0.0:0"
		change(&cfg)
		a, err := app.New(t.Context(), cfg, app.Options{Bare: true})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := a.Run(ctx); err != nil {
			t.Error(fmt.Errorf("%s: %w", name, err))
		}
	}
}
