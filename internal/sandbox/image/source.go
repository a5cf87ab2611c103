package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	largestText = 8 << 20 // bytes of an index, a manifest or a configuration
	mostLayers  = 256
	mostEnv     = 32 << 10 // bytes
	nesting     = 3        // most indexes on the way to a manifest
)

// found is an image that was found: its manifest and its configuration.
type found struct {
	id     v1.Hash // digest of the configuration, which contains the digests of all layers
	digest v1.Hash // of the manifest or index that a registry has by the reference; zero of other sources
	env    []string
	config Config
	layers []layer
}

// size returns how many bytes its layers have as they are stored.
func (f *found) size() (n int64) {
	for _, l := range f.layers {
		n += l.size
	}
	return n
}

// layer is a tar, compressed or not. digest is that of the stored bytes, zero if only the content's is known;
// content is the digest of the tar.
type layer struct {
	digest, content v1.Hash
	size            int64 // bytes as stored
	open            func(context.Context) (io.ReadCloser, error)
}

// source gives access to one image.
type source interface {
	find(context.Context) (*found, error)
	Close() error
}

// blobs reads files by their digests.
type blobs interface {
	blob(context.Context, v1.Descriptor) (io.ReadCloser, error)
	manifest(context.Context, v1.Descriptor) ([]byte, error)
}

// resolve follows a manifest, or an index to the manifest for this machine.
func resolve(ctx context.Context, from blobs, d v1.Descriptor, text []byte, depth int) (*found, error) {
	isIndex, err := kindOf(d, text)
	if err != nil {
		return nil, err
	}
	if !isIndex {
		return byManifest(ctx, from, text)
	}
	if depth >= nesting {
		return nil, errors.New("the indexes are nested too deeply")
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("decode the index: %w", err)
	}
	next, err := choose(index.Manifests)
	if err != nil {
		return nil, err
	}
	if text, err = from.manifest(ctx, next); err != nil {
		return nil, err
	}
	return resolve(ctx, from, next, text, depth+1)
}

// kindOf distinguishes an index from a manifest. It refuses a document that could be both.
func kindOf(d v1.Descriptor, text []byte) (isIndex bool, err error) {
	var says struct {
		MediaType types.MediaType   `json:"mediaType"`
		Manifests []json.RawMessage `json:"manifests"`
		Layers    []json.RawMessage `json:"layers"`
		Config    json.RawMessage   `json:"config"`
	}
	if err := json.Unmarshal(text, &says); err != nil {
		return false, fmt.Errorf("decode the manifest: %w", err)
	}
	if says.Manifests != nil && (says.Layers != nil || says.Config != nil) {
		return false, errors.New("the manifest is also an index, which makes it ambiguous")
	}
	if says.MediaType != "" && d.MediaType != "" && says.MediaType != d.MediaType {
		return false, fmt.Errorf("the manifest is declared as %q but contains the media type %q", d.MediaType,
			says.MediaType)
	}
	kind := d.MediaType
	if kind == "" {
		kind = says.MediaType
	}
	switch {
	case kind.IsIndex(), kind == "" && says.Manifests != nil:
		return true, nil
	case kind.IsImage(), kind == "" && says.Config != nil:
		return false, nil
	}
	return false, fmt.Errorf("the media type is %q: expected an OCI image or Docker schema 2", kind)
}

// choose returns the manifest for this machine from an index.
func choose(all []v1.Descriptor) (v1.Descriptor, error) {
	var has []string
	for _, d := range all {
		if forThisMachine(d.Platform) && (d.MediaType.IsImage() || d.MediaType.IsIndex() || d.MediaType == "") {
			return d, nil
		}
		if d.Platform != nil && d.Platform.OS != "unknown" {
			has = append(has, d.Platform.String())
		}
	}
	// An index of one image often omits the platform; the configuration contains it.
	if len(all) == 1 && all[0].Platform == nil {
		return all[0], nil
	}
	return v1.Descriptor{}, fmt.Errorf("no image for linux/%s, which this machine runs; the platforms are %.200s",
		runtime.GOARCH, listed(has))
}

func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func forThisMachine(p *v1.Platform) bool {
	return p != nil && p.OS == "linux" && p.Architecture == runtime.GOARCH
}

func byManifest(ctx context.Context, from blobs, text []byte) (*found, error) {
	m, err := v1.ParseManifest(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("decode the manifest: %w", err)
	}
	config, err := fetch(ctx, from, m.Config)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	var layers []layer
	for _, d := range m.Layers {
		if !d.MediaType.IsLayer() {
			return nil, fmt.Errorf("a layer has the media type %q: expected a tar, plain or compressed with "+
				"gzip or zstd", d.MediaType)
		}
		if d.Size < 0 {
			return nil, fmt.Errorf("a layer of %d bytes", d.Size)
		}
		layers = append(layers,
			layer{digest: d.Digest, size: d.Size, open: func(ctx context.Context) (io.ReadCloser, error) {
				return from.blob(ctx, d)
			}})
	}
	return byConfig(m.Config.Digest, config, layers)
}

// byConfig completes an image with its configuration. It sets the layers' content digests.
func byConfig(id v1.Hash, text []byte, layers []layer) (*found, error) {
	c, err := v1.ParseConfigFile(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("decode the configuration: %w", err)
	}
	if !forThisMachine(&v1.Platform{OS: c.OS, Architecture: c.Architecture}) {
		return nil, fmt.Errorf("the image is for %.40q/%.40q; this machine runs linux/%s", c.OS, c.Architecture,
			runtime.GOARCH)
	}
	if len(layers) == 0 || len(layers) > mostLayers {
		return nil, fmt.Errorf("the image has %d layers; it may have 1 to %d", len(layers), mostLayers)
	}
	if len(c.RootFS.DiffIDs) != len(layers) {
		return nil, fmt.Errorf("the image has %d layers, but its configuration lists %d", len(layers),
			len(c.RootFS.DiffIDs))
	}
	for i := range layers {
		layers[i].content = c.RootFS.DiffIDs[i]
	}
	env, err := environment(c.Config.Env)
	if err != nil {
		return nil, err
	}
	config, err := configOf(&c.Config, env)
	return &found{id: id, env: env, config: config, layers: layers}, err
}

// environment keeps the valid variables.
func environment(says []string) (env []string, err error) {
	n := 0
	for _, e := range says {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" || strings.IndexByte(e, 0) >= 0 {
			continue
		}
		if n += len(e); n > mostEnv {
			return nil, fmt.Errorf("the environment has more than %d bytes", mostEnv)
		}
		env = append(env, e)
	}
	return env, nil
}

// fetch reads a small blob and verifies its digest.
func fetch(ctx context.Context, from blobs, d v1.Descriptor) ([]byte, error) {
	if d.Size < 0 || d.Size > largestText {
		return nil, fmt.Errorf("%s has %d bytes; it may have %d", d.Digest, d.Size, largestText)
	}
	r, err := from.blob(ctx, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, d.Size+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) != d.Size {
		return nil, fmt.Errorf("%s does not have the declared %d bytes", d.Digest, d.Size)
	}
	return text, sameHash(d.Digest, sha256.Sum256(text))
}

func sameHash(want v1.Hash, got [sha256.Size]byte) error {
	if hex := fmt.Sprintf("%x", got); want.Algorithm != "sha256" || want.Hex != hex {
		return fmt.Errorf("expected %s, got sha256:%s: the data was changed or damaged", want, hex)
	}
	return nil
}
