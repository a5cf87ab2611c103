package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"
)

// authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	next int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	template := &x509.Certificate{
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
		Subject:               pkix.Name{CommonName: "test authority"},
	}
	c := a.issue(t, template)
	a.cert, a.key = c.Leaf, c.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

func (a *authority) issue(t *testing.T, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a.next++
	template.SerialNumber = big.NewInt(a.next)
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	} else {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// Certificates are presented in a real TLS handshake.
func TestCertificates(t *testing.T) {
	s := newTestService(t, Options{ClientCA: true})
	ca, stranger := newAuthority(t), newAuthority(t)
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	srv := httptest.NewUnstartedServer(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, outcome(s, r)) }),
	)
	srv.TLS = &tls.Config{ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are expected
	srv.StartTLS()
	defer srv.Close()

	ask := func(c *tls.Certificate, headers ...string) string {
		t.Helper()
		config := srv.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
		if c != nil {
			// The certificate is sent regardless of the authorities that the server names.
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c, nil }
		}
		transport := &http.Transport{TLSClientConfig: config}
		defer transport.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), "GET", srv.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		res, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			return "no handshake"
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	named := func(cn string) *x509.Certificate { return &x509.Certificate{Subject: pkix.Name{CommonName: cn}} }
	old := named("alice")
	old.NotBefore, old.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	spiffe, err := url.Parse("spiffe://example.com/ci")
	if err != nil {
		t.Fatal(err)
	}
	exact := ca.issue(t, named("alice"))
	fingerprint := sha256.Sum256(exact.Leaf.Raw)
	for subject, user := range map[string]string{
		"uri:spiffe://example.com/ci": "bob", "email:b@example.com": "bob", "dns:ci.example.com": "bob",
		"cn:Bob Builder": "bob",
		"sha256:" + hex.EncodeToString(fingerprint[:]): "bob",
	} {
		if err := s.Link(t.Context(), LinkCertificate, subject, user); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		from     *authority
		template *x509.Certificate
		want     string
	}{
		"name of a user":      {ca, named("alice"), "alice by certificate"},
		"DNS name of a user":  {ca, &x509.Certificate{DNSNames: []string{"alice"}}, "alice by certificate"},
		"name of no user":     {ca, named("carol"), invalid401},
		"no name":             {ca, named(""), invalid401},
		"name that cannot be": {ca, named("anonymous"), invalid401},
		"linked URI": {ca,
			&x509.Certificate{Subject: pkix.Name{CommonName: "alice"}, URIs: []*url.URL{spiffe}}, "bob by certificate"},
		"linked address": {ca, &x509.Certificate{EmailAddresses: []string{"b@example.com"}},
			"bob by certificate"},
		"linked DNS name":          {ca, &x509.Certificate{DNSNames: []string{"ci.example.com"}}, "bob by certificate"},
		"linked common name":       {ca, named("Bob Builder"), "bob by certificate"},
		"of a strange authority":   {stranger, named("alice"), "no handshake"},
		"too old":                  {ca, old, "no handshake"},
		"address that is not ours": {ca, &x509.Certificate{EmailAddresses: []string{"alice"}}, invalid401},
	} {
		cert := c.from.issue(t, c.template)
		if got := ask(&cert); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
	if got := ask(&exact); got != "bob by certificate" {
		t.Errorf("linked by its fingerprint: got %s", got)
	}
	if got := ask(nil); got != unnamed401 {
		t.Errorf("no certificate: got %s", got)
	}
	secret, _ := newToken(t, s, Token{User: "bob"})
	alice := ca.issue(t, named("alice"))
	if got := ask(&alice, "X-API-Key", secret); got != "bob by token" {
		t.Errorf("with a token as well: got %s", got)
	}
	if got := ask(&alice, "X-API-Key", "wrong"); got != invalid401 {
		t.Errorf("with a wrong token as well: got %s", got)
	}
	if got := ask(&alice); got != "alice by certificate" {
		t.Errorf("got %s", got)
	}
	if err := s.RemoveUser(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	if got := ask(&alice); got != invalid401 {
		t.Errorf("after the user was removed: got %s", got)
	}
	if err := s.Unlink(t.Context(), LinkCertificate, "cn:Bob Builder"); err != nil {
		t.Fatal(err)
	}
	builder := ca.issue(t, named("Bob Builder"))
	if got := ask(&builder); got != invalid401 {
		t.Errorf("after the link was removed: got %s", got)
	}
}

// An open connection does not extend the life of its certificate.
func TestACertificateRunsOut(t *testing.T) {
	s := newTestService(t, Options{ClientCA: true})
	c := newAuthority(
		t,
	).issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "alice"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(-time.Second)})
	r := request("GET", "/mcp", away)
	r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{c.Leaf}}}
	if got := outcome(s, r); got != invalid401 {
		t.Errorf("got %s", got)
	}
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.Leaf}}
	if got := outcome(s, r); got != unnamed401 {
		t.Errorf("a certificate that was not verified: got %s", got)
	}
}
