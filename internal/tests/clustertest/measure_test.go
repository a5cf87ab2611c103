package clustertest

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What a cluster costs is measured in the long form, and written down in docs/cluster.md. The tests fail only if an
// answer is wrong, because a figure depends on the machine.

// childrenOf returns the processes that a process has started.
func childrenOf(pid int) (pids []int) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, thread := range threads {
		raw, _ := os.ReadFile(thread) // none if the thread has ended meanwhile
		for child := range bytes.FieldsSeq(raw) {
			if pid, err := strconv.Atoi(string(child)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// crash kills a host and its engine.
func (n *node) crash() {
	for _, pid := range append(childrenOf(n.cmd.Process.Pid), n.cmd.Process.Pid) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	n.cmd.Wait()
}

// processorTime returns what a process has used so far.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	var at unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &at); err != nil { // the processor clock of another process
		t.Fatal(err)
	}
	return time.Duration(at.Nano())
}

// resident returns the resident memory of a process in bytes.
func resident(t *testing.T, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(raw))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

func median[T cmp.Ordered](all []T) T { return slices.Sorted(slices.Values(all))[len(all)/2] }

func part[T cmp.Ordered](all []T, of float64) T {
	slices.Sort(all)
	return all[int(float64(len(all)-1)*of)]
}

// keptClient uses a connection again.
func keptClient() *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
}

// modernRequest returns the request of a call in the modern era.
func modernRequest(url, token, name, arguments string) *http.Request {
	r, err := http.NewRequest("POST", url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+
		name+`","arguments":`+arguments+`,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
		`"io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},`+
		`"io.modelcontextprotocol/clientCapabilities":{}}}}`))
	if err != nil {
		panic(err)
	}
	for k, v := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": name,
	} {
		r.Header.Set(k, v)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r
}

// send returns the answer to a request, and an error unless it has a text.
func send(c *http.Client, r *http.Request, want string) (string, error) {
	a, err := c.Do(r)
	if err != nil {
		return "", err
	}
	defer a.Body.Close()
	raw, err := io.ReadAll(a.Body)
	if err == nil && !strings.Contains(string(raw), want) {
		err = fmt.Errorf("status %d: %.300s", a.StatusCode, raw)
	}
	return string(raw), err
}

