package attest

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// subjectOf returns the digest of the only artifact of a statement.
func subjectOf(t *testing.T, b *Bundle, algorithm string) string {
	t.Helper()
	var s struct {
		Subject []struct {
			Digest map[string]string `json:"digest"`
		} `json:"subject"`
	}
	if err := json.Unmarshal(b.Envelope.Payload, &s); err != nil || len(s.Subject) == 0 {
		t.Fatal(err)
	}
	return s.Subject[0].Digest[algorithm]
}

// What npm's registry serves for a package verifies by the root that this program has.
func TestWhatTheRegistryServes(t *testing.T) {
	root, err := BuiltIn()
	if err != nil {
		t.Fatal(err)
	}
	b, err := Parse(read(t, "sigstore-2.0.0.json"))
	if err != nil {
		t.Fatal(err)
	}
	digest := subjectOf(t, b, "sha512")
	id, err := root.Verify(b, "sha512", digest)
	if err != nil {
		t.Fatal(err)
	}
	if id.Issuer != "https://token.actions.githubusercontent.com" ||
		id.Repository != "https://github.com/sigstore/sigstore-js" ||
		!strings.HasPrefix(id.Workflow, id.Repository) {
		t.Errorf("got %+v", id)
	}
	if _, err := root.Verify(b, "sha512", hex.EncodeToString(make([]byte, 64))); err == nil {
		t.Error("it is accepted for another artifact")
	}
}

// Each changed part of a bundle is noticed.
//
//redteam:attack Attestations: a bundle is changed
func TestAChangedBundleIsRefused(t *testing.T) {
	root, err := BuiltIn()
	if err != nil {
		t.Fatal(err)
	}
	text := read(t, "sigstore-2.0.0.json")
	whole, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	digest := subjectOf(t, whole, "sha512")
	flip := func(b []byte) {
		if len(b) > 0 {
			b[len(b)/2] ^= 1
		}
	}
	for name, change := range map[string]func(b *Bundle){
		"statement": func(b *Bundle) { flip(b.Envelope.Payload) },
		"signature": func(b *Bundle) { flip(b.Envelope.Signatures[0].Sig) },
		"two signatures": func(b *Bundle) {
			b.Envelope.Signatures = append(b.Envelope.Signatures,
				b.Envelope.Signatures[0])
		},
		"kind":           func(b *Bundle) { b.Envelope.PayloadType = "text/plain" },
		"certificate":    func(b *Bundle) { raw, _ := b.leaf(); flip(raw) },
		"no certificate": func(b *Bundle) { b.Material.Certificate, b.Material.Chain.Certificates = nil, nil },
		"no entry":       func(b *Bundle) { b.Material.Entries = nil },
		"no promise":     func(b *Bundle) { b.Material.Entries[0].Promise = nil },
		"promise":        func(b *Bundle) { flip(b.Material.Entries[0].Promise.Signed) },
		"entry":          func(b *Bundle) { flip(b.Material.Entries[0].Body) },
		"time":           func(b *Bundle) { b.Material.Entries[0].IntegratedTime += 3600 },
		"index":          func(b *Bundle) { b.Material.Entries[0].LogIndex++ },
		"log":            func(b *Bundle) { flip(b.Material.Entries[0].LogID.KeyID) },
		"root of a tree": func(b *Bundle) { flip(b.Material.Entries[0].Proof.RootHash) },
		"hash of a tree": func(b *Bundle) { flip(b.Material.Entries[0].Proof.Hashes[0]) },
		"a hash too many": func(b *Bundle) {
			p := b.Material.Entries[0].Proof
			p.Hashes = append(p.Hashes,
				p.Hashes[0])
		},
		"place in a tree": func(b *Bundle) { b.Material.Entries[0].Proof.LogIndex ^= 1 },
		"checkpoint": func(b *Bundle) {
			c := &b.Material.Entries[0].Proof.Checkpoint
			c.Envelope = strings.Replace(c.Envelope, "rekor", "other", 1)
		},
	} {
		b, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		change(b)
		if id, err := root.Verify(b, "sha512", digest); err == nil {
			t.Errorf("%s: accepted as %v", name, id)
		}
	}
}

func FuzzVerify(f *testing.F) {
	root, err := BuiltIn()
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range []string{"sigstore-2.0.0.json", "dsse.json"} {
		b, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if b, err := Parse(text); err == nil {
			if id, err := root.Verify(b, "sha256", strings.Repeat("0", 64)); err == nil {
				t.Errorf("accepted for an artifact that is not known: %v", id)
			}
		}
	})
}
