package packages

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"

	"gatehouse/internal/packages/attest"
	"gatehouse/internal/packages/packagestest"
)

const (
	ciIssuer = "https://token.actions.githubusercontent.com"
	annsRepo = "https://github.com/ann/server"
	evilRepo = "https://github.com/mallory/server"
)

// attach puts a bundle beside an image of the registry.
func (r imageRegistry) attach(digest string, bundle []byte) {
	r.t.Helper()
	const kind = "application/vnd.dev.sigstore.bundle.v0.3+json"
	img, err := mutate.AppendLayers(mutate.MediaType(empty.Image, "application/vnd.oci.image.manifest.v1+json"),
		static.NewLayer(bundle, kind))
	if err != nil {
		r.t.Fatal(err)
	}
	img = mutate.ConfigMediaType(img, kind)
	to, err := name.NewDigest(r.host + "/made/server@" + digest)
	if err != nil {
		r.t.Fatal(err)
	}
	subject, err := remote.Get(to)
	if err != nil {
		r.t.Fatal(err)
	}
	img = mutate.Subject(img, subject.Descriptor).(v1.Image)
	h, err := img.Digest()
	if err != nil {
		r.t.Fatal(err)
	}
	at, err := name.NewDigest(r.host + "/made/server@" + h.String())
	if err == nil {
		err = remote.Write(at, img)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// An image whose attestation verifies is pinned to its source. An update whose attestation vanishes, names another
// source or does not verify is held back, and the package serves on.
//
//redteam:attack Attestations: an update has no attestation, or one of another source or authority
func TestAnUpdateFromAnotherSourceIsHeldBack(t *testing.T) {
	at, ca := newImageRegistry(t), packagestest.NewAuthority(t)
	h := confined(t,
		Options{Images: at.options(), TrustedRoot: func() (*attest.Root, error) { return attest.ParseRoot(ca.Root()) }})
	number := 0
	push := func(authority *packagestest.Authority, repository string, about string) {
		number++
		digest := at.push("1", serverImage(t, func(c *v1.Config) { c.Cmd = []string{fmt.Sprint("version-", number)} }))
		if about == "" {
			about = digest
		}
		if authority != nil {
			at.attach(digest, authority.Bundle(ciIssuer, repository, "sha256", strings.TrimPrefix(about, "sha256:")))
		}
	}
	push(ca, annsRepo, "")
	source := "oci:" + at.host + "/made/server:1"
	r := Record{ID: "boxed", Source: mustSource(t, source), Start: OnDemand}
	expectWords(t, strings.Join(h.Describe(t.Context(), &r), " "), annsRepo, ciIssuer)
	i := h.install(r)
	if got := i.Record.Pins.Attested; got == nil || got.Repository != annsRepo || got.Issuer != ciIssuer {
		t.Fatalf("pinned %+v", got)
	}
	for what, try := range map[string]func(){
		"it has vanished":      func() { push(nil, "", "") },
		"another source":       func() { push(ca, evilRepo, "") },
		"another authority":    func() { push(packagestest.NewAuthority(t), annsRepo, "") },
		"about something else": func() { push(ca, annsRepo, "sha256:"+strings.Repeat("0", 64)) },
	} {
		try()
		if _, err := h.Rebuild(t.Context(), "boxed", source, nil); err == nil {
			t.Errorf("%s: the update was installed", what)
		}
		if got, err := h.call("boxed", "about", `{}`); err != nil || !strings.Contains(got, "version-1]") {
			t.Errorf("%s: %s, %v", what, got, err)
		}
	}
	push(ca, annsRepo, "")
	if _, err := h.Rebuild(t.Context(), "boxed", source, nil); err != nil {
		t.Errorf("an update from the same source: %v", err)
	}
	push(ca, evilRepo, "")
	i, err := h.RebuildAccepting(t.Context(), "boxed", source, true, nil)
	if err != nil || i.Record.Pins.Attested.Repository != evilRepo {
		t.Errorf("an administrator accepts it: %+v, %v", i.Record.Pins.Attested, err)
	}
	if i, err = h.Rollback(t.Context(), "boxed", nil); err != nil || i.Record.Pins.Attested.Repository != annsRepo {
		t.Errorf("rolled back to %+v, %v", i.Record.Pins.Attested, err)
	}
}

// What registries of npm and indexes of PyPI serve, in their forms, is found and verified.
func TestAttestationsOfRegistries(t *testing.T) {
	ca := packagestest.NewAuthority(t)
	root, err := attest.ParseRoot(ca.Root())
	if err != nil {
		t.Fatal(err)
	}
	sum := make([]byte, 64)
	var bundle json.RawMessage = ca.Bundle(ciIssuer, annsRepo, "sha512", hex.EncodeToString(sum))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.EscapedPath() != "/-/npm/v1/attestations/@ann%2Fserver@1.0.0" {
			http.NotFound(w, r)
			return
		}
		json.NewEncoder(w).Encode(map[string]any{"attestations": []any{
			map[string]any{
				"predicateType": "https://github.com/npm/attestation/tree/main/specs/publish/v0.1",
				"bundle":        map[string]any{},
			},
			map[string]any{"predicateType": "https://slsa.dev/provenance/v1", "bundle": bundle},
		}})
	}))
	defer s.Close()
	one := lockedNPM{name: "@ann/server", Version: "1.0.0", Resolved: s.URL + "/@ann/server/-/server-1.0.0.tgz",
		Integrity: "sha512-" + base64.StdEncoding.EncodeToString(sum)}
	if id, err := one.attested(t.Context(), root); err != nil || id == nil || id.Repository != annsRepo {
		t.Errorf("got %v, %v", id, err)
	}
	one.Version = "1.0.1"
	if id, err := one.attested(t.Context(), root); err != nil || id != nil {
		t.Errorf("there is none: %v, %v", id, err)
	}
	sum[0], one.Version = 1, "1.0.0"
	one.Integrity = "sha512-" + base64.StdEncoding.EncodeToString(sum)
	if id, err := one.attested(t.Context(), root); err == nil {
		t.Errorf("of another package: %v", id)
	}
	var b struct {
		Envelope struct {
			Payload    []byte
			Signatures []struct{ Sig []byte }
		} `json:"dsseEnvelope"`
		Material struct {
			Certificate struct {
				RawBytes []byte
			}
			TlogEntries []json.RawMessage
		} `json:"verificationMaterial"`
	}
	if err := json.Unmarshal(ca.Bundle(ciIssuer, annsRepo, "sha256", strings.Repeat("a", 64)), &b); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{"version": 1, "attestation_bundles": []any{map[string]any{
		"publisher": map[string]any{"kind": "GitHub"},
		"attestations": []any{map[string]any{"version": 1,
			"verification_material": map[string]any{
				"certificate":          b.Material.Certificate.RawBytes,
				"transparency_entries": b.Material.TlogEntries,
			},
			"envelope": map[string]any{
				"statement": b.Envelope.Payload,
				"signature": b.Envelope.Signatures[0].Sig,
			},
		}},
	}}})
	var got pypiProvenance
	if err == nil {
		err = json.Unmarshal(text, &got)
	}
	if err != nil {
		t.Fatal(err)
	}
	bundles, err := got.bundles()
	if err != nil {
		t.Fatal(err)
	}
	if id, err := verifyAll(root, bundles, "sha256", strings.Repeat("a", 64)); err != nil || id == nil ||
		id.Repository != annsRepo {
		t.Errorf("got %v, %v", id, err)
	}
}
