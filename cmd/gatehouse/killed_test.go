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
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// account is whose host is killed.
type account struct {
	name string
	uid  int
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
	return newLineHostWith(t, program, home, who, "shell,process")
}

// newLineHostWith is newLineHost with other modules.
func newLineHostWith(t *testing.T, program, home string, who account, modules string) *lineHost {
	t.Helper()
	args := []string{program, "serve", "-d", home, "--modules", modules}
	if os.Getuid() == 0 && who.uid != 0 {
		id := strconv.Itoa(who.uid)
		args = append([]string{"setpriv", "--reuid=" + id, "--regid=" + id, "--clear-groups", "--"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = home
	cmd.Env = []string{"HOME=" + home, "XDG_RUNTIME_DIR=" + home, "TMPDIR=" + home, "PATH=/usr/bin:/bin"}
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
	h.request(
		"initialize",
		`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`,
	)
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
	{
		"process_start",
		"env -i nohup setsid sh -c 'trap \"\" TERM HUP INT; sleep N; sleep N' >/dev/null 2>&1 & sleep N",
		2,
	},
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
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere this is not promised")
	}
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
				b, _ := json.Marshal(
					map[string]any{"name": "shell_run", "arguments": map[string]any{"command": script}},
				)
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
				if p, err := os.FindProcess(pid); err == nil {
					p.Kill()
				}
			}
			t.Errorf("%d of %d processes are left %v after the host of %s was killed", len(left), want, patience,
				who.name)
		}
		endKept(t, program, home, who, kept)
	}
	t.Logf("%d hosts of %s: nothing was left after %v at most", rounds, who.name, slowest)
}

// attacks are what a program of an ordinary user's host does to its keeper, which is the parent of
// the shell; HOST is the number of the host, N as in trees, and RAN notes that it begins.
var attacks = []struct {
	name, script string
	next         bool // the host is killed as well, so that the next one has to end what is left
}{
	{"killed", "(env -i setsid sh deep.sh 3 N &) ; sleep 0.2; RAN; kill -9 $PPID; sleep N", false},
	{
		"killed at once",
		"(env -i K=$PPID setsid sh -c 'RAN; kill -9 $K; sh deep.sh 2 N & exec sleep N' &) ; sleep N",
		false,
	},
	{
		"killed by a daemon",
		"K=$PPID; (env -i K=$K setsid sh -c 'sleep 0.1; RAN; kill -9 $K; sleep N & exec sleep N' &) ; sleep N",
		false,
	},
	{
		"stopped, and the host killed",
		"(env -i setsid sh deep.sh 3 N &) ; kill -STOP $PPID; sleep 0.3; RAN; kill -9 HOST; sleep N",
		false,
	},
	{"killed with the host", "(env -i setsid sh deep.sh 3 N &) ; sleep 0.3; RAN; kill -9 HOST $PPID; sleep N", true},
}

// A program that kills or stops its keeper is ended all the same, with all that comes of it, by the
// host or by the next one.
//
//redteam:attack A kill leaves no process: a program of an ordinary user's host kills or stops its keeper, and the host with it
func TestAKeeperThatIsKilledLeavesNoProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere this is not promised")
	}
	who := account{"a user", 54321}
	program, home := placed(t, who)
	ran := filepath.Join(home, "ran") // Landlock lets no program make files beside the host's own folders
	if err := os.Mkdir(ran, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(ran, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, attack := range attacks {
		t.Run(attack.name, func(t *testing.T) {
			n := strconv.Itoa(100_000 + rand.IntN(900_000_000))
			quiet := strconv.Itoa(100_000 + rand.IntN(900_000_000))
			h := newLineHost(t, program, home, who)
			h.call("process_start",
				map[string]any{"command": "sh", "args": []string{"-c", "env -i setsid sleep " + quiet}})
			script := strings.NewReplacer("RAN", ": > ran/"+n, "N", n, "HOST", strconv.Itoa(h.cmd.Process.Pid)).
				Replace(attack.script)
			h.id++ // which is not waited for, because the host may end first
			b, _ := json.Marshal(map[string]any{"name": "process_start",
				"arguments": map[string]any{"command": "sh", "args": []string{"-c", script}}})
			fmt.Fprintf(h.in, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%s}`+"\n", h.id, b)
			within(t, "the program runs", func() bool {
				_, err := os.Stat(filepath.Join(home, "ran", n))
				return err == nil
			})
			if strings.Contains(attack.script, "HOST") {
				h.cmd.Wait() // the program kills it
			}
			if attack.next {
				within(t, "the keeper is gone", func() bool { return len(with(quiet)) == 0 })
				newLineHost(t, program, home, who).call("process_list", nil)
			}
			empty := 0 // for half a second, because the program may be about to start more
			within(t, "nothing is left of the program", func() bool {
				if empty++; len(with(n)) > 0 {
					empty = 0
				}
				return empty > 100
			})
			if h.cmd.ProcessState == nil && len(with(quiet)) == 0 {
				t.Error("the program of another keeper was ended as well")
			}
			h.kill()
			within(t, "nothing is left of the host", func() bool { return len(with(quiet)) == 0 })
		})
	}
}

// within waits for something.
func within(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
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
	if i := strings.IndexFunc(after,
		func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9') }); i >= 0 {
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
		if err := os.Chown(home, who.uid, who.uid); err != nil {
			t.Fatal(err)
		}
		for up := dir; len(up) > len(os.TempDir()); up = filepath.Dir(up) {
			os.Chmod(up, 0o755) // for the user to get there
		}
	}
	return program, home
}
