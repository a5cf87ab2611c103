//go:build linux && (amd64 || arm64)

package supervisor

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// trickEnv is the environment of a trick.
func trickEnv(dir string) []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/go/bin", "HOME=" + dir, "LC_ALL=C",
		"TERM=dumb", "GIT_TERMINAL_PROMPT=0", "GOTOOLCHAIN=local", "GOCACHE=" + dir + "/cache", "PWD=" + dir,
		"TMPDIR=" + dir}
}

// tricks returns the lines of testdata whose programs this machine has. Without GATEHOUSE_TEST_ALL it is each tenth.
func tricks(t *testing.T) (lines []string) {
	var all strings.Builder
	for _, name := range []string{"testdata/tricks.txt", "testdata/others.txt"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(string(b))
	}
	n := 0
	for line := range strings.Lines(all.String()) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		program, line, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "|")
		found := false
		for dir := range strings.SplitSeq(strings.TrimPrefix(trickEnv("")[0], "PATH="), ":") {
			if _, err := os.Stat(filepath.Join(dir, program)); err == nil {
				found = true
			}
		}
		if n++; found && (os.Getenv("GATEHOUSE_TEST_ALL") != "" || n%10 == 0) {
			lines = append(lines, line)
		}
	}
	return lines
}

// victims makes a folder with the file that a trick removes.
func victims(t *testing.T) (dir, victim string) {
	t.Helper()
	dir = t.TempDir()
	victim = filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir, victim
}

//redteam:attack Lists of commands are judged by the kernel: more than 200 lines that run a denied program by shells, git, tar, make, awk, find, editors, interpreters, copies, links, loaders and wrappers
func TestNoTrickRunsADeniedProgram(t *testing.T) {
	needed(t)
	lines := tricks(t)
	var executed, refused atomic.Int32
	t.Run("all", func(t *testing.T) {
		for _, line := range lines {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				dir, victim := victims(t)
				got := runLine(t, Spec{Deny: []string{"rm"}, Dir: dir, Env: trickEnv(dir),
					Writable: []string{dir, "/tmp"}}, line)
				if _, err := os.Stat(victim); err != nil {
					executed.Add(1)
					t.Errorf("executed: %s\n%+v", line, got)
				}
				if len(got.Refused) > 0 {
					refused.Add(1)
				} else {
					t.Logf("nothing was refused: %s\n%s", line, got.out)
				}
			})
		}
	})
	t.Logf("%d lines: %d executed; the supervisor refused something in %d", len(lines), executed.Load(),
		refused.Load())
}

// The tricks are real: without a supervisor they remove the file, as far as this machine's versions of the programs
// still have what they use.
func TestTheTricksWorkAlone(t *testing.T) {
	if os.Getenv("GATEHOUSE_TEST_ALL") == "" {
		t.Skip("set GATEHOUSE_TEST_ALL to run the lines without a supervisor")
	}
	lines := tricks(t)
	worked := 0
	for _, line := range lines {
		dir, victim := victims(t)
		ctx, cancel := context.WithTimeout(t.Context(), lineWait)
		cmd := exec.CommandContext(ctx, "/bin/sh", "-c", line)
		var out bytes.Buffer
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = dir, trickEnv(dir), &out, &out, time.Second
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.Run()
		cancel()
		if _, err := os.Stat(victim); err == nil {
			t.Logf("does not work here: %s\n%s", line, out.String())
		} else {
			worked++
		}
	}
	t.Logf("%d of %d lines remove the file", worked, len(lines))
	if worked < len(lines)*8/10 {
		t.Errorf("only %d of %d lines remove the file", worked, len(lines))
	}
}
