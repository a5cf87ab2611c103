package page

import (
	"bufio"
	"bytes"
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

	"gatehouse/internal/exec/procid"
	"gatehouse/internal/modules/webview/chromium"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/proxy"
)

// asHost is the variable that has the test be a host that opens a browser, "confined" or "process", and waits.
const asHost = "GATEHOUSE_TEST_BROWSER_HOST"

// A host that is killed leaves no process, and the next one leaves no profile and no cgroup of it.
//
//redteam:attack A kill leaves no process: a host with a browser, confined or not, and what is left of its profile and cgroups
func TestABrowserEndsWithItsHost(t *testing.T) {
	if mode := os.Getenv(asHost); mode != "" {
		beHost(t, mode)
		return
	}
	if runtime.GOOS != "linux" {
		t.Skip("processes are found by /proc")
	}
	for _, mode := range []string{"confined", "process"} {
		t.Run(mode, func(t *testing.T) {
			if mode == "confined" && confining(t, proxy.Options{}) == nil {
				t.Skip("this machine cannot make sandboxes")
			}
			flag := "--gatehouse-test-" + procid.Self() + "-" + mode
			host, id, _ := startHost(t, mode, flag)
			var all map[int]string
			eventually(t, "a browser runs", func() bool { // a child has its parent's command line until it runs its own
				all = descendants(t, host.Process.Pid)
				return len(all) >= 4 && running(t, flag) == 1
			})
			if err := host.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			host.Wait()
			eventually(t, "the browser has ended", func() bool { return running(t, flag) == 0 && alive(all) == 0 })
			next, _, release := startHost(t, mode, flag+"-next")
			eventually(t, "no profile is left", func() bool {
				left, err := filepath.Glob(filepath.Join(os.TempDir(), "ghb-"+id+"-*"))
				return err == nil && len(left) == 0
			})
			eventually(t, "no cgroup is left", func() bool { return !hasGroup(id) })
			release()
			if err := next.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

func beHost(t *testing.T, mode string) {
	chromium.Sweep("")
	flag, _, _ := strings.Cut(os.Getenv(asHost+"_FLAG"), "\n")
	o := Options{
		Chromium: chromium.Options{NoSandbox: chromium.NeedsNoSandbox(), Processes: 1000, Flags: []string{flag}},
	}
	o.Network = sandbox.Network{Allow: []string{"*:*"}}
	if mode == "confined" {
		o.Chromium.Driver = confining(t, proxy.Options{})
	}
	b, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("ready " + procid.Self())
	io.Copy(io.Discard, os.Stdin) // until its starter is done with it
	b.Close()
}

// startHost starts this test as a host and returns its name, see package procid, when its browser is open. release has
// the host close it.
func startHost(t *testing.T, mode, flag string) (cmd *exec.Cmd, id string, release func()) {
	t.Helper()
	if _, err := chromium.FindProgram(""); err != nil {
		t.Skip("there is no chromium: make setup installs it")
	}
	cmd = exec.Command(os.Args[0], "-test.run=^TestABrowserEndsWithItsHost$", "-test.v")
	cmd.Env = append(os.Environ(), asHost+"="+mode, asHost+"_FLAG="+flag)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "ready "); ok {
			go io.Copy(io.Discard, out) // until the host ends
			return cmd, rest, func() { in.Close() }
		}
		t.Log(lines.Text())
	}
	t.Fatal("the host opened no browser")
	return nil, "", nil
}

// running counts the processes whose command lines have a flag.
func running(t *testing.T, flag string) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(append(b, 0), []byte("\x00"+flag+"\x00")) {
			n++
		}
	}
	return n
}

// descendants returns the processes that a process and its children have started, with the times of their starts.
func descendants(t *testing.T, root int) map[int]string {
	t.Helper()
	parents, times := map[int]int{}, map[int]string{}
	paths, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if pid, err := strconv.Atoi(filepath.Base(path)); err == nil {
			parents[pid], times[pid] = statOf(pid)
		}
	}
	all := map[int]string{}
	for pid, when := range times {
		for at := parents[pid]; at > 1; at = parents[at] {
			if at == root {
				all[pid] = when
			}
		}
	}
	return all
}

// statOf returns the parent of a process and when it was started; "" if there is none.
func statOf(pid int) (parent int, when string) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, ""
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest) // from the third field on
	if len(f) < 20 || f[0] == "Z" {
		return 0, ""
	}
	parent, _ = strconv.Atoi(f[1])
	return parent, f[19]
}

func alive(all map[int]string) (n int) {
	for pid, when := range all {
		if _, now := statOf(pid); now == when && when != "" {
			n++
		}
	}
	return n
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not within a minute: " + what)
		}
	}
}
