package hub

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"gatehouse/tool"
)

// pipes is a listener in memory, so that a test can use a synthetic clock.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// inBubble serves one client whose credential expires after a time, in memory. The last result is the connection
// below the client.
func inBubble(t *testing.T, o Options, until time.Duration) (*Hub, *websocket.Conn, func(), net.Conn) {
	h, ln := New(o), make(pipes)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := Caller{Caller: tool.Caller{Owner: "ann/default"}}
		if until > 0 {
			c.Until = time.Now().Add(until)
		}
		h.Serve(w, r, c)
	})}
	go server.Serve(ln)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); h.Run(ctx) }()
	ours, theirs := net.Pipe()
	dialer := &http.Client{
		Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			ln <- theirs
			return ours, nil
		}},
	}
	conn, _, err := websocket.Dial(t.Context(), "ws://localhost/ws", &websocket.DialOptions{HTTPClient: dialer})
	if err != nil {
		t.Fatal(err)
	}
	return h, conn, func() {
		conn.CloseNow()
		cancel()
		<-done
		close(ln)
		server.Close()
		dialer.CloseIdleConnections()
	}, ours
}

func (h *Hub) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.clients)
}

// A client that answers pings stays connected; one that does not is disconnected a minute after it last sent
// something.
func TestSilentClientsAreAskedWhetherTheyAreThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, conn, stop, _ := inBubble(t, Options{}, 0)
		defer stop()
		ctx, quit := context.WithCancel(t.Context())
		read := make(chan error)
		go func() {
			_, _, err := conn.Read(ctx)
			read <- err
		}()
		time.Sleep(time.Hour)
		if h.count() != 1 {
			t.Fatal("a client that answers pings was disconnected")
		}
		quit()
		<-read
	})
	synctest.Test(t, func(t *testing.T) {
		h, _, stop, line := inBubble(t, Options{}, 0)
		defer stop()
		go io.Copy(io.Discard, line) // it reads what it is sent, and sends nothing
		time.Sleep(59 * time.Second)
		if h.count() != 1 {
			t.Error("it was disconnected too early")
		}
		time.Sleep(6 * time.Second) // the hub checks every few seconds
		if h.count() != 0 {
			t.Error("a client that does not answer is still connected")
		}
	})
}

func TestAClientEndsWithItsCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, conn, stop, _ := inBubble(t, Options{}, 10*time.Minute)
		defer stop()
		begin := time.Now()
		_, _, err := conn.Read(t.Context())
		if c, ok := errors.AsType[websocket.CloseError](err); !ok || c.Code != websocket.StatusPolicyViolation {
			t.Errorf("got %v", err)
		}
		if d := time.Since(begin); d < 10*time.Minute || d > 10*time.Minute+5*time.Second {
			t.Errorf("it ended after %v, want 10m", d)
		}
	})
}

// A client that is slow but keeps reading receives the reason why it is disconnected.
func TestASlowClientIsToldWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, conn, stop, _ := inBubble(t, Options{Queue: 8}, 0)
		defer stop()
		if err := conn.Write(t.Context(), websocket.MessageText,
			[]byte(`{"type":"subscribe","data":"chat:1"}`)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := conn.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 20 { // one is being written, eight wait
			h.Send("ann/default", "chat:1", Message{Type: "event"})
			synctest.Wait()
		}
		heard := 0
		for {
			_, _, err := conn.Read(t.Context())
			if err == nil {
				heard++
				continue
			}
			c, ok := errors.AsType[websocket.CloseError](err)
			if !ok || c.Code != websocket.StatusTryAgainLater ||
				c.Reason != "too slow: 8 messages were waiting; reconnect and read faster" {
				t.Errorf("got %v", err)
			}
			break
		}
		if heard != 1 {
			t.Errorf("it heard %d messages, want the one that was on the line", heard)
		}
	})
}

// A client that does not read at all is disconnected when a message was not accepted in time; it cannot receive a
// reason.
func TestAStuckClientIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, conn, stop, _ := inBubble(t, Options{}, 0)
		defer stop()
		if err := conn.Write(t.Context(), websocket.MessageText,
			[]byte(`{"type":"subscribe","data":"chat:1"}`)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Second)
		if h.count() != 1 {
			t.Error("it was cut off too early")
		}
		time.Sleep(2 * time.Second)
		if h.count() != 0 {
			t.Error("it is still connected")
		}
	})
}
