package certs

import (
	"crypto/x509"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"time"
)

// StoredCertificate is a certificate that was fetched from an authority.
type StoredCertificate struct {
	Name      string
	Issuer    string
	NotBefore time.Time
	NotAfter  time.Time
}

// StoredCertificates lists the certificates of its domains in the folder. It omits certificates that
// cannot be read, because they are fetched again on demand.
func (a ACME) StoredCertificates() (all []StoredCertificate) {
	for _, d := range a.Domains {
		for _, name := range []string{d, d + "+rsa"} { // the names that autocert uses
			c := firstCertificate(filepath.Join(a.Folder, name))
			if c == nil {
				continue
			}
			all = append(all, StoredCertificate{Name: d, Issuer: c.Issuer.CommonName, NotBefore: c.NotBefore,
				NotAfter: c.NotAfter})
		}
	}
	return all
}

// firstCertificate returns the first certificate of a PEM file, which begins with its key.
func firstCertificate(path string) *x509.Certificate {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	rest, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return nil
	}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil
		}
		if block.Type == "CERTIFICATE" {
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil
			}
			return c
		}
	}
}
