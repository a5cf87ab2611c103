package system

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"

	"gatehouse/internal/tests/machinetest"
)

// newPebble starts Let's Encrypt's server for tests, which proves names at a port, and returns the address of its
// directory and what its certificates end at.
func newPebble(t *testing.T, port int) (directory string, server *httptest.Server, issued *x509.CertPool) {
	t.Helper()
	quiet := log.New(io.Discard, "", 0)
	store := db.NewMemoryStore()
	authority := ca.New(quiet, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {ValidityPeriod: 3600 * 24}})
	w := wfe.New(quiet, store, va.New(quiet, 0, port, true, "", store), authority, nil, true, false, 1, 1)
	server = httptest.NewTLSServer(w.Handler())
	t.Cleanup(server.Close)
	issued = x509.NewCertPool()
	issued.AddCert(authority.GetRootCert(0).Cert)
	return server.URL + wfe.DirectoryPath, server, issued
}

// A name of a package is served with a certificate that the authority issues after it has seen the
// proof, now and by the next host.
func TestANameGetsACertificate(t *testing.T) {
	machinetest.Need(t)
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	t.Setenv("PEBBLE_WFE_NONCEREJECT", "0")
	hosts, err := os.ReadFile("/etc/hosts")
	if err == nil {
		err = os.WriteFile("/etc/hosts", append(hosts, "\n127.0.0.1 notes.example.test other.example.test\n"...), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	const port = 443 // of the test's own machine, as of every machine that an authority proves
	directory, pebble, issued := newPebble(t, port)
	roots := x509.NewCertPool()
	roots.AddCert(pebble.Certificate())
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "notes for %s", r.Host)
	}))
	defer inside.Close()
	cfg := Config{Folder: t.TempDir(), Roots: roots, Bus: "unix:path=/nonexistent/bus"}
	s := open(t, cfg)
	backend := strings.TrimPrefix(inside.URL, "http://")
	refuses(t, s, "system_vhost_add", "not_found:", "hostname", "notes.example.test", "backend", backend, "provider",
		directory)
	refuses(
		t,
		s,
		"system_acme_init",
		"invalid_arguments:",
		"provider",
		"http://ca.example.test",
		"contact",
		[]string{"ann@example.com"},
	)
	refuses(t, s, "system_acme_init", "invalid_arguments:", "provider", directory, "contact",
		[]string{"Ann <ann@example.com>"})
	refuses(t, s, "system_acme_init", "unreachable:", "provider", pebble.URL+"/nothing", "contact",
		[]string{"ann@example.com"})
	must(t, s, "system_acme_init", nil, "provider", directory, "contact", []string{"ann@example.com"})
	var served passthroughOut
	must(t, s, "system_vhost_add", &served, "hostname", "notes.example.test", "backend", backend, "provider", directory)

	page := func(name string) (string, string, error) {
		c := &http.Client{
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: issued}, DisableKeepAlives: true},
		}
		res, err := c.Get("https://" + name + "/")
		if err != nil {
			return "", "", err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return string(b), res.TLS.PeerCertificates[0].SerialNumber.String(), err
	}
	answer, serial, err := page("notes.example.test")
	if err != nil || answer != "notes for notes.example.test" {
		t.Fatalf("got %q, %v", answer, err)
	}
	if _, _, err := page("other.example.test"); err == nil {
		t.Error("a name that is not served has a certificate")
	}
	refuses(t, s, "system_acme_remove", "busy:", "provider", directory)

	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := open(t, cfg)
	if answer, again, err := page("notes.example.test"); err != nil || answer != "notes for notes.example.test" ||
		again != serial {
		t.Errorf("the next host: %q, certificate %s, %v; want the one of before, %s", answer, again, err, serial)
	}
	must(t, next, "system_vhost_remove_passthrough", nil, "hostname", "notes.example.test", "listenPort", port)
	must(t, next, "system_acme_remove", nil, "provider", directory)
	var all acmeOut
	must(t, next, "system_acme_list", &all)
	if len(all.Authorities) != 0 {
		t.Errorf("left: %+v", all)
	}
	refuses(t, next, "system_acme_remove", "not_found:", "provider", directory)
}
