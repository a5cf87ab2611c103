package httpserver

import (
	"bufio"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/tool"
)

// byHeader says who a caller is by a header of its request.
func byHeader(r *nethttp.Request) (protocol.Caller, *Denied) {
	return protocol.Caller{Caller: tool.Caller{Principal: r.Header.Get("X-Who")}}, nil
}

// halfSent opens a connection and sends the head of a large body and some of it.
func halfSent(t *testing.T, h *testHost, who string, size, sent int) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Who: %s\r\nContent-Type: application/json\r\n"+
		"Accept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n", who, size)
	conn.Write(make([]byte, sent))
	return conn
}

// post sends a message whole and returns the status and the answer.
func (h *testHost) post(who, msg string) (int, string) {
	h.t.Helper()
	r, err := nethttp.NewRequestWithContext(h.t.Context(), "POST", h.url+"/mcp", strings.NewReader(msg))
	if err != nil {
		h.t.Fatal(err)
	}
	for name, value := range map[string]string{
		"X-Who": who, "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "t_echo",
	} {
		r.Header.Set(name, value)
	}
	res, err := nethttp.DefaultClient.Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// Bodies of one caller that never arrive hold its own share of the memory, for as
// long as the least rate allows; what others send is read meanwhile.
//
//redteam:attack No principal takes the host from the others: many large bodies are sent by half
func TestHalfSentBodiesHoldTheirOwnShare(t *testing.T) {
	const mib = 1 << 20
	bytes := limit.NewShares(limit.Resource{Name: "bytes", Total: 16 * mib, Kept: -1})
	h := newTestHost(t, Options{
		Identify: byHeader, Bytes: bytes, BodySpan: 3 * time.Second, BytesWait: 100 * time.Millisecond,
	}, hosttest.Options{})
	var conns []net.Conn
	for range 40 {
		conns = append(conns, halfSent(t, h, "ann", 2*mib, mib/2))
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if used, full := bytes.Usage(); used == 8*mib && full > 0 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%d bytes are held, %d refused", used, full)
		}
	}
	echo := func(n int) string {
		return call(1, "t_echo", `{"text":"`+strings.Repeat("x", n)+`"}`, envelope)
	}
	if status, answer := h.post("ann", echo(4*mib)); status != 429 || !strings.Contains(answer, "you have 8388608") {
		t.Errorf("a body of the same caller: %d, %.300s", status, answer)
	}
	for range 5 {
		if status, answer := h.post("bob", echo(3*mib)); status != 200 {
			t.Fatalf("another caller: %d, %.300s", status, answer)
		}
	}
	refused := 0
	for _, c := range conns {
		c.SetReadDeadline(time.Now().Add(time.Minute))
		res, err := nethttp.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		switch res.StatusCode {
		case 429:
			refused++
		case 400:
		default:
			t.Errorf("a half-sent body is answered with %s", res.Status)
		}
	}
	if refused < 36 {
		t.Errorf("%d of 40 bodies were refused for want of a share", refused)
	}
	if used, _ := bytes.Usage(); used != 0 {
		t.Errorf("%d bytes are still held", used)
	}
	if status, answer := h.post("ann", echo(3*mib)); status != 200 {
		t.Errorf("afterwards: %d, %.300s", status, answer)
	}
}

// unread asks for a large result and reads nothing of the response.
func unread(t *testing.T, h *testHost, who, msg string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.(*net.TCPConn).SetReadBuffer(64 << 10)
	fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Who: %s\r\nContent-Type: application/json\r\n"+
		"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n"+
		"Mcp-Method: tools/call\r\nMcp-Name: t_echo\r\nContent-Length: %d\r\n\r\n%s", who, len(msg), msg)
	return conn.(*net.TCPConn)
}

