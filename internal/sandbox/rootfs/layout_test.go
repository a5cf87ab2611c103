//go:build linux

package rootfs

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
)

// laid out is an image of these files and links.
func laidOut(t *testing.T, files, links map[string]string) sandbox.Image {
	t.Helper()
	root := t.TempDir()
	for at, says := range files {
		at = filepath.Join(root, at)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(says), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for at, to := range links {
		at = filepath.Join(root, at)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, at); err != nil {
			t.Fatal(err)
		}
	}
	return sandbox.Image{ID: "one", Root: root}
}

func text(l Layout, at string) string {
	for _, t := range l.Files {
		if t.Path == at {
			return t.Content
		}
	}
	return "none"
}

func TestAnImageIsShownByItsFoldersButForOurs(t *testing.T) {
	im := laidOut(t, map[string]string{
		"usr/bin/sh": "", "etc/motd": "", "etc/hosts": "", "etc/ssl/one": "", "home/user/x": "", "home/two/x": "",
		"var/tmp/x": "", "var/lib/x": "",
		"dev/null": "", "proc/x": "", "run/x": "", "tmp/x": "", "sys/x": "", "init": "",
	}, map[string]string{"bin": "usr/bin", "lib": "../../host", "var/run": "/run"})
	layout, err := Of(sandbox.Spec{Image: &im})
	if err != nil {
		t.Fatal(err)
	}
	var trees []string
	for _, tree := range layout.Trees {
		if tree.From != filepath.Join(im.Root, tree.To) {
			t.Errorf("%+v", tree)
		}
		trees = append(trees, tree.To)
	}
	slices.Sort(trees)
	if want := []string{"/etc/motd", "/etc/ssl", "/home/two", "/init", "/usr", "/var/lib"}; !slices.Equal(trees, want) {
		t.Errorf("%q, want %q", trees, want)
	}
	for _, want := range []agentprotocol.TextFile{{Path: "/bin", Content: "usr/bin"},
		{Path: "/lib", Content: "../../host"}, {Path: "/var/run", Content: "/run"}} {
		if !slices.Contains(layout.Links, want) {
			t.Errorf("%+v is not in %+v", want, layout.Links)
		}
	}
	if got := text(layout, "/etc/passwd"); !strings.Contains(got, "user:x:1000:") || !strings.Contains(got, "nobody:") {
		t.Errorf("an image without users has %q", got)
	}
}

// A list of users is only read when it is one, and never by way of a link that
// leads out.
func TestAnImagesUsersComeAfterOurs(t *testing.T) {
	out := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(out, []byte("host:x:0:0::/:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const own = "a:x:1000:1000::/a:/bin/a\n"
	for name, c := range map[string]struct {
		im    sandbox.Image
		first bool // ours comes before the image's
	}{
		"a file": {laidOut(t, map[string]string{"etc/passwd": own}, nil), true},
		"a link inside": {laidOut(t, map[string]string{"usr/passwd": own},
			map[string]string{"etc/passwd": "../usr/passwd"}), true},
		"a link outside": {laidOut(t, nil, map[string]string{"etc/passwd": out}), false},
		"links above":    {laidOut(t, nil, map[string]string{"etc": filepath.Dir(out)}), false},
		"an endless one": {laidOut(t, map[string]string{"etc/passwd": strings.Repeat(own, 1000)}, nil), false},
		"a folder":       {laidOut(t, map[string]string{"etc/passwd/x": own}, nil), false},
	} {
		layout, err := Of(sandbox.Spec{Image: &c.im})
		if err != nil && !strings.Contains(err.Error(), "empty") {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := text(layout, "/etc/passwd")
		if err == nil &&
			(!strings.HasPrefix(got, "user:x:1000:1000:") && c.first || strings.HasSuffix(got, own) != c.first ||
				strings.Contains(got, "host")) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestAnImagesEnvironmentLeavesOutWhatIsOurs(t *testing.T) {
	im := laidOut(t, map[string]string{"init": ""}, nil)
	im.Env = []string{"PATH=/x", "HOME=/root", "USER=root", "http_proxy=http://6.6.6.6", "HTTPS_PROXY=x", "LANG=C"}
	layout, err := Of(sandbox.Spec{Image: &im})
	if want := []string{"PATH=/x", "LANG=C"}; err != nil || !slices.Equal(layout.Env, want) {
		t.Errorf("%q, %v, want %q", layout.Env, err, want)
	}
}

func TestAnImageThatCannotBeShownIsRefused(t *testing.T) {
	many := map[string]string{}
	for i := range 3000 {
		many["etc/"+strconv.Itoa(i)] = ""
	}
	im := laidOut(t, many, nil)
	if _, err := Of(sandbox.Spec{Image: &im}); err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("3,000 files in etc: %v", err)
	}
}

func TestTreesDoNotFollowLinksOnTheirWay(t *testing.T) {
	im := laidOut(t, map[string]string{"usr/lib/x": "", "opt/here/x": ""},
		map[string]string{"lib": "usr/lib", "usr/away": "/home"})
	for to, ok := range map[string]bool{
		"/data": true, "/usr": true, "/usr/lib": true, "/opt/here": true, "/etc/new/deep": true,
		"/lib": false, "/lib/x": false, "/usr/away": false, "/usr/away/x": false, "/usr/new": false,
		"/usr/../lib/x": false,
	} {
		_, err := Of(sandbox.Spec{Image: &im, Trees: []sandbox.Tree{{From: "/usr", To: to}}})
		if (err == nil) != ok {
			t.Errorf("%s: %v", to, err)
		}
	}
	layout, err := Of(sandbox.Spec{Trees: []sandbox.Tree{{From: "/usr"}}})
	if err != nil || layout.Trees[len(layout.Trees)-1].To != "/usr" {
		t.Errorf("%+v, %v", layout.Trees, err)
	}
}
