package httpserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/tool"
)

func TestContentType(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	for value, want := range map[string]int{
		"application/json":                  200,
		"application/json; charset=utf-8":   200,
		"Application/JSON;charset=\"UTF-8":  415,
		"application/json;charset=UTF-8":    200,
		"":                                  200,
		"application/json; charset=latin1":  415,
		"text/plain":                        415,
		"application/x-www-form-urlencoded": 415,
		"application/jsonp":                 415,
		"multipart/form-data; boundary=x":   415,
		";":                                 415,
	} {
		r := h.do("POST", "/mcp", initialize, "Content-Type", value)
		if r.status != want {
			t.Errorf("Content-Type %q: got %d %s, want %d", value, r.status, r.body, want)
		}
	}
}

func TestBadMessages(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	id := h.session("2025-11-25")
	for name, c := range map[string]struct {
		body string
		code string
	}{
		"nothing":        {"", "-32700"},
		"half a message": {`{"jsonrpc":"2.0","id":1`, "-32700"},
		"no JSON":        {"no json", "-32700"},
		"two messages":   {initialize + initialize, "-32700"},
		"invalid UTF-8":  {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"pi\xffng\"}", "-32700"},
		"deep nesting": {`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":` + strings.Repeat("[", 100_000) +
			strings.Repeat("]", 100_000) + "}}", "-32700"},
		"a number":          {"1", "-32600"},
		"an id that is not": {`{"jsonrpc":"2.0","id":null,"method":"ping"}`, "-32600"},
		"wrong case":        {`{"jsonrpc":"2.0","id":1,"Method":"ping"}`, "-32600"},
	} {
		r := h.do("POST", "/mcp", c.body, "Mcp-Session-Id", id)
		if r.status != 400 {
			t.Errorf("%s: got %d, want 400", name, r.status)
		}
		has(t, r.body, `"error":{"code":`+c.code)
	}
}

func TestOversized(t *testing.T) {
	h := newTestHost(t, Options{MaxBody: 1000}, hosttest.Options{})
	fits := call(1, "t_echo", `{"text":"hi"}`)
	fits += strings.Repeat(" ", 1000-len(fits))
	id := h.session("2025-11-25")
	chunkedBody := func(body string) reply {
		t.Helper()
		req := h.request(t.Context(), "POST", "/mcp", "", "Mcp-Session-Id", id)
		req.Body, req.ContentLength = io.NopCloser(iotest.HalfReader(strings.NewReader(body))), -1
		res, err := nethttp.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return reply{res.StatusCode, res.Header, string(b)}
	}
	for _, c := range []struct {
		name   string
		got    reply
		status int
	}{
		{"at the limit", h.do("POST", "/mcp", fits, "Mcp-Session-Id", id), 200},
		{"past it by its length", h.do("POST", "/mcp", fits+" ", "Mcp-Session-Id", id), 413},
		{"in chunks, at the limit", chunkedBody(fits), 200},
		{"in chunks, past it", chunkedBody(fits + " "), 413},
		{"in chunks, far past it", chunkedBody(strings.Repeat(" ", 100_000)), 413},
	} {
		if c.got.status != c.status {
			t.Errorf("%s: got %d %s, want %d", c.name, c.got.status, c.got.body, c.status)
		}
	}
	// A body whose announced length is too large is refused before any of it has arrived.
	conn := h.dial()
	fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
	has(t, readHead(t, conn), " 413 ")
	conn = h.dial()
	fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\nExpect: 100-continue\r\n\r\n")
	has(t, readHead(t, conn), " 413 ")
}

func (h *testHost) dial() net.Conn {
	h.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { conn.Close() })
	return conn
}

func readHead(t *testing.T, conn net.Conn) string {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(time.Minute))
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

func TestTruncated(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	conn := h.dial()
	fmt.Fprintf(
		conn,
		"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s",
		len(initialize)+1,
		initialize,
	)
	conn.(*net.TCPConn).CloseWrite()
	got := readHead(t, conn)
	has(t, got, " 400 ", "-32700", "could not be read completely")
	if n := h.Table.Len(); n != 0 {
		t.Errorf("half a message has opened %d sessions", n)
	}
}

// The server does not wait for a body that does not arrive.
func TestSlowBody(t *testing.T) {
	h := newTestHost(t, Options{BodyTime: 50 * time.Millisecond}, hosttest.Options{})
	conn := h.dial()
	fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
	has(t, readHead(t, conn), " 400 ")
}

// The deadline of the body must not end the request to which it belongs.
func TestSlowCallAfterItsBody(t *testing.T) {
	h := newTestHost(t, Options{BodyTime: 20 * time.Millisecond}, hosttest.Options{})
	go func() {
		soon(t, h.started, "the call to begin")
		time.Sleep(100 * time.Millisecond)
		h.release <- "late but there"
	}()
	r := h.do("POST", "/mcp", call(1, "t_hold", `{}`, envelope), modern("tools/call", "t_hold")...)
	has(t, r.body, "late but there")
}

func TestReadAll(t *testing.T) {
	body := bytes.Repeat([]byte("x"), 3*firstRead)
	for _, n := range []int64{-1, int64(len(body))} {
		got, err := readAll(iotest.HalfReader(bytes.NewReader(body)), n, int64(len(body)), noCount, noRelease)
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("length %d: got %d bytes and %v", n, len(got), err)
		}
	}
	if got, _ := readAll(bytes.NewReader(body[:100]), 100, 1000, noCount, noRelease); cap(got) > 112 {
		t.Errorf("100 bytes took %d", cap(got))
	}
	// The body is announced, but never sent: no buffer is allocated for it.
	got, err := readAll(strings.NewReader("x"), 24<<20, 24<<20, noCount, noRelease)
	if !errors.Is(err, io.ErrUnexpectedEOF) || cap(got) > firstRead {
		t.Errorf("got %v with a buffer of %d bytes", err, cap(got))
	}
	broken := errors.New("broken")
	if _, err := readAll(iotest.ErrReader(broken), 10, 100, noCount, noRelease); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}

