package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// account is whose host is killed.
type account struct {
	name string
	uid  uint32
}

// lineHost is a host that runs as a process of its own and serves its standard input.
type lineHost struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	id  int
}

// newLineHost starts the program in a folder that belongs to the account.
func newLineHost(t *testing.T, program, home string, who account) *lineHost {
	t.Helper()
	cmd := exec.Command(program, "serve", "-d", home, "--modules", "shell,process")
	cmd.Dir = home
	cmd.Env = []string{"HOME=" + home, "XDG_RUNTIME_DIR=" + home, "TMPDIR=" + home, "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Getuid() == 0 && who.uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: who.uid, Gid: who.uid}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &lineHost{t: t, cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(h.kill)
	h.request("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)
	fmt.Fprintln(h.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return h
}

// request sends a request and returns its result.
func (h *lineHost) request(method, params string) string {
	h.t.Helper()
	h.id++
	fmt.Fprintf(h.in, `{"jsonrpc":"2.0","id":%d,"method":"%s","params":%s}`+"\n", h.id, method, params)
	for {
		line, err := h.out.ReadString('\n')
		if err != nil {
			h.t.Fatalf("%s %s: %v", method, params, err)
		}
		var answer struct {
			ID            int
			Result, Error json.RawMessage
		}
		if json.Unmarshal([]byte(line), &answer) != nil || answer.ID != h.id {
			continue
		}
		if answer.Error != nil || strings.Contains(string(answer.Result), `"isError":true`) {
			h.t.Fatalf("%s %s: %s", method, params, line)
		}
		return string(answer.Result)
	}
}

func (h *lineHost) call(tool string, args map[string]any) string {
	h.t.Helper()
	b, err := json.Marshal(map[string]any{"name": tool, "arguments": args})
	if err != nil {
		h.t.Fatal(err)
	}
	return h.request("tools/call", string(b))
}

// kill ends the host as kill -9 does.
func (h *lineHost) kill() {
	h.cmd.Process.Kill()
	h.cmd.Wait()
}

// with are the processes one of whose arguments is this.
func with(argument string) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if slices.Contains(strings.Split(string(b), "\x00"), argument) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// deep starts itself again in a session and an environment of its own, as often as
// its first argument says, and then sleeps, at each level.
const deep = `if [ "$1" -gt 0 ]; then env -i PATH=$PATH setsid sh deep.sh $(($1-1)) "$2" & fi
sleep "$2"
`

// trees are the ways in which children go out of the host's sight; N is what they
// sleep for, by which they are known, and the number is how many processes do.
var trees = []struct {
	tool   string
	script string
	sleeps int
}{
	{"process_start", "sleep N & sleep N", 2},
	{"process_start", "exec env -i /bin/sh -c 'sh deep.sh 8 N'", 9},
	{"process_start", "(env -i PATH=$PATH setsid sh -c '(setsid sleep N &) ; exit' &) ; sleep N", 2},
	{"process_start", "env -i nohup setsid sh -c 'trap \"\" TERM HUP INT; sleep N; sleep N' >/dev/null 2>&1 & sleep N", 2},
	{"shell_run", "(env -i setsid sh -c 'sleep N & sleep N' >/dev/null 2>&1 </dev/null &) ; sleep N", 3},
}

// A host that is killed leaves no process, whatever its children did to get out of
// its sight, and the next host finds what was detached on purpose.
//
//redteam:attack A kill leaves no process: a host of root is killed above deep trees of daemons with an environment of their own
func TestAKilledHostOfRootLeavesNoProcess(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("it takes root")
	}
	killHosts(t, account{"root", 0})
}

// An ordinary user's host has no control groups; its children have keepers.
//
//redteam:attack A kill leaves no process: a host of an ordinary user is killed above deep trees of daemons with an environment of their own
func TestAKilledHostOfAUserLeavesNoProcess(t *testing.T) {
	killHosts(t, account{"a user", 54321})
}

// killHosts kills 3 hosts, and 100 with GATEHOUSE_TEST_ALL.
func killHosts(t *testing.T, who account) {
	rounds, patience := 3, 20*time.Second // a busy machine
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		rounds, patience = 100, 2*time.Second
	}
	program, home := placed(t, who)
	slowest := time.Duration(0)
	for range rounds {
		n := strconv.Itoa(100_000 + rand.IntN(900_000_000))
		kept := strconv.Itoa(100_000 + rand.IntN(900_000_000))
		h := newLineHost(t, program, home, who)
		want := 0
		for _, tree := range trees {
			script := strings.ReplaceAll(tree.script, "N", n)
			want += tree.sleeps
			if tree.tool == "shell_run" {
				h.id++ // which is not waited for
				b, _ := json.Marshal(map[string]any{"name": "shell_run", "arguments": map[string]any{"command": script}})
				fmt.Fprintf(h.in, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%s}`+"\n", h.id, b)
				continue
			}
			h.call("process_start", map[string]any{"command": "sh", "args": []string{"-c", script}})
		}
		h.call("process_start", map[string]any{"command": "sleep", "args": []string{kept}, "detach": true})
		sleeping := func() (count int) {
			for _, pid := range with(n) {
				b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
				if strings.TrimSpace(string(b)) == "sleep" {
					count++
				}
			}
			return count
		}
		for end := time.Now().Add(time.Minute); sleeping() < want; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d of %d processes sleep", sleeping(), want)
			}
		}
		killed := time.Now()
		h.kill()
		for len(with(n)) > 0 && time.Since(killed) < patience {
			time.Sleep(5 * time.Millisecond)
		}
		slowest = max(slowest, time.Since(killed))
		if left := with(n); len(left) > 0 {
			for _, pid := range left {
				b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				t.Logf("%d: %q", pid, b)
				syscall.Kill(pid, syscall.SIGKILL)
			}
			t.Errorf("%d of %d processes are left %v after the host of %s was killed", len(left), want, patience, who.name)
		}
		endKept(t, program, home, who, kept)
	}
	t.Logf("%d hosts of %s: nothing was left after %v at most", rounds, who.name, slowest)
}

// endKept has the next host find and end what was detached.
func endKept(t *testing.T, program, home string, who account, kept string) {
	t.Helper()
	if len(with(kept)) != 1 {
		t.Errorf("what was detached from a host of %s ended with it", who.name)
		return
	}
	next := newLineHost(t, program, home, who)
	defer next.kill()
	list := next.call("process_list", map[string]any{"running_only": true})
	var result struct{ StructuredContent json.RawMessage }
	if err := json.Unmarshal([]byte(list), &result); err != nil || !strings.Contains(list, kept) {
		t.Fatalf("the next host does not list it: %s, %v", list, err)
	}
	id := processID(list)
	next.call("process_kill", map[string]any{"id": id})
	for end := time.Now().Add(time.Minute); len(with(kept)) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the next host does not end it")
		}
	}
}

// processID finds the id of a process in a list.
func processID(list string) string {
	_, after, _ := strings.Cut(list, "process_")
	if i := strings.IndexFunc(after, func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9') }); i >= 0 {
		after = after[:i]
	}
	return "process_" + after
}

// placed puts the program where the account can start it, and makes a home for it.
func placed(t *testing.T, who account) (program, home string) {
	t.Helper()
	found, err := exec.LookPath("gatehouse")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(found)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program, home = filepath.Join(dir, "gatehouse"), filepath.Join(dir, "home")
	for _, err := range []error{
		os.WriteFile(program, b, 0o755), os.Mkdir(home, 0o700),
		os.WriteFile(filepath.Join(home, "deep.sh"), []byte(deep), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if os.Getuid() == 0 && who.uid != 0 {
		if err := os.Chown(home, int(who.uid), int(who.uid)); err != nil {
			t.Fatal(err)
		}
		for up := dir; len(up) > len(os.TempDir()); up = filepath.Dir(up) {
			os.Chmod(up, 0o755) // for the user to get there
		}
	}
	return program, home
}
