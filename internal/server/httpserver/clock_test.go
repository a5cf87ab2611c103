package httpserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/session"
	"gatehouse/tool"
)

// script is an engine whose behaviour a test defines.
type script struct {
	table  *session.Table
	legacy func(m *protocol.Message, sink protocol.Sink)
	modern func(ctx context.Context, sink protocol.Sink)
}

func (s *script) EraOf(_ *protocol.Message, h protocol.Header) protocol.Era {
	if len(h("Mcp-Method")) > 0 {
		return protocol.Modern
	}
	return protocol.Legacy
}

func (s *script) Open(protocol.Caller, *protocol.Message) (*session.Session, []byte, *protocol.Fault) {
	return nil, nil, &protocol.Fault{Status: 400}
}
func (s *script) Accept(*session.Session, *protocol.Message) *protocol.Fault { return nil }
func (s *script) Legacy(_ *session.Session, m *protocol.Message, sink protocol.Sink) {
	s.legacy(m, sink)
}
func (s *script) Stateless(protocol.Caller, string) (*session.Session, *protocol.Fault) {
	return session.New(session.Facts{}), nil
}

func (s *script) Modern(
	ctx context.Context,
	_ protocol.Caller,
	_ *protocol.Message,
	_ protocol.Header,
	sink protocol.Sink,
) {
	s.modern(ctx, sink)
}
func (s *script) Sessions() *session.Table { return s.table }

// stage is a server in a synctest bubble.
type stage struct {
	t      *testing.T
	server *Server
	ln     *memory
	s      *session.Session
}

// onStage runs f against a server that serves a script.
func onStage(t *testing.T, name string, s *script, f func(t *testing.T, st *stage)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s.table = session.NewTable(session.Options{})
			sess, _ := s.table.Open(
				session.Facts{Caller: tool.Caller{Principal: "anonymous"}, Revision: mcpversion.V20251125},
			)
			d, err := newServer(s, Options{})
			if err != nil {
				t.Fatal(err)
			}
			st := &stage{t: t, server: d, ln: newMemory(), s: sess}
			ctx, stop := context.WithCancel(t.Context())
			closed := make(chan error, 1)
			go func() { closed <- d.Serve(ctx, st.ln) }()
			f(t, st)
			stop()
			began := time.Now()
			if err := <-closed; err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("closing took %s", took)
			}
		})
	})
}

// client is the other end of a connection, which reads only on request.
type client struct {
	net.Conn
	mu   sync.Mutex
	seen bytes.Buffer
	at   []time.Time // when something arrived
	end  error
}

func (st *stage) connect(request string) *client {
	conn, err := st.ln.dial(st.t.Context())
	if err != nil {
		st.t.Fatal(err)
	}
	c := &client{Conn: conn}
	io.WriteString(conn, request)
	return c
}

func (c *client) read() *client {
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := c.Conn.Read(buf)
			c.mu.Lock()
			c.seen.Write(buf[:n])
			c.at = append(c.at, time.Now())
			c.end = err
			c.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return c
}

func (c *client) saw() string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen.String()
}

func (c *client) ended() error {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end
}

func (st *stage) listening(version string) string {
	return "GET /mcp " + version + "\r\nHost: localhost\r\nAccept: text/event-stream\r\nMcp-Session-Id: " + st.s.ID +
		"\r\n\r\n"
}

func posting(headers, body string) string {
	return fmt.Sprintf(
		"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: application/json, text/event-stream\r\n"+
			"%sContent-Length: %d\r\n\r\n%s",
		headers,
		len(body),
		body,
	)
}

func TestKeepAlive(t *testing.T) {
	for _, version := range []string{"HTTP/1.1", "HTTP/1.0"} { // the second keeps its goroutine
		onStage(t, version, &script{}, func(t *testing.T, st *stage) {
			c := st.connect(st.listening(version)).read()
			time.Sleep(5 * time.Minute)
			st.s.Notify([]byte(`"note"`))
			time.Sleep(5 * time.Minute)
			has(t, c.saw(), ": alive\n\n", "data: \"note\"\n\n")
			c.mu.Lock()
			defer c.mu.Unlock()
			for i := 1; i < len(c.at); i++ {
				if silence := c.at[i].Sub(c.at[i-1]); silence > 25*time.Second {
					t.Fatalf("silent for %s", silence)
				}
			}
			if n := len(c.at); n > 60 {
				t.Errorf("%d writes in ten minutes", n)
			}
			if st.s.Ended() {
				t.Error("the session was swept while its stream is open")
			}
		})
	}
	onStage(t, "no streams, no timer", &script{}, func(t *testing.T, st *stage) {
		st.connect(st.listening("HTTP/1.1")).read()
		time.Sleep(time.Minute)
		st.s.Queue().Close()
		time.Sleep(time.Minute)
		st.server.pulse.mu.Lock()
		defer st.server.pulse.mu.Unlock()
		if st.server.pulse.timer != nil || st.server.pulse.wires != nil {
			t.Error("the timer runs with nothing to keep alive")
		}
	})
}

