package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"gatehouse/release/image"
	"gatehouse/release/product"
)

// greeting is the first message of a client, which a server answers with its name and version.
const greeting = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},` +
	`"clientInfo":{"name":"test","version":"1"}}}` + "\n"

// serves checks that a command answers a client over standard input and output.
func serves(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.Stdin = strings.NewReader(greeting)
	out := runs(t, cmd)
	var answer struct {
		Result struct {
			ServerInfo struct{ Name, Version string }
		}
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil || answer.Result.ServerInfo.Version != newVersion {
		t.Errorf("the server answers %s (%v), want version %s", out, err, newVersion)
	}
}

// images opens the index of the images in an archive of a release.
func images(t *testing.T, archive string) v1.ImageIndex {
	t.Helper()
	dir := t.TempDir()
	runs(t, exec.Command(program(t, "tar"), "-xf", archive, "-C", dir))
	where, err := layout.FromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := where.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	list, err := whole.IndexManifest()
	if err != nil || len(list.Manifests) != 1 {
		t.Fatalf("%v (%v), want one index", list, err)
	}
	index, err := whole.ImageIndex(list.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// The image runs as a plain user, with a root that cannot be written and no capabilities.
func TestImage(t *testing.T) {
	one := imageHere(t, packageFile(t, released(t, newRelease), "-oci.tar"))
	c := newContainer(t, one)
	programs, err := filepath.Glob(filepath.Join(c.root(), "*/bin/*"))
	if err != nil || len(programs) != 1 {
		t.Errorf("the programs are %q (%v), want gatehouse alone", programs, err)
	}
	serves(t, c.command(t))
}

// The full image has what other people's servers run with, and its programs run as a plain user
// without network. Its parts are downloaded, so make verify-release runs it.
func TestFullImage(t *testing.T) {
	if os.Getenv("GATEHOUSE_TEST_ALL") == "" {
		t.Skip("make verify-release runs it")
	}
	dist := t.TempDir()
	if err := makeRelease(dist, newVersion, "..", "-full"); err != nil {
		t.Fatal(err)
	}
	c := newContainer(t, imageHere(t, packageFile(t, dist, "-full-oci.tar")))
	for want, args := range map[string][]string{
		"3 True": {"python3", "-c",
			"import ssl, sqlite3, ctypes, zoneinfo, sys; print(sys.version_info[0], " +
				"ssl.create_default_context().cert_store_stats()['x509_ca'] > 50)"},
		"from Node": {"node", "-e", "console.log('from Node')"},
		"11.":       {"npm", "--version"},
		"uv ":       {"uv", "--version"},
		"uvx ":      {"uvx", "--version"},
		"a commit": {"sh", "-c",
			"cd /tmp && git init -q x && cd x && git -c user.name=n -c user.email=e@example.com commit -q " +
				"--allow-empty -m 'a commit' && git log --format=%s | awk '{print}'"},
		"from uv":    {"sh", "-c", "cd /tmp && uv venv --offline -q v && v/bin/python -c 'print(\"from uv\")'"},
		"gatehouse ": {"gatehouse", "version"},
		"from scripts": {"sh", "-c",
			`cd /tmp && echo '{"scripts":{"x":"echo from scripts"}}' >package.json && npm run -s x`},
	} {
		if out := runs(t, c.command(t, args...)); !strings.Contains(out, want) {
			t.Errorf("%s prints %q, want %q", args[0], out, want)
		}
	}
	serves(t, c.command(t))
}

// imageHere returns the one image in an archive, which is for this platform.
func imageHere(t *testing.T, archive string) v1.Image {
	t.Helper()
	index := images(t, archive)
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	list, err := index.IndexManifest()
	if err != nil || len(list.Manifests) != 1 || list.Manifests[0].Platform.Architecture != here.Arch {
		t.Fatalf("%v (%v), want one image for %s", list, err, here)
	}
	one, err := index.Image(list.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return one
}

// container is an unpacked image.
type container struct {
	bundle string
	config v1.Config
	runs   int
}

func newContainer(t *testing.T, one v1.Image) *container {
	t.Helper()
	config, err := one.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != image.User+":"+image.User {
		t.Errorf("it runs as %s", config.Config.User)
	}
	c := &container{bundle: t.TempDir(), config: config.Config}
	unpackImage(t, one, c.root())
	if os.Getuid() == 0 {
		letOthersIn(t, c.bundle)
		runs(t, exec.Command(program(t, "chown"), fmt.Sprint(plainUser), c.bundle))
	}
	return c
}

func (c *container) root() string { return filepath.Join(c.bundle, "rootfs") }

// command returns a command that runs a program of the image, or else the image's own.
func (c *container) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	if len(args) == 0 {
		args = append(args, c.config.Entrypoint...)
		args = append(args, c.config.Cmd...)
	}
	writeSpec(t, c.bundle, c.config, args)
	c.runs++
	words := []string{program(t, "crun"), "--root", filepath.Join(c.bundle, "state"), "--cgroup-manager=disabled",
		"run", "--bundle", c.bundle, fmt.Sprintf("gatehouse-test-%d-%d", os.Getpid(), c.runs)}
	// the runtime itself is a plain user; some versions fail where both kinds of control groups are
	if os.Getuid() == 0 {
		words = append([]string{program(t, "unshare"), "-m", "sh", "-c", `umount -l /sys/fs/cgroup/unified 2>/dev/null
			user=$1 && shift && exec setpriv --reuid "$user" --regid "$user" --clear-groups "$@"`, "sh", fmt.Sprint(plainUser)}, words...)
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "XDG_RUNTIME_DIR=" + c.bundle}
	return cmd
}

// letOthersIn lets other users reach a folder of a test.
func letOthersIn(t *testing.T, dir string) {
	t.Helper()
	for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// plainUser is a user without rights, such as nobody.
const plainUser = 65534

// unpackImage writes the files of an image's layers.
func unpackImage(t *testing.T, one v1.Image, root string) {
	t.Helper()
	layers, err := one.Layers()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		content, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program(t, "tar"), "-xf", "-", "-C", root)
		cmd.Stdin = content
		runs(t, cmd)
		content.Close()
	}
	roots, err := os.ReadFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"))
	if n := strings.Count(string(roots), "BEGIN CERTIFICATE"); err != nil || n < 50 {
		t.Errorf("there are %d roots of certificates (%v)", n, err)
	}
	for _, volume := range []string{"proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, volume), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// writeSpec writes what crun runs: a program of the image as its user, who is the caller
// outside, without a capability, below a root that cannot be written.
func writeSpec(t *testing.T, bundle string, c v1.Config, args []string) {
	t.Helper()
	type m = map[string]any
	outside := os.Getuid()
	if outside == 0 {
		outside = plainUser
	}
	none := []string{}
	mapping := []m{{"containerID": 65532, "hostID": outside, "size": 1}}
	tmpfs := func(at string) m {
		return m{"destination": at, "type": "tmpfs", "source": "tmpfs",
			"options": []string{"nosuid", "nodev", "mode=1777"}}
	}
	text, err := json.Marshal(m{
		"ociVersion": "1.0.2",
		"process": m{
			"user": m{"uid": 65532, "gid": 65532}, "args": args, "env": c.Env,
			"cwd":             c.WorkingDir,
			"noNewPrivileges": true,
			"capabilities": m{"bounding": none, "effective": none, "permitted": none, "inheritable": none,
				"ambient": none},
		},
		"root": m{"path": "rootfs", "readonly": true},
		"mounts": []m{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			tmpfs("/dev"), tmpfs("/tmp"), tmpfs("/data"),
		},
		"linux": m{
			"namespaces": []m{{"type": "user"}, {"type": "mount"}, {"type": "pid"}, {"type": "ipc"}, {"type": "uts"},
				{"type": "network"}},
			"uidMappings": mapping, "gidMappings": mapping,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// npm installs the package with the program for this platform, and the command runs.
func TestNPM(t *testing.T) {
	dist := released(t, newRelease)
	dir := t.TempDir()
	install := exec.Command(program(t, "npm"), "install", "--offline", "--no-audit", "--no-fund", "--cache",
		filepath.Join(dir, "cache"))
	all, err := filepath.Glob(filepath.Join(dist, "npm-*.tgz"))
	if err != nil || len(all) != 2 {
		t.Fatalf("%q (%v), want two packages", all, err)
	}
	install.Args = append(install.Args, all...)
	install.Dir, install.Env = dir, append(os.Environ(), "HOME="+dir)
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"private": true}`), 0o644); err != nil {
		t.Fatal(err)
	}
	runs(t, install)
	command := filepath.Join(dir, "node_modules/.bin/gatehouse")
	serves(t, exec.Command(command, "serve", "-d", dir))
	fails := exec.Command(command, "no-such-command")
	if err := fails.Run(); fails.ProcessState == nil || fails.ProcessState.ExitCode() != 2 {
		t.Errorf("a wrong command ends with %v, want exit code 2", err)
	}
}

