package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// clock is a time that tests set.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Now()} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func open(t *testing.T, o Options) *Source {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// shown returns the certificate that a client of the source receives. The error is the client's.
func shown(t *testing.T, s *Source, client *tls.Config) (*x509.Certificate, error) {
	t.Helper()
	state, err := shake(t, s, client)
	if err != nil {
		return nil, err
	}
	return state.PeerCertificates[0], nil
}

// shake connects a client to the source and waits until both sides have accepted each other.
func shake(t *testing.T, s *Source, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	server := make(chan error, 1)
	go func() {
		conn, err := ln.Accept()
		if err == nil {
			defer conn.Close()
			_, err = tls.Server(conn, s.Config()).Write([]byte("welcome"))
		}
		server <- err
	}()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := tls.Client(conn, client)
	if err = c.HandshakeContext(t.Context()); err == nil {
		_, err = io.ReadFull(c, make([]byte, len("welcome")))
	}
	conn.Close()
	return c.ConnectionState(), errors.Join(err, <-server)
}

var anyServer = &tls.Config{InsecureSkipVerify: true}

func pool(certs ...*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certs {
		p.AddCert(c)
	}
	return p
}

func TestTheSelfSignedCertificate(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "tls")
	s := open(t, Options{Folder: folder})
	cert, err := shown(t, s, anyServer)
	if err != nil {
		t.Fatal(err)
	}
	key, ok := cert.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		t.Errorf("the key is a %T, want ECDSA P-256", cert.PublicKey)
	}
	if cert.Subject.String() != "CN=localhost" || cert.NotAfter.Sub(cert.NotBefore) != 365*24*time.Hour || cert.IsCA {
		t.Errorf(
			"subject %v, valid for %v, an authority: %v",
			cert.Subject,
			cert.NotAfter.Sub(cert.NotBefore),
			cert.IsCA,
		)
	}
	if len(cert.DNSNames)+len(cert.IPAddresses) != 3 {
		t.Errorf("made for %v and %v", cert.DNSNames, cert.IPAddresses)
	}
	for _, host := range []string{"localhost", "127.0.0.1", "::1"} {
		if _, err := shown(t, s, &tls.Config{RootCAs: pool(cert), ServerName: host}); err != nil {
			t.Errorf("who trusts it cannot reach %s: %v", host, err)
		}
	}
	if lines := s.Lines(); len(lines) != 2 || lines[0] != "Using self-signed certificate" ||
		!regexp.MustCompile(`^Fingerprint: SHA256:([0-9A-F]{2}:){31}[0-9A-F]{2}$`).MatchString(lines[1]) ||
		lines[1] != "Fingerprint: "+Fingerprint(cert.Raw) {
		t.Errorf("says %q", lines)
	}
	if s.Trust() != filepath.Join(folder, "self-signed.crt") {
		t.Errorf("clients are given %s", s.Trust())
	}
}

func TestThePairIsKeptAndPrivate(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "tls")
	first := open(t, Options{Folder: folder}).Lines()[1]
	if second := open(t, Options{Folder: folder}).Lines()[1]; second != first {
		t.Errorf("the second start shows %s, the first %s", second, first)
	}
	key, err := os.ReadFile(filepath.Join(folder, "self-signed.key"))
	if err != nil || !bytes.HasPrefix(key, []byte("-----BEGIN PRIVATE KEY-----\n")) {
		t.Errorf("the key file begins %.30q (%v)", key, err)
	}
	block, _ := pem.Decode(key)
	if _, err := x509.ParsePKCS8PrivateKey(block.Bytes); err != nil {
		t.Errorf("the key is no PKCS#8: %v", err)
	}
	if runtime.GOOS == "windows" {
		return
	}
	for name, want := range map[string]os.FileMode{"": 0o700, "self-signed.key": 0o600} {
		if info, err := os.Stat(filepath.Join(folder, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%q has mode %v (%v), want %v", name, info.Mode(), err, want)
		}
	}
}

