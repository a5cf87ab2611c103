package conformance

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// Clients with a connection pool rely on the head of a response: unless it contains close, the connection accepts
// another request after the stream of a call that asked has ended. A defect here showed as lost requests of the Go
// SDK's client.
func TestConnectionServesAgainOrSaysClose(t *testing.T) {
	h := needFixture(t)
	session := h.initialize(t)
	one := h.connect(t)
	resp := one.post(
		t,
		session,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"test_elicitation","arguments":{"message":"Who?"}}}`,
	)
	events := bufio.NewReader(resp.Body)
	asked := nextData(t, events)
	var e envelope
	if err := json.Unmarshal([]byte(asked), &e); err != nil || e.Method != "elicitation/create" {
		t.Fatalf("asked %s: %v", asked, err)
	}
	answer := fmt.Sprintf(
		`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"username":"ada","email":"ada@example.com"}}}`,
		e.ID,
	)
	if got := h.connect(t).post(t, session, answer); got.StatusCode != http.StatusAccepted {
		t.Fatalf("the answer was met with %s", got.Status)
	}
	if result := nextData(t, events); !strings.Contains(result, "ada@example.com") {
		t.Errorf("the result is %s", result)
	}
	if _, err := io.Copy(io.Discard, events); err != nil {
		t.Fatalf("the stream did not end as it should: %v", err)
	}
	if resp.Close {
		return
	}
	again := one.post(t, session, `{"jsonrpc":"2.0","id":3,"method":"ping"}`)
	if again.StatusCode != http.StatusOK {
		t.Errorf("the next request was met with %s", again.Status)
	}
}

// initialize opens a legacy session and returns its id.
func (h *fixtureHost) initialize(t *testing.T) string {
	t.Helper()
	c := h.connect(t)
	resp := c.post(
		t,
		"",
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"t","version":"1"}}}`,
	)
	_, _ = io.Copy(io.Discard, resp.Body)
	id := resp.Header.Get("Mcp-Session-Id")
	if id == "" {
		t.Fatalf("no session: %s", resp.Status)
	}
	c.post(t, id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return id
}

// connection is outside any pool. It bypasses the tap, which has a pool of its own.
type connection struct {
	net.Conn
	r    *bufio.Reader
	host string
}

func (h *fixtureHost) connect(t *testing.T) *connection {
	t.Helper()
	u, err := url.Parse(h.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &connection{c, bufio.NewReader(c), u.Host}
}

func (c *connection) post(t *testing.T, session, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+c.host+"/mcp", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		r.Header.Set("Mcp-Session-Id", session)
		r.Header.Set("MCP-Protocol-Version", "2025-11-25")
	}
	if err := r.Write(c); err != nil {
		t.Fatalf("write %s: %v", cut(body), err)
	}
	resp, err := http.ReadResponse(c.r, r)
	if err != nil {
		t.Fatalf("no response to %s: %v", cut(body), err)
	}
	return resp
}

// nextData returns the next data of an event stream that are not empty.
func nextData(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("the stream ended: %v", err)
		}
		if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data:"); ok && strings.TrimSpace(data) != "" {
			return strings.TrimSpace(data)
		}
	}
}
