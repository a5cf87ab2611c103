//go:build linux && (amd64 || arm64)

package supervisor

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gatehouse/internal/sandbox/landlock"

	"golang.org/x/sys/unix"
)

// carriers is an allow list of the programs that the tricks begin with and need, and not of rm.
func carriers(t *testing.T) (allow []string) {
	allow = strings.Fields(
		"sh dash bash cat ls cp ln mv dd tee chmod mkdir head touch true seq printf base64 sleep readlink " +
			"seq yes kill cc1 as collect2 ld which id",
	)
	for _, file := range []string{"testdata/tricks.txt", "testdata/others.txt"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if program, _, ok := strings.Cut(line, "|"); ok && !strings.HasPrefix(program, "#") &&
				program != "busybox" {
				allow = append(allow, program)
			}
		}
	}
	slices.Sort(allow)
	return slices.Compact(allow)
}

//redteam:attack Lists of commands are judged by the kernel: the same lines where an allow list has their programs and not the one that they run
func TestNoTrickRunsAnUnlistedProgram(t *testing.T) {
	needed(t)
	allow := carriers(t)
	var executed, refused atomic.Int32
	lines := tricks(t)
	t.Run("all", func(t *testing.T) {
		for _, line := range lines {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				dir, victim := victims(t)
				got := runLine(t, Spec{Allow: allow, Dir: dir, Env: trickEnv(dir), Writable: []string{dir}}, line)
				if _, err := os.Stat(victim); err != nil {
					executed.Add(1)
					t.Errorf("executed: %s\n%+v", line, got)
				}
				if len(got.Refused) > 0 {
					refused.Add(1)
				}
			})
		}
	})
	t.Logf("%d lines: %d executed; something was refused in %d", len(lines), executed.Load(), refused.Load())
}

// behindWall runs a line with the restrictions of Landlock alone. It returns only if it fails.
func behindWall(plan, line string) error {
	var p struct{ Writable, Executable []string }
	runtime.LockOSThread()
	return errors.Join(
		json.Unmarshal([]byte(plan), &p),
		unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
		landlock.Restrict(slices.Concat(p.Writable, devices), p.Executable),
		unix.Exec("/bin/sh", []string{"sh", "-c", line}, os.Environ()),
	)
}

// wallAlone runs a line that no supervisor judges, and reports whether the victim was removed.
func wallAlone(t *testing.T, allow []string, line string) (removed bool, out string) {
	dir, victim := victims(t)
	s := Spec{Argv: []string{"/bin/sh", "-c", line}, Allow: allow, Dir: dir, Env: trickEnv(dir),
		Writable: []string{dir}}
	p, err := newPlan(s)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := json.Marshal(map[string][]string{"Writable": s.Writable, "Executable": p.Executable})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "wall", string(plan), line)
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, trickEnv(dir), time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	timer := time.AfterFunc(lineWait, func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	b, _ := cmd.CombinedOutput()
	timer.Stop()
	_, err = os.Stat(victim)
	return err != nil, string(b)
}

// Without any judgement of ours, Landlock alone keeps files off the allow list from being started, by whatever program
// and under whatever name. It does not know files in memory, nor what a loader loads.
//
//redteam:attack Lists of commands are judged by the kernel: the judgement is switched off, and Landlock alone stops what is not on the allow list
func TestTheSecondWallStopsUnlistedFiles(t *testing.T) {
	if landlock.Version() < ruleVersion {
		t.Skip("this kernel has no Landlock")
	}
	allow := carriers(t)
	for line, runs := range map[string]bool{
		"rm victim":                          false,
		"cp /bin/rm x; ./x victim":           false,
		"cp /bin/rm ls; ./ls victim":         false,
		"ln -s /bin/rm ls; ./ls victim":      false,
		"awk 'BEGIN{system(\"rm victim\")}'": false,
		"env -i /bin/rm victim":              false,
		loader + " /bin/rm victim":           true,
	} {
		if removed, out := wallAlone(t, allow, line); removed != runs {
			t.Errorf("%s: removed: %v, want %v: %s", line, removed, runs, out)
		}
	}
	if removed, out := wallAlone(t, append(allow, "rm"), "rm victim"); !removed {
		t.Errorf("a listed program does not run: %s", out)
	}
	if removed, out := wallAlone(t, append(allow, "./*"), "cp /bin/rm x; ./x victim"); !removed {
		t.Errorf("a program of a listed folder does not run: %s", out)
	}
}

// What the second wall stops of all tricks is counted, because it is not promised.
func TestTricksBehindTheSecondWallAlone(t *testing.T) {
	if os.Getenv("GATEHOUSE_TEST_ALL") == "" || landlock.Version() < ruleVersion {
		t.Skip("set GATEHOUSE_TEST_ALL to count what Landlock alone stops")
	}
	allow, lines, executed := carriers(t), tricks(t), 0
	for _, line := range lines {
		if removed, _ := wallAlone(t, allow, line); removed {
			executed++
			t.Logf("executed: %s", line)
		}
	}
	t.Logf("%d of %d lines remove the file", executed, len(lines))
	if executed > len(lines)/10 {
		t.Errorf("%d of %d lines remove the file", executed, len(lines))
	}
}

// A program that its file makes root, as sudo and ping on some systems, stays an ordinary user's in a line, and the
// report says so.
func TestAProgramWithPrivilegesOfItsFileGetsNone(t *testing.T) {
	needed(t)
	if os.Geteuid() != 0 {
		t.Skip("only root makes a program that gives its privileges")
	}
	dir, err := os.MkdirTemp("/var/tmp", "gatehouse-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "whoami")
	b, err := os.ReadFile("/usr/bin/id")
	err = errors.Join(err, os.WriteFile(program, b, 0o755), os.Chmod(dir, 0o755),
		os.Chmod(program, 0o755|os.ModeSetuid))
	if err != nil {
		t.Fatal(err)
	}
	user := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	alone := exec.Command(program, "-u")
	alone.SysProcAttr = user
	if out, err := alone.Output(); err != nil || string(out) != "0\n" {
		t.Skipf("this file system gives no privileges: %q, %v", out, err)
	}
	l, err := New(Spec{Argv: []string{"/bin/sh", "-c", "./whoami -u"}, Deny: []string{"rm"}, Dir: dir,
		Writable: []string{"/tmp"}})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(l.Path, l.Args...)
	cmd.Env, cmd.ExtraFiles, cmd.Dir, cmd.SysProcAttr = l.Env, l.Files, dir, user
	out, err := cmd.CombinedOutput()
	l.Started()
	r := l.Close()
	if err != nil || string(out) != "65534\n" {
		t.Errorf("%q, %v, %+v", out, err, r)
	}
	if !slices.ContainsFunc(r.Programs, func(p Program) bool { return p.Path == program && p.Privileged }) {
		t.Errorf("%+v", r)
	}
}
