package runtimes

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/blakesmith/ar"

	"gatehouse/release/archive"
)

func TestVersionsAreOrderedAsDebianOrdersThem(t *testing.T) {
	ordered := []string{
		"1.0~beta1~svn1245",
		"1.0~beta1",
		"1.0",
		"1.0-1",
		"1.0-1+b1",
		"1.0-1.1",
		"1.0-10",
		"1.0a",
		"1.0.2",
		"1.2",
		"1.10",
		"2.36-9+deb12u7",
		"2.36-9+deb12u10",
		"1:0.1",
		"1:2.47.3-0+deb13u1",
		"2:0",
	}
	for i, a := range ordered {
		for j, b := range ordered {
			if got, want := compareVersions(a, b), min(1, max(-1, i-j)); got != want {
				t.Errorf("%s against %s is %d, want %d", a, b, got, want)
			}
		}
	}
}

const index = `Package: git
Version: 1:2.0-1
Pre-Depends: libc6 (>= 2.38)
Depends: perl:any, awk, editor | nano, debconf (>= 0.5) | debconf-2.0
Filename: pool/main/g/git/git_2.0-1_amd64.deb
Size: 10
SHA256: aa

Package: libc6
Version: 2.41-12

Package: mawk
Version: 1.3
Provides: awk
Depends: libc6

Package: original-awk
Version: 1
Provides: awk

Package: nano
Version: 8
Description: an editor
 that is small: quite

Package: perl
Version: 5.40

Package: debconf
Version: 1.5
Depends: something-else
`

