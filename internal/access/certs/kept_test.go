package certs

import (
	"os"
	"path/filepath"
	"testing"
)

func TestKeptCertificatesAreFound(t *testing.T) {
	s := t.TempDir()
	if _, err := Open(Options{Folder: s}); err != nil { // makes a pair
		t.Fatal(err)
	}
	cert, err := os.ReadFile(filepath.Join(s, "self-signed.crt"))
	if err != nil {
		t.Fatal(err)
	}
	a := ACME{Domains: []string{"a.example.com", "b.example.com", "c.example.com"}, Folder: t.TempDir()}
	for name, text := range map[string]string{
		"a.example.com":     "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n" + string(cert),
		"b.example.com+rsa": "nonsense",
		"x.example.com":     string(cert),
	} {
		if err := os.WriteFile(filepath.Join(a.Folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := a.StoredCertificates()
	if len(got) != 1 || got[0].Name != "a.example.com" || !got[0].NotBefore.Before(got[0].NotAfter) {
		t.Errorf("got %+v", got)
	}
}
