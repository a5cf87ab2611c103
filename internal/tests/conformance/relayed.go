package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Upstream is a server that the suites are run against twice: directly, and through gatehouse run.
type Upstream struct {
	Name string
	// Start starts the server over HTTP and returns its URL. dir is for its files. stop ends it, and returns when
	// it has ended.
	Start func(ctx context.Context, t Tools, dir string) (url string, stop func(), err error)
	// Command returns the command line of the server over standard streams; nil relays the URL.
	Command func(dir string) []string
	// Eras are the clients that the server can serve; nil means both.
	Eras []string
}

// Upstreams are the servers of the comparison: our fixture, and one of each official SDK.
func Upstreams() []Upstream {
	goServer := func(args ...string) func(context.Context, Tools, string) (string, func(), error) {
		return func(ctx context.Context, _ Tools, dir string) (string, func(), error) {
			return startGoServer(ctx, dir, args...)
		}
	}
	return []Upstream{
		FixtureUpstream(),
		{Name: "Go SDK 1.8.0, legacy", Start: goServer("-stateless=false")},
		{Name: "Go SDK 1.8.0, modern", Start: goServer("-stateless")},
		{Name: "TypeScript SDK 2.3.1", Start: startTypeScript},
		{Name: "Python SDK 2.3.0", Start: startPython},
	}
}

// FixtureUpstream is our fixture, relayed as a child.
func FixtureUpstream() Upstream {
	return Upstream{
		Name: "our fixture, as a child",
		Start: func(ctx context.Context, _ Tools, dir string) (string, func(), error) {
			bin, err := Build(ctx, dir)
			if err != nil {
				return "", nil, err
			}
			s, err := Start(ctx, bin, dir)
			if err != nil {
				return "", nil, err
			}
			return s.URL, func() { s.Stop() }, nil
		},
		Command: func(dir string) []string { return []string{filepath.Join(dir, "fixtureserver"), "--stdio"} },
	}
}

// startServer starts a program and returns the first match of a pattern in its output.
func startServer(ctx context.Context, cmd *exec.Cmd, url *regexp.Regexp) (found string, stop func(), err error) {
	out, in := io.Pipe()
	cmd.Stdout, cmd.Stderr = in, in
	input, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		input.Close()
		cmd.Process.Signal(os.Interrupt)
		force := time.AfterFunc(10*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
		force.Stop()
		in.Close()
	}
	matches := make(chan string, 1)
	var said log
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			said.appendLine(lines.Bytes())
			if m := url.FindString(lines.Text()); m != "" {
				select {
				case matches <- m:
				default:
				}
			}
		}
		io.Copy(io.Discard, out)
	}()
	select {
	case found = <-matches:
		return found, stop, nil
	case <-time.After(2 * time.Minute):
		err = fmt.Errorf("%s did not say where it listens: %s", cmd.Path, said.String())
	case <-ctx.Done():
		err = ctx.Err()
	}
	stop()
	return "", nil, err
}

var httpURL = regexp.MustCompile(`http://[0-9.]+:[0-9]+/mcp`)

// startGoServer builds the conformance server of the Go SDK and starts it on a free port.
func startGoServer(ctx context.Context, dir string, args ...string) (url string, stop func(), err error) {
	top, err := Top()
	if err != nil {
		return "", nil, err
	}
	bin := filepath.Join(dir, "everything-server")
	build := exec.CommandContext(ctx, "go", "build", "-o", bin,
		"github.com/modelcontextprotocol/go-sdk/conformance/everything-server")
	build.Dir = filepath.Join(top, "internal", "tests", "conformance", "gosdk")
	if out, err := build.CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("build the server of the Go SDK: %w: %s", err, out)
	}
	port, err := freePort()
	if err != nil {
		return "", nil, err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	cmd := exec.Command(bin, append([]string{"-http=" + address}, args...)...)
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
	if err := waitForPort(ctx, address); err != nil {
		stop()
		return "", nil, err
	}
	return "http://" + address + "/mcp", stop, nil
}

