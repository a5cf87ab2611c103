// Package certs finds the certificate a door shows.
//
// It is one of three: a pair of files that the administrator maintains, certificates
// for public names from an ACME authority, or a self-signed one that is made
// and kept here. All of them stay fresh while the host runs: files are read
// again when they change, the others are renewed in time. What cannot be read
// leaves the old one in use and is logged.
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

// Options say which certificate is shown. Without Cert, Key and ACME.Domains
// it is a self-signed one.
type Options struct {
	Cert, Key string // PEM files, both or neither; the first certificate is the door's own
	ClientCA  string // PEM file of those who sign clients' certificates; "" asks for none
	ACME      ACME
	Folder    string       // of the self-signed pair; "" keeps it in memory
	Log       *slog.Logger // nil drops what is said

	now func() time.Time // for tests; nil means time.Now
}

// ACME says where certificates for public names come from. The user who fills in
// Domains agrees to the terms of the authority.
type ACME struct {
	Domains   []string
	Email     string // where the authority writes to; may be ""
	Directory string // URL of the authority; "" means Let's Encrypt
	Folder    string // of its certificates and the account's key
	// Roots are the authorities by which Directory is known; nil means the
	// system's.
	// Tests set it, for a directory of their own.
	Roots *x509.CertPool
}

// Source has certificates for a door. Safe for concurrent use.
type Source struct {
	config *tls.Config
	says   func() []string
	trust  string
}

// Open finds the certificate; it is there, and fit to be shown, when Open
// returns. With ACME it is fetched at the first connection for its name.
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

// Config is what a listener is wrapped with: TLS 1.2 and up, HTTP/2 where the
// client knows it. With a ClientCA a client may show a certificate, and one
// that it shows must be good. It is not to be changed.
func (s *Source) Config() *tls.Config { return s.config }

// Lines say at the start of a host what its callers will be shown.
func (s *Source) Lines() []string { return s.says() }

// Trust is the file a client has to be given before it believes the
// certificate; "" when that is the business of others.
func (s *Source) Trust() string { return s.trust }

// Fingerprint is how a person compares certificates.
func Fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return "SHA256:" + strings.ReplaceAll(fmt.Sprintf("% X", sum[:]), " ", ":")
}
