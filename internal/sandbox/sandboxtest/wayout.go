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

// heard are the decisions of a sandbox's proxy, and its name server: every name
// leads to this machine.
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

// server is a server of this machine in a process of its own, since listeners of
// the proxy's own process are not reached. begun hears of each request for /long.
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

// wayOut is what a sandbox reaches that was given a network.
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
	set := func(t *testing.T, allow ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := out.SetNetwork(ctx, sandbox.Network{
			Allow:   allow,
			Special: []string{here, own},
			Resolve: h,
			Decided: h.take,
		}); err != nil {
			t.Fatal(err)
		}
	}
	fetch := func(t *testing.T, how, url string) string {
		t.Helper()
		return answers(t, b, "fetch", how, url)["answer"]
	}
	t.Run("nothing that the settings keep closed", func(t *testing.T) {
		if err := out.SetNetwork(t.Context(), sandbox.Network{
			Allow:   []string{allowed, here, "127.0.0.0/8:*"},
			Resolve: h,
			Decided: h.take,
		}); err != nil {
			t.Fatal(err)
		}
		for _, to := range []string{allowed, here} {
			for _, how := range []string{"http", "connect", "socks5"} {
				if got := fetch(t, how, "http://"+to+"/"); strings.Contains(got, "served") {
					t.Errorf("%s by %s: %q", to, how, got)
				}
			}
		}
		if !h.has(false, "such addresses are allowed only by") {
			t.Errorf("the decisions were %+v", h.said)
		}
		set(t)
	})
	t.Run("none before it is given one", func(t *testing.T) {
		if got := fetch(t, "http", "http://"+allowed+"/"); strings.Contains(got, "served") {
			t.Errorf("it was %s", got)
		}
	})
	set(t, allowed, here)
	t.Run("what is allowed", func(t *testing.T) {
		want := "200 served " + allowed
		for _, how := range []string{"http", "connect", "socks5"} {
			if got := fetch(t, how, "http://"+allowed+"/"); got != want {
				t.Errorf("by %s: %q, want %q", how, got, want)
			}
		}
		if !h.has(true, allowed+" is allowed by the rule") {
			t.Errorf("the decisions were %+v", h.said)
		}
	})
	t.Run("no listener of the host, whatever is open", func(t *testing.T) {
		set(t, own, allowed, here)
		for _, how := range []string{"http", "connect", "socks5"} {
			if got := fetch(t, how, "http://"+own+"/"); strings.Contains(got, "served") {
				t.Errorf("by %s: %q", how, got)
			}
		}
		if !h.has(false, "a listener of this host") {
			t.Errorf("the decisions were %+v", h.said)
		}
		set(t, allowed, here)
	})
	t.Run("nothing else", func(t *testing.T) {
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
			if got := fetch(t, "http", url); strings.Contains(got, "served") || !strings.Contains(got, reason) {
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
	})
	t.Run("changed while it is used", func(t *testing.T) {
		done := make(chan string, 1)
		go func() { done <- fetch(t, "http", "http://"+allowed+"/long") }()
		select {
		case <-begun:
		case got := <-done:
			t.Fatalf("the request did not begin: %s", got)
		}
		set(t, "other.test:"+port, here)
		if got := <-done; got == "200 served "+allowed {
			t.Errorf("what is no longer allowed came to its end: %q", got)
		}
		if got := fetch(t, "http", "http://"+allowed+"/"); !strings.Contains(got, "no rule matches it") {
			t.Errorf("what is no longer allowed: %q", got)
		}
		if got := fetch(t, "http", "http://other.test:"+port+"/"); !strings.Contains(got, "200 served") {
			t.Errorf("what is allowed now: %q", got)
		}
	})
	t.Run("malformed", func(t *testing.T) {
		if err := out.SetNetwork(t.Context(), sandbox.Network{Allow: []string{"http://a/"}}); err == nil ||
			!strings.Contains(err.Error(), "http://a/") {
			t.Errorf("%v", err)
		}
	})
	t.Run("the environment says where it is", func(t *testing.T) {
		r := run(t, b, sandbox.Command{Argv: []string{"env"}})
		for _, want := range []string{"HTTP_PROXY=http://127.0.0.1:", "https_proxy=http://127.0.0.1:",
			"ALL_PROXY=", "OF_THE_SANDBOX=1\n"} {
			if !strings.Contains(r.stdout, want) {
				t.Errorf("%q is missing in %q", want, r.stdout)
			}
		}
	})
	t.Run("programs go by the environment", func(t *testing.T) {
		set(t, allowed, here)
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
	})
	t.Run("taken away and given again", func(t *testing.T) {
		for range 3 {
			set(t)
			if got := fetch(t, "http", "http://"+allowed+"/"); strings.Contains(got, "served") {
				t.Errorf("taken away: %q", got)
			}
			if r := run(t, b, sandbox.Command{Argv: []string{"env"}}); strings.Contains(r.stdout, "PROXY") {
				t.Errorf("the environment is still %q", r.stdout)
			}
			set(t, allowed, here)
			if got := fetch(t, "http", "http://"+allowed+"/"); !strings.Contains(got, "served") {
				t.Errorf("given again: %q", got)
			}
		}
	})
}
