package certs

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"
)

// useACME uses certificates that an authority issues for public names. It proves control of the names
// inside the TLS handshake, so the listener must be reachable from outside at port 443 and needs no
// other port.
func (s *Source) useACME(o Options) {
	m := &autocert.Manager{
		Prompt:     autocert.AcceptTOS,
		HostPolicy: autocert.HostWhitelist(o.ACME.Domains...),
		Cache:      autocert.DirCache(o.ACME.Folder),
		Email:      o.ACME.Email,
		Client:     &acme.Client{DirectoryURL: o.ACME.Directory, UserAgent: "gatehouse"},
	}
	if o.ACME.Roots != nil {
		m.Client.HTTPClient = &http.Client{
			Timeout:   time.Minute,
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: o.ACME.Roots}},
		}
	}
	s.config.NextProtos = append(s.config.NextProtos, acme.ALPNProto)
	s.config.GetCertificate = func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		c, err := m.GetCertificate(h)
		if err != nil {
			logFailure(o, h.ServerName, err)
		}
		return c, err
	}
	s.says = func() []string {
		return []string{"Using certificates for " + strings.Join(o.ACME.Domains, ", ") + " by ACME"}
	}
}

// logFailure logs why there is no certificate: as an error for a configured name, and at a lower level
// for others, because any client may ask for any name.
func logFailure(o Options, name string, err error) {
	level := slog.LevelDebug
	if slices.ContainsFunc(o.ACME.Domains, func(d string) bool { return strings.EqualFold(d, name) }) {
		level = slog.LevelWarn
	}
	o.Log.Log(context.Background(), level, "no certificate for a connection", "name", clip(name), "err", err)
}

// clip limits the length of a client's text.
func clip(s string) string { return s[:min(len(s), 80)] }
