package packages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/packages/attest"
	"gatehouse/internal/packages/pins"
	"gatehouse/internal/sandbox/image"
	"gatehouse/tool"
)

const (
	attestTime        = 20 * time.Second
	mostAttestations  = 8 << 20 // bytes of the answer of a registry
	provenance        = "https://slsa.dev/provenance/"
	bundleMediaPrefix = "application/vnd.dev.sigstore.bundle"
)

func (h *Manager) trustedRoot() (*attest.Root, error) {
	if h.opts.TrustedRoot != nil {
		return h.opts.TrustedRoot()
	}
	return attest.BuiltIn()
}

// attested returns who attested to the program of a package that was fetched; nil if its registry has no attestation.
// An attestation that does not verify is an error, and so is a registry that cannot be asked.
func (p *managedPackage) attested(ctx context.Context, r *Record) (*attest.Identity, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, attestTime, errors.New("the registry took too long to answer"))
	defer cancel()
	root, err := p.manager.trustedRoot()
	if err != nil {
		return nil, err
	}
	switch r.Source.Kind {
	case NPM:
		one, err := readLocked(filepath.Join(p.folder(), programTop(r.Program)), npmPackage(r.Source.From))
		if err != nil || one.Integrity == "" {
			return nil, err
		}
		return one.attested(ctx, root)
	case PyPI:
		return p.pypiAttested(ctx, root, r)
	case OCI:
		return imageAttested(ctx, root, r.Source.Name(), r.Digest, p.manager.pullOptions())
	}
	return nil, nil
}

// verifyAll verifies attestations of one artifact. All that a certificate signed have to verify and to name the same
// repository.
func verifyAll(root *attest.Root, texts [][]byte, algorithm, digest string) (*attest.Identity, error) {
	var bundles []*attest.Bundle
	for _, text := range texts {
		b, err := attest.Parse(text)
		if err != nil {
			return nil, err
		}
		bundles = append(bundles, b)
	}
	return verifyBundles(root, bundles, algorithm, digest)
}

func verifyBundles(root *attest.Root, all []*attest.Bundle, algorithm, digest string) (*attest.Identity, error) {
	var id *attest.Identity
	for _, b := range all {
		if !b.HasCertificate() {
			continue // signed by a key of the registry, which says that it was published
		}
		one, err := root.Verify(b, algorithm, digest)
		if b.IsImage() && errors.Is(err, attest.ErrNoSource) {
			continue // signed by a person, which nothing can be pinned to
		}
		if err != nil {
			return nil, err
		}
		if id != nil && !id.Same(one) {
			return nil, fmt.Errorf("attestations name both %s and %s", id, one)
		}
		id = &one
	}
	return id, nil
}

// lockedNPM is a package in npm's lock file.
type lockedNPM struct {
	name      string
	Version   string `json:"version"`
	Resolved  string `json:"resolved"`
	Integrity string `json:"integrity"`
}

func readLocked(dir, name string) (one lockedNPM, err error) {
	b, err := os.ReadFile(filepath.Join(dir, npmLock))
	if err != nil {
		return one, err
	}
	var lock struct {
		Packages map[string]lockedNPM `json:"packages"`
	}
	err = json.Unmarshal(b, &lock)
	one = lock.Packages["node_modules/"+name]
	one.name = name
	return one, err
}

// attested asks the registry that a package came from.
func (l lockedNPM) attested(ctx context.Context, root *attest.Root) (*attest.Identity, error) {
	base, _, ok := strings.Cut(l.Resolved, "/"+l.name+"/-/")
	algorithm, digest, err := attest.Digest(l.Integrity)
	if !ok || err != nil {
		return nil, nil // of another place than a registry, or too old for attestations
	}
	at := base + "/-/npm/v1/attestations/" + url.PathEscape(l.name+"@"+l.Version)
	var got struct {
		Attestations []struct {
			Type   string          `json:"predicateType"`
			Bundle json.RawMessage `json:"bundle"`
		} `json:"attestations"`
	}
	if found, err := getJSON(ctx, at, "application/json", &got); !found {
		return nil, err
	}
	var bundles [][]byte
	for _, a := range got.Attestations {
		if strings.HasPrefix(a.Type, provenance) {
			bundles = append(bundles, a.Bundle)
		}
	}
	return verifyAll(root, bundles, algorithm, digest)
}

// errUnserved says that a registry answered neither with attestations nor that it has none.
var errUnserved = errors.New("it serves no attestations")