// A client that reads nothing is cut off, and no other client is affected.
//
//redteam:attack No principal takes the host from the others: a client that stops reading
func TestClientThatStopsReading(t *testing.T) {
	onStage(t, "an idle stream", &script{}, func(t *testing.T, st *stage) {
		c := st.connect(st.listening("HTTP/1.1"))
		readSome(t, c)
		other := st.connect(posting("Mcp-Method: x\r\n", "{")).read()
		time.Sleep(time.Minute)
		if n := len(st.server.pulse.all()); n != 0 {
			t.Errorf("%d streams are open, want the stuck one cut off", n)
		}
		if st.s.Queue().Attach(discarding{}, 0, false, false) != nil {
			t.Error("the stuck connection still holds the stream")
		}
		has(t, other.saw(), " 400 ")
		c.Close()
	})
	onStage(t, "messages of a session", &script{}, func(t *testing.T, st *stage) {
		c := st.connect(st.listening("HTTP/1.1"))
		readSome(t, c)
		for range 10_000 {
			st.s.Notify(make([]byte, 64<<10))
		}
		time.Sleep(writeTime + time.Second)
		if n := len(st.server.pulse.all()); n != 0 {
			t.Errorf("%d streams are open, want the stuck one cut off", n)
		}
		c.Close()
	})
	var took time.Duration
	endless := &script{modern: func(ctx context.Context, sink protocol.Sink) {
		began := time.Now()
		for sink.Note(make([]byte, 64<<10)) {
		}
		took = time.Since(began)
		<-ctx.Done()
		sink.Drop()
	}}
	onStage(t, "an answer that streams", endless, func(t *testing.T, st *stage) {
		c := st.connect(posting("Mcp-Method: x\r\n", initialize))
		time.Sleep(2 * writeTime)
		synctest.Wait()
		if took == 0 || took > writeTime+time.Second {
			t.Errorf("the sender was held up for %s", took)
		}
		if n := st.server.serving.Load(); n != 0 {
			t.Errorf("%d requests are being served for a client that does not read", n)
		}
		c.Close()
	})
	var refusedAfter int
	legacy := &script{legacy: func(m *protocol.Message, sink protocol.Sink) {
		for refusedAfter = 0; sink.Note(make([]byte, 64<<10)); refusedAfter++ {
			if refusedAfter > 10_000 {
				return
			}
		}
		sink.Answer(200, []byte(`"the end"`))
	}}
	onStage(t, "the same in a session", legacy, func(t *testing.T, st *stage) {
		c := st.connect(posting("Mcp-Session-Id: "+st.s.ID+"\r\n", `{"jsonrpc":"2.0","id":1,"method":"x"}`))
		time.Sleep(2 * writeTime)
		synctest.Wait()
		if refusedAfter > 300 {
			t.Errorf("%d notes of 64 KiB were kept for a client that does not read", refusedAfter)
		}
		again := st.connect("GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n" +
			"Last-Event-ID: 1-0\r\nMcp-Session-Id: " + st.s.ID + "\r\n\r\n").
			read()
		time.Sleep(time.Second)
		has(t, again.saw(), `data: "the end"`)
		c.Close()
	})
	plain := &script{modern: func(_ context.Context, sink protocol.Sink) { sink.Answer(200, make([]byte, 8<<20)) }}
	onStage(t, "an answer", plain, func(t *testing.T, st *stage) {
		c := st.connect(posting("Mcp-Method: x\r\n", initialize))
		time.Sleep(5 * time.Minute)
		if n := st.server.serving.Load(); n != 0 {
			t.Errorf("%d requests are being served for a client that does not read", n)
		}
		c.Close()
	})
}

// discarding is a client that reads no stream and keeps nothing.
type discarding struct{}

func (discarding) WriteEvent(string, []byte) error { return nil }
func (discarding) Close()                          {}

