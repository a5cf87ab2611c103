//go:build linux && amd64

package qemu

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox"

	"golang.org/x/sys/unix"
)

const hostVariable = "QEMU_TEST_HOST"

// TestHost is a host with one machine, for a test that kills it.
func TestHost(t *testing.T) {
	if os.Getenv(hostVariable) == "" {
		t.Skip("it is started by another test")
	}
	d := driver(t, Options{})
	s, err := d.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("machine", s.(*instance).machine.process.Pid)
	time.Sleep(time.Hour)
}

func TestMachinesEndWithAHostThatIsKilled(t *testing.T) {
	host := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHost$", "-test.v")
	host.Env = append(os.Environ(), hostVariable+"=1")
	out, err := host.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	pid, said := 0, ""
	for lines := bufio.NewScanner(out); pid == 0 && lines.Scan(); {
		said += lines.Text() + "\n"
		fmt.Sscanf(strings.TrimSpace(lines.Text()), "machine %d", &pid)
	}
	host.Process.Kill()
	host.Wait()
	if pid == 0 && strings.Contains(said, "--- SKIP") {
		t.Skip(said) // there are no machines here
	}
	if pid == 0 {
		t.Fatalf("the host made no machine: %s", said)
	}
	for end := time.Now().Add(time.Minute); !gone(pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			unix.Kill(pid, unix.SIGKILL)
			t.Fatal("the machine lives on")
		}
	}
}

// gone reports whether a process runs no more. One that is a zombie
// does not run.
func gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return errors.Is(err, os.ErrNotExist) || strings.Contains(string(b), ") Z ")
}