// getJSON fetches JSON. found is false if there is none (404), without an error.
func getJSON(ctx context.Context, address, accept string, into any) (found bool, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return false, err
	}
	q.Header.Set("Accept", accept)
	w, err := downloads.Do(q)
	if err != nil {
		return false, err
	}
	defer w.Body.Close()
	switch w.StatusCode {
	case http.StatusNotFound:
		return false, nil
	case http.StatusOK:
	default:
		return false, fmt.Errorf("%s answers %s: %w", q.URL.Redacted(), w.Status, errUnserved)
	}
	b, err := io.ReadAll(io.LimitReader(w.Body, mostAttestations+1))
	if err == nil && len(b) > mostAttestations {
		err = fmt.Errorf("%s answers with more than %d bytes", q.URL.Redacted(), mostAttestations)
	}
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	return err == nil, err
}

// imageAttested asks a registry for the bundles of sigstore that refer to an image, and for the signatures that cosign 1
// and 2 keep by a tag beside it.
func imageAttested(
	ctx context.Context, root *attest.Root, name, digest string, o image.PullOptions,
) (*attest.Identity, error) {
	texts, err := image.Referrers(ctx, name+"@"+digest, bundleMediaPrefix, o)
	if err != nil {
		return nil, err
	}
	signatures, err := image.Signatures(ctx, name+"@"+digest, o)
	if err != nil {
		return nil, err
	}
	var all []*attest.Bundle
	for _, text := range texts {
		b, err := attest.Parse(text)
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	for _, s := range signatures {
		b, err := attest.ParseImage(s.Payload, s.Annotations)
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return verifyBundles(root, all, "sha256", strings.TrimPrefix(digest, "sha256:"))
}

// pypiFile is a file of a project, as an index lists it (PEP 691, PEP 740).
type pypiFile struct {
	Filename   string            `json:"filename"`
	Hashes     map[string]string `json:"hashes"`
	Provenance string            `json:"provenance"`
}

// pypiProvenance is what an index serves for a file (PEP 740).
type pypiProvenance struct {
	Bundles []struct {
		Attestations []struct {
			Material struct {
				Certificate []byte            `json:"certificate"`
				Entries     []json.RawMessage `json:"transparency_entries"`
			} `json:"verification_material"`
			Envelope struct {
				Statement []byte `json:"statement"`
				Signature []byte `json:"signature"`
			} `json:"envelope"`
		} `json:"attestations"`
	} `json:"attestation_bundles"`
}

// pypiAttested asks the index about the file that was installed: it is one of those whose hashes the lock file has.
func (p *managedPackage) pypiAttested(ctx context.Context, root *attest.Root, r *Record) (*attest.Identity, error) {
	lines, err := readPyPILock(filepath.Join(p.folder(), programTop(r.Program)))
	if err != nil {
		return nil, err
	}
	text := strings.Join(lines, "\n")
	var listed struct {
		Files []pypiFile `json:"files"`
	}
	at := pypiIndex() + "/" + normalName(r.Source.Name()) + "/"
	if found, err := getJSON(ctx, at, "application/vnd.pypi.simple.v1+json", &listed); !found {
		return nil, err
	}
	var id *attest.Identity
	for _, f := range listed.Files {
		digest := f.Hashes["sha256"]
		if digest == "" || f.Provenance == "" || path.Ext(f.Filename) != ".whl" ||
			!strings.Contains(text, "sha256:"+digest) {
			continue
		}
		var got pypiProvenance
		if found, err := getJSON(ctx, f.Provenance, "application/json", &got); !found {
			return nil, err
		}
		bundles, err := got.bundles()
		if err != nil {
			return nil, err
		}
		one, err := verifyAll(root, bundles, "sha256", digest)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Filename, err)
		}
		if id != nil && one != nil && !id.Same(*one) {
			return nil, fmt.Errorf("attestations of its files name both %s and %s", id, one)
		}
		if one != nil {
			id = one
		}
	}
	return id, nil
}

// bundles returns the attestations in the form of sigstore.
func (p *pypiProvenance) bundles() (all [][]byte, err error) {
	for _, b := range p.Bundles {
		for _, a := range b.Attestations {
			text, err := json.Marshal(map[string]any{
				"dsseEnvelope": map[string]any{
					"payload": a.Envelope.Statement, "payloadType": "application/vnd.in-toto+json",
					"signatures": []map[string]any{{"sig": a.Envelope.Signature}},
				},
				"verificationMaterial": map[string]any{
					"certificate": map[string]any{
						"rawBytes": a.Material.Certificate,
					}, "tlogEntries": a.Material.Entries,
				},
			})
			if err != nil {
				return nil, err
			}
			all = append(all, text)
		}
	}
	return all, nil
}

