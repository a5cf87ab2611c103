package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// files writes a new pair and returns its paths.
func files(t *testing.T, dir string, now time.Time) (crt, key string) {
	t.Helper()
	_, c, k, err := makePair(now)
	if err != nil {
		t.Fatal(err)
	}
	crt, key = filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key")
	if err := errors.Join(os.WriteFile(crt, c, 0o600), os.WriteFile(key, k, 0o600)); err != nil {
		t.Fatal(err)
	}
	return crt, key
}

func TestFilesAreReadAgainWhenTheyChange(t *testing.T) {
	dir, c := t.TempDir(), newClock()
	crt, key := files(t, dir, c.now())
	var said strings.Builder
	s := open(t, Options{Cert: crt, Key: key, now: c.now, Log: slog.New(slog.NewTextHandler(&said, nil))})
	if got := s.Lines(); len(got) != 1 || got[0] != "Using certificate: "+crt {
		t.Errorf("says %q", got)
	}
	first, err := shown(t, s, anyServer)
	if err != nil {
		t.Fatal(err)
	}
	files(t, dir, c.now())
	c.pass(lookEvery)
	second, _ := shown(t, s, anyServer)
	if second.Equal(first) {
		t.Fatal("the new pair is not shown")
	}

	if err := os.WriteFile(crt, []byte("nonsense, and of another length"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.pass(lookEvery)
	for range 3 {
		if still, err := shown(t, s, anyServer); err != nil || !still.Equal(second) {
			t.Fatalf("a bad pair replaced the good one (%v)", err)
		}
		c.pass(lookEvery)
	}
	if n := strings.Count(said.String(), "the old content stays in use"); n != 1 {
		t.Errorf("the log says so %d times, want once:\n%s", n, said.String())
	}

	files(t, dir, c.now())
	c.pass(lookEvery)
	if third, err := shown(t, s, anyServer); err != nil || third.Equal(second) {
		t.Errorf("a good pair after a bad one is not shown (%v)", err)
	}
}

func TestFilesThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	crt, key := files(t, dir, time.Now())
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]Options{
		"Both --cert and --key must be provided together":                 {Cert: crt},
		"Both --cert and --key must be provided together\x00":             {Key: key},
		"certificate /no/such with key " + key + ": open /no/such":        {Cert: "/no/such", Key: key},
		"certificate " + crt + " with key " + crt:                         {Cert: crt, Key: crt},
		"client CA: open /no/such":                                        {ClientCA: "/no/such"},
		"client CA " + empty + ": it contains no certificate":             {ClientCA: empty},
		"client CA " + key + ": it contains no certificate; expected PEM": {ClientCA: key},
	} {
		_, err := Open(o)
		if err == nil || !strings.Contains(err.Error(), strings.Trim(want, "\x00")) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := Open(Options{Key: key}); !errors.Is(err, ErrHalf) {
		t.Errorf("got %v, want ErrHalf", err)
	}
}

func TestOddFilesAreWarnedOf(t *testing.T) {
	dir := t.TempDir()
	crt, key := files(t, dir, time.Now().Add(-2*validity))
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	open(t, Options{Cert: crt, Key: key, Log: slog.New(slog.NewTextHandler(&said, nil))})
	for _, want := range []string{"has expired", "can read the key"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("%q is missing from\n%s", want, said.String())
		}
	}
}

// authority signs certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB, name string) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(validity),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key}
}

func (a authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// client returns a certificate for a caller.
func (a authority) client(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func showing(c tls.Certificate) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{c},
		// crypto/tls does not send a certificate from an authority that the server did not name, unless
		// this function returns it.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c, nil }}
}

func TestClientsMayShowACertificate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.crt")
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	if err := os.WriteFile(file, ours.pem(), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newClock()
	s := open(t, Options{ClientCA: file, now: c.now})
	if lines := strings.Join(s.Lines(), "\n"); !strings.Contains(lines, "Client certificates: those signed by "+file) {
		t.Errorf("says %q", lines)
	}
	if _, err := shake(t, s, anyServer); err != nil {
		t.Errorf("a client without one is refused: %v", err)
	}
	if _, err := shake(t, s, showing(ours.client(t, "ann"))); err != nil {
		t.Errorf("a good one is refused: %v", err)
	}
	if _, err := shake(t, s, showing(theirs.client(t, "eve"))); err == nil {
		t.Error("a stranger's is accepted")
	}

	// The trusted authorities can change while the host runs; resuming an earlier TLS session does not
	// bypass them.
	ann := showing(ours.client(t, "ann"))
	ann.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	for range 2 {
		if _, err := shake(t, s, ann); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, append(theirs.pem(), '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	c.pass(lookEvery)
	if _, err := shake(t, s, ann); err == nil {
		t.Error("a certificate of an authority that was removed is accepted")
	}
	if _, err := shake(t, s, showing(theirs.client(t, "eve"))); err != nil {
		t.Errorf("one of the new authority is refused: %v", err)
	}
}
