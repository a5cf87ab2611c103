package main

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const idleMemory = 30 << 10 // KiB that an idle host with nothing optional may have resident

// resident returns how many KiB of a process are in memory.
func resident(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "\nVmRSS:")
	line, _, _ := strings.Cut(rest, " kB")
	n, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A host that serves HTTP and is not called has little memory, once it has given back what its start needed.
func TestIdleMemory(t *testing.T) {
	file := filepath.Join(released(t, newRelease), "gatehouse-"+newVersion+"-"+here.String())
	home := t.TempDir()
	cmd := exec.Command(file, "serve", "--http", "-p", "0", "-d", home)
	cmd.Env = []string{"HOME=" + home}
	said, err := cmd.StderrPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	defer func() { errors.Join(cmd.Process.Kill(), cmd.Wait()) }()
	lines := bufio.NewScanner(said)
	for lines.Scan() && !strings.Contains(lines.Text(), "Listening on") {
	}
	if lines.Text() == "" {
		t.Fatal("it does not say where it listens")
	}
	least := 1 << 30
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if least = min(least, resident(t, cmd.Process.Pid)); least <= idleMemory {
			break
		}
	}
	if t.Logf("%.1f MiB are resident", float64(least)/1024); least > idleMemory {
		t.Errorf("%d KiB are resident, at most %d", least, idleMemory)
	}
}
