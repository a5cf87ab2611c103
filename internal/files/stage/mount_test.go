package stage

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A program with another root gets mounts of the view: of a folder of the task, and of one that is added while a call
// runs. A link on the way, and a folder that contains one of the task, are refused.
func TestMountsOfAView(t *testing.T) {
	m, real := open(t, Options{})
	other, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(real, "sub", "a"), "a")
	write(t, filepath.Join(other, "b"), "b")
	w := begin(t, m, "ann", real)
	w.shell("mkdir dir && ln -s " + other + " link")
	v, err := m.Enter(w.id, []string{real}, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(real, "sub"), other} {
		for _, writes := range []bool{false, true} {
			f, err := v.Mount(path, writes)
			if err != nil {
				t.Fatal(err)
			}
			err = os.WriteFile(fmt.Sprintf("/proc/self/fd/%d/made", f.Fd()), []byte("x"), 0o600)
			if (err == nil) != writes {
				t.Errorf("writing %s, writable %t: %v", path, writes, err)
			}
			f.Close()
		}
		if _, err := os.Lstat(filepath.Join(path, "made")); err == nil {
			t.Errorf("%s itself has what was made in the view", path)
		}
	}
	for _, path := range []string{filepath.Join(real, "link"), filepath.Join(real, "link", "b"), filepath.Dir(real),
		"/", m.opts.Dir} {
		if f, err := v.Mount(path, true); err == nil {
			t.Errorf("%s is mounted", path)
			f.Close()
		}
	}
	if err := v.Leave(true); err != nil {
		t.Fatal(err)
	}
	if r := w.accept(); len(r.Conflict) > 0 {
		t.Errorf("accepted %+v", r)
	}
	for _, path := range []string{filepath.Join(real, "sub", "made"), filepath.Join(other, "made")} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

// Files with all names, more than git stores one by one, become one commit with few starts of git.
func TestManyFilesAreCommitted(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip(err)
	}
	m, real := open(t, Options{})
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(git, append([]string{"-C", real, "-c", "user.name=a", "-c", "user.email=a@b"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	write(t, filepath.Join(real, ".gitignore"), "*.log\n")
	write(t, filepath.Join(real, "old"), "old")
	run("init", "-q")
	run("add", ".")
	run("commit", "-qm", "first")
	w := begin(t, m, "ann", real)
	w.shell("i=0; while [ $i -lt 250 ]; do echo $i >f$i; echo $i >f$i.log; i=$((i+1)); done; rm old; : >empty; " +
		"echo odd >' a\tb\nc \"é '; ln -s f1 link; head -c 300000 /dev/zero >large")
	r, err := m.AcceptCommit(t.Context(), w.id, Choice{By: "ann"})
	if err != nil || len(r.Conflict) > 0 {
		t.Fatal(r, err)
	}
	if got := run("status", "--porcelain"); got != "" {
		t.Errorf("the repository differs from the commit: %s", got)
	}
	if got := len(strings.Fields(run("ls-tree", "-r", "--format=%(objectname)", "HEAD"))); got != 255 {
		t.Errorf("the commit has %d files, want 250 and five", got)
	}
	run("fsck", "--strict")
}
