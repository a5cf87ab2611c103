package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"gatehouse/bench/load"
)

const (
	relayConns = 16
	mcpProxy   = "mcp-proxy"    // of PyPI
	superGate  = "supergateway" // of npm
	vmcp       = "vmcp"         // of ToolHive
)

// peersDir is where relays are looked for that are not in PATH:
//
//	npm install --prefix .tools/peers supergateway
//	python3 -m venv .tools/peers/venv && .tools/peers/venv/bin/pip install mcp-proxy
//	GOBIN=$PWD/.tools/peers/venv/bin go install github.com/stacklok/toolhive/cmd/vmcp@v0.47.0
const peersDir = "../.tools/peers"

// relays measures what a call takes through a relay, beside the same call of the same server without one. Each
// upstream is a subject, which serves HTTP and standard input and output.
func (b *bench) relays() error {
	r := &relayBench{b: b, sheet: newSheet()}
	b.asides["relay"] = r.report
	for _, name := range []string{mcpProxy, superGate, vmcp} {
		if findPeerProgram(name) == "" {
			r.missing = append(r.missing, name+" is not here; it was not compared with.")
		}
	}
	for _, upstream := range []string{gosdk, mcpgo} {
		r.sheet.begin("In front of " + upstream)
		for rep := range b.reps {
			if err := r.round(upstream, rep); err != nil {
				return fmt.Errorf("in front of %s: %w", upstream, err)
			}
		}
	}
	return nil
}

// relayBench is the part about relays, with a section of its own.
type relayBench struct {
	b       *bench
	sheet   *sheet
	missing []string
	made    int // homes of hosts
}

// relay is a running relay, or the upstream itself.
type relay struct {
	name string
	addr string
	tool string
	stop func()

	legacyOnly bool
}

const direct = "direct"

// Figures that bars speak of.
const (
	httpToHTTP  = "HTTP to HTTP"
	httpToStdio = "HTTP to stdio"
)

func (r *relayBench) round(upstream string, rep int) error {
	p, err := r.b.lab.start(upstream)
	if err != nil {
		return err
	}
	defer p.stop()
	all := []relay{{name: direct, addr: p.addr, tool: "echo", stop: func() {}}}
	defer func() {
		for _, one := range all {
			one.stop()
		}
	}()
	program := r.b.lab.binary(upstream)
	for _, start := range []func() (relay, error){
		func() (relay, error) { return r.startOurs(httpToHTTP, "http://"+p.addr+"/mcp") },
		func() (relay, error) { return r.startOurs(httpToStdio, "command", "--", program, "-stdio") },
		func() (relay, error) { return r.startVMCP("http://" + p.addr + "/mcp") },
		func() (relay, error) {
			return r.startPeer(mcpProxy, func(port string) []string {
				return []string{"--port", port, "--host", "127.0.0.1", "--", program, "-stdio"}
			})
		},
		func() (relay, error) {
			return r.startPeer(superGate, func(port string) []string {
				return []string{"--stdio", program + " -stdio", "--outputTransport", "streamableHttp", "--stateful",
					"--port", port}
			})
		},
	} {
		one, err := start()
		if err != nil {
			return err
		}
		if one.addr != "" {
			all = append(all, one)
		}
	}
	for _, era := range eras {
		p50 := map[string]float64{}
		for i := range all {
			one := all[(i+rep)%len(all)]
			if one.legacyOnly && era.Era != load.Legacy {
				continue
			}
			if p50[one.name], err = r.measure(upstream+", "+era.word+", "+one.name+": ", one, era.Era); err != nil {
				return fmt.Errorf("%s, %s: %w", one.name, era.word, err)
			}
		}
		for _, one := range all[1:] {
			if found := p50[one.name]; found > 0 {
				r.sheet.add(addedFigure(upstream, era.word, one.name), "ratio", ours, (found-p50[direct])/p50[direct])
			}
		}
	}
	return nil
}

func addedFigure(upstream, era, relay string) string {
	return fmt.Sprintf("%s, %s, %s: added p50, of a direct call", upstream, era, relay)
}

func (r *relayBench) measure(at string, one relay, era load.Era) (p50 float64, err error) {
	conns, err := (&process{addr: one.addr}).dial(relayConns)
	if err != nil {
		return 0, err
	}
	defer hangUp(conns)
	session := ""
	if era == load.Legacy {
		if session, err = conns[0].Open(); err != nil {
			return 0, err
		}
	}
	q := load.Call(era, session, one.tool)
	if _, err := load.Run(conns, q, nil, r.b.slice/2, 0); err != nil {
		return 0, err
	}
	found, err := load.Run(conns, q, nil, r.b.slice, 0)
	if err != nil {
		return 0, err
	}
	r.sheet.add(at+"p50", "µs", ours, micros(found.P50))
	r.sheet.add(at+"p99", "µs", ours, micros(found.P99))
	r.sheet.add(at+"rate", "calls/s", ours, found.Rate())
	return micros(found.P50), nil
}

