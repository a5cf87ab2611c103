package clustertest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gatehouse/internal/cli"
	"gatehouse/internal/packages/packagestest"
)

// TestMain makes this program gatehouse itself where a test starts it as a node, a member of a field, or a server of a
// package.
func TestMain(m *testing.M) {
	packagestest.Main(os.Stdout)
	if options := os.Getenv("GATEHOUSE_TEST_MEMBER"); options != "" {
		fmt.Fprintln(os.Stderr, runMember(options))
		os.Exit(1)
	}
	if os.Getenv("GATEHOUSE_TEST_NODE") != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		os.Exit(cli.Run(ctx, os.Args[1:],
			cli.Environment{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv}))
	}
	os.Exit(m.Run())
}

// node is one host of a cluster.
type node struct {
	url    string
	dir    string
	port   string // of its engine
	cmd    *exec.Cmd
	env    []string // beside that of all nodes
	older  string   // path of the program, if it is not this one
	output *lockedBuffer
}

// engine returns the folder of the engine, which make setup builds.
func engine(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../../.tools")
	if err == nil {
		_, err = os.Stat(filepath.Join(path, "gatehouse-nats"))
	}
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%v; make setup builds it", err)
		}
		t.Skip("without the engine: make setup builds it")
	}
	return path
}

