package packages

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"gatehouse/internal/packages/pins"
	"gatehouse/internal/sandbox/image"
	"gatehouse/internal/sandbox/sandboxtest"
)

// imageRegistry is a registry on loopback, without TLS, in this process.
type imageRegistry struct {
	host string
	t    *testing.T
}

func newImageRegistry(t *testing.T) imageRegistry {
	s := httptest.NewServer(
		registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true)),
	)
	t.Cleanup(s.Close)
	return imageRegistry{strings.TrimPrefix(s.URL, "http://"), t}
}

func (r imageRegistry) options() func() image.PullOptions {
	return func() image.PullOptions { return image.PullOptions{Registries: []string{"http://" + r.host}} }
}

// push puts an image into the registry and returns its digest.
func (r imageRegistry) push(tag string, img v1.Image) (digest string) {
	r.t.Helper()
	ref, err := name.ParseReference(r.host + "/made/server:" + tag)
	if err == nil {
		err = remote.Write(ref, img)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	h, err := img.Digest()
	if err != nil {
		r.t.Fatal(err)
	}
	return h.String()
}

// imageServer is the program of builtServer, once it is built.
var imageServer struct {
	sync.Mutex
	program []byte
}

// builtServer returns the server of images, which is built once for all tests.
func builtServer(t *testing.T) []byte {
	t.Helper()
	imageServer.Lock()
	defer imageServer.Unlock()
	if imageServer.program != nil {
		return imageServer.program
	}
	bin := filepath.Join(os.Getenv(sandboxtest.OrdinaryFiles), serverName)
	if os.Getenv(sandboxtest.OrdinaryFiles) == "" {
		bin = filepath.Join(t.TempDir(), serverName)
		build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "main.go")
		build.Dir, build.Env = "testdata/imageserver", append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	var err error
	if imageServer.program, err = os.ReadFile(bin); err != nil {
		t.Fatal(err)
	}
	return imageServer.program
}

const serverName = "imageserver"

// serverImage is an image of two layers with a server, its volume, and a configuration.
func serverImage(t *testing.T, change func(*v1.Config)) v1.Image {
	t.Helper()
	program := builtServer(t)
	img := v1.Image(empty.Image)
	var err error
	for _, files := range []map[string][]byte{
		{"app/server": program, "etc/passwd": []byte("root:x:0:0::/root:/bin/sh\nann:x:7:7::/:/bin/sh\n")},
		{"state/seed": []byte("from the image")},
	} {
		if img, err = mutate.AppendLayers(img, layerOf(t, files)); err != nil {
			t.Fatal(err)
		}
	}
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", runtime.GOARCH
	c.Config = v1.Config{
		User: "ann", Entrypoint: []string{"/app/server", "first"}, Cmd: []string{"own"}, WorkingDir: "/app/work",
		Env: []string{"PATH=/app:/bin", "KIND=image", "HOME=/root"}, Volumes: map[string]struct{}{"/state": {}},
	}
	if change != nil {
		change(&c.Config)
	}
	if img, err = mutate.ConfigFile(img, c); err != nil {
		t.Fatal(err)
	}
	return img
}

func layerOf(t *testing.T, files map[string][]byte) v1.Layer {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for path, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: path, Mode: 0o755, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		w.Write(content)
	}
	w.Close()
	l, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil },
	)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// expectWords fails the test for each text that is missing.
func expectWords(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("missing: %s, in %s", word, text)
		}
	}
}

// An image of a registry is pulled by this host, verified, and run in a sandbox as its configuration says: without
// docker, without its files being changed, and without anything of the host.
func TestAnImageRunsInASandbox(t *testing.T) {
	at := newImageRegistry(t)
	h := confined(t, Options{Images: at.options()})
	digest := at.push("1", serverImage(t, nil))
	secretly := filepath.Join(h.dir, "secret")
	write(t, h.dir, map[string]string{"secret": "s"})
	granted := realPath(t.TempDir())
	r := Record{ID: "boxed", Source: mustSource(t, "oci:"+at.host+"/made/server:1"), Start: OnDemand,
		Env:    map[string]string{"LOOK": secretly + " /usr/bin /app/server"},
		Grants: Grants{Folders: []string{granted}}} // so that it runs as one user
	expectWords(t, strings.Join(h.Describe(t.Context(), &r), " "), digest, "2 layers", "/state", "user ann",
		"/app/server first own", "one user", "granted")
	i := h.install(r)
	if i.Record.Digest != digest || i.Record.Pins.Digest != digest || i.Public.Version != "1" {
		t.Errorf("got %s, %s, version %s; the registry has %s", i.Record.Digest, i.Record.Pins.Digest, i.Public.Version,
			digest)
	}
	got, err := h.call("boxed", "about", `{}`)
	if err != nil {
		t.Fatal(err)
	}
	expectWords(t, got, "args=[first own] dir=/app/work home=/home/user kind=image path=/app:/bin",
		"seed=from the image", "/app/made:false:true", "/state/made:false:true", "/home/user/made:false:true",
		"none=true",
		"chown=true users=true same=true:true", "CapPrm=0000000000000000;", "CapEff=0000000000000000;",
		secretly+"=false", "/usr/bin=false", "/app/server=true")
	// What it wrote is in its data folder, and there after a restart.
	for _, path := range []string{"made", "volumes/unnamed-state/made"} {
		if _, err := os.Stat(filepath.Join(i.Data, path)); err != nil {
			t.Error(err)
		}
	}
	if _, err := h.Restart(t.Context(), "boxed"); err != nil {
		t.Fatal(err)
	}
	if got, err = h.call("boxed", "about", `{}`); err != nil {
		t.Fatal(err)
	}
	expectWords(t, got, "/state/made:true:true", "/home/user/made:true:true", "/tmp/made:false:true")
	if err := h.Remove("boxed", false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(i.Data)); !os.IsNotExist(err) {
		t.Errorf("the folder of the package is left: %v", err)
	}
}

