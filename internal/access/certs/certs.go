// Package certs provides the certificate of a listener.
//
// It comes from one of three sources: a pair of files that the administrator maintains, an ACME
// authority for public names, or a self-signed certificate that is made and stored here. Each is kept
// current while the host runs: files are read again when they change, the others are renewed in time.
// If a new one cannot be read, the old one stays in use and the error is logged.
package certs

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// Options selects the certificate. Without Cert, Key and ACME.Domains it is self-signed.
type Options struct {
	Cert, Key string // PEM files, both or neither; the first certificate is the listener's own
	ClientCA  string // PEM file of the authorities that sign clients' certificates; "" requests none
	ACME      ACME
	Folder    string       // of the self-signed pair; "" keeps it in memory
	Log       *slog.Logger // nil discards the log

	now func() time.Time // for tests; nil means time.Now
}

// ACME configures certificates for public names. The user who sets Domains agrees to the terms of the
// authority.
type ACME struct {
	Domains   []string
	Email     string // the contact that the authority is given; may be ""
	Directory string // URL of the authority; "" means Let's Encrypt
	Folder    string // of its certificates and the account's key
	// Roots verify the server at Directory; nil means the system's. Tests set it for a directory of
	// their own.
	Roots *x509.CertPool
}

// Source provides certificates for a listener. It is safe for concurrent use.
type Source struct {
	config *tls.Config
	says   func() []string
	trust  string
}

// Open loads or makes the certificate, so that it is valid when Open returns. With ACME it is fetched
// at the first connection for its name.
func Open(o Options) (*Source, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.now == nil {
		o.now = time.Now
	}
	s := &Source{config: &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}}
	var err error
	switch {
	case (o.Cert == "") != (o.Key == ""):
		err = ErrHalf
	case o.Cert != "":
		err = s.useFiles(o)
	case len(o.ACME.Domains) > 0:
		s.useACME(o)
	default:
		err = s.useSelfSigned(o)
	}
	if err != nil {
		return nil, err
	}
	if o.ClientCA != "" {
		if err := s.askClients(o); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Config returns the configuration of a listener: TLS 1.2 or later, and HTTP/2 if the client supports
// it. With a ClientCA a client may send a certificate, which must then be valid. The caller must not
// change the result.
func (s *Source) Config() *tls.Config { return s.config }

// Lines returns lines about the certificate that a host prints when it starts.
func (s *Source) Lines() []string { return s.says() }

// Trust returns the file that a client must trust before it accepts the certificate; "" if an authority
// issued it.
func (s *Source) Trust() string { return s.trust }

// Fingerprint returns the SHA-256 of a certificate in the form in which people compare it.
func Fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return "SHA256:" + strings.ReplaceAll(fmt.Sprintf("% X", sum[:]), " ", ":")
}
