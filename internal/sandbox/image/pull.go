package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"gatehouse/internal/sandbox"
)

// Config is what an image says of how it is run. Its publisher wrote it.
type Config struct {
	User       string   `json:"user,omitempty"` // a name or number, with a group after a colon; "" means root
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"` // arguments, or without Entrypoint the program and its arguments
	Dir        string   `json:"dir,omitempty"` // absolute; "" means /
	Volumes    []string `json:"volumes,omitempty"`
	Version    string   `json:"version,omitempty"` // of its label org.opencontainers.image.version
	Source     string   `json:"source,omitempty"`  // of its label org.opencontainers.image.source
}

const (
	mostWords   = 200
	mostVolumes = 50
	longestText = 32 << 10 // bytes of all words, or of a label
)

// configOf checks the configuration of an image.
func configOf(c *v1.Config, env []string) (Config, error) {
	o := Config{User: c.User, Entrypoint: c.Entrypoint, Cmd: c.Cmd, Dir: c.WorkingDir,
		Version: c.Labels["org.opencontainers.image.version"], Source: c.Labels["org.opencontainers.image.source"]}
	if o.Dir != "" {
		o.Dir = path.Join("/", o.Dir)
	}
	for v := range c.Volumes {
		if v = path.Join("/", v); v != "/" {
			o.Volumes = append(o.Volumes, v)
		}
	}
	n := len(o.User) + len(o.Dir) + len(o.Version) + len(o.Source)
	for _, list := range [][]string{o.Entrypoint, o.Cmd, o.Volumes} {
		for _, text := range list {
			if n += len(text); strings.IndexByte(text, 0) >= 0 {
				return o, errors.New("the configuration has words with a zero byte")
			}
		}
	}
	if len(o.Entrypoint)+len(o.Cmd) > mostWords || len(o.Volumes) > mostVolumes || n > longestText {
		return o, fmt.Errorf("the configuration may have %d words, %d volumes and %d bytes", mostWords, mostVolumes,
			longestText)
	}
	return o, nil
}

// Pulled is an image of a registry.
type Pulled struct {
	// Digest is that of the manifest or index that the registry has by the reference, which signatures are about.
	Digest string   `json:"digest"`
	ID     string   `json:"id"` // of its configuration, which contains the digests of all layers
	Env    []string `json:"env,omitempty"`
	Layers []string `json:"layers"` // digests, as stored in the registry
	Bytes  int64    `json:"bytes"`  // of the layers, as stored in the registry
	Config Config   `json:"config"`
	// Owners are those of the files in volumes that do not belong to root, as UID:GID, by path. Files below have the
	// same owner if they have none of their own.
	Owners map[string]string `json:"owners,omitempty"`
}

// PulledFile is the file beside root, in the folder of Pull, that describes the image.
const PulledFile = "pulled.json"

// PullOptions are for Inspect and Pull.
type PullOptions struct {
	// Registries may be in a private network, or on this machine, or with http:// before them have no TLS. Every other
	// registry is at a public address, with TLS.
	Registries []string
	Logins     map[string]Login
	Limits     Limits
}

// openSource opens an image, of any registry.
func (o *PullOptions) openSource(ref string) (Ref, source, error) {
	r, err := ParseRef(ref)
	if err != nil {
		return r, nil, err
	}
	if r.Kind != Registry {
		return r, nil, fmt.Errorf("image %q: expected one of a registry", ref)
	}
	may, err := readRegistries(o.Registries)
	if err != nil {
		return r, nil, err
	}
	host := strings.ToLower(r.Host)
	src, err := may.pull(r, may[host], loginOf(o.Logins, host))
	return r, src, err
}

// Inspect finds an image without its layers.
func Inspect(ctx context.Context, ref string, o PullOptions) (p Pulled, err error) {
	r, src, err := o.openSource(ref)
	if err != nil {
		return p, err
	}
	defer src.Close()
	what, err := src.find(ctx)
	if err != nil {
		return p, fmt.Errorf("image %s: %w", r, err)
	}
	return what.describe(), nil
}

func (f *found) describe() Pulled {
	p := Pulled{Digest: f.digest.String(), ID: f.id.String(), Env: f.env, Bytes: f.size(), Config: f.config}
	for _, l := range f.layers {
		p.Layers = append(p.Layers, l.digest.String())
	}
	return p
}

// Pull unpacks an image of a registry into the folder root of an existing folder, and describes it in PulledFile beside
// it. The digest of each layer is compared. The folders that the configuration names exist then.
// progress is called from another goroutine with the bytes read and in total.
func Pull(
	ctx context.Context,
	ref, into string,
	o PullOptions,
	progress func(done, total int64),
) (p Pulled, err error) {
	limits := Options{Folder: into, Limits: o.Limits}
	if err := limits.setDefaults(); err != nil {
		return p, err
	}
	r, src, err := o.openSource(ref)
	if err != nil {
		return p, err
	}
	defer src.Close()
	what, err := src.find(ctx)
	if err == nil && what.size() > limits.Limits.Bytes {
		err = fmt.Errorf("the layers have %d bytes; an image may have %d", what.size(), limits.Limits.Bytes)
	}
	if err != nil {
		return p, fmt.Errorf("image %s: %w", r, err)
	}
	var done int64
	owners, err := what.unpackInto(ctx, filepath.Join(into, "root"), limits.Limits, func(n int) {
		done += int64(n)
		progress(done, what.size())
	})
	if err != nil {
		return p, fmt.Errorf("image %s: %w", r, scrub(err))
	}
	p = what.describe()
	p.Owners = owners
	text, err := json.Marshal(p)
	if err == nil {
		err = os.WriteFile(filepath.Join(into, PulledFile), text, 0o600)
	}
	return p, err
}

