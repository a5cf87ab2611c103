package relaytest

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"gatehouse/internal/app"
	"gatehouse/internal/mcp/client"
	"gatehouse/internal/packages"
)

// serveHTTP serves one server alone over HTTP, and returns the URL. Its log goes to log.
func serveHTTP(t *testing.T, r packages.Record, log *slog.Logger) string {
	t.Helper()
	cfg := aloneConfig(t, t.TempDir())
	cfg.Listen.HTTP.Open, cfg.Listen.HTTP.Host, cfg.Listen.HTTP.Port = true, "127.0.0.1", 0
	r.ID, r.Start, r.Title = "up", packages.OnDemand, "up"
	h, err := app.New(t.Context(), cfg, app.Options{
		Log: log, Alone: &app.Alone{Package: r, Dir: t.TempDir(), Env: os.Environ()},
	})
	if err != nil {
		t.Fatal(err)
	}
	runHost(t, h)
	return h.Listeners()[0].Address
}

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Of the headers of a client's request, those that the record names go on to the server with that request, and no
// others: not its credential, and none of an earlier request. Their values are in no log.
func TestHeadersArePassedOnByTheirNames(t *testing.T) {
	for server, modern := range map[string]bool{"modern": true, "legacy": false} {
		for era, revision := range eras {
			t.Run(server+" server, "+era+" client", func(t *testing.T) {
				e := serveEcho(t, modern, echoTools)
				var log lockedBuffer
				url := serveHTTP(t, packages.Record{
					Source:      packages.Source{Kind: packages.URL, From: e.URL + "/mcp"},
					PassHeaders: []string{"x-tenant"},
				}, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
				with := client.NewHTTP(url, client.HTTPOptions{Headers: http.Header{
					"X-Tenant": {"very-secret-tenant"}, "X-Other": {"other"}, "Cookie": {"a=b"},
				}}, client.ConnOptions{Name: "test", Version: "1"})
				without := client.NewHTTP(url, client.HTTPOptions{}, client.ConnOptions{Name: "test", Version: "1"})
				for _, one := range []struct {
					conn *client.Conn
					want string
				}{{with, "very-secret-tenant"}, {without, ""}, {with, "very-secret-tenant"}} {
					if one.conn.Info() == nil {
						if err := one.conn.Connect(t.Context(), revision); err != nil {
							t.Fatal(err)
						}
						defer one.conn.Close()
					}
					params := json.RawMessage(`{"name":"echo","arguments":{}}`)
					if _, err := one.conn.Do(t.Context(),
						client.Request{Method: "tools/call", Name: "echo", Params: params}); err != nil {
						t.Fatal(err)
					}
					h := *e.header.Load()
					if h.Get("X-Tenant") != one.want || h.Get("X-Other")+h.Get("Cookie")+h.Get("Authorization") != "" {
						t.Errorf("the server got %v, want X-Tenant %q alone", h, one.want)
					}
				}
				if strings.Contains(log.String(), "very-secret-tenant") {
					t.Errorf("the log has it: %s", log.String())
				}
			})
		}
	}
}

// Headers that belong to one connection, to the protocol or to the host cannot be passed on, and each value has one
// source.
func TestHeadersThatCannotBePassedOn(t *testing.T) {
	remote := packages.Source{Kind: packages.URL, From: "https://mcp.example.com/mcp"}
	for _, name := range []string{
		"Connection", "keep-alive", "Transfer-Encoding", "Proxy-Authorization", "Host", "Content-Length",
		"Mcp-Session-Id",
		"mcp-param-region", "Mcp-Anything", "X-MCP-Context", "a b", "", "X-Set",
	} {
		r := packages.Record{
			ID: "up", Source: remote, Start: packages.OnDemand, PassHeaders: []string{name},
			Headers: map[string]string{"X-Set": "1"},
		}
		if err := r.Check(); err == nil || !strings.Contains(err.Error(), "pass_headers") {
			t.Errorf("%q: %v", name, err)
		}
	}
	r := packages.Record{ID: "up", Source: remote, Start: packages.OnDemand, PassHeaders: []string{"authorization"}}
	if err := r.Check(); err != nil || r.PassHeaders[0] != "Authorization" {
		t.Errorf("Authorization that is named: %v", err)
	}
	local := packages.Record{
		ID: "up", Source: packages.Source{Kind: packages.Command}, Command: "true", Start: packages.OnDemand,
		PassHeaders: []string{"X-A"},
	}
	if err := local.Check(); err == nil {
		t.Error("a program of this machine was given headers")
	}
}
