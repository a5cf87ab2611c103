//go:build linux && (amd64 || arm64)

package supervisor

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// result is what came of a line.
type result struct {
	Report
	out  string
	code int
	took time.Duration
	cpu  time.Duration // of all processes
}

// lineWait limits the time of a line.
const lineWait = 20 * time.Second

// runLine runs a line of sh below a supervisor. The line may write to its folder.
func runLine(t testing.TB, s Spec, line string) result {
	t.Helper()
	if s.Argv == nil {
		s.Argv = []string{"/bin/sh", "-c", line}
	}
	if s.Env == nil {
		s.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + s.Dir, "LC_ALL=C"}
	}
	if s.Dir == "" {
		s.Dir = t.TempDir()
	}
	if s.Writable == nil {
		s.Writable = []string{s.Dir}
	}
	l, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), lineWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, l.Path, l.Args...)
	cmd.Env, cmd.ExtraFiles, cmd.Dir = l.Env, l.Files, s.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, 10*time.Second
	began := time.Now()
	err = cmd.Start()
	l.Started()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	r := result{Report: l.Close(), out: out.String(), code: cmd.ProcessState.ExitCode(), took: time.Since(began),
		cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
	if ctx.Err() != nil {
		t.Logf("the line %q was ended after %v", line, lineWait)
	} else if r.Failed != "" || !r.Ended {
		t.Fatalf("the line %q: failed %q, ended %v: %s", line, r.Failed, r.Ended, r.out)
	}
	return r
}

// needed skips a test where the kernel reports nothing.
func needed(t testing.TB) {
	if err := Available(t.Context()); err != nil {
		t.Skip(err)
	}
}

func TestAvailable(t *testing.T) {
	if err := Available(t.Context()); err != nil && os.Getenv("CI") == "" {
		t.Fatal(err)
	}
}

func TestALineRunsAsItDoesAlone(t *testing.T) {
	needed(t)
	for line, want := range map[string]result{
		"echo one; /bin/echo two | cat; exit 3":          {out: "one\ntwo\n", code: 3},
		"kill -TERM $$":                                  {code: -1},
		"nosuchprogram":                                  {out: "/bin/sh: 1: nosuchprogram: not found\n", code: 127},
		"trap 'echo got' USR1; kill -USR1 $$; /bin/true": {out: "got\n"},
	} {
		got := runLine(t, Spec{Deny: []string{"rm"}}, line)
		if got.out != want.out || got.code != want.code || len(got.Refused) > 0 {
			t.Errorf("%s: %q, exit code %d, refused %v; want %q, %d", line, got.out, got.code, got.Refused, want.out,
				want.code)
		}
	}
}

func TestADeniedProgramIsRefused(t *testing.T) {
	needed(t)
	got := runLine(t, Spec{Deny: []string{"rm"}}, "touch x; rm x || echo kept; ls; /bin/../bin/rm x; env -- rm x")
	if !strings.Contains(got.out, "kept\nx\n") || len(got.Refused) != 3 {
		t.Errorf("%+v", got)
	}
}
