package app

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/mcp/protocol"
)

// flood sends n requests and returns how many were refused, and the last refusal.
func flood(
	t *testing.T,
	a *App,
	n int,
	from, session string,
	headers ...string,
) (refused int, last *httptest.ResponseRecorder) {
	t.Helper()
	listener, err := a.NewHTTPServer()
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		r := httptest.NewRequestWithContext(
			t.Context(),
			"POST",
			"http://localhost/mcp",
			strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`),
		)
		r.RemoteAddr = from
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		r.Header.Set("Mcp-Session-Id", session)
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		listener.ServeHTTP(w, r)
		if w.Code == 429 {
			refused, last = refused+1, w
		}
	}
	return refused, last
}

// slow returns a host with a low rate.
func slow(t *testing.T, set bool) *App {
	cfg := settings(t)
	cfg.Auth.Insecure = true
	cfg.Listen.Stdio = false
	a, err := New(t.Context(), cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.abandon)
	a.limits.Rates = limit.NewRates(limit.Options{Rate: 0.001, Burst: 3, Hold: -1})
	a.pacing.Store(set)
	return a
}

func TestStrangersAreHeldToARate(t *testing.T) {
	a := slow(t, false)
	refused, w := flood(t, a, 5, "203.0.113.7:1000", "s1")
	if refused != 2 {
		t.Fatalf("%d of 5 requests were refused, want 2", refused)
	}
	var answer struct {
		Error struct{ Message string }
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil ||
		!strings.Contains(answer.Error.Message, "too many requests; try again in") ||
		w.Header().Get("Retry-After") == "" {
		t.Errorf("got %v %s, %v", w.Header(), w.Body, err)
	}
	if n, _ := flood(t, a, 3, "203.0.113.8:1000", "s2"); n != 0 {
		t.Errorf("another caller had %d refused", n)
	}
	if n, _ := flood(t, a, 1, "203.0.113.9:1000", "s1"); n != 1 {
		t.Error("a session was served beyond its rate from another address")
	}
	if n, _ := flood(t, a, 20, "127.0.0.1:1000", "s1"); n != 0 {
		t.Errorf("a caller on this machine had %d refused", n)
	}
	if n, _ := flood(t, a, 5, "127.0.0.1:1000", "s3", "X-Forwarded-For: 203.0.113.10"); n != 2 {
		t.Errorf("a caller behind a proxy on this machine had %d of 5 refused, want 2", n)
	}
}

func TestARateThatWasSetIsEverybodys(t *testing.T) {
	if n, _ := flood(t, slow(t, true), 5, "127.0.0.1:1000", ""); n != 2 {
		t.Errorf("%d of 5 requests were refused, want 2", n)
	}
}

// On a newline-framed listener the answer is an error, and the connection stays open.
func TestLinesAreHeldToARate(t *testing.T) {
	a := slow(t, true)
	var got [][]byte
	who := a.paced(protocol.Caller{Caller: a.owner().Caller}, remoteEnd(netip.MustParseAddr("203.0.113.7")))
	p := a.engine.Pipe(who, func(msg []byte) error {
		got = append(got, bytes.Clone(msg))
		return nil
	})
	defer p.Close(nil)
	for range 4 {
		p.Receive(
			[]byte(
				`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
			),
		)
		if work := p.ReceiveAsync([]byte(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)); work != nil {
			work()
		}
	}
	if last := string(got[len(got)-1]); !strings.Contains(last, `"id":2`) ||
		!strings.Contains(last, "too many requests") {
		t.Errorf("the fourth request got %s", last)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.Drain(ctx)
}

func TestConnectionsAreTold(t *testing.T) {
	a := slow(t, false)
	facts := a.bus.Follow(t.Context(), "connection.opened", 10)
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	if _, err := a.connected(ours); err != nil {
		t.Fatal(err)
	}
	for f := range facts {
		if !strings.Contains(string(f.Data), `"listener":"pipe"`) {
			t.Errorf("got %s", f.Data)
		}
		break
	}
}
