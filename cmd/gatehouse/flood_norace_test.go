//go:build !race

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// flooded is a host that runs as a process of its own, with users who have a token
// each: flood, quiet and boss, who is an administrator.
type flooded struct {
	t      *testing.T
	cmd    *exec.Cmd
	url    string
	tokens map[string]string
	run    func(args ...string) string // runs a command of the program, which must succeed
}

// long reports whether attacks are made in their long form.
func long() bool { return os.Getenv("GATEHOUSE_TEST_ALL") != "" }

// newFlooded starts a host with more settings.
func newFlooded(t *testing.T, modules, settings string) *flooded {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the memory of a process is read from Linux")
	}
	program, home := placed(t, account{})
	return newFloodedAt(t, program, home, modules, settings)
}

// newFloodedAt is newFlooded with a program, a home folder and more variables.
func newFloodedAt(t *testing.T, program, home, modules, settings string, more ...string) *flooded {
	t.Helper()
	env := append(more, "HOME="+home, "XDG_RUNTIME_DIR="+home, "TMPDIR="+home, "PATH=/usr/bin:/bin:/usr/sbin:/sbin")
	file := filepath.Join(home, "settings.yaml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		cmd := exec.Command(program, args...)
		cmd.Env, cmd.Dir = env, home
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v\n%s", args, err, &said)
		}
		return strings.TrimSpace(string(out))
	}
	f := &flooded{t: t, tokens: map[string]string{}, run: run}
	for _, user := range []string{"flood", "quiet", "boss"} {
		args := []string{"user", "add", user, "--no-password"}
		if user == "boss" {
			args = append(args, "--role", "admin")
		}
		run(args...)
		f.tokens[user] = run("token", "create", "--user", user)
	}
	if err := os.Mkdir(filepath.Join(home, "files"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "files", "a.txt"), []byte("hello\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.cmd = exec.Command(program, "serve", "--http", "-p", "0", "--require-auth", "-d", filepath.Join(home, "files"),
		"--modules", modules, "--config", file)
	f.cmd.Env, f.cmd.Dir = env, home
	said, err := f.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.cmd.Process.Kill()
		f.cmd.Wait()
	})
	lines := bufio.NewScanner(said)
	address := regexp.MustCompile(`http://127\.0\.0\.1:\d+`)
	var before []string
	for f.url == "" && lines.Scan() {
		before = append(before, lines.Text())
		f.url = address.FindString(lines.Text())
	}
	if f.url == "" {
		t.Fatalf("the host says no address:\n%s", strings.Join(before, "\n"))
	}
	go io.Copy(io.Discard, said)
	return f
}

const modernEnvelope = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`

// request makes a request of a user.
func (f *flooded) request(ctx context.Context, user, method, name, body string) *http.Request {
	r, err := http.NewRequestWithContext(ctx, "POST", f.url+"/mcp", strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	for k, v := range map[string]string{
		"Authorization": "Bearer " + f.tokens[user], "Content-Type": "application/json",
		"Accept": "application/json, text/event-stream",
	} {
		r.Header.Set(k, v)
	}
	if method != "initialize" {
		r.Header.Set("MCP-Protocol-Version", "2026-07-28")
		r.Header.Set("Mcp-Method", method)
		if name != "" {
			r.Header.Set("Mcp-Name", name)
		}
	}
	return r
}

// call calls a tool, without a session.
func (f *flooded) call(
	ctx context.Context, c *http.Client, user, tool, args string,
) (status int, answer string, err error) {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s","arguments":%s,%s}}`,
		tool, args, modernEnvelope)
	res, err := c.Do(f.request(ctx, user, "tools/call", tool, body))
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

// measured is how a user is served: the 99th percentile and the median of calls.
type measured struct{ p99, median time.Duration }

// measure calls a tool as a user, some time apart.
func (f *flooded) measure(user string, calls int) (m measured) {
	f.t.Helper()
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	var all []time.Duration
	for range calls {
		began := time.Now()
		status, answer, err := f.call(f.t.Context(), c, user, "file_read", `{"path":"a.txt"}`)
		if err != nil || status != 200 || !strings.Contains(answer, "hello") {
			f.t.Fatalf("%s is not served: %d, %.300s, %v", user, status, answer, err)
		}
		all = append(all, time.Since(began))
		time.Sleep(5 * time.Millisecond)
	}
	slices.Sort(all)
	return measured{all[len(all)*99/100], all[len(all)/2]}
}

// resident is the most memory of the host so far, in MiB.
func (f *flooded) resident() int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.cmd.Process.Pid))
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ := strconv.Atoi(strings.Fields(rest)[0])
			return kib >> 10
		}
	}
	f.t.Fatal("the memory of the host is not known")
	return 0
}

