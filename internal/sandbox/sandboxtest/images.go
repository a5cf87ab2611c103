package sandboxtest

import (
	"debug/elf"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
)

// libraryFolders are where systems keep the libraries of programs.
var libraryFolders = []string{"/lib", "/usr/lib", "/lib64", "/usr/lib64", "/lib/x86_64-linux-gnu",
	"/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"}

// buildImage makes a small system in a folder that is closed to other users: a shell, a few programs of the host
// with their libraries, and links that must lead nowhere.
func (s suite) buildImage(t *testing.T) string {
	t.Helper()
	outer := filepath.Join(t.TempDir(), "private")
	root := filepath.Join(outer, "root")
	for _, dir := range []string{"usr/bin", "etc/deep", "opt/tool", "var/lib/data", "home/other", "tmp",
		"srv", "root"} {
		mkdir(t, filepath.Join(root, dir))
	}
	for at, to := range map[string]string{
		"bin": "usr/bin", "usr/bin/toolink": "/opt/tool/says", "outside": "../../../../../../../../etc",
		"etc/aslink": "deep/file", "var/run": "/run", "tmp/seen": "/",
	} {
		if err := os.Symlink(to, filepath.Join(root, at)); err != nil {
			t.Fatal(err)
		}
	}
	for at, says := range map[string]string{
		"opt/tool/says": "#!/bin/sh\necho from the image\n", "etc/os-release": "ID=tiny\n",
		"etc/deep/file": "deep\n", "etc/hosts": "6.6.6.6 nowhere\n",
		"etc/passwd": "root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n" +
			"third:x:1002:1002::/:/bin/sh\n",
		"etc/group":         "root:x:0:\nthird:x:1002:\n",
		"var/lib/data/file": "data\n", "home/other/file": "other\n", "top": "a file in /\n",
		"usr/bin/noloader": "#!/no/such/interpreter\n",
	} {
		if err := os.WriteFile(filepath.Join(root, at), []byte(says), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "usr/bin/probe"), s.probe, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"sh", "cat", "ls", "id", "touch", "head", "sleep"} {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Skip(err)
		}
		copyIn(t, path, filepath.Join(root, "usr/bin", program))
		copyLibraries(t, root, path)
	}
	if err := os.Chmod(outer, 0o700); err != nil {
		t.Fatal(err)
	}
	return root
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func copyIn(t *testing.T, from, to string) {
	t.Helper()
	mkdir(t, filepath.Dir(to))
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}
}

// copyLibraries copies the libraries and the loader of a program to the places that they have on the host.
func copyLibraries(t *testing.T, root, program string) {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Skipf("%s: %v", program, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b, err := io.ReadAll(p.Open())
			if err != nil {
				t.Fatal(err)
			}
			loader := strings.TrimRight(string(b), "\x00")
			copyIn(t, loader, filepath.Join(root, loader))
		}
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, library := range needed {
		for _, dir := range libraryFolders {
			at := filepath.Join(dir, library)
			if _, err := os.Stat(at); err != nil {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, at)); err != nil {
				copyIn(t, at, filepath.Join(root, at))
				copyLibraries(t, root, at)
			}
			break
		}
	}
}

// offersImages skips the group if the driver shows the host whatever image is requested.
func (s suite) offersImages(t *testing.T) {
	t.Helper()
	if s.noWall() {
		s.notOffered(t, "images")
	}
}

