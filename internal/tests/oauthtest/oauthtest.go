// Package oauthtest runs a real OAuth provider, and hosts that require its tokens, for tests.
package oauthtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/tests/oidctest"
)

const deadline = time.Minute // of each wait

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
	h := open(t)
	h.Issuer = oidctest.Start(t, h.URL, variables...)
	h.start(t, func(cfg *config.Config) {
		cfg.Auth.OAuth = config.OAuth{
			Issuer: h.Issuer, Resource: h.URL, Required: []string{"mcp.read"}, Scopes: []string{"mcp.write"},
			Grants: map[string][]string{"mcp.read": {"read"}, "mcp.write": {"*"}},
		}
	})
	return h
}

// The user of a host that NewIssuer starts.
const (
	User     = "alice"
	Password = "correct horse battery"
)

// NewIssuer starts a host that issues tokens itself to the clients that User allows. It is stopped with the test.
func NewIssuer(t testing.TB) *Host {
	t.Helper()
	h := open(t)
	h.Issuer = h.server.URL
	h.start(t, func(cfg *config.Config) {
		cfg.Auth.Server = h.Issuer
		users, err := identity.Open(filepath.Join(cfg.Folders.Data, "identity.db"), identity.Options{})
		if err == nil {
			err = errors.Join(users.AddUser(t.Context(), User, nil, Password), users.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	return h
}

// open opens the listener of a host.
func open(t testing.TB) *Host {
	h := &Host{Folder: t.TempDir()}
	h.server = httptest.NewServer(h)
	t.Cleanup(h.server.Close)
	h.URL = h.server.URL + "/mcp"
	return h
}

// start runs a host with settings that change completes.
func (h *Host) start(t testing.TB, change func(*config.Config)) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(h.Folder, "a.txt"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	cfg, err := config.FromEnv(func(name string) string { return map[string]string{"HOME": home}[name] })
	if err != nil {
		t.Fatal(err)
	}
	cfg.Roots.Folders, cfg.View.Modules, cfg.Auth.Required = []string{h.Folder}, []string{"file"}, true
	change(&cfg)
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