// A certificate that is no longer valid, or whose key others could read, is replaced.
func TestADamagedPairIsMadeAnew(t *testing.T) {
	for name, harm := range map[string]func(crt, key string) error{
		"cut certificate": func(crt, _ string) error { return os.Truncate(crt, 100) },
		"empty key":       func(_, key string) error { return os.Truncate(key, 0) },
		"no key":          func(_, key string) error { return os.Remove(key) },
		"no certificate":  func(crt, _ string) error { return os.Remove(crt) },
		"another's key": func(_, key string) error {
			_, _, other, err := makePair(time.Now())
			return errors.Join(err, os.WriteFile(key, other, 0o600))
		},
		"exposed key": func(_, key string) error { return os.Chmod(key, 0o644) },
		"expired": func(crt, key string) error {
			_, c, k, err := makePair(time.Now().Add(-validity))
			return errors.Join(err, os.WriteFile(crt, c, 0o600), os.WriteFile(key, k, 0o600))
		},
		"about to expire": func(crt, key string) error {
			_, c, k, err := makePair(time.Now().Add(-validity + renewBefore - time.Hour))
			return errors.Join(err, os.WriteFile(crt, c, 0o600), os.WriteFile(key, k, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "exposed key" && runtime.GOOS == "windows" {
				t.Skip("the mode says nothing on Windows")
			}
			folder := t.TempDir()
			before := open(t, Options{Folder: folder}).Lines()[1]
			if err := harm(filepath.Join(folder, "self-signed.crt"),
				filepath.Join(folder, "self-signed.key")); err != nil {
				t.Fatal(err)
			}
			s := open(t, Options{Folder: folder})
			if s.Lines()[1] == before {
				t.Error("the old one is still shown")
			}
			if _, err := kept(folder, time.Now()); err != nil {
				t.Errorf("the pair on disk is not fit: %v", err)
			}
			if again := open(t, Options{Folder: folder}).Lines()[1]; again != s.Lines()[1] {
				t.Error("what was made is not kept")
			}
		})
	}
}

func TestHostsThatStartTogetherShowTheSame(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "tls")
	var mu sync.Mutex
	prints := map[string]bool{}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			s, err := Open(Options{Folder: folder})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			prints[s.Lines()[1]] = true
		})
	}
	all.Wait()
	if len(prints) != 1 {
		t.Errorf("%d fingerprints, want one", len(prints))
	}
}

func TestALongLifeRenewsInTime(t *testing.T) {
	c, folder := newClock(), t.TempDir()
	s := open(t, Options{Folder: folder, now: c.now})
	first, _ := shown(t, s, anyServer)
	c.pass(334 * 24 * time.Hour)
	if same, _ := shown(t, s, anyServer); !same.Equal(first) {
		t.Error("renewed too early")
	}
	c.pass(2 * 24 * time.Hour)
	second, _ := shown(t, s, anyServer)
	if second.Equal(first) || second.NotAfter.Sub(c.now()) < 300*24*time.Hour {
		t.Errorf("not renewed: valid until %v", second.NotAfter)
	}
	if other := open(t, Options{Folder: folder, now: c.now}); other.Lines()[1] != s.Lines()[1] {
		t.Error("the renewed one is not kept")
	}
}

func TestWithoutAFolderItEndsWithTheHost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	s := open(t, Options{Folder: filepath.Join(file, "tls"), Log: slog.New(slog.NewTextHandler(&said, nil))})
	if _, err := shown(t, s, anyServer); err != nil || !strings.Contains(said.String(), "is lost when this host ends") {
		t.Errorf("got %v and the log\n%s", err, said.String())
	}
	if s := open(t, Options{}); s.Trust() != "" {
		t.Errorf("clients are given %s, which is not there", s.Trust())
	}
}

func TestOldTLSIsRefused(t *testing.T) {
	s := open(t, Options{})
	if _, err := shake(t, s, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11,
		MinVersion: tls.VersionTLS10}); err == nil {
		t.Error("TLS 1.1 was spoken")
	}
	state, err := shake(
		t,
		s,
		&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}},
	)
	if err != nil || state.NegotiatedProtocol != "h2" {
		t.Errorf("TLS 1.2 with HTTP/2: got %q, %v", state.NegotiatedProtocol, err)
	}
}
