package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"sync"
	"time"

	"gatehouse/internal/files/atomicfile"
)

const (
	validity    = 365 * 24 * time.Hour
	renewBefore = 30 * 24 * time.Hour
	retryAfter  = time.Hour // after a failed renewal
	maxPEM      = 64 << 10  // bytes of one file
	// tolerance allows for clients whose clocks are behind.
	tolerance = time.Hour
)

// selfSigned is the self-signed certificate in use.
type selfSigned struct {
	opts Options

	mu    sync.Mutex
	cert  *tls.Certificate
	retry time.Time
}

// useSelfSigned uses a self-signed certificate.
func (s *Source) useSelfSigned(o Options) error {
	w := &selfSigned{opts: o}
	var err error
	if w.cert, err = w.loadOrMake(); err != nil {
		return err
	}
	s.config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return w.current(), nil }
	s.says = func() []string {
		return []string{"Using self-signed certificate", "Fingerprint: " + Fingerprint(w.current().Leaf.Raw)}
	}
	if o.Folder != "" {
		s.trust = filepath.Join(o.Folder, "self-signed.crt")
	}
	return nil
}

// current returns the certificate, renewed if it expires soon.
func (w *selfSigned) current() *tls.Certificate {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.opts.now()
	if checkValidity(w.cert.Leaf, now) == nil || now.Before(w.retry) {
		return w.cert
	}
	c, err := w.loadOrMake()
	if err != nil {
		w.retry = now.Add(retryAfter)
		w.opts.Log.Error("cannot renew the self-signed certificate", "expires", w.cert.Leaf.NotAfter, "err", err)
		return w.cert
	}
	w.cert = c
	w.opts.Log.Info(
		"the self-signed certificate was renewed",
		"fingerprint",
		Fingerprint(c.Leaf.Raw),
		"expires",
		c.Leaf.NotAfter,
	)
	return c
}

// loadOrMake returns the stored pair if it is valid, or makes one. If the folder cannot be written, it
// uses the new pair in memory and logs the consequence.
func (w *selfSigned) loadOrMake() (*tls.Certificate, error) {
	if w.opts.Folder == "" {
		c, _, _, err := makePair(w.opts.now())
		return c, err
	}
	c, err := kept(w.opts.Folder, w.opts.now())
	if err == nil {
		return c, nil
	}
	w.opts.Log.Debug("making a self-signed certificate", "because", err)
	c, err = w.replace()
	if err != nil {
		w.opts.Log.Warn(
			"the self-signed certificate is lost when this host ends, because it cannot be written to disk",
			"folder",
			w.opts.Folder,
			"err",
			err,
		)
		c, _, _, err = makePair(w.opts.now())
	}
	return c, err
}

// replace makes a new pair on disk, unless another process has just done so; then all processes use
// that one.
func (w *selfSigned) replace() (*tls.Certificate, error) {
	unlock, err := atomicfile.Lock(filepath.Join(w.opts.Folder, "self-signed.lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	now := w.opts.now()
	if c, err := kept(w.opts.Folder, now); err == nil {
		return c, nil
	}
	c, cert, key, err := makePair(now)
	if err != nil {
		return nil, err
	}
	// A reader between the two writes finds a pair that does not match, and waits for the lock.
	err = errors.Join(
		atomicfile.Write(filepath.Join(w.opts.Folder, "self-signed.key"), key),
		atomicfile.Write(filepath.Join(w.opts.Folder, "self-signed.crt"), cert))
	return c, err
}

// kept reads the pair on disk. The error is the reason for which it cannot be used. A key that other
// users could read counts as compromised.
func kept(folder string, now time.Time) (*tls.Certificate, error) {
	cert, err := atomicfile.Read(filepath.Join(folder, "self-signed.crt"), maxPEM)
	if err != nil {
		return nil, err
	}
	key, err := atomicfile.Read(filepath.Join(folder, "self-signed.key"), maxPEM)
	if err != nil {
		return nil, err
	}
	c, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	return &c, checkValidity(c.Leaf, now)
}

// checkValidity returns an error if a certificate must not be used now.
func checkValidity(leaf *x509.Certificate, now time.Time) error {
	switch {
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("not valid before %v", leaf.NotBefore)
	case leaf.NotAfter.Sub(now) < renewBefore:
		return fmt.Errorf("expires at %v", leaf.NotAfter)
	}
	for _, host := range []string{"localhost", "127.0.0.1", "::1"} {
		if err := leaf.VerifyHostname(host); err != nil {
			return err
		}
	}
	return nil
}

// makePair makes a key and its certificate, and returns both also as PEM.
func makePair(now time.Time) (c *tls.Certificate, cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, err
	}
	der, err := sign(private, now)
	if err != nil {
		return nil, nil, nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, nil, err
	}
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	pair, err := tls.X509KeyPair(cert, key)
	return &pair, cert, key, err
}

// sign makes a certificate for this machine's names that cannot sign other certificates.
func sign(key crypto.Signer, now time.Time) (der []byte, err error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	begin := now.Add(-tolerance)
	t := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "localhost"},
		DNSNames:              []string{"localhost"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1).To4(), net.IPv6loopback},
		NotBefore:             begin,
		NotAfter:              begin.Add(validity),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	return x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
}
