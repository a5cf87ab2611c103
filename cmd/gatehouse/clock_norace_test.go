//go:build !race

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// clockSource is added to the program: it moves the time of day by the seconds that a file says.
const clockSource = `package main

import (
	"os"
	"strconv"
	"time"
)

func init() {
	file := os.Getenv("TEST_CLOCK")
	follow := func() {
		if b, err := os.ReadFile(file); err == nil {
			if n, err := strconv.ParseInt(string(b), 10, 64); err == nil {
				time.WallOffset.Store(n)
			}
		}
	}
	follow()
	go func() {
		for ; file != ""; time.Sleep(10 * time.Millisecond) {
			follow()
		}
	}()
}
`

// buildWithClock builds the program with a standard library whose time of day can be moved while the program runs, as
// an administrator or a time server does. Time since a moment is measured as before, by the kernel's other clock.
func buildWithClock(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "clock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	const now = "sec += unixToInternal - minWall"
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	source, err := os.ReadFile(file)
	if err != nil || strings.Count(string(source), now) != 1 {
		t.Skipf("this version of Go reads the time in another way: %v", err)
	}
	moved := strings.Replace(string(source), now, "sec += WallOffset.Load() + unixToInternal - minWall", 1)
	moved = strings.Replace(moved, "import (\n", "import (\n\t\"sync/atomic\"\n", 1) +
		"\n// WallOffset is added to the time of day, in seconds.\nvar WallOffset atomic.Int64\n"
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		file: filepath.Join(dir, "time.go"), filepath.Join(here, "clockfile.go"): filepath.Join(dir, "clockfile.go"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"time.go": moved, "clockfile.go": clockSource, "overlay.json": string(overlay),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "gatehouse")
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o",
		program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// jumping is a host whose clock a test moves.
type jumping struct {
	*flooded
	clock  string
	client *http.Client
	wait   time.Duration // for one answer
}

func (j *jumping) jump(by time.Duration) {
	j.t.Helper()
	// A reader sees the old number or the new one.
	next := j.clock + ".next"
	if err := os.WriteFile(next, []byte(strconv.Itoa(int(by/time.Second))), 0o600); err != nil {
		j.t.Fatal(err)
	}
	if err := os.Rename(next, j.clock); err != nil {
		j.t.Fatal(err)
	}
	end := time.Now().Add(time.Minute)
	for {
		want := time.Now().Add(by)
		if got, err := time.Parse(http.TimeFormat, j.date()); err == nil && got.Sub(want).Abs() < time.Minute {
			return
		}
		if time.Now().After(end) {
			j.t.Fatalf("the host's clock does not move by %v", by)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// date returns the time of day as the host's answers have it.
func (j *jumping) date() string {
	res, err := j.client.Get(j.url + "/no-such-page")
	if err != nil {
		j.t.Fatal(err)
	}
	defer res.Body.Close()
	io.Copy(io.Discard, res.Body)
	return res.Header.Get("Date")
}

// status makes a call as a user and returns its status. It fails if no answer comes.
func (j *jumping) status(user, tool, args string) (int, string) {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(j.t.Context(), j.wait)
	defer cancel()
	status, answer, err := j.call(ctx, j.client, user, tool, args)
	if err != nil {
		j.t.Fatalf("%s as %s: %v", tool, user, err)
	}
	return status, answer
}

// session sends a message in a session of the revision before and returns the answer.
func (j *jumping) session(user, id, body string) (header http.Header, answer string) {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(j.t.Context(), j.wait)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "POST", j.url+"/mcp", strings.NewReader(body))
	if err != nil {
		j.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+j.tokens[user])
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if id != "" {
		r.Header.Set("Mcp-Session-Id", id)
		r.Header.Set("MCP-Protocol-Version", "2025-11-25")
	}
	res, err := j.client.Do(r)
	if err != nil {
		j.t.Fatalf("%s: %v", body, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		j.t.Fatal(err)
	}
	return res.Header, fmt.Sprint(res.StatusCode) + " " + string(b)
}

// processor returns the time of a processor that the host has used.
func (j *jumping) processor() time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", j.cmd.Process.Pid))
	if err != nil {
		j.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	const tick = 10 * time.Millisecond
	return time.Duration(user+system) * tick
}

// The clock of a running host is set forward and back by days and years. What was revoked stays so, commands end in
// time, work goes on, every request is answered, and no loop runs without a pause.
//
//redteam:attack One principal, however it comes: the clock of a whole host is set forward and back by days while sessions, tokens, tasks and commands are in use
func TestTheClockOfAHostJumps(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the time of a processor is read from Linux")
	}
	if !long() {
		t.Skip("set GATEHOUSE_TEST_ALL to build the program with a clock that can be set")
	}
	built := buildWithClock(t)
	_, home := placed(t, account{})
	j := &jumping{clock: filepath.Join(home, "clock"), client: &http.Client{}, wait: time.Minute}
	j.flooded = newFloodedAt(t, built, home, "file,shell", "", "TEST_CLOCK="+j.clock)
	const day = 24 * time.Hour
	for _, user := range []string{"flood", "quiet", "boss"} {
		j.tokens[user] = j.run("token", "create", "--user", user, "--expires", "never")
	}
	j.tokens["short"] = j.run("token", "create", "--user", "quiet", "--expires", "12h")

	header, answer := j.session(
		"quiet",
		"",
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":`+
			`"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
	)
	id := header.Get("Mcp-Session-Id")
	if id == "" {
		t.Fatal(answer)
	}
	j.session("quiet", id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if status, answer := j.status("short", "file_read", `{"path":"a.txt"}`); status != 200 {
		t.Fatal(status, answer)
	}
	var revoked []string
	for i, by := range []time.Duration{10 * day, -10 * day, 400 * day, 0, -3 * day, 2 * 365 * day, 0} {
		// A command with a limit of its own and a task are under way while the clock jumps.
		type outcome struct {
			took   time.Duration
			answer string
		}
		ended := make(chan outcome, 1)
		go func() {
			began := time.Now()
			_, answer, err := j.call(t.Context(), j.client, "flood", "shell_run", `{"command":"sleep 30","timeout":2}`)
			ended <- outcome{time.Since(began), fmt.Sprint(answer, err)}
		}()
		_, task := j.session("quiet", id, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"shell_run",`+
			`"arguments":{"command":"sleep 1; echo done"},"task":{"ttl":600000}}}`)
		name := fmt.Sprint("revoked", i)
		j.tokens[name] = j.run("token", "create", "--user", "flood", "--name", name)
		if status, answer := j.status(name, "file_read", `{"path":"a.txt"}`); status != 200 {
			t.Fatalf("a new token, the clock %v off: %d %s", by, status, answer)
		}
		j.revoke(name)
		revoked = append(revoked, name)
		j.untilRefused(name)

		j.jump(by)
		for _, name := range revoked {
			if status, answer := j.status(name, "file_read", `{"path":"a.txt"}`); status != 401 {
				t.Errorf("the clock %v off, a revoked token: %d %s", by, status, answer)
			}
		}
		if status, _ := j.status("short", "file_read", `{"path":"a.txt"}`); by > 12*time.Hour && status != 401 {
			t.Errorf("the clock %v off, an expired token: %d", by, status)
		}
		if status, answer := j.status("boss", "file_read", `{"path":"a.txt"}`); status != 200 {
			t.Errorf("the clock %v off, a good token: %d %s", by, status, answer)
		}
		got := <-ended
		if got.took < 2*time.Second || got.took > 40*time.Second || !strings.Contains(got.answer, "imed") {
			t.Errorf("the clock %v off, a command of 2 s: %v, %s", by, got.took, got.answer)
		}
		var made struct {
			Result struct{ Task struct{ TaskID string } }
		}
		_, text, _ := strings.Cut(task, " ")
		if i := strings.Index(text, "{"); i >= 0 {
			json.Unmarshal([]byte(strings.TrimSpace(text[i:])), &made)
		}
		_, answer := j.session(
			"quiet",
			id,
			fmt.Sprintf(`{"jsonrpc":"2.0","id":3,"method":"tasks/result","params":{"taskId":"%s"}}`,
				made.Result.Task.TaskID),
		)
		// What is kept for a time of day is gone when that has passed, and what is kept for longer is there.
		if expired := by > day; !expired && !strings.Contains(answer, "done") || !strings.HasPrefix(answer, "200 ") {
			t.Errorf("the clock %v off: of the task %s came %s", by, task, answer)
		}

		before := j.processor()
		time.Sleep(3 * time.Second)
		if used := j.processor() - before; used > 1500*time.Millisecond {
			t.Errorf("the clock %v off, an idle host used %v of a processor in 3 s", by, used)
		}
	}
}

// revoke revokes a token by its public id.
func (j *jumping) revoke(name string) {
	j.t.Helper()
	for line := range strings.Lines(j.run("token", "list")) {
		if strings.Contains(line, name) {
			j.run("token", "revoke", strings.Fields(line)[0])
			return
		}
	}
	j.t.Fatalf("no token %s", name)
}

// untilRefused waits until the host knows that a token was revoked.
func (j *jumping) untilRefused(name string) {
	j.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if status, _ := j.status(name, "file_read", `{"path":"a.txt"}`); status == 401 {
			return
		}
		if time.Now().After(end) {
			j.t.Fatal("a revoked token is served")
		}
	}
}