// Results that a caller does not read hold its own share of the memory. A further result of its is refused, those of
// others are sent, and everything is given back when the results were read.
//
//redteam:attack No principal takes the host from the others: many large results are asked for and not read
func TestUnreadResultsHoldTheirOwnShare(t *testing.T) {
	const mib = 1 << 20
	bytes := limit.NewShares(limit.Resource{Name: "bytes", Total: 64 * mib, Kept: -1})
	h := newTestHost(t, Options{Identify: byHeader}, hosttest.Options{Budget: 64 * mib, Bytes: bytes})
	echo := func(n int) string {
		return call(1, "t_echo", `{"text":"`+strings.Repeat("x", n)+`"}`, envelope)
	}
	var conns []*net.TCPConn
	for range 2 {
		conns = append(conns, unread(t, h, "ann", echo(8*mib)))
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if used, _ := bytes.Usage(); used >= 32*mib {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%d bytes are held, want those of two results and their messages", used)
		}
	}
	if status, answer := h.post("ann", echo(8*mib)); status != 200 ||
		!strings.Contains(answer, "its result cannot be sent") {
		t.Errorf("a third result of the same caller: %d, %.300s", status, answer)
	}
	if status, answer := h.post("ann", echo(100)); status != 200 || strings.Contains(answer, "cannot be sent") {
		t.Errorf("a small result of the same caller: %d, %.300s", status, answer)
	}
	if status, answer := h.post("bob", echo(4*mib)); status != 200 || len(answer) < 4*mib {
		t.Errorf("another caller: %d, %.300s", status, answer)
	}
	for _, c := range conns {
		c.SetReadBuffer(4 * mib)
		c.SetReadDeadline(time.Now().Add(time.Minute))
		res, err := nethttp.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, res.Body); err != nil || n < 8*mib {
			t.Errorf("%d bytes of a result arrive: %v", n, err)
		}
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if used, _ := bytes.Usage(); used == 0 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%d bytes are still held", used)
		}
	}
}

// The bytes of a message are held until it was answered, whatever becomes of it.
func TestTheBytesOfAMessageAreGivenBack(t *testing.T) {
	bytes := limit.NewShares(limit.Resource{Name: "bytes", Total: 1 << 20, Kept: -1})
	streams := limit.NewShares(limit.Resource{Name: "streams", Total: 100, Kept: -1})
	h := newTestHost(t, Options{Identify: byHeader, Bytes: bytes, Streams: streams}, hosttest.Options{})
	for _, msg := range []string{
		call(1, "t_echo", `{"text":"a"}`, envelope), call(1, "t_progress", `{"n":3}`, envelope), "{", "[]", "",
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`, call(1, "t_none", `{}`, envelope),
		strings.Repeat(" ", 100<<10),
	} {
		h.post("ann", msg)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		b, _ := bytes.Usage()
		s, _ := streams.Usage()
		if b == 0 && s == 0 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%d bytes and %d streams are held", b, s)
		}
	}
}

// Streams are divided among callers, those of calls and of subscriptions alike.
//
//redteam:attack No principal takes the host from the others: one caller opens streams without end
func TestStreamsAreDivided(t *testing.T) {
	streams := limit.NewShares(limit.Resource{Name: "streams", Total: 10, Kept: -1})
	h := newTestHost(t, Options{Identify: byHeader, Streams: streams, KeepAlive: 200 * time.Millisecond},
		hosttest.Options{})
	listen := func(who string) *nethttp.Response {
		t.Helper()
		msg := `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` +
			`"_meta":{` + envelope + `}}}`
		r, _ := nethttp.NewRequestWithContext(t.Context(), "POST", h.url+"/mcp", strings.NewReader(msg))
		for name, value := range map[string]string{
			"X-Who": who, "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
			"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen",
		} {
			r.Header.Set(name, value)
		}
		res, err := nethttp.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		return res
	}
	open := 0
	var last *nethttp.Response
	for range 20 {
		if res := listen("ann"); res.StatusCode == 200 {
			open, last = open+1, res
		} else if res.StatusCode != 429 {
			t.Fatalf("refused with %s", res.Status)
		}
	}
	if open != 5 {
		t.Errorf("one caller has %d of 10 streams", open)
	}
	if res := listen("bob"); res.StatusCode != 200 {
		t.Errorf("another caller gets %s", res.Status)
	}
	last.Body.Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if n, _ := streams.Usage(); n <= 5 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%d streams are counted after one was closed", n)
		}
	}
}
