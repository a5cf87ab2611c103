package image

import (
	"strings"
	"testing"
)

func TestReferencesAreRead(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	for text, want := range map[string]Ref{
		"dir:/srv/image":                   {Kind: Folder, Path: "/srv/image"},
		"dir:/srv/im:age":                  {Kind: Folder, Path: "/srv/im:age"},
		"dir:/":                            {Kind: Folder, Path: "/"},
		"oci:/srv/layout":                  {Kind: Layout, Path: "/srv/layout"},
		"oci:/srv/layout:v1.2-x":           {Kind: Layout, Path: "/srv/layout", Tag: "v1.2-x"},
		"oci:/srv/a:b/layout":              {Kind: Layout, Path: "/srv/a:b/layout"},
		"tar:/srv/image.tar:latest":        {Kind: Archive, Path: "/srv/image.tar", Tag: "latest"},
		"host.test/name:1":                 {Kind: Registry, Host: "host.test", Tag: "1"},
		"host.test:5000/a/b/c:1":           {Kind: Registry, Host: "host.test:5000", Tag: "1"},
		"localhost/name:1":                 {Kind: Registry, Host: "localhost", Tag: "1"},
		"dir:5000/name:1":                  {},
		"127.0.0.1:5000/name@" + digest:    {Kind: Registry, Host: "127.0.0.1:5000", Digest: digest},
		"127.0.0.1:5000/name:v2@" + digest: {Kind: Registry, Host: "127.0.0.1:5000", Tag: "v2", Digest: digest},
		"":                                 {},
		"name":                             {},
		"name:1":                           {},
		"library/name:1":                   {},
		"host.test/name":                   {},
		"host.test/Name:1":                 {},
		"host.test/name:":                  {},
		"host.test/name@sha256:12":         {},
		"host.test/name@md5:" + digest[7:]: {},
		"https://host.test/name:1":         {},
		"host.test/../name:1":              {},
		"user@host.test/name:1":            {},
		"host.test/name:1 ":                {},
		"host.test/na\x00me:1":             {},
		"host.test/na\nme:1":               {},
		"dir:":                             {},
		"dir:srv":                          {},
		"dir:/srv/../etc":                  {},
		"dir:/srv/":                        {},
		"dir:/srv//x":                      {},
		"dir:/srv/\xff":                    {},
		"oci:/srv/layout:":                 {},
		"oci:/srv/layout:-x":               {},
		"oci:/srv/layout:" + digest:        {Kind: Layout, Path: "/srv/layout:sha256", Tag: digest[7:]},
		"tar:image.tar":                    {},
		"file:/srv/image":                  {},
		strings.Repeat("x", longestRef+1):  {},
		"host.test/" + strings.Repeat("a/", 300) + "x:1": {},
	} {
		got, err := ParseRef(text)
		if want.Kind == "" {
			if err == nil {
				t.Errorf("%.100q was read as %+v", text, got)
			}
			continue
		}
		if err != nil || got.Kind != want.Kind || got.Path != want.Path || got.Tag != want.Tag ||
			got.Host != want.Host || got.Digest != want.Digest || got.String() != text {
			t.Errorf("%q: got %+v, %v, want %+v", text, got, err, want)
		}
		if got.Kind.Local() != (got.Path != "") {
			t.Errorf("%q: local is %v", text, got.Kind.Local())
		}
	}
}

func FuzzParseRef(f *testing.F) {
	for _, s := range []string{"dir:/a", "oci:/a:b", "tar:/a/b.tar",
		"host.test:1/a/b:c@sha256:" + strings.Repeat("0", 64), "localhost/x:1", "::", "a/@:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRef(text)
		if err != nil {
			return
		}
		again, err := ParseRef(r.String())
		if err != nil || again.Kind != r.Kind || again.Path != r.Path || again.Host != r.Host ||
			again.Tag != r.Tag || again.Digest != r.Digest {
			t.Errorf("%q is %+v, and then %+v, %v", text, r, again, err)
		}
		if r.Kind.Local() && (!strings.HasPrefix(r.Path, "/") || strings.Contains(r.Path, "/../")) {
			t.Errorf("%q has the path %q", text, r.Path)
		}
		if !r.Kind.Local() && (r.Host == "" || r.Tag == "" && r.Digest == "") {
			t.Errorf("%q is in no registry or names no version: %+v", text, r)
		}
	})
}
