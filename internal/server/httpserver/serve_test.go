package httpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/tests/hosttest"
)

func overTLS(t *testing.T, h nethttp.Handler, two bool) (*nethttp.Client, string) {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2 = two
	server.StartTLS()
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	return server.Client(), server.URL
}

// serve runs the host's server on a listener of its own until stop is called.
func (h *testHost) serve() (stop func() error) {
	h.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	h.url = "http://" + ln.Addr().String()
	return h.serveOn(ln)
}

// serveOn is serve on a given listener.
func (h *testHost) serveOn(ln net.Listener) (stop func() error) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.server.Serve(ctx, ln) }()
	h.t.Cleanup(cancel)
	return func() error {
		h.t.Helper()
		cancel()
		return soon(h.t, done, "the server to close")
	}
}

func TestServeStops(t *testing.T) {
	h := newTestHost(t, Options{Patience: 5 * time.Second}, hosttest.Options{})
	stop := h.serve()
	id := h.session("2025-11-25")
	listening := stream(t, h.listen(id))
	listening.raw()
	body := `{"jsonrpc":"2.0","id":77,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{` + envelope + `}}}`
	subscribed := stream(t, h.open("POST", "/mcp", body, modern("subscriptions/listen")...))
	subscribed.next()
	answered := make(chan reply, 1)
	go func() { answered <- h.do("POST", "/mcp", call(1, "t_hold", `{}`), "Mcp-Session-Id", id) }()
	soon(t, h.started, "the call to begin")

	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	if data := listening.end(); len(data) != 0 {
		t.Errorf("the stream ended with %q", data)
	}
	subscribed.end()
	if resp, err := nethttp.Get(h.url + "/health"); err == nil { // the streams end before the listener closes
		resp.Body.Close()
		if resp.StatusCode != 503 {
			t.Errorf("a server that is closing answers %s", resp.Status)
		}
	}
	h.release <- "in time"
	has(t, soon(t, answered, "the call in flight").body, "in time")
	if err := soon(t, stopped, "the server to close"); err != nil {
		t.Errorf("an orderly end is %v, want nil", err)
	}
	if n := len(h.server.pulse.all()); n != 0 {
		t.Errorf("%d streams outlive the server", n)
	}
}

func TestServeLosesPatience(t *testing.T) {
	h := newTestHost(t, Options{Patience: 50 * time.Millisecond}, hosttest.Options{})
	stop := h.serve()
	id := h.session("2025-11-25")
	asked := stream(t, h.open("POST", "/mcp", call(9, "t_ask", `{}`), "Mcp-Session-Id", id))
	asked.next()
	broke := make(chan error, 1)
	go func() {
		res, err := nethttp.DefaultClient.Do(
			h.request(
				context.Background(),
				"POST",
				"/mcp",
				call(1, "t_hold", `{}`, envelope),
				modern("tools/call", "t_hold")...),
		)
		if err == nil {
			_, err = io.ReadAll(res.Body)
			res.Body.Close()
		}
		broke <- err
	}()
	soon(t, h.started, "the call to begin")
	if err := stop(); err != nil {
		t.Errorf("got %v, want the call to have been cancelled", err)
	}
	if err := soon(t, broke, "the call in flight"); err == nil {
		t.Error("a call that was given up was answered")
	}
	asked.end()
	if err := soon(t, h.dropped, "the handler"); err == nil {
		t.Error("the handler was not cancelled")
	}
}

func TestServeSaysWhatItCouldNotEnd(t *testing.T) {
	h := newTestHost(t, Options{Patience: 50 * time.Millisecond}, hosttest.Options{})
	stop := h.serve()
	id := h.session("2025-11-25")
	r := h.do("POST", "/mcp", call(1, "t_stuck", `{}`), "Mcp-Session-Id", id)
	has(t, r.body, `"isError":true`)
	err := stop()
	close(h.release)
	if err == nil || !strings.Contains(err.Error(), "ignore cancellation") {
		t.Errorf("got %v, want an error about the blocked handler", err)
	}
}

func TestServeFails(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	if err := h.server.Serve(t.Context(), ln); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed listener: got %v", err)
	}
}

// Headers have a limit of their own; TestSlowHeaders covers headers that do not arrive.
func TestHeaders(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	h.serve()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	t.Run("too many", func(t *testing.T) {
		conn := dial()
		fmt.Fprintf(
			conn,
			"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: %s\r\n\r\n",
			strings.Repeat("x", 2*headerBytes),
		)
		buf := make([]byte, 64)
		n, _ := conn.Read(buf)
		has(t, string(buf[:n]), " 431 ")
	})
}

func TestMistakesInOptions(t *testing.T) {
	h := hosttest.New(t, hosttest.Options{})
	for _, o := range []Options{
		{Origins: []string{"example.com"}},
		{Origins: []string{"https://example.com/path"}},
		{Hosts: []string{"http://example.com"}},
	} {
		if _, err := New(h.Engine, o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
	if _, err := New(h.Engine, Options{Origins: []string{"*", "https://Example.com", "http://[::1]:80/"},
		Hosts: []string{"Example.com", "10.0.0.1:3000"}, Log: slog.Default()}); err != nil {
		t.Error(err)
	}
}
