package main

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// writtenByPages returns a copy of a program that was written page by page. The page cache of newer kernels keeps what
// was just written in pieces as large as the writes, of up to 2 MB, and maps a whole piece into the process when one page
// of it is touched, so that nearly the whole file counts. A program that was read from the disk is mapped by 64 KiB.
func writtenByPages(t *testing.T, file string) string {
	t.Helper()
	body, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "gatehouse")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	for page := range slices.Chunk(body, os.Getpagesize()) {
		_, writing := f.Write(page)
		err = errors.Join(err, writing)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// A host that serves HTTP and is not called has little memory, once it has given back what its start needed.
func TestIdleMemory(t *testing.T) {
	file := writtenByPages(t, filepath.Join(released(t, newRelease), "gatehouse-"+newVersion+"-"+here.String()))
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
		maps, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "smaps"))
		t.Errorf("%d KiB are resident, at most %d: %v\n%s", least, idleMemory, err, maps)
	}
}