// beside runs a flood and measures others beside it. In the long form the bar holds:
// twice what it takes alone, and 512 MiB. In the short form there is slack for a
// machine that does other work.
func (f *flooded) beside(flood func(ctx context.Context), full func() bool) {
	f.t.Helper()
	calls, times := 100, time.Duration(20)
	if long() {
		calls, times = 1000, 2
	}
	f.measure("quiet", 20)
	f.measure("boss", 20)
	alone := f.measure("quiet", calls)
	ctx, cancel := context.WithCancel(f.t.Context())
	var all sync.WaitGroup
	all.Go(func() { flood(ctx) })
	defer all.Wait()
	defer cancel()
	rising := f.measure("quiet", calls)
	for end := time.Now().Add(2 * time.Minute); !full(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			f.t.Fatal("the flood does not fill what it floods")
		}
	}
	beside := f.measure("quiet", calls)
	boss := f.measure("boss", 20)
	mib := f.resident()
	f.t.Logf("alone %v, while it rises %v, beside it %v, an administrator %v; %d MiB resident", alone, rising, beside,
		boss, mib)
	least := 5 * time.Millisecond // what is shorter is noise
	if !long() {
		least = 50 * time.Millisecond
	}
	if beside.p99 > times*max(alone.p99, least) {
		f.t.Errorf("beside it the 99th percentile is %v, alone it is %v", beside.p99, alone.p99)
	}
	// The attacker is on the same processors, and works while the flood rises.
	if rising.p99 > 3*time.Second {
		f.t.Errorf("while it rises the 99th percentile is %v", rising.p99)
	}
	if mib > 512 {
		f.t.Errorf("%d MiB are resident", mib)
	}
}

// many runs f n times, so many at once, until ctx is done.
func many(ctx context.Context, n, atOnce int, f func(c *http.Client, i int)) {
	var all sync.WaitGroup
	var next atomic.Int64
	for range atOnce {
		all.Go(func() {
			c := &http.Client{Transport: &http.Transport{}}
			defer c.CloseIdleConnections()
			for ctx.Err() == nil {
				i := int(next.Add(1))
				if i > n {
					return
				}
				f(c, i)
			}
		})
	}
	all.Wait()
}

