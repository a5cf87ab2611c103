package identity

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"time"
)

// ofCertificate returns the principal of a client certificate, which the server has verified against
// its authorities. The most specific link decides, in this order: fingerprint, URI, mail address, DNS
// name, common name. Without a link the common name or a DNS name may be the name of a user.
func (s *Service) ofCertificate(ctx context.Context, c *x509.Certificate) (Principal, error) {
	now := time.Now()
	if now.Before(c.NotBefore) || !now.Before(c.NotAfter) {
		return Principal{}, errCert
	}
	hash := digest(sha256.Sum256(c.Raw))
	if p, ok := s.known.lookup(hash); ok {
		return p, nil
	}
	epoch := s.known.currentEpoch()
	a, ok, err := s.holder(ctx, c, hex.EncodeToString(hash[:]))
	if err != nil {
		return Principal{}, err
	}
	if !ok {
		return Principal{}, errCert
	}
	p := Principal{
		Name:       a.name,
		ID:         a.id,
		Roles:      a.roles,
		Until:      c.NotAfter,
		Way:        Certificate,
		Credential: "c_" + hex.EncodeToString(hash[:8]),
	}
	s.known.storePrincipal(epoch, hash, p)
	return p, nil
}

const mostSubjects = 100 // names of one certificate that are looked up

func (s *Service) holder(ctx context.Context, c *x509.Certificate, fingerprint string) (a account, ok bool, err error) {
	subjects := append([]string{"sha256:" + fingerprint}, subjectsOf(c)...)
	for _, subject := range subjects[:min(len(subjects), mostSubjects)] {
		if a, ok, err = s.linked(ctx, LinkCertificate, subject); ok || err != nil {
			return a, ok, err
		}
	}
	names := append([]string{c.Subject.CommonName}, c.DNSNames...)
	for _, name := range names[:min(len(names), mostSubjects)] {
		if checkUser(name) != nil {
			continue
		}
		if a, ok, err = s.findAccount(ctx, "name = ?", name); ok || err != nil {
			return a, ok, err
		}
	}
	return a, false, nil
}

func subjectsOf(c *x509.Certificate) (all []string) {
	for _, u := range c.URIs {
		all = append(all, "uri:"+u.String())
	}
	for _, m := range c.EmailAddresses {
		all = append(all, "email:"+m)
	}
	for _, d := range c.DNSNames {
		all = append(all, "dns:"+d)
	}
	if cn := c.Subject.CommonName; cn != "" {
		all = append(all, "cn:"+cn)
	}
	return all
}

func (s *Service) linked(ctx context.Context, kind, subject string) (account, bool, error) {
	return s.findAccount(ctx, "number = (SELECT user FROM link WHERE kind = ? AND subject = ?)", kind, subject)
}
