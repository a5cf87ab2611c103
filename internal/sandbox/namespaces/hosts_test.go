//go:build linux && (amd64 || arm64)

package namespaces

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gatehouse/internal/sandbox/sandboxtest"
)

// again runs tests of this program in another process, as another user.
func again(t *testing.T, uid uint32, run string, env ...string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	for up := dir; len(up) >= len(os.TempDir()) && up != os.TempDir(); up = filepath.Dir(up) {
		if err := os.Chmod(up, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "again.test")
	copyFile(t, "/proc/self/exe", program)
	temporary := filepath.Join(dir, "tmp")
	if err := os.Mkdir(temporary, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(temporary, int(uid), int(uid)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.run", run, "-test.v")
	cmd.Dir = dir
	cmd.Env = append([]string{"TMPDIR=" + temporary, "PATH=" + os.Getenv("PATH"), "HOME=" + temporary}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return cmd
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

// An ordinary user passes the same suite as root does, with what a machine
// gives to ordinary users.
//
//redteam:attack Code in a sandbox is shut in several times: the same, where the host is an ordinary user
func TestSuiteAsNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("TestSuite is run by an ordinary user already")
	}
	const nobody = 65534
	probe := filepath.Join(t.TempDir(), "probe")
	sandboxtest.BuildProbe(t, probe)
	if err := os.Chmod(filepath.Dir(probe), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := again(t, nobody, "^TestSuite$", sandboxtest.ProbeVariable+"="+probe)
	out, err := cmd.CombinedOutput()
	sandboxtest.Record(t, "namespaces, a user", sandboxtest.Verdicts(out))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "--- SKIP") || strings.Contains(line, "held") {
			t.Log(strings.TrimSpace(line))
		}
	}
	if bytes.Contains(out, []byte("--- SKIP: TestSuite ")) {
		t.Skipf("nobody cannot make sandboxes here:\n%s", out)
	}
	if !bytes.Contains(out, []byte("--- PASS: TestSuite ")) {
		t.Errorf("%s", out)
	}
}
