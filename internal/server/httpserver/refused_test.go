package httpserver

import (
	"bufio"
	"fmt"
	"net"
	nethttp "net/http"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/tests/hosttest"
)

// A client that sends too much can read why it is refused before its connection is closed, whether or
// not it announces the length.
func TestAnOversizedBodyIsAnsweredBeforeTheConnectionCloses(t *testing.T) {
	h := newTestHost(t, Options{MaxBody: 64 << 10}, hosttest.Options{})
	defer h.serve()()
	const size = 8 << 20
	for name, head := range map[string]string{
		"with a length": fmt.Sprintf("Content-Length: %d", size),
		"in chunks":     "Transfer-Encoding: chunked",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(time.Minute))
			fmt.Fprintf(
				c,
				"POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n%s\r\n\r\n",
				c.RemoteAddr(),
				head,
			)
			piece := strings.Repeat("x", 64<<10)
			for sent := 0; sent < size; sent += len(piece) {
				if strings.Contains(head, "chunked") {
					_, err = fmt.Fprintf(c, "%x\r\n%s\r\n", len(piece), piece)
				} else {
					_, err = fmt.Fprint(c, piece)
				}
				if err != nil {
					t.Fatalf("after %d bytes: %v", sent, err)
				}
			}
			if strings.Contains(head, "chunked") {
				fmt.Fprint(c, "0\r\n\r\n")
			}
			res, err := nethttp.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || res.StatusCode != 413 {
				t.Errorf("got %v, %v", res, err)
			}
		})
	}
}

// A client of a session that accepts only event streams gets its answers as streams.
func TestAnAnswerIsAStreamForWhoReadsNothingElse(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	one := func(body string, headers ...string) reply {
		t.Helper()
		r := h.do("POST", "/mcp", body, append([]string{"Accept", "text/event-stream"}, headers...)...)
		if r.status != 200 || r.header.Get("Content-Type") != "text/event-stream" ||
			!strings.Contains(r.body, "data: {") {
			t.Errorf("%s: got %d %s %s", body, r.status, r.header.Get("Content-Type"), r.body)
		}
		return r
	}
	id := one(initialize).header.Get("Mcp-Session-Id")
	if id == "" {
		t.Fatal("no session")
	}
	r := one(`{"jsonrpc":"2.0","id":7,"method":"ping"}`, "Mcp-Session-Id", id)
	if !strings.Contains(r.body, `"id":7`) {
		t.Errorf("got %s", r.body)
	}
	one(`{"jsonrpc":"2.0","id":8,"method":"tools/list"}`, "Mcp-Session-Id", id)
	if r := h.do("POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "Accept",
		"text/event-stream", "Mcp-Session-Id", id); r.status != 202 {
		t.Errorf("a notification: got %d %s", r.status, r.body)
	}
	if r := h.do("POST", "/mcp", `{"jsonrpc":"2.0","id":9,"method":"ping"}`, "Accept", "text/html",
		"Mcp-Session-Id", id); r.status != 406 {
		t.Errorf("a client that reads neither: got %d %s", r.status, r.body)
	}
}