// The arguments of a package replace those of its image, and docker run means the image.
func TestDockerRunIsAnImage(t *testing.T) {
	at := newImageRegistry(t)
	h := confined(t, Options{Images: at.options()})
	at.push("1", serverImage(t, nil))
	shared := realPath(t.TempDir())
	w, err := ParseTarget(
		"boxed",
		[]string{"docker", "run", "-i", "--rm", "-e", "KIND=given", "-w", "/state", "-v", shared + ":/shared:ro",
			"-v", "notes:/notes", "-e", "LOOK=/shared /notes", at.host + "/made/server:1", "--deep"},
		nil,
	)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Install(t.Context(), Plan{Record: w.Record}, nil); err == nil ||
		!strings.Contains(err.Error(), shared) {
		t.Errorf("a mount that was not granted: %v", err)
	}
	w.GrantMounts()
	i := h.install(w.Record)
	got, err := h.call("boxed", "about", `{}`)
	if err != nil {
		t.Fatal(err)
	}
	expectWords(t, got, "args=[first --deep] dir=/state", "kind=given", "/shared=true", "/notes=true")
	if _, err := os.Stat(filepath.Join(i.Data, "volumes/notes")); err != nil {
		t.Error(err)
	}
	for _, words := range [][]string{{"--privileged"}, {"--pid", "host"}, {"-v", "/var/run/docker.sock"}} {
		_, err := ParseTarget("other", append(append([]string{"docker", "run"}, words...), "docker.io/a/b:1"), nil)
		if words[0] != "-v" && err == nil {
			t.Errorf("%v was accepted", words)
		}
	}
	w.ID, w.Confinement, w.Grants = "trusted", Trusted, Grants{}
	if _, err := h.Install(t.Context(), Plan{Record: w.Record}, nil); err == nil ||
		!strings.Contains(err.Error(), "sandbox") {
		t.Errorf("a trusted image: %v", err)
	}
}

// A tag that has moved is installed by an update alone; a rebuild has what was approved, by its digest. A lock file
// installs the same elsewhere.
func TestATagThatMoves(t *testing.T) {
	at := newImageRegistry(t)
	h := confined(t, Options{Images: at.options()})
	first := at.push("1", serverImage(t, nil))
	source := "oci:" + at.host + "/made/server:1"
	h.install(Record{ID: "boxed", Source: mustSource(t, source)})
	lock, _, err := h.Lock(nil)
	if err != nil {
		t.Fatal(err)
	}
	second := at.push("1", serverImage(t, func(c *v1.Config) { c.Cmd = []string{"newer"} }))
	digestAfter := func(from string) string {
		i, err := h.Rebuild(t.Context(), "boxed", from, nil)
		if err != nil {
			t.Fatal(err)
		}
		return i.Record.Digest
	}
	if got := digestAfter(""); got != first {
		t.Errorf("a rebuild has %s, and %s was approved", got, first)
	}
	if got := digestAfter(source); got != second {
		t.Errorf("an update has %s, and the tag means %s", got, second)
	}
	if got, err := h.call("boxed", "about", `{}`); err != nil || !strings.Contains(got, "newer") {
		t.Errorf("got %s, %v", got, err)
	}
	i, err := h.Rollback(t.Context(), "boxed", "", nil)
	if err != nil || i.Record.Digest != first {
		t.Errorf("rolled back to %s, %v", i.Record.Digest, err)
	}
	if got, err := h.call("boxed", "about", `{}`); err != nil || !strings.Contains(got, "own") {
		t.Errorf("got %s, %v", got, err)
	}
	there := confined(t, Options{Images: at.options()})
	if _, err := there.Sync(t.Context(), lock, Part{}, nil); err != nil {
		t.Fatal(err)
	}
	if i, err := there.Info("boxed"); err != nil || i.Record.Digest != first {
		t.Errorf("the lock file installed %+v, %v", i.Record.Digest, err)
	}
	text, err := (&pins.Lock{Version: 1, Packages: lock.Packages}).Encode()
	if err != nil || !strings.Contains(string(text), first) {
		t.Errorf("%s, %v", text, err)
	}
}

// What a registry sends that is not what a digest says is not installed.
func TestAChangedLayerIsRefused(t *testing.T) {
	at := newImageRegistry(t)
	h := confined(t, Options{Images: at.options()})
	for _, from := range []string{at.host + "/made/none:1",
		at.host + "/made/server@sha256:" + strings.Repeat("0", 64)} {
		if _, err := h.Install(t.Context(),
			Plan{Record: Record{ID: "none", Source: Source{OCI, from}}}, nil); err == nil {
			t.Errorf("%s was installed", from)
		}
	}
	at.push("1", serverImage(t, func(c *v1.Config) { c.Entrypoint = []string{"/app/missing"} }))
	_, err := h.Install(t.Context(), Plan{Record: Record{ID: "none", Source: Source{OCI, at.host + "/made/server:1"}}},
		nil)
	if err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("a program that is not in the image: %v", err)
	}
	if entries, _ := os.ReadDir(filepath.Join(h.dir, "packages")); len(entries) > 1 {
		t.Errorf("left: %v", entries)
	}
}
