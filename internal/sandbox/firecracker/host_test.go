//go:build linux && (amd64 || arm64)

package firecracker

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

const (
	markVariable   = "SANDBOX_MARK"
	chrootVariable = "SANDBOX_CHROOT"
	jailedVariable = "SANDBOX_JAILED"
)

// This is the other process of TestAHostThatIsKilledLeavesNothing.
func TestHostOfTheOther(t *testing.T) {
	mark := os.Getenv(markVariable)
	if mark == "" {
		t.Skip("it is for another test")
	}
	d := fakedAt(t, os.Getenv(chrootVariable), os.Getenv(jailedVariable) != "")
	for _, paused := range []bool{false, true} {
		d.parts.vmm.version = oldest // whose process stands when it is paused
		b := made(t, d, sandbox.Spec{})
		if _, err := b.Exec(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", "(setsid sleep 10000 &); sleep 10000; : " + mark}, Timeout: -1}); err != nil {
			t.Fatal(err)
		}
		if paused {
			if err := b.(sandbox.Pausable).Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	fmt.Fprintln(os.Stderr, "running")
	time.Sleep(time.Hour)
}

func TestAHostThatIsKilledLeavesNothing(t *testing.T) {
	for name, jailed := range map[string]string{"jailed": "yes", "unjailed": ""} {
		t.Run(name, func(t *testing.T) { killed(t, jailed) })
	}
}

func killed(t *testing.T, jailed string) {
	faked(t, jailed != "") // or it is skipped
	folder, mark := t.TempDir(), rand.Text()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^TestHostOfTheOther$")
	cmd.Env = append(os.Environ(), markVariable+"="+mark, chrootVariable+"="+folder, jailedVariable+"="+jailed)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		cmd.Wait()
		t.Skipf("the other host made no sandbox: %q, %v", line, err)
	}
	jails, _ := filepath.Glob(filepath.Join(folder, prefix+"*", "firecracker", "*"))
	if marked(mark) == 0 || len(jails) != 2 || marked(filepath.Base(jails[0])) == 0 {
		t.Errorf("what the other host runs was not seen, so the test proves nothing: %q", jails)
	}
	cmd.Process.Kill()
	cmd.Wait()
	for end := time.Now().Add(patience); going(mark, jails); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it goes on without its host")
		}
	}
	d, err := New(Options{Chroot: folder}) // the next host takes the rest away
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, jail := range jails {
		if _, err := os.Stat(jail); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", jail, err)
		}
	}
}

// going reports whether something of the other host is.
func going(mark string, jails []string) bool {
	for _, jail := range jails {
		if marked(filepath.Base(jail)) > 0 {
			return true
		}
	}
	return marked(mark) > 0
}

// marked counts the processes with a word in their command line.
func marked(word string) (n int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		if line, err := os.ReadFile(file); err == nil && bytes.Contains(line, []byte(word)) {
			n++
		}
	}
	return n
}
