package sandboxtest

import (
	"os"
	"path/filepath"
	"testing"

	"gatehouse/internal/sandbox"
)

// writableRoot checks an image that can be written to: what is written is in the sandbox alone, counts for its disk,
// and leads nowhere by links of the image.
func (s suite) writableRoot(t *testing.T, root string) {
	t.Helper()
	if s.driver.Name() != "namespaces" {
		return
	}
	outside := t.TempDir()
	for at, to := range map[string]string{"etc/hostname": filepath.Join(outside, "name"), "home/user": outside} {
		if err := os.Symlink(to, filepath.Join(root, at)); err != nil {
			t.Fatal(err)
		}
	}
	readOnly := t.TempDir()
	users := map[string]*sandbox.Users{"one user": nil}
	if r, ok := s.driver.(sandbox.UserRanges); ok && r.UserRange() == nil {
		users["users of its own"] = new(sandbox.Users)
	}
	for what, who := range users {
		spec := sandbox.Spec{
			Image: &sandbox.Image{ID: "tiny", Root: root}, WritableRoot: true, Users: who, KeepOwners: who == nil,
			Limits: sandbox.Limits{DiskMiB: 8, MemoryMiB: 128},
			Mounts: []sandbox.Mount{{From: realFolder(t, readOnly), To: "/granted"}},
		}
		for _, c := range []struct{ name, script, want string }{
			{"its files can be written", "for f in /new /etc/new /opt/tool/new /usr/bin/new /var/lib/new /home/new /run/new; do " +
				"echo $f >$f && cat $f; done; echo ID=mine >/etc/os-release && cat /etc/os-release /etc/deep/file",
				"/new\n/etc/new\n/opt/tool/new\n/usr/bin/new\n/var/lib/new\n/home/new\n/run/new\nID=mine\ndeep\n"},
			{"the next one has those of the image", "ls -d /new /etc/new 2>/dev/null; cat /etc/os-release; cat /etc/hostname",
				"ID=tiny\nsandbox\n"},
			{"it has no more than its disk", "head -c 20000000 /dev/zero >/opt/tool/much 2>/dev/null || echo full",
				"full\n"},
			{"what is granted to be read is not written", "touch /granted/new 2>/dev/null || echo kept", "kept\n"},
			{"what it consists of is not there", "ls -d /image /work /root/work /upper 2>/dev/null; ls /..", ""},
		} {
			b := s.box(t, spec)
			r := shell(t, b, c.script)
			if c.want == "" {
				c.want = "bin\ndev\netc\ngranted\nhome\n"
				for _, l := range []string{"lib", "lib64", "opt", "outside", "proc", "root", "run", "srv", "sys", "tmp", "top",
					"usr", "var"} {
					if _, err := os.Lstat(filepath.Join(root, l)); err == nil || l == "proc" || l == "run" || l == "sys" {
						c.want += l + "\n"
					}
				}
			}
			if r.stdout != c.want {
				t.Errorf("%s, %s: %+v, %v: %q, want %q: %s", what, c.name, r.Result, r.err, r.stdout, c.want, r.stderr)
			}
			b.Close()
		}
	}
	for _, dir := range []string{outside, readOnly} {
		if made, err := os.ReadDir(dir); err != nil || len(made) > 0 {
			t.Errorf("a link of an image led out: %v, %v", made, err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(root, "etc/os-release")); err != nil || string(b) != "ID=tiny\n" {
		t.Errorf("the image has changed: %q, %v", b, err)
	}
}

func realFolder(t *testing.T, dir string) string {
	t.Helper()
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	return real
}
