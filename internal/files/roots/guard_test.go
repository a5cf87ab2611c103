package roots

import (
	"errors"
	"testing"

	"gatehouse/tool"
)

func TestProtectedNames(t *testing.T) {
	g, err := NewGuard(Protected())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{ // what is refused
		".env": "rw", "a/b/.env": "rw", ".env.local": "rw", ".ENV": "rw", ".env.example": "", "x.env": "", "env": "",
		".env/lib/python": "", // an environment of Python
		"k.pem":           "rw", "certs/K.PEM": "rw", "id_rsa": "rw", "id_rsa.pub": "", ".ssh/config": "rw",
		".ssh":             "rw",
		".ssh/known_hosts": "", ".ssh/id_ed25519.pub": "", "x.ssh/config": "", ".aws/credentials": "rw",
		"credentials": "",
		".git":        "w", ".git/config": "w", "sub/.git/hooks/pre-commit": "w", ".gitignore": "",
		".github/workflows/x": "",
		"a.git/x":             "",
		".":                   "",
	} {
		got := ""
		if g.Refuses(name, false) {
			got = "r"
		}
		if g.Refuses(name, true) {
			got += "w"
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestGuardPatterns(t *testing.T) {
	for _, bad := range []string{"", "!", "a//b", "[", "*[", "a/**/b", "write:"} {
		if _, err := NewGuard([]string{bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if g, err := NewGuard(nil); g != nil || err != nil || g.Refuses(".env", true) {
		t.Errorf("no patterns: %v, %v", g, err)
	}
	g, err := NewGuard(
		[]string{
			"**/secret/**",
			"!secret/open/**",
			"secret/open/not",
			"*.tail",
			"a?c",
			"[xy]*.z",
			"m*n",
			`back\*slash`,
			"dir/*",
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"secret/x": true, "a/secret": true, "secret/open/x": false,
		"secret/open/not": true, "a/secrets/x": false,
		".tail": true, "x.tail": true, "x.tails": false, "abc": true, "ac": false, "xz.z": true, "z.z": false,
		"mon": true, "mo": false,
		"back*slash": true, "backslash": false, "dir/x": true, "dir": false} {
		if g.Refuses(name, false) != want {
			t.Errorf("%s: got %t", name, !want)
		}
	}
}

// A link does not lend a protected file another name.
func TestGuardSeesThroughLinks(t *testing.T) {
	dir := t.TempDir()
	write(t, "secret", dir, ".env")
	write(t, "secret", dir, ".ssh/config")
	write(t, "fine", dir, ".git/config")
	link(t, ".env", dir, "plain")
	link(t, dir+"/.env", dir, "absolute")
	link(t, ".ssh", dir, "keys")
	link(t, ".git", dir, "repo")
	link(t, "../../.ssh", dir, "a/b/keys")
	link(t, "../../../.env", dir, "a/b/c/plain")
	write(t, "deep", dir, "a/b/c/d/file")
	link(t, "b", dir, "a/other")
	s := open(t, dir)
	for path, want := range map[string]string{
		".env": "!denied", "x/../.env": "!denied", "plain": "!denied", "absolute": "!denied", "keys/config": "!denied",
		".git/config": "fine", "repo/config": "fine",
		"a/b/keys/config": "!denied", "a/b/c/plain": "!denied", "a/other/keys/config": "!denied",
		"a/b/c/d/.env": "!denied",
		"a/b/c/d/file": "deep", "a/other/c/d/file": "deep", "a/b/c/d/none": "!not_found",
		"a/b/none/d/file": "!not_found",
	} {
		if got := content(t, s, path); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
	for _, path := range []string{"repo/config", ".git/hooks/new", "plain"} {
		p, err := Locate(s, path)
		if err != nil {
			t.Fatal(err)
		}
		if r, ok := errors.AsType[*tool.Refusal](p.MayWrite()); !ok || r.Code != "denied" {
			t.Errorf("writing %s: %v", path, r)
		}
		if err := p.Guarded(nil).MayWrite(); err != nil {
			t.Errorf("without a guard: %v", err)
		}
	}
	p, _ := Locate(s, ".")
	if !p.Refuses(".ssh/config") || p.Refuses("plain") {
		t.Error("what lies below is judged by other names")
	}
	if _, err := Open([]Dir{{Path: dir}}, Options{Protect: []string{"["}}); err == nil {
		t.Error("a broken pattern is taken")
	}
	free, err := Open([]Dir{{Path: dir}}, Options{Protect: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	defer free.Close()
	if got := content(t, free, ".env"); got != "secret" {
		t.Errorf("unprotected: %s", got)
	}
}