// localToken returns the token of the user that the host runs as.
func (n *node) localToken(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(n.dir, "state", "gatehouse", "local-token"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

// whenLong skips what is measured in the long form only, and returns the environment of the measured hosts.
func whenLong(t *testing.T) []string {
	t.Helper()
	if !long() {
		t.Skip("set GATEHOUSE_TEST_ALL to measure")
	}
	return []string{"GATEHOUSE_CLUSTER_LEASE=1s", "GATEHOUSE_SESSIONS_MAX=200000"}
}

// TestCostOfACall compares a stateless call on a node with one on a host without a cluster. What each takes without
// calls is not counted.
func TestCostOfACall(t *testing.T) {
	env := whenLong(t)
	nodes := startNodesIn(t, env)
	alone := &node{dir: t.TempDir(), output: &lockedBuffer{}, env: env}
	port := freePort(t)
	alone.url = "http://127.0.0.1:" + port + "/mcp"
	alone.start(t, "serve", "file", "dir", "-d", alone.dir, "--http", "-p", port)
	t.Cleanup(func() { alone.cmd.Process.Signal(syscall.SIGTERM); alone.cmd.Wait() })
	alone.awaitServing(t)
	time.Sleep(5 * time.Second) // what a start does

	rounds := number("GATEHOUSE_ROUNDS", 400)
	const calls, workers = 100, 4
	c := keptClient()
	run := func(n *node) {
		var all sync.WaitGroup
		for range workers {
			all.Go(func() {
				for range calls / workers {
					if _, err := send(c, modernRequest(n.url, "", "file_exists", `{"path":"x"}`), `"complete"`); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	}
	idle := map[*node]float64{} // what it takes without calls, of one processor
	const rest = 20 * time.Second
	for _, n := range []*node{alone, nodes[0]} {
		idle[n] -= float64(processorTime(t, n.cmd.Process.Pid)) / float64(rest)
	}
	time.Sleep(rest)
	for n := range idle {
		idle[n] += float64(processorTime(t, n.cmd.Process.Pid)) / float64(rest)
	}
	t.Logf("without calls: alone %.2f %% of a processor, on a node %.2f %%", 100*idle[alone], 100*idle[nodes[0]])
	measure := func(n *node) (host, engine time.Duration) {
		for _, pid := range childrenOf(n.cmd.Process.Pid) {
			engine -= processorTime(t, pid)
		}
		host -= processorTime(t, n.cmd.Process.Pid)
		begin := time.Now()
		run(n)
		host += processorTime(t, n.cmd.Process.Pid) - time.Duration(float64(time.Since(begin))*idle[n])
		for _, pid := range childrenOf(n.cmd.Process.Pid) {
			engine += processorTime(t, pid)
		}
		return host, engine
	}
	var of [2][]float64
	var engines []float64
	for k := range rounds {
		for i := range 2 { // each is first as often as second
			i = (i + k) % 2
			host, engine := measure([]*node{alone, nodes[0]}[i])
			of[i] = append(of[i], float64(host.Nanoseconds())/calls/1000)
			if i == 1 {
				engines = append(engines, float64(engine.Nanoseconds())/calls/1000)
			}
		}
		if t.Failed() {
			return
		}
	}
	// What a round of a node took beside that of the host alone in the same moment: the machine is as busy for both.
	var ratios []float64
	for i := range of[0] {
		ratios = append(ratios, of[1][i]/of[0][i])
	}
	// The median of as many draws from the rounds lies between these in 95 of 100 cases.
	var medians []float64
	for range 2000 {
		drawn := make([]float64, len(ratios))
		for i := range drawn {
			drawn[i] = ratios[rand.IntN(len(ratios))]
		}
		medians = append(medians, median(drawn))
	}
	t.Logf("processor time of a stateless call, %d rounds of %d: alone %.1f us, on a node %.1f us; median of the ratios "+
		"%.3f (95 %% of %.3f to %.3f); its engine meanwhile %.1f us a call", rounds, calls, median(of[0]), median(of[1]),
		median(ratios), part(medians, .025), part(medians, .975), median(engines))
}

// TestCostOfACrossing compares calls with a handle of another node with those over a Unix socket of that node, each
// between two of the others.
func TestCostOfACrossing(t *testing.T) {
	nodes := startNodesIn(t, whenLong(t), "process", "--unix", "{dir}/s")
	time.Sleep(5 * time.Second) // what a start does
	c := keptClient()
	got, err := send(c, modernRequest(nodes[1].url, "", "process_start", `{"command":"sleep","args":["600"]}`), `"complete"`)
	if err != nil {
		t.Fatal(err)
	}
	var made struct {
		Result struct {
			StructuredContent struct{ ID string } `json:"structuredContent"`
		}
	}
	if err := json.Unmarshal([]byte(got), &made); err != nil || made.Result.StructuredContent.ID == "" {
		t.Fatalf("%s, %v", got, err)
	}
	id := fmt.Sprintf(`{"id":%q}`, made.Result.StructuredContent.ID)
	ways := map[string]func() error{
		"Unix socket of its node":     overSocket(t, nodes[1], id),
		"Unix socket of another node": overSocket(t, nodes[0], id),
		"HTTP to its node": func() error {
			_, err := send(c, modernRequest(nodes[1].url, "", "process_output", id), `"complete"`)
			return err
		},
		"HTTP to another node": func() error {
			_, err := send(c, modernRequest(nodes[0].url, "", "process_output", id), `"complete"`)
			return err
		},
	}
	took := map[string][]time.Duration{}
	for range number("GATEHOUSE_CALLS", 2000) {
		for name, call := range ways {
			begin := time.Now()
			if err := call(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			took[name] = append(took[name], time.Since(begin))
		}
	}
	report := func(how string, took map[string][]time.Duration) {
		first := part(took["Unix socket of its node"], .5)
		for _, name := range slices.Sorted(maps.Keys(took)) {
			p50 := part(took[name], .5)
			t.Logf("a call of process_output, %s, by %s: p10 %v, p50 %v (%.2f), p95 %v", how, name, part(took[name], .1), p50,
				float64(p50)/float64(first), part(took[name], .95))
		}
	}
	report("one at a time", took)
	atOnce := map[string][]func() error{}
	const clients, each = 8, 20
	for range clients {
		for name, n := range map[string]*node{"Unix socket of its node": nodes[1], "Unix socket of another node": nodes[0]} {
			atOnce[name] = append(atOnce[name], overSocket(t, n, id))
		}
	}
	took = map[string][]time.Duration{}
	for range number("GATEHOUSE_CALLS", 2000) / each {
		for name, calls := range atOnce {
			took[name] = append(took[name], callAtOnce(t, calls, each)...)
		}
	}
	report(fmt.Sprint(clients, " at once"), took)
}

// callAtOnce has each client call a number of times, and returns how long each call took.
func callAtOnce(t *testing.T, clients []func() error, times int) []time.Duration {
	t.Helper()
	took := make([]time.Duration, len(clients)*times)
	var all sync.WaitGroup
	for i, call := range clients {
		all.Go(func() {
			for k := range times {
				begin := time.Now()
				if err := call(); err != nil {
					t.Error(err)
					return
				}
				took[i*times+k] = time.Since(begin)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return took
}

// overSocket opens a session at the Unix socket of a node and returns what calls process_output in it.
func overSocket(t *testing.T, n *node, arguments string) func() error {
	t.Helper()
	socket, err := net.Dial("unix", filepath.Join(n.dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	lines := bufio.NewReader(socket)
	ask := func(line string) error {
		if _, err := io.WriteString(socket, line+"\n"); err != nil {
			return err
		}
		answer, err := lines.ReadString('\n')
		if err == nil && !strings.Contains(answer, `"result"`) {
			err = errors.New(answer)
		}
		return err
	}
	if err := ask(initialize); err != nil {
		t.Fatal(err)
	}
	io.WriteString(socket, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	return func() error {
		return ask(`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"process_output","arguments":` + arguments +
			`}}`)
	}
}

// gap is how long a kind of request did not succeed.
type gap struct {
	mu    sync.Mutex
	last  map[string]time.Time // of each client
	worst map[string]time.Duration
	of    map[string]int // requests
}

func (g *gap) succeeded(kind string, client int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	key, now := fmt.Sprint(kind, client), time.Now()
	if last, ok := g.last[key]; ok {
		g.worst[kind] = max(g.worst[kind], now.Sub(last))
	}
	g.last[key] = now
	g.of[kind]++
}

// TestANodeDiesUnderLoad kills each node once, with its engine, while clients of the others call.
func TestANodeDiesUnderLoad(t *testing.T) {
	nodes := startNodesIn(t, whenLong(t), "db")
	nodes[0].command(t, "user", "add", "ada", "--no-password")
	out := nodes[0].command(t, "token", "create", "--user", "ada")
	token := ""
	for word := range strings.FieldsSeq(out) {
		if strings.HasPrefix(word, "gh_") {
			token = word
		}
	}
	worst := map[string]time.Duration{}
	for i, dead := range nodes {
		others := []*node{nodes[(i+1)%3], nodes[(i+2)%3]}
		for kind, d := range diesUnderLoad(t, dead, others, token) {
			worst[kind] = max(worst[kind], d)
			t.Logf("node %d: %s: %v", i, kind, d.Round(time.Millisecond))
		}
		dead.start(t, dead.cmd.Args[1:]...)
		dead.awaitServing(t)
		if t.Failed() {
			return
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(worst)) {
		t.Logf("when a node dies, longest time without: %s: %v", kind, worst[kind].Round(time.Millisecond))
	}
}

// diesUnderLoad kills a node and returns how long each kind of request failed, or waited.
func diesUnderLoad(t *testing.T, dead *node, others []*node, token string) map[string]time.Duration {
	g := &gap{last: map[string]time.Time{}, worst: map[string]time.Duration{}, of: map[string]int{}}
	stop := make(chan struct{})
	var running sync.WaitGroup
	each := func(kind string, do func(n *node, i int) error) {
		for i, n := range others {
			running.Go(func() {
				for k := 0; ; k++ {
					select {
					case <-stop:
						return
					case <-time.After(20 * time.Millisecond):
					}
					if do(n, k) == nil {
						g.succeeded(kind, i)
					}
				}
			})
		}
	}
	c := keptClient()
	each("a modern call", func(n *node, _ int) error {
		_, err := send(c, modernRequest(n.url, token, "dir_list", `{"path":"."}`), `"complete"`)
		return err
	})
	each("a new session (needs the leader of the sessions)", func(n *node, _ int) error {
		got, header, err := post(n.url, "token "+token, initialize)
		if err == nil && header.Get("Mcp-Session-Id") == "" {
			err = errors.New(got)
		}
		return err
	})
	each("a change of shared state (needs its leader)", func(n *node, k int) error {
		_, err := send(c, modernRequest(n.url, n.localToken(t), "db_put_ui", fmt.Sprintf(`{"pointer":"/x","value":%d}`, k)), `"complete"`)
		return err
	})
	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	own := map[*node]string{}
	for _, n := range others {
		own[n] = openAs(t, n.url, token)
	}
	each("a call in a session of a node that lives", func(n *node, _ int) error {
		got, _, err := post(n.url, own[n]+"token "+token, list)
		if err == nil && !strings.Contains(got, `"dir_list"`) {
			err = errors.New(got)
		}
		return err
	})
	lost := []string{openAs(t, dead.url, token), openAs(t, dead.url, token)}
	which := map[*node]string{others[0]: lost[0], others[1]: lost[1]}
	each("a call in a session of the node that dies (needs the leader of the sessions)", func(n *node, _ int) error {
		got, _, err := post(n.url, which[n]+"token "+token, list)
		if err == nil && !strings.Contains(got, `"dir_list"`) {
			err = errors.New(got)
		}
		return err
	})
	time.Sleep(3 * time.Second)
	before := maps.Clone(g.snapshot())
	dead.crash()
	end := time.Now().Add(40 * time.Second)
	for killed := time.Now(); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if time.Since(killed) > 15*time.Second && g.all(killed.Add(14*time.Second), 2*len(before)) {
			break
		}
	}
	if !g.all(time.Now().Add(-20*time.Second), 2*len(before)) {
		t.Errorf("20 s after the death of a node some requests do not succeed: %v", g.last)
	}
	close(stop)
	running.Wait()
	return g.snapshot()
}

func (g *gap) snapshot() map[string]time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.worst)
}

// all reports whether all clients have succeeded since a time.
func (g *gap) all(since time.Time, clients int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, at := range g.last {
		if at.Before(since) {
			return false
		}
	}
	return len(g.last) >= clients
}

// openAs begins a session with a token.
func openAs(t *testing.T, url, token string) string {
	t.Helper()
	got, header, err := post(url, "token "+token, initialize)
	id := header.Get("Mcp-Session-Id")
	if err != nil || id == "" {
		t.Fatalf("initialize: %.300s, %v", got, err)
	}
	return id
}

// number returns a number from the environment.
func number(name string, or int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return or
}

// TestManySessions opens sessions at three nodes, listens in some of them, and changes what these have subscribed to.
func TestManySessions(t *testing.T) {
	nodes := startNodesIn(t, whenLong(t), "db")
	time.Sleep(3 * time.Second)
	memory := func() (hosts, engines int64) {
		time.Sleep(70 * time.Second) // engines return each minute what they do not use
		for _, n := range nodes {
			hosts += resident(t, n.cmd.Process.Pid)
			for _, pid := range childrenOf(n.cmd.Process.Pid) {
				engines += resident(t, pid)
			}
		}
		return hosts, engines
	}
	count, listening := number("GATEHOUSE_SESSIONS", 100_000), number("GATEHOUSE_STREAMS", 10_000)
	hosts, engines := memory()
	begin := time.Now()
	sessions := openMany(t, nodes, count)
	t.Logf("%d sessions opened in %v", count, time.Since(begin).Round(time.Second))
	if t.Failed() {
		return
	}
	moreHosts, moreEngines := memory()
	t.Logf("each session takes %.2f KiB in its host and %.2f KiB in the three engines together",
		float64(moreHosts-hosts)/float64(count)/1024, float64(moreEngines-engines)/float64(count)/1024)

	streams := subscribe(t, nodes, sessions[:min(listening, len(sessions))])
	for range 3 {
		var heard sync.WaitGroup
		took := make([]time.Duration, len(streams))
		var missing atomic.Int64
		begin := time.Now()
		for i, s := range streams {
			heard.Go(func() {
				s.SetReadDeadline(time.Now().Add(time.Minute))
				if readUntil(s, "notifications/resources/updated") == nil {
					took[i] = time.Since(begin)
				} else {
					missing.Add(1)
				}
			})
		}
		if _, err := send(client, modernRequest(nodes[0].url, nodes[0].localToken(t), "db_put_ui",
			fmt.Sprintf(`{"pointer":"/x","value":%d}`, time.Now().UnixNano())), `"complete"`); err != nil {
			t.Fatal(err)
		}
		heard.Wait()
		if missing.Load() > 0 {
			t.Errorf("%d of %d streams heard nothing", missing.Load(), len(streams))
		}
		t.Logf("an update reached %d subscriptions: p50 %v, p99 %v, last %v", len(streams), part(took, .5), part(took, .99),
			part(took, 1))
		time.Sleep(2 * time.Second)
	}
}

// manySession is a session and its node.
type manySession struct {
	id   string
	node *node
}

// openMany opens sessions at all nodes.
func openMany(t *testing.T, nodes []*node, count int) []manySession {
	all := make([]manySession, count)
	var next atomic.Int64
	var running sync.WaitGroup
	c := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	for range 48 {
		running.Go(func() {
			for !t.Failed() {
				i := int(next.Add(1)) - 1
				if i >= count {
					return
				}
				n := nodes[i%3]
				r, err := http.NewRequest("POST", n.url, strings.NewReader(initialize))
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("Accept", "application/json, text/event-stream")
				a, err := c.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				raw, _ := io.ReadAll(a.Body)
				a.Body.Close()
				if all[i] = (manySession{a.Header.Get("Mcp-Session-Id"), n}); all[i].id == "" {
					t.Errorf("session %d: status %d, %.300s", i, a.StatusCode, raw)
				}
			}
		})
	}
	running.Wait()
	return all
}

// subscribe subscribes sessions to the state of user interfaces and returns their streams.
func subscribe(t *testing.T, nodes []*node, sessions []manySession) []net.Conn {
	streams := make([]net.Conn, len(sessions))
	t.Cleanup(func() {
		for _, s := range streams {
			if s != nil {
				s.Close()
			}
		}
	})
	var next atomic.Int64
	var running sync.WaitGroup
	for range 32 {
		running.Go(func() {
			for !t.Failed() {
				i := int(next.Add(1)) - 1
				if i >= len(sessions) {
					return
				}
				s := sessions[i]
				if got, _, err := post(s.node.url, s.id, `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":`+
					`{"uri":"gatehouse:///public/ui"}}`); err != nil || !strings.Contains(got, `"result"`) {
					t.Errorf("subscribe: %.300s, %v", got, err)
					return
				}
				conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(s.node.url, "http://"), "/mcp"))
				if err != nil {
					t.Error(err)
					return
				}
				streams[i] = conn
				fmt.Fprintf(conn, "GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\nMcp-Session-Id: %s\r\n"+
					"Mcp-Protocol-Version: 2025-11-25\r\n\r\n", s.id)
				if err := readUntil(conn, "\r\n\r\n"); err != nil {
					t.Errorf("listen: %v", err)
				}
			}
		})
	}
	running.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return streams
}

// readUntil reads until a text has come.
func readUntil(c net.Conn, text string) error {
	var all []byte
	buffer := make([]byte, 512)
	for !bytes.Contains(all, []byte(text)) {
		n, err := c.Read(buffer)
		if err != nil {
			return err
		}
		all = append(all, buffer[:n]...)
		all = all[max(0, len(all)-1024):]
	}
	return nil
}