// readSome reads only the beginning of a stream.
func readSome(t *testing.T, c *client) {
	t.Helper()
	buf := make([]byte, 4096)
	for seen := ""; !strings.Contains(seen, "\n\n"); {
		n, err := c.Conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		seen += string(buf[:n])
	}
}

//redteam:attack No principal takes the host from the others: a request that is sent a byte at a time
func TestSlowHeaders(t *testing.T) {
	onStage(t, "headers", &script{}, func(t *testing.T, st *stage) {
		c := st.connect("POST /mcp HTTP/1.1\r\nHost: loc").read()
		time.Sleep(headerTime - time.Second)
		if err := c.ended(); err != nil {
			t.Errorf("cut off before its time: %v", err)
		}
		time.Sleep(5 * time.Second) // net/http counts from when it was given the connection
		if err := c.ended(); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want the connection closed", err)
		}
	})
	onStage(t, "body", &script{}, func(t *testing.T, st *stage) {
		c := st.connect("POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{").read()
		time.Sleep(time.Minute + 5*time.Second)
		has(t, c.saw(), " 400 ", "could not be read completely")
	})
	onStage(t, "nothing at all", &script{}, func(t *testing.T, st *stage) {
		c := st.connect("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").read()
		time.Sleep(idleTime + time.Second)
		has(t, c.saw(), " 200 ")
		if err := c.ended(); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want the idle connection closed", err)
		}
	})
}

// A long call is not interrupted, because the limits on reading and writing apply to the client, not to
// the tool.
func TestLongCall(t *testing.T) {
	long := &script{modern: func(ctx context.Context, sink protocol.Sink) {
		select {
		case <-time.After(10 * time.Minute):
			sink.Answer(200, []byte(`"done"`))
		case <-ctx.Done():
			sink.Drop()
		}
	}}
	onStage(t, "in JSON", long, func(t *testing.T, st *stage) {
		c := st.connect(posting("Mcp-Method: x\r\n", initialize)).read()
		time.Sleep(11 * time.Minute)
		has(t, c.saw(), " 200 ", "\r\n\r\n\"done\"")
		c.Close()
	})
	streaming := &script{modern: func(ctx context.Context, sink protocol.Sink) {
		sink.Note([]byte(`"begun"`))
		long.modern(ctx, sink)
	}}
	onStage(t, "as a stream", streaming, func(t *testing.T, st *stage) {
		c := st.connect(posting("Mcp-Method: x\r\n", initialize)).read()
		time.Sleep(11 * time.Minute)
		has(t, c.saw(), "data: \"begun\"\n\n", "data: \"done\"\n\n", "\r\n0\r\n\r\n")
		c.Close()
	})
	leaving := &script{modern: func(ctx context.Context, sink protocol.Sink) {
		go func() {
			time.Sleep(10 * time.Minute)
			sink.Answer(200, []byte(`"done"`))
		}()
	}}
	onStage(t, "that needs no goroutine of ours", leaving, func(t *testing.T, st *stage) {
		c := st.connect(posting("Mcp-Method: x\r\n", initialize)).read()
		time.Sleep(11 * time.Minute)
		has(t, c.saw(), " 200 ", "\r\n\r\n\"done\"")
		c.Close()
	})
}

// Large events are written in pieces, each with a deadline; the client sees one event.
func TestLargeEvent(t *testing.T) {
	for _, version := range []string{"HTTP/1.1", "HTTP/1.0"} {
		onStage(t, version, &script{}, func(t *testing.T, st *stage) {
			c := st.connect(st.listening(version)).read()
			msg := `"` + strings.Repeat("0123456789", 100_000) + `"`
			st.s.Notify([]byte(msg))
			st.s.Queue().Last([]byte(`"bye"`))
			got := c.saw()
			if version == "HTTP/1.1" {
				_, body, _ := strings.Cut(got, "\r\n\r\n")
				got = unchunk(t, body)
			}
			has(t, got, "id: 0-1\ndata: "+msg+"\n\nid: 0-2\ndata: \"bye\"\n\n")
		})
	}
}

// unchunk decodes the chunked transfer coding, strictly.
func unchunk(t *testing.T, body string) string {
	t.Helper()
	var out strings.Builder
	for {
		var n int
		head, rest, ok := strings.Cut(body, "\r\n")
		if _, err := fmt.Sscanf(head, "%x", &n); !ok || err != nil || len(rest) < n+2 || rest[n:n+2] != "\r\n" {
			t.Fatalf("a bad chunk at %.40q", body)
		}
		if n == 0 {
			return out.String()
		}
		out.WriteString(rest[:n])
		body = rest[n+2:]
	}
}
