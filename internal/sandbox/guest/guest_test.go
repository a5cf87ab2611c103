//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"gatehouse/internal/sandbox"
)

// packed is a kernel for boot loaders with this packed in it.
func packed(version string, payload []byte) []byte {
	b := make([]byte, 1024)
	b[setupSects] = 1
	copy(b[setupMagic:], "HdrS")
	binary.LittleEndian.PutUint16(b[setupVersion:], 0x180)
	copy(b[0x180+setupSector:], version+" (somebody@somewhere) #1\x00")
	binary.LittleEndian.PutUint32(b[payloadAt+4:], uint32(len(payload)+4))
	return append(append(b, payload...), 0, 0, 0, 0)
}

func put(t *testing.T, path string, b []byte) string {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, b, 0o644)); err != nil {
		t.Fatal(err)
	}
	return path
}

// plainGuest is a guest of a kernel that is none.
func plainGuest(t *testing.T) *Cache {
	t.Helper()
	g, err := New(Options{
		Kernel: put(t, filepath.Join(t.TempDir(), "vmlinux"), []byte("\x7fELF Linux version 6.1.2-x (gcc)")),
		Folder: t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestAKernelSaysWhichItIs(t *testing.T) {
	for name, c := range map[string]struct {
		b    []byte
		want string
	}{
		"for boot loaders":    {packed("6.1.0-48-cloud-amd64", nil), "6.1.0-48-cloud-amd64"},
		"plain":               {[]byte("\x7fELF...Linux version %s...Linux version 6.18.44 (gcc)"), "6.18.44"},
		"something else":      {[]byte("#!/bin/sh"), ""},
		"one that leads away": {packed("../../etc", nil), ""},
	} {
		if got := version(c.b); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	names := []string{"/boot/vmlinuz-6.1.0-9-amd64", "/boot/vmlinuz-6.1.0-48-amd64",
		"/boot/vmlinuz-5.10.0-1-cloud-amd64"}
	slices.SortFunc(names, newerFirst)
	if want := []string{"/boot/vmlinuz-5.10.0-1-cloud-amd64", "/boot/vmlinuz-6.1.0-48-amd64",
		"/boot/vmlinuz-6.1.0-9-amd64"}; !slices.Equal(names, want) {
		t.Errorf("%q", names)
	}
}

func TestModulesAreFoundBesideAnUnpackedKernel(t *testing.T) {
	dir := t.TempDir()
	path := put(t, filepath.Join(dir, "boot", "vmlinuz"), packed("6.1.0-x", nil))
	modules := filepath.Join(dir, "lib", "modules", "6.1.0-x")
	if err := os.MkdirAll(modules, 0o755); err != nil {
		t.Fatal(err)
	}
	k, err := FindKernel(path, "")
	if err != nil || k.Modules != modules || k.ELF {
		t.Errorf("%+v, %v", k, err)
	}
	if _, err := k.modules(t.Context()); err == nil || !strings.Contains(err.Error(), "virtio_blk") {
		t.Errorf("a kernel without the modules it needs: %v", err)
	}
}

func TestAKernelIsUnpackedOnce(t *testing.T) {
	inside := append([]byte("\x7fELF"), bytes.Repeat([]byte("kernel "), 1000)...)
	for _, tool := range []string{"gzip", "zstd", "xz"} {
		cmd := exec.Command(tool, "-c")
		cmd.Stdin = bytes.NewReader(inside)
		out, err := cmd.Output()
		if err != nil {
			t.Logf("there is no %s here", tool)
			continue
		}
		g, err := New(Options{
			Kernel: put(t, filepath.Join(t.TempDir(), "vmlinuz"), packed("6.1.0", out)),
			Folder: t.TempDir(),
		})
		if err != nil {
			t.Fatal(err)
		}
		path, err := g.Vmlinux(t.Context())
		b, _ := os.ReadFile(path)
		if err != nil || !bytes.Equal(b, inside) {
			t.Errorf("%s: %v, %d bytes", tool, err, len(b))
		}
		if again, err := g.Vmlinux(t.Context()); again != path || err != nil {
			t.Errorf("%s: again %q, %v", tool, again, err)
		}
	}
}

func FuzzPayload(f *testing.F) {
	f.Add(packed("6.1.0", []byte("\x1f\x8b")))
	f.Add([]byte("HdrS"))
	f.Fuzz(func(t *testing.T, b []byte) {
		version(b)
		if p, err := payload(b); err == nil && len(p) > len(b) {
			t.Errorf("%d bytes of %d", len(p), len(b))
		}
	})
}

func TestWhatIsMadeIsMadeOnceForAll(t *testing.T) {
	g := plainGuest(t)
	var times atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			path, err := g.pin(t.Context(), "thing", "key", func(path string) error {
				times.Add(1)
				return os.WriteFile(path, []byte("whole"), 0o600)
			})
			if b, _ := os.ReadFile(path); err != nil || string(b) != "whole" {
				t.Errorf("%q, %v", b, err)
			}
		})
	}
	all.Wait()
	if n := times.Load(); n != 1 {
		t.Errorf("it was made %d times", n)
	}
	broken := errors.New("no room")
	if _, err := g.cached(t.Context(), "thing", "other", func(path string) error {
		return errors.Join(os.WriteFile(path, []byte("ha"), 0o600), broken)
	}); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(g.folder); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// unpackCpio reads names and bodies back.
func unpackCpio(t *testing.T, b []byte) map[string]string {
	t.Helper()
	all := map[string]string{}
	for {
		number := func(i int) int {
			n, err := strconv.ParseUint(string(b[6+8*i:14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
		if string(b[:6]) != "070701" {
			t.Fatalf("%q", b[:6])
		}
		size, length := number(6), number(11)
		name := string(b[110 : 110+length-1])
		if name == "TRAILER!!!" {
			return all
		}
		begin := (110 + length + 3) &^ 3
		all[name] = string(b[begin : begin+size])
		b = b[(begin+size+3)&^3:]
	}
}

func TestTheInitrdHoldsTheAgentAndItsModulesInOrder(t *testing.T) {
	var out bytes.Buffer
	groups := map[string][]module{"base": {{name: "virtio", program: []byte("one")},
		{name: "virtio_blk", program: []byte("three")}}}
	if err := writeInitrd(&out, []byte("the agent"), groups); err != nil {
		t.Fatal(err)
	}
	got := unpackCpio(t, out.Bytes())
	for name, want := range map[string]string{
		"init":                          "the agent",
		"modules/base/00-virtio.ko":     "one",
		"modules/base/01-virtio_blk.ko": "three",
		"dev/console":                   "",
	} {
		if body, ok := got[name]; !ok || body != want {
			t.Errorf("%s: %q, %v", name, body, ok)
		}
	}
}

func TestTheHostsProgramsComeWithWhatTheyNeed(t *testing.T) {
	s := newSelection(func(what string, about ...any) { t.Log(what, about) })
	s.addPath(lookUp("sh"))
	s.addPath("/no/such/thing")
	tree := filepath.Join(t.TempDir(), "tree")
	if err := s.writeTree(tree); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("to run it there one has to be root")
	}
	if out, err := exec.Command("chroot", tree, "/bin/sh", "-c", "echo it runs").CombinedOutput(); err != nil ||
		string(out) != "it runs\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestAFolderBecomesAFileSystem(t *testing.T) {
	if _, err := findTool("mke2fs"); err != nil {
		t.Skip(err)
	}
	g := plainGuest(t)
	dir := t.TempDir()
	put(t, filepath.Join(dir, "deep", "file"), []byte("hello"))
	d, err := g.Tree(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := OpenDisk(d.Path); err != nil || got.Path != d.Path || got.Type != d.Type {
		t.Errorf("%+v, %v, want %+v", got, err, d)
	}
	if again, err := g.Tree(t.Context(), dir); err != nil || again.Path != d.Path {
		t.Errorf("unchanged it is %+v, %v", again, err)
	}
	put(t, filepath.Join(dir, "deep", "file"), []byte("changed"))
	if other, err := g.Tree(t.Context(), dir); err != nil || other.Path == d.Path {
		t.Errorf("changed it is %+v, %v", other, err)
	}
	image, err := g.Root(t.Context(), &sandbox.Image{ID: "one", Root: dir})
	if err != nil || image.Type != "ext4" {
		t.Errorf("%+v, %v", image, err)
	}
	if check, err := findTool("e2fsck"); err == nil {
		if out, err := exec.Command(check, "-fn", image.Path).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Root(ctx, &sandbox.Image{ID: "two", Root: dir}); err == nil {
		t.Error("it was made for nobody")
	}
}

func TestKernelsAreToldWhereTheirDisksAre(t *testing.T) {
	b := Boot{
		Root:     Disk{Path: "/r", Type: "squashfs"},
		Trees:    []Tree{{Disk{Path: "/t", Type: "ext4"}, "/data/set"}},
		Emulated: 2596122,
	}
	line, err := b.Arguments()
	if err != nil ||
		!strings.Contains(line,
			"gatehouse.channel=serial gatehouse.root=vda:squashfs gatehouse.tree=vdb:ext4:/data/set") {
		t.Errorf("%q, %v", line, err)
	}
	for _, at := range []string{"relative", "/with a blank", "/" + strings.Repeat("x", 3000)} {
		b.Trees[0].At = at
		if _, err := b.Arguments(); err == nil {
			t.Errorf("a tree at %.20q was taken", at)
		}
	}
	b.Trees = make([]Tree, mostTrees+1)
	if _, err := b.Arguments(); err == nil || !strings.Contains(err.Error(), fmt.Sprint(mostTrees)) {
		t.Errorf("%v", err)
	}
}

func TestAFileWithoutANameIsBesideWhatIsMade(t *testing.T) {
	g := plainGuest(t)
	f, err := g.Unnamed()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("kept"); err != nil || filepath.Dir(f.Name()) != g.folder {
		t.Errorf("%s, %v", f.Name(), err)
	}
	if left, err := os.ReadDir(g.folder); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}