func TestDependenciesAreFollowed(t *testing.T) {
	all := map[string]debianPackage{}
	for _, p := range parseIndex(DebianBase+"/debian", index) {
		all[p.item.Name] = p
	}
	got, err := closure(all, []string{"git"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, it := range got {
		names = append(names, it.Name)
	}
	if want := []string{"git", "libc6", "mawk", "nano", "perl"}; !slices.Equal(names, want) {
		t.Errorf("it needs %v, want %v", names, want)
	}
	if want := "https://deb.debian.org/debian/pool/main/g/git/git_2.0-1_amd64.deb"; got[0].Address != want {
		t.Errorf("git is at %s, want %s", got[0].Address, want)
	}
	if _, err := closure(all, []string{"no-such-package"}); err == nil ||
		!strings.Contains(err.Error(), "no-such-package") {
		t.Errorf("a package that is not there: %v", err)
	}
}

// deb returns a package of Debian.
func deb(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := ar.NewWriter(&out)
	add := func(name string, body []byte) {
		if err := w.WriteHeader(&ar.Header{Name: name, Size: int64(len(body)), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.WriteGlobalHeader(); err != nil {
		t.Fatal(err)
	}
	add("debian-binary", []byte("2.0\n"))
	add("control.tar.gz",
		packed(t, tar.Header{Name: "./control", Typeflag: tar.TypeReg}, tar.Header{Name: "./postinst"}))
	add("data.tar.gz", packed(t, entries...))
	return out.Bytes()
}

// packed returns a compressed tar archive of files that hold their own names.
func packed(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, h := range entries {
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			io.WriteString(w, h.Name)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestAPackageIsUnpacked(t *testing.T) {
	tr := newTree()
	err := tr.unpack(Item{Kind: Deb, Name: "x"}, deb(t,
		tar.Header{Name: "./", Typeflag: tar.TypeDir},
		tar.Header{Name: "./bin/", Typeflag: tar.TypeDir},
		tar.Header{Name: "./bin/x", Mode: 0o4755},
		tar.Header{Name: "./bin/y", Typeflag: tar.TypeLink, Linkname: "./bin/x"},
		tar.Header{Name: "./usr/bin/mawk", Mode: 0o755},
		tar.Header{Name: "./usr/bin/z", Typeflag: tar.TypeSymlink, Linkname: "x"},
		tar.Header{Name: "./usr/share/doc/x/copyright"},
		tar.Header{Name: "./usr/share/doc/x/changelog.gz"},
		tar.Header{Name: "./usr/share/man/man1/x.1.gz"},
	))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]archive.File{}
	for _, f := range tr.files() {
		got[f.Name] = f
	}
	for name, want := range map[string]archive.File{
		"bin":                       {Link: "usr/bin"},
		"usr/bin/x":                 {Mode: 0o755, Body: []byte("./bin/x")},
		"usr/bin/y":                 {Mode: 0o755, Body: []byte("./bin/x")},
		"usr/bin/z":                 {Link: "x"},
		"usr/bin/mawk":              {Mode: 0o755, Body: []byte("./usr/bin/mawk")},
		"usr/bin/awk":               {Link: "mawk"},
		"usr/share/doc/x/copyright": {Body: []byte("./usr/share/doc/x/copyright")},
		"var/lib/dpkg/status.d/x":   {Mode: 0o644, Body: []byte("./control")},
	} {
		f, ok := got[name]
		if !ok || f.Link != want.Link || f.Mode != want.Mode || !bytes.Equal(f.Body, want.Body) {
			t.Errorf("%s is %v %v %q (%v)", name, f.Mode, f.Link, f.Body, ok)
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("there is %s too", name)
	}
}

func TestHostilePackagesAreRefused(t *testing.T) {
	for what, b := range map[string][]byte{
		"a way out":    deb(t, tar.Header{Name: "../../etc/passwd"}),
		"a way inside": deb(t, tar.Header{Name: "./usr/../../x"}),
		"a device":     deb(t, tar.Header{Name: "./dev/sda", Typeflag: tar.TypeBlock}),
		"a link out":   deb(t, tar.Header{Name: "./x", Typeflag: tar.TypeLink, Linkname: "../x"}),
		"no archive":   []byte("no archive"),
		"nothing":      nil,
		"a cut one":    deb(t, tar.Header{Name: "./x"})[:200],
	} {
		if err := newTree().unpack(Item{Kind: Deb, Name: "x"}, b); err == nil {
			t.Errorf("%s is accepted", what)
		}
	}
	if err := newTree().unpack(Item{Kind: NPM}, packed(t, tar.Header{Name: "package/../../x"})); err == nil {
		t.Error("a package of npm that leads out is accepted")
	}
}

// The first address that has the bytes counts; other bytes are never taken, and nothing of them is kept.
func TestOnlyTheLockedBytesAreTaken(t *testing.T) {
	body := "right"
	requests := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		io.WriteString(w, body)
	}))
	defer s.Close()
	cache := t.TempDir()
	l := &Lock{}
	it := Item{Kind: NPM, Name: "x", Address: s.URL + "/x", SHA256: digest([]byte("right")), Size: 5}
	for range 2 {
		if b, err := l.Fetch(t.Context(), it, cache); err != nil || string(b) != "right" {
			t.Fatalf("%q, %v", b, err)
		}
	}
	if requests != 1 {
		t.Errorf("%d requests, want one", requests)
	}
	if err := os.WriteFile(filepath.Join(cache, it.SHA256), []byte("spoilt"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, body = range []string{"wrong", "right and more"} {
		if b, err := l.Fetch(t.Context(), it, cache); err == nil {
			t.Errorf("%q is taken", b)
		}
	}
	t.Setenv(MirrorVariable, s.URL+"/debian")
	deb := Item{Kind: Deb, Address: DebianBase + "/debian-security/pool/x.deb"}
	if got := l.addresses(deb, os.Getenv(MirrorVariable)); got[0] != s.URL+"/debian-security/pool/x.deb" ||
		len(got) != 3 {
		t.Errorf("it is looked for at %v", got)
	}
}

func TestTheLockFileIsWhole(t *testing.T) {
	l, err := ReadLock()
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		names := map[string]bool{}
		for _, it := range l.Items[arch] {
			names[it.Name] = true
			if !strings.HasPrefix(it.Address, "https://") || len(it.SHA256) != 64 || it.Size <= 0 || it.Version == "" {
				t.Errorf("%s: %+v", arch, it)
			}
		}
		for _, name := range []string{"python3", "git", "dash", "npm", "uv", "libc6"} {
			if !names[name] {
				t.Errorf("%s has no %s", arch, name)
			}
		}
	}
}