// freePort returns a port that was free a moment ago.
func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}

// waitForPort waits until something listens at an address.
func waitForPort(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			return c.Close()
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("nothing listens at %s: %w", address, err)
		}
	}
}

// startTypeScript starts npm/everything.mjs.
func startTypeScript(ctx context.Context, t Tools, dir string) (string, func(), error) {
	return startServer(ctx, t.Command(context.WithoutCancel(ctx), dir, t.Script("everything.mjs")), httpURL)
}

// pythonSDK is the version of the Python SDK, which is installed in a virtual environment.
const pythonSDK = "mcp==2.3.0"

// startPython starts python/everything.py.
func startPython(ctx context.Context, _ Tools, dir string) (string, func(), error) {
	python, err := needPython(ctx)
	if err != nil {
		return "", nil, err
	}
	top, err := Top()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command(python, filepath.Join(top, "internal", "tests", "conformance", "python", "everything.py"))
	cmd.Dir = dir
	return startServer(ctx, cmd, httpURL)
}

// needPython returns the Python of the virtual environment with the SDK, which it makes if necessary.
func needPython(ctx context.Context) (string, error) {
	top, err := Top()
	if err != nil {
		return "", err
	}
	venv := filepath.Join(top, ".tools", "python-"+strings.ReplaceAll(pythonSDK, "==", "-"))
	python := filepath.Join(venv, "bin", "python")
	if exec.CommandContext(ctx, python, "-c", "import mcp.server.mcpserver").Run() != nil {
		for _, args := range [][]string{
			{"python3", "-m", "venv", venv},
			{python, "-m", "pip", "install", "-q", "--disable-pip-version-check", pythonSDK},
		} {
			if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
				return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, tail(out))
			}
		}
	}
	return python, nil
}

