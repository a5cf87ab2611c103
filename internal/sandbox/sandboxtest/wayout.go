package sandboxtest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"gatehouse/internal/sandbox"
)

// heard records the decisions of a sandbox's proxy and resolves every name to this machine.
type heard struct {
	mu   sync.Mutex
	said []sandbox.Decision
}

func (h *heard) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

func (h *heard) take(d sandbox.Decision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.said = append(h.said, d)
}

func (h *heard) has(allowed bool, reason string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.said, func(d sandbox.Decision) bool {
		return d.Allowed == allowed && strings.Contains(d.Reason, reason)
	})
}

// server starts a server in a process of its own, because the proxy refuses listeners of its own process. begun
// receives a line for each request for /long.
func (s suite) server(t *testing.T) (address string, begun <-chan string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "server")
	if err := os.WriteFile(program, s.probe, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "serve")
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
	lines, said := bufio.NewScanner(out), make(chan string, 8)
	if !lines.Scan() {
		t.Fatal("the server says nothing")
	}
	address, ok := strings.CutPrefix(lines.Text(), "address: ")
	if !ok {
		t.Fatal(lines.Text())
	}
	done := make(chan bool)
	go func() {
		defer close(done)
		for lines.Scan() {
			select {
			case said <- lines.Text():
			default:
			}
		}
	}()
	t.Cleanup(func() {
		in.Close()
		<-done
		cmd.Wait()
	})
	return address, said
}

// networkChecks are the checks of one sandbox with a network.
type networkChecks struct {
	suite
	b   sandbox.Sandbox
	out sandbox.Networked

	address, port string        // of a server beside the host
	begun         <-chan string // receives what that server prints
	own           string        // the address of a listener of this process
	h             *heard
	allowed, here string // a name and the address of the server, with the port
}

// set sets the network of the sandbox.
func (s networkChecks) set(t *testing.T, allow ...string) {
	t.Helper()
	if err := s.out.SetNetwork(deadline(t), sandbox.Network{
		Allow:   allow,
		Special: []string{s.here, s.own},
		Resolve: s.h,
		Decided: s.h.take,
	}); err != nil {
		t.Fatal(err)
	}
}

// fetch returns what the probe gets from an address: how is http, connect or socks5.
func (s networkChecks) fetch(t *testing.T, how, url string) string {
	t.Helper()
	return answers(t, s.b, "fetch", how, url)["answer"]
}

// wayOut checks what a sandbox with a network reaches, and what it does not.
func (s suite) wayOut(t *testing.T) {
	b := s.probed(t, sandbox.Spec{Env: []string{"OF_THE_SANDBOX=1"}})
	out, ok := b.(sandbox.Networked)
	if !ok {
		t.Skip("the driver's sandboxes have no way out")
	}
	address, begun := s.server(t)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	ours := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "served")
	}))
	defer ours.Close()
	own := strings.TrimPrefix(ours.URL, "http://")
	h := &heard{}
	allowed, here := "allowed.test:"+port, "127.0.0.1:"+port
	c := networkChecks{
		suite: s, b: b, out: out, address: address, begun: begun, port: port, own: own, h: h,
		allowed: allowed, here: here,
	}
	t.Run("nothing that the settings keep closed", c.closedBySettings)
	t.Run("none before it is given one", c.noneAtFirst)
	c.set(t, allowed, here)
	t.Run("what is allowed", c.allowedHosts)
	t.Run("no listener of the host, whatever is open", c.hostListeners)
	t.Run("nothing else", c.otherAddresses)
	t.Run("changed while it is used", c.changedDuringUse)
	t.Run("malformed", c.malformed)
	t.Run("the environment says where it is", c.environment)
	t.Run("programs go by the environment", c.programs)
	t.Run("taken away and given again", c.removedAndRestored)
}

func (s networkChecks) closedBySettings(t *testing.T) {
	out, h, allowed, here := s.out, s.h, s.allowed, s.here
	if err := out.SetNetwork(t.Context(), sandbox.Network{
		Allow:   []string{allowed, here, "127.0.0.0/8:*"},
		Resolve: h,
		Decided: h.take,
	}); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{allowed, here} {
		for _, how := range []string{"http", "connect", "socks5"} {
			if got := s.fetch(t, how, "http://"+to+"/"); strings.Contains(got, "served") {
				t.Errorf("%s by %s: %q", to, how, got)
			}
		}
	}
	if !h.has(false, "such addresses are allowed only by") {
		t.Errorf("the decisions were %+v", h.said)
	}
	s.set(t)
}

func (s networkChecks) noneAtFirst(t *testing.T) {
	allowed := s.allowed
	if got := s.fetch(t, "http", "http://"+allowed+"/"); strings.Contains(got, "served") {
		t.Errorf("it was %s", got)
	}
}

func (s networkChecks) allowedHosts(t *testing.T) {
	h, allowed := s.h, s.allowed
	want := "200 served " + allowed
	for _, how := range []string{"http", "connect", "socks5"} {
		if got := s.fetch(t, how, "http://"+allowed+"/"); got != want {
			t.Errorf("by %s: %q, want %q", how, got, want)
		}
	}
	if !h.has(true, allowed+" is allowed by the rule") {
		t.Errorf("the decisions were %+v", h.said)
	}
}