// freePort returns a port that no program listens on. It is below those that the kernel gives to programs which ask for
// any, such as the engines, and no other test of this process gets it.
func freePort(t *testing.T) string {
	t.Helper()
	for range 1000 {
		port := strconv.Itoa(10_000 + rand.IntN(22_000))
		if _, taken := ports.LoadOrStore(port, true); taken {
			continue
		}
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

// ownAddress returns HOST:PORT at which no other program listens, also while that which the test starts there is down:
// Linux has all addresses of 127.0.0.0/8, so that the host is one of this process alone.
func ownAddress(t *testing.T) string {
	t.Helper()
	host := "127.0.0.1"
	if pid := os.Getpid(); runtime.GOOS == "linux" {
		host = fmt.Sprintf("127.%d.%d.%d", 64+pid>>16, pid>>8&255, pid&255) // a pid has 22 bits at most
	}
	return net.JoinHostPort(host, freePort(t))
}

var ports sync.Map // that freePort has returned

func (n *node) run(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(cmp.Or(n.older, self), args...)
	cmd.Env = append(
		os.Environ(),
		"GATEHOUSE_TEST_NODE=yes",
		"PATH="+engine(t)+":"+os.Getenv("PATH"),
		"HOME="+n.dir,
		"XDG_CONFIG_HOME="+n.dir+"/config",
		"XDG_DATA_HOME="+n.dir+"/data",
		"XDG_STATE_HOME="+n.dir+"/state",
		"XDG_CACHE_HOME="+n.dir+"/cache",
		"XDG_RUNTIME_DIR="+n.dir,
		// Long, because the machine that runs the tests is slow at times.
		"GATEHOUSE_CLUSTER_LEASE=8s",
		"GATEHOUSE_CLUSTER_LABELS=zone="+filepath.Base(n.dir),
		// For the tests of packages, whose client cannot ask.
		"GATEHOUSE_APPROVALS_CALLERS_WORD=true",
	)
	cmd.Env = append(cmd.Env, n.env...)
	for _, entry := range n.env {
		if path, ok := strings.CutPrefix(entry, boundVariable); ok {
			bindFolder(cmd, path)
		}
	}
	return cmd
}

// startNodes starts three nodes that serve one folder each, with the modules file and dir and those that are named.
func startNodes(t *testing.T, modules ...string) []*node {
	t.Helper()
	return startNodesIn(t, nil, modules...)
}

// startNodesIn is startNodes in an environment. Arguments may have the folder of the node as {dir}.
func startNodesIn(t *testing.T, env []string, modules ...string) []*node {
	t.Helper()
	return startVersions(t, env, [3]string{}, modules...)
}

// startVersions is startNodesIn with the programs at these paths; "" means this one.
func startVersions(t *testing.T, env []string, programs [3]string, modules ...string) []*node {
	t.Helper()
	var all []*node
	for i := range 3 {
		n := &node{
			dir: filepath.Join(t.TempDir(), fmt.Sprint("n", i)), port: freePort(t), env: env, older: programs[i],
			output: &lockedBuffer{},
		}
		if err := os.MkdirAll(filepath.Join(n.dir, "work"), 0o700); err != nil {
			t.Fatal(err)
		}
		port := freePort(t)
		n.url = "http://127.0.0.1:" + port + "/mcp"
		args := append([]string{"serve", "file", "dir"}, modules...)
		args = append(args, "-d", filepath.Join(n.dir, "work"), "--http", "-p", port,
			"--cluster", "test", "--cluster-listen", "127.0.0.1:"+n.port)
		if i > 0 {
			args = append(args, "--join", "127.0.0.1:"+all[0].port)
		}
		for k := range args {
			args[k] = strings.ReplaceAll(args[k], "{dir}", n.dir)
		}
		t.Cleanup(func() {
			n.cmd.Process.Signal(syscall.SIGTERM)
			late := time.AfterFunc(30*time.Second, func() { n.cmd.Process.Kill() })
			n.cmd.Wait()
			late.Stop()
			if t.Failed() {
				t.Logf("%s", n.output)
			}
		})
		n.start(t, args...)
		all = append(all, n)
	}
	for _, n := range all {
		n.awaitServing(t)
	}
	return all
}

// start starts the host, the first time or again.
func (n *node) start(t *testing.T, args ...string) {
	t.Helper()
	n.cmd = n.run(t, args...)
	n.cmd.Stdout, n.cmd.Stderr = n.output, n.output
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (n *node) awaitServing(t *testing.T) {
	t.Helper()
	eventually(t, "a node serves", func() bool {
		_, _, err := post(n.url, "", `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
		return err == nil
	})
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("after three minutes: %s", what)
}

var client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}

// post sends one message, of a session or with "token " and a token, in the modern era a call of dir_list, and returns the answer, which is
// JSON or the last event of a stream.
func post(url, session, body string) (answer string, header http.Header, err error) {
	r, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		return "", nil, err
	}
	if at, token, ok := strings.Cut(session, "token "); ok {
		r.Header.Set("Authorization", "Bearer "+token)
		session = at
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		r.Header.Set("Mcp-Session-Id", session)
		r.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	}
	if strings.Contains(body, "2026-07-28") {
		r.Header.Set("Mcp-Protocol-Version", "2026-07-28")
		r.Header.Set("Mcp-Method", "tools/call")
		r.Header.Set("Mcp-Name", "dir_list")
	}
	a, err := client.Do(r)
	if err != nil {
		return "", nil, err
	}
	defer a.Body.Close()
	raw, err := io.ReadAll(a.Body)
	return string(raw), a.Header, err
}

// balancer is a proxy that connects each connection to the next node. Nodes that are down are skipped, as a balancer
// that checks them does.
type balancer struct {
	nodes []*node
	down  [3]atomic.Bool
	open  [3]atomic.Int64 // connections, except of those that listen
}

// listen returns the address of the balancer.
func (b *balancer) listen(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for i := 0; ; i++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			for ; ; i++ {
				b.open[i%3].Add(1)
				if !b.down[i%3].Load() {
					break
				}
				b.open[i%3].Add(-1)
			}
			go func(i int) {
				connect(c, b.nodes[i].url, sync.OnceFunc(func() { b.open[i].Add(-1) }))
			}(i % 3)
		}
	}()
	return "http://" + l.Addr().String() + "/mcp"
}

// connect connects a client to a node. It calls done when that is over, or when the client listens.
func connect(c net.Conn, url string, done func()) {
	defer done()
	defer c.Close()
	from := bufio.NewReader(c)
	if method, _ := from.Peek(3); string(method) == "GET" {
		done()
	}
	to, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/mcp"))
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		io.Copy(to, from)
		to.(*net.TCPConn).CloseWrite()
	}()
	io.Copy(c, to)
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25",` +
	`"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`

// TestSessionsThroughAnyNode uses legacy sessions and modern requests through a proxy without stickiness, then kills
// the node of the session.
func TestSessionsThroughAnyNode(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t)
	proxy := &balancer{nodes: nodes}
	url := proxy.listen(t)
	_, header, err := post(nodes[0].url, "", initialize)
	if err != nil {
		t.Fatal(err)
	}
	session := header.Get("Mcp-Session-Id")
	if err := os.WriteFile(filepath.Join(nodes[0].dir, "work", "first.txt"),
		[]byte("of the first node"), 0o600); err != nil {
		t.Fatal(err)
	}
	const list = `{"jsonrpc":"2.0","id":%d,"method":"tools/list"}`
	const read = `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"file_read","arguments":{"path":"first.txt"}}}`
	for i := range 12 {
		if got, _, err := post(url, session, fmt.Sprintf(list, i)); err != nil ||
			!strings.Contains(got, `"file_read"`) {
			t.Fatalf("tools/list %d: %.200s, %v", i, got, err)
		}
		// The calls of a session run where it is.
		if got, _, err := post(url, session, fmt.Sprintf(read, i)); err != nil ||
			!strings.Contains(got, "of the first node") {
			t.Fatalf("tools/call %d: %.300s, %v", i, got, err)
		}
	}
	for range 6 {
		if got, _, err := post(url, "", modernCall); err != nil || !strings.Contains(got, `"complete"`) {
			t.Fatalf("a modern call: %.300s, %v", got, err)
		}
	}

	if !slices.ContainsFunc(children(t, nodes[1].cmd.Process.Pid),
		func(name string) bool { return strings.Contains(name, "nats") }) {
		t.Error("the engine of a node is not among its children, so TestWithoutACluster would not see one either")
	}
	out, err := nodes[1].run(t, "cluster", "status").CombinedOutput()
	if err != nil || strings.Count(string(out), "alive") != 3 {
		t.Errorf("cluster status: %v\n%s", err, out)
	}

	// The node of the session is killed. Another one goes on with it, and its calls run there.
	nodes[0].cmd.Process.Kill()
	nodes[0].cmd.Wait()
	proxy.down[0].Store(true)
	killed := time.Now()
	eventually(t, "the session goes on", func() bool {
		got, _, err := post(url, session, fmt.Sprintf(list, 100))
		return err == nil && strings.Contains(got, `"file_read"`)
	})
	t.Logf("the session went on after %v", time.Since(killed).Round(time.Millisecond))
	for i := range 6 {
		got, _, err := post(url, session, fmt.Sprintf(read, i))
		if err != nil || !strings.Contains(got, "not_found") {
			t.Errorf("a call after the death of the node: %.300s, %v", got, err)
		}
	}
	if got, _, err := post(url, session+"x", fmt.Sprintf(list, 1)); err != nil ||
		!strings.Contains(got, "no such session") {
		t.Errorf("a session that never was: %.200s, %v", got, err)
	}
}

// children returns the names of the children of a process, whichever of its threads has started them.
func children(t *testing.T, pid int) (names []string) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("the threads of process %d: %d, %v", pid, len(threads), err)
	}
	for _, thread := range threads {
		pids, _ := os.ReadFile(thread) // none if the thread has ended meanwhile
		for child := range bytes.FieldsSeq(pids) {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%s/comm", child)) // empty if it has ended meanwhile
			names = append(names, string(bytes.TrimSpace(name)))
		}
	}
	return names
}

// TestWithoutACluster starts one host, which starts no engine and connects to none.
func TestWithoutACluster(t *testing.T) {
	n := &node{dir: t.TempDir(), output: &lockedBuffer{}}
	port := freePort(t)
	n.cmd = n.run(t, "serve", "file", "--http", "-p", port, "-d", n.dir)
	n.cmd.Stdout, n.cmd.Stderr = n.output, n.output
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.cmd.Process.Signal(syscall.SIGTERM); n.cmd.Wait() })
	eventually(t, "the host serves", func() bool {
		_, _, err := post("http://127.0.0.1:"+port+"/mcp", "", initialize)
		return err == nil
	})
	_, header, err := post("http://127.0.0.1:"+port+"/mcp", "", initialize)
	if id := header.Get("Mcp-Session-Id"); err != nil || len(id) != 36 {
		t.Errorf("the session %q names a node, %v", id, err)
	}
	if _, err := os.Stat(filepath.Join(n.dir, "data", "gatehouse", "cluster")); err == nil {
		t.Error("there is a folder of a node")
	}
	for _, name := range children(t, n.cmd.Process.Pid) {
		if strings.Contains(name, "nats") {
			t.Errorf("it has started an engine: %s", name)
		}
	}
	for _, address := range socketsOf(t, n.cmd.Process.Pid) {
		if !strings.HasSuffix(address, ":"+port) {
			t.Errorf("it has a TCP socket at %s beside that of its clients, at port %s", address, port)
		}
	}
	var status map[string]any
	if out, err := n.run(t, "cluster", "status").CombinedOutput(); err == nil || json.Unmarshal(out, &status) == nil {
		t.Errorf("cluster status: %s, %v", out, err)
	}
	n.cmd.Process.Signal(syscall.SIGQUIT) // it prints what its goroutines do, and ends
	n.cmd.Wait()
	running := n.output.String()
	if !strings.Contains(running, "gatehouse/internal/app.") {
		t.Errorf("its goroutines are not seen: %s", running)
	}
	for _, name := range []string{"nats-io/", "gatehouse/internal/cluster"} {
		if strings.Contains(running, name) {
			t.Errorf("a goroutine runs code of %s:\n%s", name, running)
		}
	}
}

// socketsOf returns the local addresses of the TCP sockets of a process.
func socketsOf(t *testing.T, pid int) (addresses []string) {
	t.Helper()
	own := map[string]bool{}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(links) == 0 {
		t.Fatalf("the files of process %d: %d, %v", pid, len(links), err)
	}
	for _, link := range links {
		name, _ := os.Readlink(link) // empty if it was closed meanwhile
		if inode, ok := strings.CutPrefix(name, "socket:["); ok {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	for _, table := range []string{"tcp", "tcp6"} {
		raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table)) // none without IPv6
		for line := range strings.Lines(string(raw)) {
			f := strings.Fields(line)
			if len(f) < 10 || !own[f[9]] {
				continue
			}
			var port int
			at := strings.LastIndex(f[1], ":")
			if _, err := fmt.Sscanf(f[1][at+1:], "%X", &port); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			addresses = append(addresses, fmt.Sprintf("%s:%d", f[1][:at], port))
		}
	}
	if len(addresses) == 0 {
		t.Error("the socket of its clients is not seen")
	}
	return addresses
}

// command runs a command on the machine of a node and returns what it prints.
func (n *node) command(t *testing.T, args ...string) string {
	t.Helper()
	cmd := n.run(t, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("gatehouse %s: %v\n%s%s", strings.Join(args, " "), err, &out, &errs)
	}
	return out.String()
}

// TestUsersAndTokensOnAllNodes adds a user on one node, whose token other nodes accept until a third one revokes it.
func TestUsersAndTokensOnAllNodes(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t)
	const list = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",` +
		`"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`
	accepts := func(n *node, token string) bool {
		t.Helper()
		got, _, err := post(n.url, "token "+token, list)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(got, `"serverInfo"`)
	}
	nodes[0].command(t, "user", "add", "ada", "--no-password")
	if got := nodes[2].command(t, "user", "list"); !strings.Contains(got, "ada") {
		t.Errorf("the third node does not know the user: %s", got)
	}
	token := strings.TrimSpace(nodes[1].command(t, "token", "create", "--user", "ada", "--name", "first"))
	kept := strings.TrimSpace(nodes[1].command(t, "token", "create", "--user", "ada", "--name", "second"))
	for i, n := range nodes {
		eventually(t, "a node accepts the token", func() bool { return accepts(n, token) && accepts(n, kept) })
		if accepts(n, token+"x") {
			t.Errorf("node %d accepts a wrong token", i)
		}
	}
	var id string
	for line := range strings.Lines(nodes[2].command(t, "token", "list")) {
		if strings.Contains(line, "first") {
			id = strings.Fields(line)[0]
		}
	}
	nodes[2].command(t, "token", "revoke", id)
	for i, n := range nodes { // the revocation has returned
		if accepts(n, token) {
			t.Errorf("node %d accepts a revoked token", i)
		}
	}

	// A node that runs does not leave.
	if out, err := nodes[0].run(t, "cluster", "leave").CombinedOutput(); err == nil {
		t.Errorf("a node that runs has left: %s", out)
	}
	// A node that is alone cannot know what is revoked.
	for _, n := range nodes[:2] {
		n.cmd.Process.Kill()
		n.cmd.Wait()
	}
	eventually(t, "a node that is alone refuses", func() bool { return !accepts(nodes[2], kept) })

	// What a node has is not changed without the cluster, until it has left.
	one := nodes[0]
	eventually(t, "its engine has ended", func() bool {
		out, err := one.run(t, "user", "add", "bea", "--no-password").CombinedOutput()
		if err == nil {
			t.Fatalf("a user was added to a node that does not run: %s", out)
		}
		return !strings.Contains(string(out), "most of its nodes")
	})
	one.command(t, "cluster", "leave", "--alone") // the others do not run
	one.command(t, "user", "add", "bea", "--no-password")
	if got := one.command(t, "user", "list"); !strings.Contains(got, "ada") || !strings.Contains(got, "bea") {
		t.Errorf("the users of a host that has left: %s", got)
	}
}
