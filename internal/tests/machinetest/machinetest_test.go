package machinetest

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// The machine runs systemd, has a network, files and processes of its own, and cannot
// change what belongs to the kernel.
func TestTheMachineIsItsOwn(t *testing.T) {
	Need(t)
	if b, err := os.ReadFile("/proc/1/comm"); err != nil || strings.TrimSpace(string(b)) != "systemd" {
		t.Errorf("process 1 is %q: %v", b, err)
	}
	if out, err := exec.Command("ip", "-br", "link").Output(); err != nil || strings.Count(string(out), "\n") != 1 {
		t.Errorf("links: %s %v", out, err)
	}
	if os.WriteFile("/proc/sys/kernel/hostname", []byte("other"), 0) == nil {
		t.Error("a setting of the kernel could be written")
	}
	// Without CAP_SYS_TIME and CAP_SYS_MODULE nothing sets the clock or loads code. Never try it.
	for _, pid := range []string{"1", "self"} {
		b, err := os.ReadFile("/proc/" + pid + "/status")
		_, after, _ := strings.Cut(string(b), "CapBnd:")
		set, parsed := strconv.ParseUint(strings.Fields(after + " none")[0], 16, 64)
		if err != nil || parsed != nil || set&(1<<25|1<<16|1<<17) != 0 {
			t.Errorf("process %s may set the clock or load modules: %x %v %v", pid, set, err, parsed)
		}
	}
	if err := os.WriteFile("/etc/gatehouse-machine", nil, 0o600); err != nil {
		t.Error(err)
	}
}
