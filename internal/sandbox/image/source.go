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
	nesting     = 3        // an index in an index in an index
)

// found is an image that was found somewhere: what its manifest and its
// configuration say.
type found struct {
	id     v1.Hash // of the configuration, which names what all layers hold
	env    []string
	layers []layer
}

// size is how many bytes its layers have as they are stored.
func (f *found) size() (n int64) {
	for _, l := range f.layers {
		n += l.size
	}
	return n
}

// layer is a tar, compressed or not. digest is that of what is stored, zero
// where only its content is known; content is that of the tar.
type layer struct {
	digest, content v1.Hash
	size            int64 // bytes as it is stored
	open            func(context.Context) (io.ReadCloser, error)
}

// source is a place where an image is.
type source interface {
	find(context.Context) (*found, error)
	Close() error
}

// blobs are files found by what they hold.
type blobs interface {
	blob(context.Context, v1.Descriptor) (io.ReadCloser, error)
	manifest(context.Context, v1.Descriptor) ([]byte, error)
}

// resolve follows a manifest, or an index that leads to one for this machine.
func resolve(ctx context.Context, from blobs, d v1.Descriptor, text []byte, depth int) (*found, error) {
	isIndex, err := kindOf(d, text)
	if err != nil {
		return nil, err
	}
	if !isIndex {
		return byManifest(ctx, from, text)
	}
	if depth >= nesting {
		return nil, errors.New("its indexes lead to one another too deeply")
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("decode its index: %w", err)
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

// kindOf tells an index from a manifest. What could be read as both is neither.
func kindOf(d v1.Descriptor, text []byte) (isIndex bool, err error) {
	var says struct {
		MediaType types.MediaType   `json:"mediaType"`
		Manifests []json.RawMessage `json:"manifests"`
		Layers    []json.RawMessage `json:"layers"`
		Config    json.RawMessage   `json:"config"`
	}
	if err := json.Unmarshal(text, &says); err != nil {
		return false, fmt.Errorf("decode its manifest: %w", err)
	}
	if says.Manifests != nil && (says.Layers != nil || says.Config != nil) {
		return false, errors.New("its manifest is an index too, so that nobody can tell what is in it")
	}
	if says.MediaType != "" && d.MediaType != "" && says.MediaType != d.MediaType {
		return false, fmt.Errorf("its manifest is said to be %q and says it is %q", d.MediaType, says.MediaType)
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
	return false, fmt.Errorf("it is %q, which is no image: expected one of the OCI's or of Docker's schema 2", kind)
}

// choose takes the manifest for this machine from those of an index.
func choose(all []v1.Descriptor) (v1.Descriptor, error) {
	var has []string
	for _, d := range all {
		if ours(d.Platform) && (d.MediaType.IsImage() || d.MediaType.IsIndex() || d.MediaType == "") {
			return d, nil
		}
		if d.Platform != nil && d.Platform.OS != "unknown" {
			has = append(has, d.Platform.String())
		}
	}
	// An index of one image often does not say what it is for; its
	// configuration does.
	if len(all) == 1 && all[0].Platform == nil {
		return all[0], nil
	}
	return v1.Descriptor{}, fmt.Errorf("it is not made for linux/%s, what this machine runs; it is for %.200s", runtime.GOARCH, some(has))
}

func some(names []string) string {
	if len(names) == 0 {
		return "nothing it names"
	}
	return strings.Join(names, ", ")
}

func ours(p *v1.Platform) bool {
	return p != nil && p.OS == "linux" && p.Architecture == runtime.GOARCH
}

func byManifest(ctx context.Context, from blobs, text []byte) (*found, error) {
	m, err := v1.ParseManifest(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("decode its manifest: %w", err)
	}
	config, err := fetch(ctx, from, m.Config)
	if err != nil {
		return nil, fmt.Errorf("read its configuration: %w", err)
	}
	var layers []layer
	for _, d := range m.Layers {
		if !d.MediaType.IsLayer() {
			return nil, fmt.Errorf("one of its layers is %q, which is not a tar, plain or packed with gzip or zstd", d.MediaType)
		}
		if d.Size < 0 {
			return nil, fmt.Errorf("a layer of %d bytes", d.Size)
		}
		layers = append(layers, layer{digest: d.Digest, size: d.Size, open: func(ctx context.Context) (io.ReadCloser, error) {
			return from.blob(ctx, d)
		}})
	}
	return byConfig(m.Config.Digest, config, layers)
}

// byConfig puts together what is known of an image. Its layers have no content
// named yet.
func byConfig(id v1.Hash, text []byte, layers []layer) (*found, error) {
	c, err := v1.ParseConfigFile(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("decode its configuration: %w", err)
	}
	if !ours(&v1.Platform{OS: c.OS, Architecture: c.Architecture}) {
		return nil, fmt.Errorf("it is made for %.40q/%.40q; this machine runs linux/%s", c.OS, c.Architecture, runtime.GOARCH)
	}
	if len(layers) == 0 || len(layers) > mostLayers {
		return nil, fmt.Errorf("it has %d layers; it may have 1 to %d", len(layers), mostLayers)
	}
	if len(c.RootFS.DiffIDs) != len(layers) {
		return nil, fmt.Errorf("it has %d layers, and its configuration speaks of %d", len(layers), len(c.RootFS.DiffIDs))
	}
	for i := range layers {
		layers[i].content = c.RootFS.DiffIDs[i]
	}
	env, err := environment(c.Config.Env)
	return &found{id: id, env: env, layers: layers}, err
}

// environment keeps what is NAME=value.
func environment(says []string) (env []string, err error) {
	n := 0
	for _, e := range says {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" || strings.IndexByte(e, 0) >= 0 {
			continue
		}
		if n += len(e); n > mostEnv {
			return nil, fmt.Errorf("its environment has more than %d bytes", mostEnv)
		}
		env = append(env, e)
	}
	return env, nil
}

// fetch reads a small blob whole and checks that it is what was asked for.
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
		return nil, fmt.Errorf("%s is not %d bytes long, as it is said to be", d.Digest, d.Size)
	}
	return text, sameHash(d.Digest, sha256.Sum256(text))
}

func sameHash(want v1.Hash, got [sha256.Size]byte) error {
	if hex := fmt.Sprintf("%x", got); want.Algorithm != "sha256" || want.Hex != hex {
		return fmt.Errorf("expected %s and got sha256:%s: it was changed or damaged on its way", want, hex)
	}
	return nil
}