// unpackInto unpacks the layers, and makes the folders that the configuration names. It returns the owners in volumes.
func (f *found) unpackInto(
	ctx context.Context, top string, most Limits, came func(int),
) (owners map[string]string, err error) {
	if err := os.MkdirAll(top, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(top)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	u, err := unpack(ctx, root, f.layers, most, true, came)
	if err != nil {
		return nil, err
	}
	defer u.closeFolder()
	for _, dir := range append([]string{f.config.Dir}, f.config.Volumes...) {
		parts, err := u.parts(dir)
		if err == nil {
			_, err = u.resolve(parts, true)
		}
		if err != nil {
			return nil, fmt.Errorf("the folder %.200q of the configuration: %w", dir, err)
		}
	}
	return volumeOwners(u.owners, f.config.Volumes)
}

// ReadPulled returns the image that Pull unpacked into a folder.
func ReadPulled(folder string) (*sandbox.Image, Pulled, error) {
	var p Pulled
	text, err := os.ReadFile(filepath.Join(folder, PulledFile))
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		return nil, p, fmt.Errorf("the description of the image: %w", err)
	}
	return &sandbox.Image{ID: p.ID, Root: filepath.Join(folder, "root"), Env: p.Env}, p, nil
}

const mostReferrers = 20

// Referrers returns the files of what refers to an image by its digest, of the artifact types with a prefix, such as
// bundles of sigstore. A registry without such gives none.
func Referrers(ctx context.Context, ref, prefix string, o PullOptions) (files [][]byte, err error) {
	r, src, err := o.openSource(ref)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	p := src.(pulled) // of a registry, as open says
	digest, ok := p.ref.(name.Digest)
	if !ok {
		return nil, fmt.Errorf("image %s: expected a digest", r)
	}
	index, err := remote.Referrers(digest, append(p.opts, remote.WithContext(ctx))...)
	if err != nil {
		return nil, fmt.Errorf("image %s: what refers to it: %w", r, scrub(err))
	}
	list, err := index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("image %s: what refers to it: %w", r, err)
	}
	for _, d := range list.Manifests {
		if !strings.HasPrefix(d.ArtifactType, prefix) {
			continue
		}
		if len(files) >= mostReferrers {
			return nil, fmt.Errorf("image %s: more than %d artifacts refer to it", r, mostReferrers)
		}
		text, err := p.manifest(ctx, d)
		if err != nil {
			return nil, err
		}
		m, err := v1.ParseManifest(bytes.NewReader(text))
		if err != nil || len(m.Layers) != 1 {
			return nil, errors.Join(
				fmt.Errorf("image %s: an artifact of it has %d files, expected one", r, len(m.Layers)),
				err,
			)
		}
		file, err := fetch(ctx, p, m.Layers[0])
		if err != nil {
			return nil, fmt.Errorf("image %s: an artifact of it: %w", r, err)
		}
		files = append(files, file)
	}
	return files, nil
}

// Signature is one that is kept beside an image.
type Signature struct {
	Payload     []byte // what is signed
	Annotations map[string]string
}

const signatureKind = "application/vnd.dev.cosign.simplesigning.v1+json"

// Signatures returns the signatures of an image, named by its digest, that are kept by the tag which its digest makes
// (sha256-HEX.sig), as cosign did before registries listed what refers to an image. Without that tag there are none.
func Signatures(ctx context.Context, ref string, o PullOptions) (all []Signature, err error) {
	r, src, err := o.openSource(ref)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	p := src.(pulled) // of a registry, as open says
	digest, ok := p.ref.(name.Digest)
	if !ok {
		return nil, fmt.Errorf("image %s: expected a digest", r)
	}
	got, err := p.puller.Get(ctx, digest.Context().Tag(strings.Replace(digest.DigestStr(), ":", "-", 1)+".sig"))
	if e, refusal := errors.AsType[*transport.Error](err); refusal && e.StatusCode == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("image %s: its signatures: %w", r, scrub(err))
	}
	m, err := v1.ParseManifest(bytes.NewReader(got.Manifest))
	if err != nil || len(m.Layers) > mostReferrers {
		return nil, errors.Join(fmt.Errorf("image %s: the list of its signatures cannot be used", r), err)
	}
	for _, l := range m.Layers {
		if l.MediaType != signatureKind {
			continue
		}
		payload, err := fetch(ctx, p, l)
		if err != nil {
			return nil, fmt.Errorf("image %s: a signature of it: %w", r, err)
		}
		all = append(all, Signature{payload, l.Annotations})
	}
	return all, nil
}
