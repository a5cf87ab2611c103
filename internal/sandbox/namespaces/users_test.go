//go:build linux && (amd64 || arm64)

package namespaces

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/sandboxtest"

	"golang.org/x/sys/unix"
)

// TestUsersOfTheirOwn runs the test below as the user of this process and, if that is root, once more as an ordinary
// user who has a range of subordinate ids.
func TestUsersOfTheirOwn(t *testing.T) {
	t.Run("this user", usersOfTheirOwn)
	if os.Getuid() != 0 || os.Getenv(sandboxtest.OrdinaryUser) != "" {
		return
	}
	t.Run("an ordinary user", func(t *testing.T) { sandboxtest.RunAsOrdinary(t, "TestUsersOfTheirOwn") })
}

// usersOfTheirOwn starts as root, gives a file to another user, becomes that user, and is kept from the files of a
// third.
func usersOfTheirOwn(t *testing.T) {
	d, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.UserRange(); err != nil {
		t.Skip(err)
	}
	dir := realTemp(t)
	box, err := d.Create(t.Context(), sandbox.Spec{
		Users:  &sandbox.Users{},
		Mounts: []sandbox.Mount{{From: dir, To: "/kept", Write: true, Owned: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	out := run(t, box, `set -e
id -u; id -G; cat /proc/self/uid_map
cd /kept; mkdir one two; echo 1 >one/f; echo 2 >two/f; chown -R 7:8 one; chown -R 9:9 two; chmod 700 one two
stat -c %u:%g one one/f two/f
chown 7 /usr/bin/env /kept/none 2>&1 || true
cat >try <<'S'
id -u; cat one/f; cat two/f || echo kept; chown 0 one/f || echo not given; echo x >one/made; kill -9 1; echo alive
S
setpriv --reuid=7 --regid=8 --clear-groups sh try 2>/dev/null
stat -c %u one/made
mount -t tmpfs none /mnt 2>/dev/null || echo no mount
grep Cap /proc/self/status
`)
	for _, want := range []string{"0\n0\n", "\n7:8\n7:8\n9:9\n", "No such file",
		"\n7\n1\nkept\nnot given\nalive\n7\nno mount\n", "CapEff:\t00000000000001fb", "CapBnd:\t00000000000001fb"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	owned := box.(sandbox.OwnedFiles)
	if n, err := owned.TreeSize(t.Context(), "/kept/one"); n != 4 || err != nil {
		t.Errorf("the folder of user 7 has %d bytes, %v; want 4", n, err)
	}
	var packed bytes.Buffer
	if err := box.(sandbox.Archive).Pack(t.Context(), "/kept", &packed); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two", "try"} {
		if err := box.(sandbox.Files).Remove(t.Context(), "/kept/"+name, true); err != nil {
			t.Fatal(err)
		}
	}
	if err := box.(sandbox.Archive).Unpack(t.Context(), "/kept", &packed); err != nil {
		t.Fatal(err)
	}
	if err := owned.Chown(t.Context(), "/kept/try", 5, 6, false); err != nil {
		t.Fatal(err)
	}
	got := run(t, box, "cd /kept; stat -c '%n %u:%g %a' one one/f two try")
	if want := "one 7:8 700\none/f 7:8 644\ntwo 9:9 700\ntry 5:6 644\n"; got != want {
		t.Errorf("after it was packed and unpacked: %s; want %s", got, want)
	}
	checkHostOwners(t, dir)
	if err := box.(sandbox.Files).Remove(t.Context(), "/kept/one", true); err != nil {
		t.Fatal(err)
	}
	if err := box.(sandbox.Files).Remove(t.Context(), "/kept/two", true); err != nil {
		t.Fatal(err)
	}
}

// checkHostOwners checks that no file of a sandbox belongs to another user of the host than the one of this process.
func checkHostOwners(t *testing.T, dir string) {
	t.Helper()
	var st unix.Stat_t
	for _, name := range []string{"one", "two", "try"} {
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil {
			t.Fatal(err)
		}
		if st.Uid < 1<<16 {
			t.Errorf("%s belongs to user %d of the host", name, st.Uid)
		}
	}
}

func run(t *testing.T, box sandbox.Sandbox, script string) string {
	t.Helper()
	var out bytes.Buffer
	p, err := box.Exec(t.Context(), sandbox.Command{Argv: []string{"/bin/sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Wait()
	if err != nil || r.Code != 0 {
		t.Errorf("it ended with %+v, %v", r, err)
	}
	return out.String()
}

func realTemp(t *testing.T) string {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// layeredImage is the variable with the image over which the kernel mounts no layer.
const layeredImage = "GATEHOUSE_TEST_IMAGE"

// Where the kernel cannot mount a layer over an image, its files are read-only, and the log says so. Over two overlays
// no third can be mounted; for a host that is root they also cannot translate owners, which the layer would need.
func TestAnImageWithoutALayerIsReadOnly(t *testing.T) {
	root := os.Getenv(layeredImage)
	if root == "" {
		root = twoOverlays(t, sandboxtest.SmallImage(t))
		cmd := again(t, 65534, "^TestAnImageWithoutALayerIsReadOnly$", layeredImage+"="+root)
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS")) {
			t.Errorf("an ordinary user: %v: %s", err, out)
		}
	}
	var log bytes.Buffer
	d, err := New(Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	box, err := d.Create(t.Context(), sandbox.Spec{
		Image: &sandbox.Image{ID: "tiny", Root: root}, WritableRoot: true, KeepOwners: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	out := run(t, box, "cat /etc/os-release; touch /new 2>/dev/null || echo kept; echo x >/tmp/f && cat /tmp/f")
	if out != "ID=tiny\nkept\nx\n" || !strings.Contains(log.String(), "read-only, because the kernel cannot mount") {
		t.Errorf("%q, and its log says %q", out, log.String())
	}
}

// twoOverlays mounts an overlay over a folder and another one over that, which any user may read.
func twoOverlays(t *testing.T, root string) string {
	if os.Getuid() != 0 {
		t.Skip("only root can mount the file systems over which the kernel mounts no other")
	}
	top := realTemp(t)
	for _, dir := range []string{top, filepath.Dir(top), root, filepath.Dir(root)} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []string{"1", "2"} {
		over, empty := filepath.Join(top, "over"+n), filepath.Join(top, "empty"+n)
		if err := errors.Join(os.Mkdir(over, 0o755), os.Mkdir(empty, 0o755)); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("overlay", over, "overlay", 0, "lowerdir="+root+":"+empty); err != nil {
			t.Skipf("this machine mounts no overlays: %v", err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(over, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		root = over
	}
	return root
}
