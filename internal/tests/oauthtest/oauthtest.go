// Package oauthtest runs a real OAuth provider, and hosts that require its tokens, for tests.
package oauthtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/app"
	"gatehouse/internal/config"
)

const deadline = time.Minute // of each wait

// top returns the folder of this repository.
func top(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatal("the test does not run in the repository")
	return ""
}

// npm returns the folder of the pinned npm packages, and the Node program installed with them.
// With -short, which does without them, the test is skipped.
func npm(t testing.TB) (folder, node string) {
	t.Helper()
	if testing.Short() {
		t.Skip("with -short nothing is run that needs the pinned npm packages")
	}
	if folder = os.Getenv("GATEHOUSE_TEST_NPM"); folder == "" {
		folder = filepath.Join(top(t), ".tools", "npm")
	}
	if _, err := os.Stat(filepath.Join(folder, "node_modules", "oidc-provider")); err != nil {
		t.Fatalf("oidc-provider is not installed: run go run ./internal/tests/conformance/run install (%v)", err)
	}
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	node = filepath.Join(folder, "node_modules", "node-"+runtime.GOOS+"-"+arch, "bin", "node")
	if _, err := os.Stat(node); err == nil {
		return folder, node
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal(err)
	}
	return folder, node
}

// Provider starts oidc-provider, a certified OpenID Connect provider, for a resource with the
// scopes mcp.read and mcp.write. Variables are added to its environment. It returns the issuer.
func Provider(t testing.TB, resource string, variables ...string) (issuer string) {
	t.Helper()
	folder, node := npm(t)
	script := filepath.Join(top(t), "internal", "access", "identity", "testdata", "provider.mjs")
	cmd := exec.Command(node, script, folder, resource, "mcp.read mcp.write")
	cmd.Env = append(os.Environ(), variables...)
	var said bytes.Buffer
	cmd.Stderr = &said
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
	late := time.AfterFunc(deadline, func() { cmd.Process.Kill() })
	lines := bufio.NewReader(out)
	line, err := lines.ReadBytes('\n')
	late.Stop()
	t.Cleanup(func() {
		in.Close()
		io.Copy(io.Discard, lines)
		cmd.Wait()
		if t.Failed() {
			t.Logf("the provider said:\n%s", said.String())
		}
	})
	var metadata struct{ Issuer string }
	if err != nil || json.Unmarshal(line, &metadata) != nil {
		t.Fatalf("the provider did not start: %v, %s", err, line)
	}
	return metadata.Issuer
}

// Host is a host over HTTP that accepts only tokens of a provider: mcp.read permits reading,
// mcp.write everything.
type Host struct {
	URL    string // of its endpoint
	Issuer string
	Folder string // that its tools serve; a.txt in it says hello

	server *httptest.Server
	mu     sync.Mutex
	seen   []Request
	refuse func(http.ResponseWriter, *http.Request) bool
	next   http.Handler
}

// Request is a request that a host got.
type Request struct {
	Token string // the credential that it came with
	Body  string
}

// NewHost starts a host, which is stopped with the test.
func NewHost(t testing.TB, variables ...string) *Host {
	t.Helper()
	h := &Host{Folder: t.TempDir()}
	h.server = httptest.NewServer(h)
	t.Cleanup(h.server.Close)
	h.URL = h.server.URL + "/mcp"
	h.Issuer = Provider(t, h.URL, variables...)
	if err := os.WriteFile(filepath.Join(h.Folder, "a.txt"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	cfg, err := config.FromEnv(func(name string) string { return map[string]string{"HOME": home}[name] })
	if err != nil {
		t.Fatal(err)
	}
	cfg.Roots.Folders, cfg.View.Modules, cfg.Auth.Required = []string{h.Folder}, []string{"file"}, true
	cfg.Auth.OAuth = config.OAuth{
		Issuer: h.Issuer, Resource: h.URL, Required: []string{"mcp.read"}, Scopes: []string{"mcp.write"},
		Grants: map[string][]string{"mcp.read": {"read"}, "mcp.write": {"*"}},
	}
	a, err := app.New(t.Context(), cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	handler, err := a.NewHTTPServer()
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.next = handler
	h.mu.Unlock()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		h.server.CloseClientConnections()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return h
}

// ServeHTTP implements http.Handler.
func (h *Host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	h.mu.Lock()
	h.seen = append(h.seen, Request{token, string(body)})
	refuse, next := h.refuse, h.next
	h.mu.Unlock()
	if refuse != nil && refuse(w, r) {
		return
	}
	next.ServeHTTP(w, r)
}

// Refuse has f see each request first. If it returns true it has answered. nil lets all pass.
func (h *Host) Refuse(f func(http.ResponseWriter, *http.Request) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse = f
}

// Seen returns the requests that the host got.
func (h *Host) Seen() []Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Request(nil), h.seen...)
}

// Approve is a browser whose user approves at an address of the provider. With follow it goes
// where the provider sends it back to; otherwise it returns that address.
func Approve(t testing.TB, address string, follow bool) (back string) {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	hc := &http.Client{Jar: jar, Timeout: deadline, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if !follow && r.URL.Query().Get("code")+r.URL.Query().Get("error") != "" {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	resp, err := hc.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if follow {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("the browser sees %d: %s", resp.StatusCode, body)
		}
		return resp.Request.URL.String()
	}
	to, err := resp.Location()
	if err != nil {
		t.Fatalf("the provider answered %d: %v", resp.StatusCode, err)
	}
	return to.String()
}
