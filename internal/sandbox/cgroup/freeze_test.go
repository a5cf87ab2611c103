//go:build linux

package cgroup

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// versions are this machine's groups, and what there would be of them with
// version 1 alone.
func versions(t *testing.T) map[string]*Hierarchy {
	t.Helper()
	whole := Discover()
	if whole.v2 == "" {
		return map[string]*Hierarchy{"version 1": whole}
	}
	return map[string]*Hierarchy{"as it is": whole, "version 1": firstOnly(t)}
}

// firstOnly is this machine without version 2, or nil where nothing is left.
func firstOnly(t *testing.T) *Hierarchy {
	t.Helper()
	mounts, own := read(t, "/proc/self/mountinfo"), read(t, "/proc/self/cgroup")
	var kept []string
	for line := range strings.Lines(mounts) {
		if !strings.Contains(line, " - cgroup2 ") {
			kept = append(kept, line)
		}
	}
	return parseHierarchy(strings.Join(kept, ""), own, usable)
}

// running is a group with a program in it that counts as it runs.
func running(t *testing.T, p *Hierarchy) (*Group, *exec.Cmd) {
	t.Helper()
	g, err := p.New(sandbox.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	born, err := g.OpenV2()
	if err != nil {
		t.Fatal(err)
	}
	if born != nil {
		defer born.Close()
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(born.Fd())}
	}
	runtime.LockOSThread()
	err = errors.Join(g.Enter(), cmd.Start(), g.Leave())
	runtime.UnlockOSThread()
	if err != nil {
		t.Fatal(errors.Join(err, g.Remove()))
	}
	t.Cleanup(func() {
		g.Kill()
		cmd.Wait()
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	return g, cmd
}

// used is the processor time of a process, as the kernel counts it.
func used(t *testing.T, pid int) string {
	t.Helper()
	f := strings.Fields(read(t, filepath.Join("/proc", strconv.Itoa(pid), "stat")))
	return f[13] + " " + f[14]
}

func TestAGroupStandsStillAndGoesOn(t *testing.T) {
	for name, p := range versions(t) {
		t.Run(name, func(t *testing.T) {
			if err := p.CanFreeze(); err != nil {
				t.Skip(err)
			}
			g, cmd := running(t, p)
			for range 3 {
				for range 2 { // again does nothing
					if err := g.Freeze(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				stopped := used(t, cmd.Process.Pid)
				time.Sleep(30 * time.Millisecond) // what ran would be seen
				if now := used(t, cmd.Process.Pid); now != stopped {
					t.Errorf("it used %s, then %s", stopped, now)
				}
				for range 2 {
					if err := g.Thaw(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				for end := time.Now().Add(time.Minute); used(t,
					cmd.Process.Pid) == stopped; time.Sleep(10 * time.Millisecond) {
					if time.Now().After(end) {
						t.Fatal("it does not go on")
					}
				}
			}
			if err := g.Freeze(t.Context()); err != nil {
				t.Fatal(err)
			}
			g.Kill() // what stands still can be killed
			if err := cmd.Wait(); err == nil {
				t.Error("it was not killed")
			}
		})
	}
}

func TestWithoutAFreezerItIsSaid(t *testing.T) {
	var nowhere Hierarchy
	g, err := nowhere.New(sandbox.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{nowhere.CanFreeze(), g.Freeze(t.Context()), g.Thaw(t.Context())} {
		if err == nil || !strings.Contains(err.Error(), "cgroup.freeze") ||
			!strings.Contains(err.Error(), "freezer of version 1") {
			t.Errorf("%v", err)
		}
	}
	none := sandbox.Usage{CPU: -1, Memory: -1, Peak: -1, Processes: -1, Disk: -1, OOMKills: -1}
	if u := g.Usage(); u != none {
		t.Errorf("%+v is known of nothing", u)
	}
}

// A kernel that does not come to an end is played by a folder.
func TestWhatDoesNotStopIsToldAndLetGo(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "cgroup.freeze"), "0")
	write(t, filepath.Join(dir, "cgroup.events"), "populated 1\nfrozen 0\n")
	g := Group{hierarchy: &Hierarchy{}, v2: dir}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := g.Freeze(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if got := read(t, filepath.Join(dir, "cgroup.freeze")); got != "0" {
		t.Errorf("it was left at %q", got)
	}
}

func TestWhatAGroupUsesIsRead(t *testing.T) {
	for name, p := range versions(t) {
		t.Run(name, func(t *testing.T) {
			if !slices.Contains([]sandbox.Enforcement{sandbox.ByCgroup1, sandbox.ByCgroup2}, p.Enforcement("memory")) {
				t.Skipf("no memory is counted here: %q", p.Notes)
			}
			g, _ := running(t, p)
			for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				u := g.Usage()
				cpu := u.CPU > 0 || p.v2 == "" && u.CPU == -1
				if cpu && u.Memory > 0 && (u.Peak >= u.Memory || u.Peak == -1) && u.Processes >= 1 &&
					u.OOMKills == 0 && u.Disk == -1 {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("%+v", u)
				}
			}
		})
	}
}

func TestFilesOfAGroupThatSayNothingAreNotBelieved(t *testing.T) {
	dir := t.TempDir()
	for file, says := range map[string]string{
		"memory.current": "12288\n", "memory.peak": "what\n", "pids.current": "",
		"cpu.stat": "usage_usec 1500\nuser_usec x\n", "memory.events": "oom 3\noom_kill 2\n",
	} {
		write(t, filepath.Join(dir, file), says)
	}
	g := Group{hierarchy: &Hierarchy{in2: []string{"memory", "pids"}}, v2: dir}
	want := sandbox.Usage{CPU: 1500 * time.Microsecond, Memory: 12288, Peak: -1, Processes: -1, Disk: -1, OOMKills: 2}
	if u := g.Usage(); u != want {
		t.Errorf("%+v, want %+v", u, want)
	}
	if n := g.OOMKills(); n != 2 {
		t.Errorf("%d", n)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func write(t *testing.T, file, says string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(says), 0o644); err != nil {
		t.Fatal(err)
	}
}