func (s networkChecks) hostListeners(t *testing.T) {
	h, own, allowed, here := s.h, s.own, s.allowed, s.here
	s.set(t, own, allowed, here)
	for _, how := range []string{"http", "connect", "socks5"} {
		if got := s.fetch(t, how, "http://"+own+"/"); strings.Contains(got, "served") {
			t.Errorf("by %s: %q", how, got)
		}
	}
	if !h.has(false, "a listener of this host") {
		t.Errorf("the decisions were %+v", h.said)
	}
	s.set(t, allowed, here)
}

func (s networkChecks) otherAddresses(t *testing.T) {
	b, h, address, port, allowed := s.b, s.h, s.address, s.port, s.allowed
	for url, reason := range map[string]string{
		"http://other.test:" + port + "/":           "no rule matches it; allowed are " + allowed,
		"http://a.allowed.test:" + port + "/":       "no rule matches it",
		"http://allowed.test:1/":                    "no rule matches it",
		"http://169.254.169.254/latest/meta-data/":  "a cloud's metadata service",
		"http://[::ffff:10.0.0.1]/":                 "a private network",
		"http://2130706433:" + port + "/":           "unusual form of an address",
		"http://0177.0.0.1:" + port + "/":           "unusual form of an address",
		"http://allowed.test@other.test:" + port:    "",
		"http://other.test%00.allowed.test:" + port: "",
	} {
		if got := s.fetch(t, "http", url); strings.Contains(got, "served") || !strings.Contains(got, reason) {
			t.Errorf("%s: %q, want %q", url, got, reason)
		}
		if reason != "" && !h.has(false, reason) {
			t.Errorf("%s: no decision says %q", url, reason)
		}
	}
	for name, got := range answers(t, b, "network", address, "no-such-socket") {
		if name != "loopback of its own" && name != "interfaces" && !slices.Contains(refused, got) {
			t.Errorf("past the proxy, %s: %s", name, got)
		}
	}
}

func (s networkChecks) changedDuringUse(t *testing.T) {
	begun, port, allowed, here := s.begun, s.port, s.allowed, s.here
	done := make(chan string, 1)
	go func() { done <- s.fetch(t, "http", "http://"+allowed+"/long") }()
	select {
	case <-begun:
	case got := <-done:
		t.Fatalf("the request did not begin: %s", got)
	}
	s.set(t, "other.test:"+port, here)
	if got := <-done; got == "200 served "+allowed {
		t.Errorf("what is no longer allowed came to its end: %q", got)
	}
	if got := s.fetch(t, "http", "http://"+allowed+"/"); !strings.Contains(got, "no rule matches it") {
		t.Errorf("what is no longer allowed: %q", got)
	}
	if got := s.fetch(t, "http", "http://other.test:"+port+"/"); !strings.Contains(got, "200 served") {
		t.Errorf("what is allowed now: %q", got)
	}
}

func (s networkChecks) malformed(t *testing.T) {
	out := s.out
	if err := out.SetNetwork(t.Context(), sandbox.Network{Allow: []string{"http://a/"}}); err == nil ||
		!strings.Contains(err.Error(), "http://a/") {
		t.Errorf("%v", err)
	}
}

func (s networkChecks) environment(t *testing.T) {
	b := s.b
	r := run(t, b, sandbox.Command{Argv: []string{"env"}})
	for _, want := range []string{"HTTP_PROXY=http://127.0.0.1:", "https_proxy=http://127.0.0.1:",
		"ALL_PROXY=", "OF_THE_SANDBOX=1\n"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q is missing in %q", want, r.stdout)
		}
	}
}

func (s networkChecks) programs(t *testing.T) {
	b, allowed, here := s.b, s.allowed, s.here
	s.set(t, allowed, here)
	for name, get := range map[string]string{
		"python3": `python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())' `,
		"curl":    `curl -sS `,
	} {
		script := "command -v " + name + " >/dev/null || exit 77; " + get
		r := shell(t, b, script+"http://"+allowed+"/")
		if r.Code == 77 {
			t.Logf("there is no %s in here", name)
			continue
		}
		if !strings.Contains(r.stdout, "served "+allowed) {
			t.Errorf("%s: %+v, %v: %q %.300q", name, r.Result, r.err, r.stdout, r.stderr)
		}
		// A tunnel's refusal is told in its status line.
		r = shell(t, b, script+"https://other.test/")
		if !strings.Contains(r.stderr, "403") {
			t.Errorf("%s, refused: %+v, %v: %q %.300q", name, r.Result, r.err, r.stdout, r.stderr)
		}
	}
}

func (s networkChecks) removedAndRestored(t *testing.T) {
	b, allowed, here := s.b, s.allowed, s.here
	for range 3 {
		s.set(t)
		if got := s.fetch(t, "http", "http://"+allowed+"/"); strings.Contains(got, "served") {
			t.Errorf("taken away: %q", got)
		}
		if r := run(t, b, sandbox.Command{Argv: []string{"env"}}); strings.Contains(r.stdout, "PROXY") {
			t.Errorf("the environment is still %q", r.stdout)
		}
		s.set(t, allowed, here)
		if got := s.fetch(t, "http", "http://"+allowed+"/"); !strings.Contains(got, "served") {
			t.Errorf("given again: %q", got)
		}
	}
}
