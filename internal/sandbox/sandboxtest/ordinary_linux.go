package sandboxtest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	ordinaryID   = 54321
	ordinaryName = "ghordinary"
)

// RunAsOrdinary runs a test of this program again, as an ordinary user of the machine who has a range of subordinate
// ids. The user may read copies of the files, and exists in a mount namespace of the test alone. It skips the test if
// that cannot be made.
func RunAsOrdinary(t *testing.T, name string, files ...string) {
	t.Helper()
	for _, program := range []string{"newuidmap", "unshare", "setpriv"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v; apt-get install uidmap util-linux", err)
		}
	}
	dir, err := os.MkdirTemp("", "ordinary")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	home := filepath.Join(dir, "home")
	copies := map[string]string{"/proc/self/exe": "test"}
	for _, f := range files {
		copies[f] = filepath.Base(f)
	}
	for from, to := range copies {
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	line := fmt.Sprintf("%s:x:%d:%d::%s:/bin/sh\n", ordinaryName, ordinaryID, ordinaryID, home)
	ids := ordinaryName + ":300000:65536\n"
	for file, content := range map[string]string{
		"passwd": strings.TrimRight(string(passwd), "\n") + "\n" + line, "subuid": ids, "subgid": ids,
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{dir, home} {
		if err := os.Chown(path, ordinaryID, ordinaryID); err != nil {
			t.Skip(err)
		}
	}
	script := fmt.Sprintf(`set -e
touch /etc/subuid /etc/subgid
for f in passwd subuid subgid; do mount --bind "$1/$f" "/etc/$f"; done
cd "$1/home"
exec setpriv --reuid=%d --regid=%d --clear-groups --inh-caps=-all env HOME="$1/home" TMPDIR="$1/home" %s=1 %s="$1" \
	"$1/test" -test.run "^$2\$" -test.v -test.timeout=5m`, ordinaryID, ordinaryID, OrdinaryUser, OrdinaryFiles)
	c := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private",
		"sh", "-c", script, "sh", dir, name)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err = c.Run()
	switch {
	case err != nil:
		t.Errorf("as an ordinary user: %v\n%s", err, out.String())
	case strings.Contains(out.String(), "--- SKIP"):
		t.Skipf("as an ordinary user:\n%s", out.String())
	case !strings.Contains(out.String(), "--- PASS: "+name):
		t.Errorf("as an ordinary user it did not run:\n%s", out.String())
	}
}

// OwnerOf returns the user of the machine that a file belongs to.
func OwnerOf(t *testing.T, path string) int {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return int(st.Uid)
}