// images checks sandboxes with a system other than the host's.
func (s suite) images(t *testing.T) {
	s.offersImages(t)
	root := s.buildImage(t)
	spec := sandbox.Spec{
		Image: &sandbox.Image{
			ID:   "tiny",
			Root: root,
			Env:  []string{"PATH=/opt/tool:/usr/bin:/bin", "WHICH=image", "FROM=image", "HOME=/root"},
		},
		Env: []string{"WHICH=spec"},
	}
	b := s.box(t, spec)
	for _, c := range []struct{ name, script, want string }{
		{"its programs run", "/usr/bin/probe >/dev/null 2>&1; says; toolink", "from the image\nfrom the image\n"},
		{"its files are there", "cat /etc/os-release /etc/aslink /var/lib/data/file /home/other/file /top",
			"ID=tiny\ndeep\ndata\nother\na file in /\n"},
		{"its links stay links",
			"ls -ld /bin | head -c 1; ls -ld /outside | head -c 1; [ /bin/sh -ef /usr/bin/sh ] && echo same",
			"llsame\n"},
		{"a link that leads out stays inside", "cat /outside/os-release", "ID=tiny\n"},
		{"its environment lies below what is asked for", "echo $WHICH $FROM $HOME; pwd",
			"spec image /home/user\n/home/user\n"},
		{"the home folder can be written to",
			"echo mine >/home/user/file && cat ~/file; echo mine >/tmp/file && cat /tmp/file; touch /var/tmp/file",
			"mine\nmine\n"},
		{"its own folders for that are not seen", "ls -A /tmp/seen 2>/dev/null; ls -A /run", ""},
		{"nothing of it can be written to",
			"for f in /new /etc/new /opt/tool/new /usr/bin/new /var/lib/new /home/new; do touch $f 2>/dev/null && " +
				"echo $f; done; (echo more >>/etc/os-release) 2>/dev/null && echo changed; cat /etc/os-release",
			"ID=tiny\n"},
		{"names of the machine are ours", "cat /etc/hosts | head -c 9; cat /etc/hostname", "127.0.0.1sandbox\n"},
		{"its users are there after ours", "cat /etc/passwd /etc/group",
			"user:x:1000:1000:user:/home/user:/bin/sh\nroot:x:0:0::/root:/bin/sh\n" +
				"node:x:1000:1000::/home/node:/bin/sh\nthird:x:1002:1002::/:/bin/sh\nuser:x:1000:\nroot:x:0:\n" +
				"third:x:1002:\n"},
		{"the host's programs are not there", "ls /usr/bin/python3 /usr/bin/env /bin/bash 2>/dev/null", ""},
	} {
		if r := shell(t, b, c.script); r.stdout != c.want {
			t.Errorf("%s: %+v, %v: %q, want %q: %s", c.name, r.Result, r.err, r.stdout, c.want, r.stderr)
		}
	}
	alive(t, b)
	s.missing(t, b)
	if a, ok := b.(sandbox.Adjustable); ok {
		if err := a.Adjust(t.Context(), sandbox.Limits{}, []string{"WHICH=later"}); err != nil {
			t.Fatal(err)
		}
		if r := shell(t, b, "echo $WHICH $FROM; says"); r.stdout != "later image\nfrom the image\n" {
			t.Errorf("after it was made another one: %q %q", r.stdout, r.stderr)
		}
	}
	s.badImages(t)
	s.treesInImages(t, root)
	s.writableRoot(t, root)
	if left, err := os.ReadDir(filepath.Join(root, "tmp")); err != nil || len(left) != 1 {
		t.Errorf("the image has changed: %v, %v", left, err)
	}
}

// missing checks what is reported about programs that an image does not have.
func (s suite) missing(t *testing.T, b sandbox.Sandbox) {
	t.Helper()
	for program, want := range map[string]string{
		"python3":          "program python3 does not exist",
		"/usr/bin/python3": "/usr/bin/python3",
		"noloader":         "interpreter",
	} {
		_, err := b.Exec(t.Context(), sandbox.Command{Argv: []string{program}})
		if err == nil || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it to tell of %q", program, err, want)
		}
	}
}

// badImages checks that images which cannot be used are refused before anything runs.
func (s suite) badImages(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, root := range map[string]string{
		"missing":  file + "-not",
		"a file":   file,
		"relative": "etc",
		"empty":    t.TempDir(),
	} {
		b, err := s.driver.Create(t.Context(), sandbox.Spec{Image: &sandbox.Image{ID: "of-" + name, Root: root}})
		if err == nil {
			b.Close()
			t.Errorf("%s: a sandbox was made", name)
		} else if !strings.Contains(err.Error(), "image of-"+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// treesInImages checks that folders of the host are shown where the image has a place for them, and that links in
// the image do not redirect them.
func (s suite) treesInImages(t *testing.T, root string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "shown"), []byte("shown\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	target := t.TempDir()
	other := filepath.Join(t.TempDir(), "other")
	mkdir(t, filepath.Join(other, "usr"))
	if err := os.Symlink(target, filepath.Join(other, "usr", "trap")); err != nil {
		t.Fatal(err)
	}
	show := func(image, to string) (sandbox.Sandbox, error) {
		return s.driver.Create(t.Context(), sandbox.Spec{
			Image: &sandbox.Image{ID: "tiny", Root: image},
			Trees: []sandbox.Tree{{From: dir, To: to}},
		})
	}
	for _, to := range []string{"/data/set", "/srv"} {
		b, err := show(root, to)
		if err != nil {
			t.Errorf("%s: %v", to, err)
			continue
		}
		if r := shell(t, b, "cat "+to+"/shown"); r.stdout != "shown\n" {
			t.Errorf("%s: %+v, %v: %q", to, r.Result, r.err, r.stderr)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	for to, image := range map[string]string{"/bin/deep": root, "/opt/tool/new": root, "/usr/trap/made": other} {
		b, err := show(image, to)
		if err == nil {
			b.Close()
			t.Errorf("%s: a sandbox was made", to)
		}
	}
	if made, err := os.ReadDir(target); err != nil || len(made) > 0 {
		t.Errorf("a link of an image led out: %v, %v", made, err)
	}
}