func TestAccept(t *testing.T) {
	for in, want := range map[string]accept{
		"application/json":                       {json: true},
		"application/json, text/event-stream":    {json: true, events: true},
		"TEXT/Event-Stream;q=0.5":                {events: true},
		"*/*":                                    {any: true},
		"text/*, application/*":                  {json: true, events: true},
		"text/event-stream;q=0, */*;q=0.1":       {any: true},
		"application/json;q=0.000":               {},
		"":                                       {},
		"application/json;charset=utf-8;v=\"1\"": {json: true},
	} {
		if got := readAccept([]string{in}); got != want {
			t.Errorf("%q: got %+v, want %+v", in, got, want)
		}
	}
	if !readAccept(nil).none {
		t.Error("no header is not read as none")
	}
}

func TestDenied(t *testing.T) {
	h := newTestHost(t, Options{Identify: func(r *nethttp.Request) (protocol.Caller, *Denied) {
		if name, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
			return protocol.Caller{Caller: tool.Caller{Principal: name}}, nil
		}
		return protocol.Caller{}, &Denied{
			Status:  401,
			Message: "a token is needed",
			Header:  nethttp.Header{"Www-Authenticate": {"Bearer"}},
		}
	}}, hosttest.Options{})
	for _, where := range [][2]string{{"POST", "/mcp"}, {"GET", "/mcp"}, {"DELETE", "/mcp"}, {"PUT", "/mcp"},
		{"GET", "/sse"}, {"POST", "/messages"}} {
		r := h.do(where[0], where[1], initialize)
		if r.status != 401 || r.header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%s: got %d %v, want 401", where, r.status, r.header)
		}
	}
	for _, open := range []string{"/.well-known/mcp", "/health", "/ready"} {
		if r := h.do("GET", open, ""); r.status != 200 {
			t.Errorf("%s: got %d, want 200", open, r.status)
		}
	}
	ada := []string{"Authorization", "Bearer ada"}
	id := h.do("POST", "/mcp", initialize, ada...).header.Get("Mcp-Session-Id")
	for _, method := range []string{"POST", "GET", "DELETE"} {
		r := h.do(
			method,
			"/mcp",
			call(1, "t_echo", `{"text":"hi"}`),
			"Authorization",
			"Bearer bob",
			"Mcp-Session-Id",
			id,
			"Accept",
			"text/event-stream, application/json",
		)
		if r.status != 404 {
			t.Errorf("%s with another's session: got %d, want 404", method, r.status)
		}
	}
	where := stream(t, h.open("GET", "/sse", "", append(ada, "Accept", "text/event-stream")...)).next()
	if r := h.do("POST", where.data, initialize, "Authorization", "Bearer bob"); r.status != 404 {
		t.Errorf("posting to another's stream: got %d, want 404", r.status)
	}
}

// memory is a listener without sockets, for connections inside a synctest bubble.
type memory struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newMemory() *memory { return &memory{conns: make(chan net.Conn), done: make(chan struct{})} }

func (m *memory) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.done:
		return nil, net.ErrClosed
	}
}

func (m *memory) Close() error   { m.once.Do(func() { close(m.done) }); return nil }
func (m *memory) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 3000} }

func (m *memory) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case m.conns <- theirs:
		return ours, nil
	case <-m.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestTenThousandAtOnce(t *testing.T) {
	// All of the requests may wait, because none is answered before all have arrived, and the default
	// queue would refuse most of one principal's 10,000.
	h := newTestHost(t, Options{}, hosttest.Options{Slots: 5_000})
	ln := newMemory()
	ctx, stop := context.WithCancel(t.Context())
	closed := make(chan error, 1)
	go func() { closed <- h.server.Serve(ctx, ln) }()
	client := &nethttp.Client{Transport: &nethttp.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return ln.dial(ctx) },
		MaxIdleConnsPerHost: -1,
		MaxIdleConns:        -1,
	}}
	id := h.session("2025-11-25")
	const requests = 10_000
	var together, all sync.WaitGroup
	var good atomic.Int64
	together.Add(requests)
	for i := range requests {
		all.Go(func() {
			text := fmt.Sprintf("number %d", i)
			body := call(i, "t_echo", fmt.Sprintf(`{"text":%q}`, text))
			headers := []string{"Mcp-Session-Id", id}
			if i%2 == 0 {
				body = call(i, "t_echo", fmt.Sprintf(`{"text":%q}`, text), envelope)
				headers = modern("tools/call", "t_echo")
			}
			req := h.request(t.Context(), "POST", "/mcp", body, headers...)
			together.Done()
			together.Wait()
			res, err := client.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			b, _ := io.ReadAll(res.Body)
			if res.StatusCode == 200 && strings.Contains(string(b), fmt.Sprintf(`"id":%d,`, i)) &&
				strings.Contains(string(b), text) {
				good.Add(1)
			}
		})
	}
	all.Wait()
	if n := good.Load(); n != requests {
		t.Errorf("%d of %d requests were answered, each with its own answer", n, requests)
	}
	stop()
	if err := soon(t, closed, "the server to close"); err != nil {
		t.Error(err)
	}
}

func noCount(int64) error { return nil }
func noRelease(int64)     {}