// One principal opens sessions without end: 3,000 of 1,600, and with
// GATEHOUSE_TEST_ALL 100,000.
//
//redteam:attack No principal takes the host from the others: 100,000 sessions are opened by one principal
func TestAFloodOfSessions(t *testing.T) {
	opens, settings := 3000, "sessions: {max: 1600}\n"
	if long() {
		opens, settings = 100_000, ""
	}
	f := newFlooded(t, "file", settings)
	var refused atomic.Int64
	f.beside(func(ctx context.Context) {
		many(ctx, opens, 32, func(c *http.Client, _ int) {
			res, err := c.Do(f.request(
				ctx,
				"flood",
				"initialize",
				"",
				`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`,
			))
			if err != nil {
				return
			}
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
			if res.StatusCode != 200 {
				refused.Add(1)
			}
		})
	}, func() bool { return refused.Load() > 0 || long() })
	for _, user := range []string{"quiet", "boss"} {
		res, err := http.DefaultClient.Do(f.request(
			t.Context(),
			user,
			"initialize",
			"",
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`,
		))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 200 || res.Header.Get("Mcp-Session-Id") == "" {
			t.Errorf("%s gets no session: %s", user, res.Status)
		}
	}
}

// One principal makes calls that take long, many more than there are slots.
//
//redteam:attack No principal takes the host from the others: one principal fills every call slot with long calls
func TestAFloodOfLongCalls(t *testing.T) {
	calls, settings := 200, "limits: {calls: 64}\n"
	if long() {
		calls, settings = 1500, ""
	}
	f := newFlooded(t, "file,shell", settings)
	var begun atomic.Int64
	f.beside(func(ctx context.Context) {
		many(ctx, calls, calls, func(c *http.Client, _ int) {
			begun.Add(1)
			f.call(ctx, c, "flood", "shell_run", `{"command":"sleep 50"}`)
		})
	}, func() bool {
		return int(begun.Load()) == calls
	})
}

// One principal starts programs without end.
//
//redteam:attack No principal takes the host from the others: one principal starts hundreds of programs a second
func TestAFloodOfPrograms(t *testing.T) {
	f := newFlooded(t, "file,shell,process", "")
	var begun atomic.Int64
	f.beside(func(ctx context.Context) {
		many(ctx, 1<<30, 128, func(c *http.Client, i int) {
			begun.Add(1)
			if i%2 == 0 {
				f.call(ctx, c, "flood", "shell_run", `{"command":"true"}`)
			} else {
				f.call(ctx, c, "flood", "process_run", `{"command":"true"}`)
			}
		})
	}, func() bool { return begun.Load() > 500 })
}

// One principal runs programs that calculate without end.
//
//redteam:attack No principal takes the host from the others: one principal runs programs that calculate without end, in shells and as processes
func TestAFloodOfCalculations(t *testing.T) {
	f := newFlooded(t, "file,shell,process", "")
	const each = 16
	var begun atomic.Int64
	f.beside(func(ctx context.Context) {
		many(ctx, 2*each, 2*each, func(c *http.Client, i int) {
			begun.Add(1)
			if i%2 == 0 {
				f.call(ctx, c, "flood", "shell_run", `{"command":"while :; do :; done"}`)
			} else {
				f.call(ctx, c, "flood", "process_start", `{"command":"sh","args":["-c","while :; do :; done & while :; do :; done"]}`)
			}
		})
		<-ctx.Done()
	}, func() bool { return begun.Load() == 2*each })
}

// One principal sends half of 150 bodies of 20 MiB.
//
//redteam:attack No principal takes the host from the others: 150 large bodies are sent by half to a real host
func TestAFloodOfHalfSentBodies(t *testing.T) {
	f := newFlooded(t, "file", "")
	const size, sent = 20 << 20, 12 << 20
	var begun atomic.Int64
	f.beside(func(ctx context.Context) {
		many(ctx, 150, 150, func(*http.Client, int) {
			begun.Add(1)
			conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
			if err != nil {
				return
			}
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			fmt.Fprintf(
				conn,
				"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n"+
					"Content-Type: application/json\r\n"+
					"Accept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n",
				f.tokens["flood"],
				size,
			)
			piece := bytes.Repeat([]byte{' '}, 64<<10)
			for range sent / len(piece) {
				if _, err := conn.Write(piece); err != nil {
					break
				}
			}
			io.Copy(io.Discard, conn) // until the host has had enough
		})
	}, func() bool { return begun.Load() == 150 })
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	big := fmt.Sprintf(`{"path":"a.txt","junk":"%s"}`, strings.Repeat("x", 8<<20))
	if status, answer, err := f.call(t.Context(), c, "quiet", "file_read", big); err != nil || status != 200 {
		t.Errorf("a large body of another is not read: %d, %.300s, %v", status, answer, err)
	}
}

// One principal opens streams without end.
//
//redteam:attack No principal takes the host from the others: one principal opens more streams than there are
func TestAFloodOfStreams(t *testing.T) {
	streams, settings := 600, "limits: {streams: 320}\n"
	if long() {
		streams, settings = 3000, "limits: {streams: 4000}\n" // descriptors of this process
	}
	f := newFlooded(t, "file", settings)
	listen := func(ctx context.Context, user string) (*http.Response, error) {
		return (&http.Client{Transport: &http.Transport{}}).Do(f.request(
			ctx,
			user,
			"subscriptions/listen",
			"",
			`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},`+
				modernEnvelope+`}}`,
		))
	}
	var refused atomic.Int64
	f.beside(func(ctx context.Context) {
		many(ctx, streams, 16, func(*http.Client, int) {
			res, err := listen(ctx, "flood")
			if err != nil {
				return
			}
			if res.StatusCode != 200 {
				refused.Add(1)
				res.Body.Close()
				return
			}
			context.AfterFunc(ctx, func() { res.Body.Close() })
		})
		<-ctx.Done()
	}, func() bool { return refused.Load() > 0 })
	for _, user := range []string{"quiet", "boss"} {
		res, err := listen(t.Context(), user)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 200 {
			t.Errorf("%s gets no stream: %s", user, res.Status)
		}
	}
}

// One principal makes all the sandboxes it can.
//
//redteam:attack No principal takes the host from the others: one principal claims every sandbox
func TestAFloodOfSandboxes(t *testing.T) {
	f := newFlooded(t, "file,sandbox", "modules: {sandbox: {most: 16, memory_mib: 64, pool: {enabled: false}}}\n")
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	create := func(user string) (answer string, ok bool) {
		status, answer, err := f.call(t.Context(), c, user, "sandbox_create", `{}`)
		if err != nil || status != 200 {
			t.Fatalf("%s: %d, %s, %v", user, status, answer, err)
		}
		var a struct{ Result struct{ IsError bool } }
		if err := json.Unmarshal([]byte(answer), &a); err != nil {
			t.Fatalf("%s: %v", answer, err)
		}
		return answer, !a.Result.IsError
	}
	if answer, ok := create("flood"); !ok {
		t.Skipf("there are no sandboxes here: %s", answer)
	}
	made := 1
	f.beside(func(ctx context.Context) {
		for range 20 {
			if answer, ok := create("flood"); ok {
				made++
			} else if !strings.Contains(answer, "of this host") {
				t.Errorf("refused with %s", answer)
			}
		}
		<-ctx.Done()
	}, func() bool { return made > 1 })
	if made != 8 {
		t.Errorf("one principal has %d of 16 sandboxes", made)
	}
	for _, user := range []string{"quiet", "boss"} {
		if answer, ok := create(user); !ok {
			t.Errorf("%s gets no sandbox: %s", user, answer)
		}
	}
}