// pip installs the wheel into a folder of its own, and the command runs.
func TestWheel(t *testing.T) {
	dist := released(t, newRelease)
	dir := t.TempDir()
	wheels, err := filepath.Glob(filepath.Join(dist, "*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("%q (%v), want one wheel", wheels, err)
	}
	pip := exec.Command(program(t, "python3"), "-m", "pip", "install", "--no-index", "--disable-pip-version-check",
		"--no-cache-dir",
		"--break-system-packages", "--prefix", dir, wheels[0])
	runs(t, pip)
	found, err := filepath.Glob(filepath.Join(dir, "*/bin/gatehouse"))
	if also, e := filepath.Glob(filepath.Join(dir, "bin/gatehouse")); e == nil {
		found = append(found, also...)
	}
	if err != nil || len(found) != 1 {
		t.Fatalf("installed are %q (%v), want one command", found, err)
	}
	serves(t, exec.Command(found[0], "serve", "-d", dir))
}

// The name in MCP's registry follows from the address.
func TestServerName(t *testing.T) {
	for address, want := range map[string]string{
		"github.com/me/gatehouse": "com.github/me-gatehouse",
		"tools.example.org":       "org.example.tools/gatehouse",
	} {
		if got := (&product.Release{Address: address}).ServerName(); got != want {
			t.Errorf("%s is named %s, want %s", address, got, want)
		}
	}
}