// pypiIndex is the index that uv and pip install from.
func pypiIndex() string {
	for _, name := range []string{"UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"} {
		if u, err := url.Parse(os.Getenv(name)); err == nil && u.Host != "" {
			return strings.TrimRight(u.String(), "/")
		}
	}
	return PublicPyPI + "/simple"
}

// checkAttested compares who attested to a program with who was approved. An update whose
// attestation vanishes, or names another source, is held back: the package stays as it is.
func (p *managedPackage) checkAttested(ctx context.Context, r *Record, plan *Plan) (*attest.Identity, error) {
	want := approvedSource(r.Pins, plan)
	got, err := p.attested(ctx, r)
	if err != nil && want == nil && !isInvalid(err) {
		p.journal.writeLine("[host] attestations of the package could not be looked up: " + err.Error())
		return nil, nil
	}
	if err != nil {
		return nil, &tool.Refusal{
			Code: tool.CodeDenied,
			Message: fmt.Sprintf("package %s: its attestation cannot be verified, so nothing was installed: %v", p.id,
				err),
			Next: "Try again later, or ask its publisher.",
		}
	}
	if want == nil || plan.AcceptSource || got != nil && got.Same(*want) {
		return got, nil
	}
	now := "nothing attests where this version was built"
	if got != nil {
		now = "this version was built from " + got.String()
	}
	return nil, &tool.Refusal{
		Code: tool.CodeDenied,
		Message: fmt.Sprintf("package %s is as before: what was approved was built from %s, and %s", p.id, want,
			now),
		Next: fmt.Sprintf("Find out why first. gatehouse package update %s --accept-source installs it all the same.",
			p.id),
	}
}

// isInvalid reports whether an error says that something is wrong with an attestation, and not that none could be
// fetched.
func isInvalid(err error) bool {
	_, unreached := errors.AsType[*url.Error](err)
	return !unreached && !errors.Is(err, errUnserved) && !errors.Is(err, context.DeadlineExceeded) &&
		!errors.Is(err, context.Canceled)
}

func approvedSource(approved *pins.Pins, plan *Plan) *attest.Identity {
	if plan.Expect != nil {
		approved = plan.Expect
	}
	if approved == nil {
		return nil
	}
	return approved.Attested
}

// attestedLine says who attested to a package.
func attestedLine(id *attest.Identity) string {
	if id == nil {
		return "No attestation says where it was built."
	}
	return "It was built from " + id.String() + ", as its attestation proves."
}

// describeNPM looks up the attestation of a package of npm that is not installed.
func (h *Manager) describeNPM(ctx context.Context, r *Record) []string {
	name, version := r.Source.split()
	registry, err := npmRegistry(ctx)
	if err != nil {
		return nil
	}
	var got struct {
		Version string `json:"version"`
		Dist    struct {
			Integrity string `json:"integrity"`
		} `json:"dist"`
	}
	if version == "" {
		version = "latest"
	}
	if found, _ := getJSON(ctx, registry+"/"+url.PathEscape(name)+"/"+url.PathEscape(version),
		"application/json", &got); !found {
		return nil
	}
	root, err := h.trustedRoot()
	if err != nil {
		return []string{"The file of trusted roots cannot be used: " + err.Error() + "."}
	}
	one := lockedNPM{
		name:      name,
		Version:   got.Version,
		Integrity: got.Dist.Integrity,
		Resolved:  registry + "/" + name + "/-/x",
	}
	id, err := one.attested(ctx, root)
	if err != nil {
		return []string{"Its attestation cannot be verified: " + shorten(err.Error(), 300) + "."}
	}
	return []string{attestedLine(id)}
}

// npmRegistry returns the registry of npm's configuration.
func npmRegistry(ctx context.Context) (string, error) {
	hosts, err := npmRegistries(ctx)
	if err != nil || len(hosts) == 0 {
		return "", err
	}
	i := max(slices.IndexFunc(hosts, func(one npmRegistryOf) bool { return one.name == "registry" }), 0)
	return strings.TrimRight(hosts[i].address, "/"), nil
}