// startOurs starts the gatehouse command with the upstream as a package.
func (r *relayBench) startOurs(name string, target ...string) (relay, error) {
	r.made++
	dir := filepath.Join(r.b.lab.dir, fmt.Sprintf("relay-%d", r.made))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return relay{}, err
	}
	args := append([]string{"package", "add", "up", "--yes"}, target...)
	if target[0] == "command" {
		args = append([]string{"package", "add", "up", "--yes"}, target[1:]...)
	}
	add := exec.Command(r.b.lab.product(), args...)
	add.Env = homeIn(dir)
	if out, err := add.CombinedOutput(); err != nil {
		return relay{}, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	s, err := r.b.lab.startServing(homeIn(dir), "-d", dir, "--auth-token", load.Token)
	if err != nil {
		return relay{}, err
	}
	return relay{name: name, addr: s.addr, tool: "up_echo", stop: s.stop}, nil
}

// startPeer starts another relay on a free port. One that is not on this machine has no address.
func (r *relayBench) startPeer(name string, args func(port string) []string) (relay, error) {
	program := findPeerProgram(name)
	if program == "" {
		return relay{}, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return relay{}, err
	}
	addr := l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command(program, args(port)...)
	cmd.Dir, cmd.SysProcAttr = r.b.lab.dir, &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return relay{}, err
	}
	stop := func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
	}
	for end := time.Now().Add(startTime); ; time.Sleep(20 * time.Millisecond) {
		if err = firstAnswer(addr); err == nil {
			return relay{name: name + ", " + httpToStdio, addr: addr, tool: "echo", stop: stop, legacyOnly: true}, nil
		}
		if time.Now().After(end) {
			stop()
			return relay{}, fmt.Errorf("%s does not answer: %w", name, err)
		}
	}
}

// startVMCP starts the virtual server of ToolHive in front of an address.
func (r *relayBench) startVMCP(upstream string) (relay, error) {
	r.made++
	file := filepath.Join(r.b.lab.dir, fmt.Sprintf("vmcp-%d.yaml", r.made))
	err := os.WriteFile(file, fmt.Appendf(nil, `name: bench
groupRef: bench
incomingAuth: {type: anonymous}
outgoingAuth: {source: inline, default: {type: unauthenticated}}
aggregation: {conflictResolution: prefix, conflictResolutionConfig: {prefixFormat: "{workload}_"}}
backends: [{name: up, url: %q, transport: streamable-http}]
`, upstream), 0o600)
	if err != nil {
		return relay{}, err
	}
	one, err := r.startPeer(vmcp, func(port string) []string {
		return []string{"serve", "--config", file, "--host", "127.0.0.1", "--port", port}
	})
	if one.addr != "" {
		one.name, one.tool = vmcp+", "+httpToHTTP, "up_echo"
	}
	return one, err
}

// findPeerProgram returns the path of a relay that is installed, or "".
func findPeerProgram(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"node_modules/.bin", "venv/bin"} {
		path, err := filepath.Abs(filepath.Join(peersDir, dir, name))
		if err != nil {
			continue
		}
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// report writes the section.
func (r *relayBench) report(w io.Writer) {
	fmt.Fprintf(w, "## Relays\n\n")
	fmt.Fprintf(
		w,
		`The same call over %d connections: of a server itself over HTTP, and of the same program through a relay
that serves HTTP and reaches it over HTTP or as a child over standard input and output. Gatehouse is the command as it
is installed, with the server as a package; it speaks to a server of both eras in that of the client. All of them take
turns; driver, relay and server share the cores. The other relays were measured with legacy clients alone. What is added is the relay's p50 less that of the direct call over HTTP in the same repetition, divided by the latter.
`,
		relayConns,
	)
	for _, m := range r.missing {
		fmt.Fprintf(w, "\n%s\n", m)
	}
	r.b.circumstances(w)
	fmt.Fprintf(w, "\n### What is to hold\n\n")
	r.sheet.judge(w, []bar{
		{figure: addedFigure(gosdk, "legacy", httpToHTTP), limit: 1},
		{figure: addedFigure(gosdk, "legacy", httpToStdio), limit: 1},
		{figure: addedFigure(gosdk, "modern", httpToHTTP), limit: 1},
		{figure: addedFigure(gosdk, "modern", httpToStdio), limit: 1},
	})
	for _, s := range r.sheet.sections {
		fmt.Fprintf(w, "\n### %s\n\n", s.title)
		s.column(w)
	}
}
