//go:build linux && amd64 && !race

package cgroup

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox"

	"golang.org/x/sys/unix"
)

const (
	groupsOfV2 = "/sys/fs/cgroup"
	spinning   = "GATEHOUSE_TEST_SPINS" // in the environment of a process that uses all the processor time it gets
	ended      = "tests ended with "    // what the first process of a machine prints at its end
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(spinning) != "":
		for {
			runtime.Gosched()
		}
	case os.Getpid() != 1:
		os.Exit(m.Run())
	}
	code := 1
	if err := beginMachine(); err != nil {
		fmt.Println(err)
	} else {
		code = m.Run()
	}
	fmt.Println(ended + strconv.Itoa(code))
	fmt.Println(unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
}

// beginMachine mounts what the first process of a machine needs and hands the controllers of version 2 on.
func beginMachine() error {
	for dir, kind := range map[string]string{"/proc": "proc", "/sys": "sysfs", "/tmp": "tmpfs", "/dev": "devtmpfs"} {
		if err := errors.Join(os.MkdirAll(dir, 0o755), unix.Mount("none", dir, kind, 0, "")); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	if err := unix.Mount("none", groupsOfV2, "cgroup2", 0, ""); err != nil {
		return err
	}
	own := filepath.Join(groupsOfV2, "host")
	return errors.Join(os.Mkdir(own, 0o755), writeFile(own, "cgroup.procs", "1"),
		writeFile(groupsOfV2, "cgroup.subtree_control", "+cpu +memory +pids"))
}

// The tests of version 2 run as the first process of a machine that has no other.
func TestMachineOfVersion2(t *testing.T) {
	if os.Getpid() == 1 {
		t.Skip("this is it")
	}
	kernels, _ := filepath.Glob("../../../.tools/kernel/boot/vmlinuz-*")
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil || len(kernels) == 0 {
		t.Skip("there is no QEMU, or no kernel for it")
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Section(".interp") != nil {
		t.Skip("the test needs libraries, which a machine has not")
	}
	body, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	initrd := filepath.Join(t.TempDir(), "initrd")
	var files bytes.Buffer
	putFile(&files, "dev", unix.S_IFDIR|0o755, 0, nil)
	putFile(&files, "dev/console", unix.S_IFCHR|0o600, 1, nil)
	putFile(&files, "init", unix.S_IFREG|0o755, 0, body)
	putFile(&files, "TRAILER!!!", 0, 0, nil)
	if err := os.WriteFile(initrd, files.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	// Emulated, since not every KVM can run every kernel; with one processor, which the groups have to share.
	out, err := exec.CommandContext(ctx, qemu, "-accel", "tcg", "-m", "768", "-smp", "1", "-nic", "none", "-display", "none",
		"-serial", "stdio", "-monitor", "none", "-no-reboot", "-kernel", kernels[len(kernels)-1], "-initrd", initrd,
		"-append", "console=ttyS0 quiet panic=-1 cgroup_no_v1=all -- -test.v -test.run=Version2 -test.timeout=4m").CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte(ended+"0")) ||
		!bytes.Contains(out, []byte("--- PASS: TestPrincipalsShareTheProcessorsInVersion2")) {
		t.Errorf("%v: %s", err, out)
	}
}

// putFile writes a file in the cpio format "newc". A device is that of the console.
func putFile(w io.Writer, name string, mode, minor int, body []byte) {
	major := 0
	if mode&unix.S_IFMT == unix.S_IFCHR {
		major = 5
	}
	fmt.Fprintf(w, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00", 0, mode, 0, 0, 1, 0, len(body), 0, 0,
		major, minor, len(name)+1, 0, name)
	w.Write(make([]byte, -(110+len(name)+1)&3))
	w.Write(body)
	w.Write(make([]byte, -len(body)&3))
}

// One principal with four busy sandboxes gets as much of a processor as one with one.
func TestPrincipalsShareTheProcessorsInVersion2(t *testing.T) {
	p := Discover()
	if os.Getpid() != 1 {
		t.Skip("it is about a machine that has version 2 alone")
	}
	if p.Enforcement("cpu") != sandbox.ByCgroup2 {
		t.Fatalf("version 2 is not used: %q", p.Notes)
	}
	limits := sandbox.Defaults()
	var groups []*Group
	for _, owner := range []string{"ann", "ann", "ann", "ann", "bob"} {
		g, err := p.New(limits)
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, g)
		if got, err := readFile(g.v2, "memory.max"); strings.TrimSpace(string(got)) != strconv.Itoa(limits.MemoryMiB<<20) {
			t.Errorf("the limit of memory is %q (%v), want %d MiB", got, err, limits.MemoryMiB)
		}
		cmd := startSpinning(t, g)
		if err := g.Assign(owner); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			g.Kill()
			cmd.Wait()
			if err := g.Remove(); err != nil {
				t.Error(err)
			}
		})
	}
	share := func() float64 {
		before, other := usedBy(groups[4:]), usedBy(groups[:4])
		time.Sleep(3 * time.Second)
		bob, ann := usedBy(groups[4:])-before, usedBy(groups[:4])-other
		return bob / (ann + bob)
	}
	if got := share(); got < 0.4 || got > 0.6 {
		t.Errorf("the principal with one sandbox gets %.2f of the processor, want half", got)
	}
	for _, g := range groups[:3] {
		g.Kill()
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	}
	if got := share(); got < 0.4 || got > 0.6 {
		t.Errorf("with one sandbox each, it gets %.2f of the processor, want half", got)
	}
}

// startSpinning starts a process in a group that uses all the processor time it gets.
func startSpinning(t *testing.T, g *Group) *exec.Cmd {
	t.Helper()
	dir, err := g.OpenV2()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command("/init")
	cmd.Env = []string{spinning + "=1"}
	cmd.SysProcAttr = &unix.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// usedBy returns the processor time that groups have used, in microseconds. One that is gone counts as none.
func usedBy(groups []*Group) (sum float64) {
	for _, g := range groups {
		sum += float64(max(readCounter(g.v2, "cpu.stat", "usage_usec "), 0))
	}
	return sum
}
