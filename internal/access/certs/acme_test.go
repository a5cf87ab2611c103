package certs

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/acme"
)

// fakeACME is an authority that issues certificates to clients that prove a name by TLS-ALPN at one
// address. It does not verify signatures.
type fakeACME struct {
	t      *testing.T
	ca     authority
	server *httptest.Server
	prove  string // the address at which names are proved
	orders int
	valid  bool
	issued []byte // PEM
}

func newACME(t *testing.T) *fakeACME {
	f := &fakeACME{t: t, ca: newAuthority(t, "acme")}
	f.server = httptest.NewTLSServer(f)
	t.Cleanup(f.server.Close)
	return f
}

func (f *fakeACME) url(path string) string { return f.server.URL + path }

func (f *fakeACME) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Replay-Nonce", fmt.Sprint(time.Now().UnixNano()))
	payload, err := readJWS(r)
	if err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	switch r.URL.Path {
	case "/":
		f.say(
			w,
			200,
			map[string]any{
				"newNonce":   f.url("/nonce"),
				"newAccount": f.url("/account"),
				"newOrder":   f.url("/order"),
				"revokeCert": f.url("/revoke"),
				"keyChange":  f.url("/change"),
			},
		)
	case "/nonce":
	case "/account":
		w.Header().Set("Location", f.url("/account/1"))
		f.say(w, 201, map[string]any{"status": "valid"})
	case "/order":
		f.orders++
		f.order(w, 201)
	case "/order/1":
		f.order(w, 200)
	case "/authz":
		status := "pending"
		if f.valid {
			status = "valid"
		}
		f.say(
			w,
			200,
			map[string]any{
				"status":     status,
				"identifier": name,
				"challenges": []any{
					map[string]any{
						"type":   "tls-alpn-01",
						"url":    f.url("/challenge"),
						"token":  "token",
						"status": status,
					},
				},
			},
		)
	case "/challenge":
		f.valid = f.proved()
		f.say(
			w,
			200,
			map[string]any{"type": "tls-alpn-01", "url": f.url("/challenge"), "token": "token", "status": "processing"},
		)
	case "/finalize":
		f.issue(payload)
		f.order(w, 200)
	case "/cert":
		w.Header().Set("Content-Type", "application/pem-certificate-chain")
		w.Write(f.issued)
	default:
		http.NotFound(w, r)
	}
}

const domain = "tools.example.com"

var name = map[string]string{"type": "dns", "value": domain}

// readJWS returns the payload of a signed request.
func readJWS(r *http.Request) ([]byte, error) {
	if r.Method != http.MethodPost {
		return nil, nil
	}
	var jws struct{ Payload string }
	b, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(b, &jws)
	}
	if err != nil {
		return nil, err
	}
	return base64.RawURLEncoding.DecodeString(jws.Payload)
}

func (f *fakeACME) say(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

func (f *fakeACME) order(w http.ResponseWriter, code int) {
	w.Header().Set("Location", f.url("/order/1"))
	o := map[string]any{
		"status":         "pending",
		"identifiers":    []any{name},
		"authorizations": []string{f.url("/authz")},
		"finalize":       f.url("/finalize"),
	}
	switch {
	case f.issued != nil:
		o["status"], o["certificate"] = "valid", f.url("/cert")
	case f.valid:
		o["status"] = "ready"
	}
	f.say(w, code, o)
}

// proved fetches the certificate that proves the name from the listener.
func (f *fakeACME) proved() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	d := tls.Dialer{
		Config: &tls.Config{ServerName: domain, NextProtos: []string{acme.ALPNProto}, InsecureSkipVerify: true},
	}
	conn, err := d.DialContext(ctx, "tcp", f.prove)
	if err != nil {
		f.t.Errorf("the name cannot be proved: %v", err)
		return false
	}
	defer conn.Close()
	state := conn.(*tls.Conn).ConnectionState()
	return state.NegotiatedProtocol == acme.ALPNProto && state.PeerCertificates[0].DNSNames[0] == domain
}

func (f *fakeACME) issue(payload []byte) {
	var in struct{ CSR string }
	err := json.Unmarshal(payload, &in)
	der, err2 := base64.RawURLEncoding.DecodeString(in.CSR)
	csr, err3 := x509.ParseCertificateRequest(der)
	if err != nil || err2 != nil || err3 != nil || csr.CheckSignature() != nil {
		f.t.Errorf("the request for a certificate is bad: %v, %v, %v", err, err2, err3)
		return
	}
	cert, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(sha256.New().Sum(nil)[:8]), DNSNames: csr.DNSNames,
		NotBefore: time.Now().
			Add(-time.Hour),
		NotAfter: time.Now().Add(90 * 24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, f.ca.cert, csr.PublicKey, f.ca.key)
	if err != nil {
		f.t.Error(err)
		return
	}
	f.issued = append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), f.ca.pem()...)
}

// listener serves handshakes with the certificate of a source.
func listener(t *testing.T, s *Source) (address string) {
	t.Helper()
	ln, err := tls.Listen("tcp", "127.0.0.1:0", s.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				conn.(*tls.Conn).HandshakeContext(t.Context())
			}()
		}
	}()
	return ln.Addr().String()
}

func visit(t *testing.T, address string, c *tls.Config) (*x509.Certificate, error) {
	t.Helper()
	conn, err := (&tls.Dialer{NetDialer: &net.Dialer{Timeout: 20 * time.Second}, Config: c}).DialContext(
		t.Context(),
		"tcp",
		address,
	)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}

// The first client of a public name receives a certificate that was fetched for it. After a restart the
// first client receives the same one without a fetch.
func TestACertificateForAPublicName(t *testing.T) {
	f, folder := newACME(t), filepath.Join(t.TempDir(), "acme")
	roots := x509.NewCertPool()
	roots.AddCert(f.server.Certificate())
	o := Options{ACME: ACME{Domains: []string{domain}, Directory: f.url("/"), Folder: folder, Roots: roots}}
	s := open(t, o)
	f.prove = listener(t, s)
	if got := s.Lines(); len(got) != 1 || got[0] != "Using certificates for "+domain+" by ACME" {
		t.Errorf("says %q", got)
	}
	client := &tls.Config{RootCAs: pool(f.ca.cert), ServerName: domain}
	first, err := visit(t, f.prove, client)
	if err != nil {
		t.Fatal(err)
	}
	again, err := visit(t, listener(t, open(t, o)), client)
	if err != nil || !bytes.Equal(again.Raw, first.Raw) || f.orders != 1 {
		t.Errorf("after a new start: %v, %d orders", err, f.orders)
	}
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) == 0 {
		t.Errorf("nothing is kept: %v", err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
	}

	for _, stranger := range []string{"other.example.com", "127.0.0.1", "localhost"} {
		if _, err := visit(t, f.prove, &tls.Config{InsecureSkipVerify: true, ServerName: stranger}); err == nil {
			t.Errorf("a certificate was shown for %s", stranger)
		}
	}
	if f.orders != 1 {
		t.Errorf("strangers' names made %d orders", f.orders-1)
	}
	if !strings.Contains(fmt.Sprint(s.Config().NextProtos), acme.ALPNProto) {
		t.Error("names cannot be proved")
	}
}
