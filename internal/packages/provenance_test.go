package packages

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
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
	i, err := h.RebuildAccepting(t.Context(), "boxed", source, "", true, nil)
	if err != nil || i.Record.Pins.Attested.Repository != evilRepo {
		t.Errorf("an administrator accepts it: %+v, %v", i.Record.Pins.Attested, err)
	}
	if i, err = h.Rollback(t.Context(), "boxed", "", nil); err != nil || i.Record.Pins.Attested.Repository != annsRepo {
		t.Errorf("rolled back to %+v, %v", i.Record.Pins.Attested, err)
	}
}

// sign puts a signature beside an image of the registry, by the tag that its digest makes.
func (r imageRegistry) sign(digest string, payload []byte, notes map[string]string) {
	r.t.Helper()
	img, err := mutate.Append(mutate.MediaType(empty.Image, "application/vnd.oci.image.manifest.v1+json"),
		mutate.Addendum{
			Layer:       static.NewLayer(payload, "application/vnd.dev.cosign.simplesigning.v1+json"),
			Annotations: notes,
		})
	if err != nil {
		r.t.Fatal(err)
	}
	at, err := name.NewTag(r.host + "/made/server:" + strings.Replace(digest, ":", "-", 1) + ".sig")
	if err == nil {
		err = remote.Write(at, img)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// An image that has a signature by a tag, as cosign 1 and 2 make it, is pinned to its source. One about another image, by
// another authority, with a payload or an entry of the log that was changed, is never installed; one of a bare key or of
// a person is no pin.
//
//redteam:attack Attestations: a signature by a tag is about another image, forged or of another source
func TestASignatureByATag(t *testing.T) {
	at, ca := newImageRegistry(t), packagestest.NewAuthority(t)
	root, err := attest.ParseRoot(ca.Root())
	if err != nil {
		t.Fatal(err)
	}
	number := 0
	h := confined(t, Options{Images: at.options(), TrustedRoot: func() (*attest.Root, error) { return root, nil }})
	push := func() string {
		number++
		return at.push("1", serverImage(t, func(c *v1.Config) { c.Cmd = []string{fmt.Sprint("version-", number)} }))
	}
	note := func(notes map[string]string, name, value string) map[string]string {
		out := maps.Clone(notes)
		if out[name] = value; value == "" {
			delete(out, name)
		}
		return out
	}
	const certificate, entry = "dev.sigstore.cosign/certificate", "dev.sigstore.cosign/bundle"
	digest := push()
	payload, notes := ca.Signature(ciIssuer, annsRepo, digest)
	at.sign(digest, payload, notes)
	source := "oci:" + at.host + "/made/server:1"
	i := h.install(Record{ID: "boxed", Source: mustSource(t, source), Start: OnDemand})
	if got := i.Record.Pins.Attested; got == nil || got.Repository != annsRepo || got.Issuer != ciIssuer {
		t.Fatalf("pinned %+v", got)
	}
	_, elsewhere := ca.Signature(ciIssuer, annsRepo, digest)
	for what, try := range map[string]func(digest string){
		"about another image": func(of string) {
			payload, notes := ca.Signature(ciIssuer, annsRepo, digest)
			at.sign(of, payload, notes)
		},
		"another source": func(of string) {
			payload, notes := ca.Signature(ciIssuer, evilRepo, of)
			at.sign(of, payload, notes)
		},
		"another authority": func(of string) {
			payload, notes := packagestest.NewAuthority(t).Signature(ciIssuer, annsRepo, of)
			at.sign(of, payload, notes)
		},
		"a changed payload": func(of string) {
			_, notes := ca.Signature(ciIssuer, annsRepo, digest)
			payload, _ := ca.Signature(ciIssuer, annsRepo, of)
			at.sign(of, payload, notes)
		},
		"an entry of another signature": func(of string) {
			payload, notes := ca.Signature(ciIssuer, annsRepo, of)
			at.sign(of, payload, note(notes, entry, elsewhere[entry]))
		},
		"no entry": func(of string) {
			payload, notes := ca.Signature(ciIssuer, annsRepo, of)
			at.sign(of, payload, note(notes, entry, ""))
		},
		"a bare key": func(of string) {
			payload, notes := ca.Signature(ciIssuer, annsRepo, of)
			at.sign(of, payload, note(notes, certificate, ""))
		},
		"a person":      func(of string) { p, n := ca.Signature(ciIssuer, "", of); at.sign(of, p, n) },
		"a broken list": func(of string) { at.sign(of, nil, map[string]string{certificate: "x"}) },
	} {
		try(push())
		if _, err := h.Rebuild(t.Context(), "boxed", source, nil); err == nil {
			t.Errorf("%s: the update was installed", what)
		}
	}
	if got, err := h.call("boxed", "about", `{}`); err != nil || !strings.Contains(got, "version-1]") {
		t.Errorf("%s, %v", got, err)
	}
	digest = push()
	payload, notes = ca.Signature(ciIssuer, annsRepo, digest)
	at.sign(digest, payload, notes)
	if _, err := h.Rebuild(t.Context(), "boxed", source, nil); err != nil {
		t.Errorf("an update from the same source: %v", err)
	}
	digest = push()
	payload, notes = ca.Signature(ciIssuer, "", digest)
	at.sign(digest, payload, notes)
	i = h.install(Record{ID: "other", Source: mustSource(t, source), Start: OnDemand})
	if got := i.Record.Pins.Attested; got != nil {
		t.Errorf("an image that a person signed is pinned to %+v", got)
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