// StartRelay starts gatehouse run in front of a server: its URL, or -- and its command. bin is the program of
// BuildGatehouse, and dir for its files. stop ends it, and returns when it has ended.
func StartRelay(ctx context.Context, bin, dir string, target []string) (string, func(), error) {
	cmd := exec.Command(bin, append([]string{"run", "--http", "-p", "0"}, target...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME=", "XDG_DATA_HOME=", "XDG_STATE_HOME=",
		"XDG_CACHE_HOME=", "XDG_RUNTIME_DIR="+filepath.Join(dir, "run"))
	return startServer(ctx, cmd, httpURL)
}

// Pair is what one suite found directly and through the relay.
type Pair struct {
	Upstream, Era   string
	Direct, Relayed Column
}

// Differences are the scenarios whose checks ended otherwise through the relay.
func (p Pair) Differences() (names []string) {
	for _, name := range rows([]Column{p.Direct, p.Relayed}) {
		if !slices.Equal(p.Direct.verdicts(name), p.Relayed.verdicts(name)) {
			names = append(names, name)
		}
	}
	return names
}

// verdicts are the ends of the checks of a scenario, in order.
func (c Column) verdicts(scenario string) (all []string) {
	i := slices.IndexFunc(c.Scenarios, func(s Scenario) bool { return s.Name == scenario })
	if i < 0 {
		return []string{"not run"}
	}
	for _, k := range c.Scenarios[i].Checks {
		if k.Status != "INFO" {
			all = append(all, k.ID+" "+k.Status)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Relayed runs the suites of both eras against a server, directly and through gatehouse run. What differs is run
// again unless expected, by era and scenario, reports that it is no surprise.
func Relayed(
	ctx context.Context, t Tools, gatehouse string, u Upstream, dir string, expected func(era, scenario string) bool,
) (pairs []Pair, err error) {
	direct, stop, err := u.Start(ctx, t, dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", u.Name, err)
	}
	defer stop()
	target := []string{direct}
	if u.Command != nil {
		target = append([]string{"--"}, u.Command(dir)...)
	}
	relayed, stop, err := StartRelay(ctx, gatehouse, dir, target)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", u.Name, err)
	}
	defer stop()
	for _, s := range Suites() {
		if s.Package != "conformance-0.2" {
			continue
		}
		p, err := s.compare(ctx, t, u.Name, direct, relayed, dir, expected)
		if err != nil {
			return pairs, err
		}
		pairs = append(pairs, p)
	}
	return pairs, nil
}

// compare runs the suite against two URLs, and what differs once more unless it is expected.
func (s Suite) compare(
	ctx context.Context, t Tools, upstream, direct, other, dir string, expected func(era, scenario string) bool,
) (p Pair, err error) {
	p = Pair{Upstream: upstream, Era: s.Name}
	if p.Direct, err = s.column(ctx, t, direct, filepath.Join(dir, s.Name+" direct")); err != nil {
		return p, err
	}
	if p.Relayed, err = s.column(ctx, t, other, filepath.Join(dir, s.Name+" relayed")); err != nil {
		return p, err
	}
	surprises := slices.DeleteFunc(p.Differences(), func(name string) bool { return expected(s.Name, name) })
	return p, s.again(ctx, t, direct, other, dir, &p, surprises)
}

// again runs scenarios once more on both sides, by themselves: the suites give a server a second at most for a
// message, which a busy machine may take.
func (s Suite) again(ctx context.Context, t Tools, direct, relayed, dir string, p *Pair, scenarios []string) error {
	for _, name := range scenarios {
		for side, c := range map[string]*Column{direct: &p.Direct, relayed: &p.Relayed} {
			into, err := os.MkdirTemp(dir, "again")
			if err != nil {
				return err
			}
			one, err := s.RunOne(ctx, t, side, into, name, s.Name)
			if err != nil {
				return err
			}
			if i := slices.IndexFunc(c.Scenarios, func(o Scenario) bool { return o.Name == name }); i >= 0 {
				c.Scenarios[i] = one
			}
		}
	}
	return nil
}

// BuildGatehouse compiles the program into dir.
func BuildGatehouse(ctx context.Context, dir string) (string, error) {
	top, err := Top()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "gatehouse")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", bin, "./cmd/gatehouse")
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build gatehouse: %w: %s", err, out)
	}
	return bin, nil
}

// Markers of the table in docs/relay.md.
const (
	relayBegins = "<!-- suites: written by make verify-relay -->"
	relayEnds   = "<!-- end of suites -->"
)

// RelayTable is the table of docs/relay.md.
func RelayTable(pairs []Pair) string {
	var b strings.Builder
	b.WriteString(
		"| server | client | direct: scenarios, checks | through `gatehouse run` | verdicts that differ |\n" +
			"|---|---|---|---|---|\n",
	)
	for _, p := range pairs {
		differ := strings.Join(p.Differences(), ", ")
		if differ == "" {
			differ = "none"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", p.Upstream, p.Era, p.Direct.total(), p.Relayed.total(), differ)
	}
	return b.String()
}

// WriteRelayTable runs all servers and writes the table into docs/relay.md.
func WriteRelayTable(ctx context.Context, t Tools, w io.Writer) error {
	top, err := Top()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "relay")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bin, err := BuildGatehouse(ctx, dir)
	if err != nil {
		return err
	}
	var all []Pair
	var errs []error
	for i, u := range Upstreams() {
		into := filepath.Join(dir, fmt.Sprint(i))
		if err := os.MkdirAll(into, 0o755); err != nil {
			return err
		}
		pairs, err := Relayed(ctx, t, bin, u, into, func(string, string) bool { return false })
		all, errs = append(all, pairs...), append(errs, err)
	}
	table := RelayTable(all)
	if _, err := io.WriteString(w, table); err != nil {
		return err
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	file := filepath.Join(top, "docs", "relay.md")
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(b), relayBegins)
	_, after, ok2 := strings.Cut(rest, relayEnds)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no place for the table: %s", file, relayBegins)
	}
	return os.WriteFile(file, []byte(before+relayBegins+"\n\n"+table+"\n"+relayEnds+after), 0o644)
}
