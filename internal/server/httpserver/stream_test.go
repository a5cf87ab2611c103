package httpserver

import (
	"context"
	"fmt"
	"net"
	nethttp "net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/mcp/session"
	"gatehouse/internal/tests/hosttest"
)

const progressToken = `"progressToken":"p"`

func (h *testHost) listen(id string, headers ...string) *nethttp.Response {
	h.t.Helper()
	return h.open(
		"GET",
		"/mcp",
		"",
		append([]string{"Accept", "text/event-stream", "Mcp-Session-Id", id}, headers...)...)
}

func (h *testHost) found(id string) *session.Session {
	h.t.Helper()
	s, ok := h.Table.Get(id, "anonymous")
	if !ok {
		h.t.Fatal("the session has ended")
	}
	return s
}

func TestAnswerThatStreams(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	progress := call(5, "t_progress", `{"n":2}`, progressToken)
	t.Run("is primed for clients that support it", func(t *testing.T) {
		res := h.open("POST", "/mcp", progress, "Mcp-Session-Id", h.session("2025-11-25"))
		defer res.Body.Close()
		s := stream(t, res)
		for k, want := range map[string]string{"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"} {
			if got := res.Header.Get(k); got != want {
				t.Errorf("%s: %s, want %s", k, got, want)
			}
		}
		if ev, _, _ := s.raw(); ev.id != "1-0" || ev.retry != "3000" || ev.data != "" {
			t.Errorf("the first event is %+v, want an id, retry and no data", ev)
		}
		first := s.next()
		has(t, first.data, `"method":"notifications/progress"`)
		if first.id != "1-1" {
			t.Errorf("the first message has id %q, want 1-1", first.id)
		}
		rest := s.end()
		has(t, rest[len(rest)-1], `"id":5,"result"`)
	})
	t.Run("has no empty data for older clients", func(t *testing.T) {
		for _, revision := range []string{"2025-03-26", "2025-06-18"} {
			res := h.open("POST", "/mcp", progress, "Mcp-Session-Id", h.session(revision))
			s := stream(t, res)
			var line string
			for i := 0; line != "\n" && i < 5; i++ {
				line, _ = s.r.ReadString('\n')
				if strings.HasPrefix(line, "data") {
					t.Errorf("%s: the first block has %q", revision, line)
				}
			}
			has(t, strings.Join(s.end(), ""), `"id":5,"result"`)
			res.Body.Close()
		}
	})
	t.Run("only for clients that accept it", func(t *testing.T) {
		id := h.session("2025-11-25")
		for _, accept := range []string{"application/json", "", "*/*"} {
			r := h.do("POST", "/mcp", progress, "Mcp-Session-Id", id, "Accept", accept)
			if r.status != 200 || r.header.Get("Content-Type") != "application/json" ||
				r.header.Get("Content-Length") == "" {
				t.Errorf("Accept %q: got %d %v, want JSON with its length", accept, r.status, r.header)
			}
		}
		if r := h.do("POST", "/mcp", progress, "Mcp-Session-Id", id, "Accept", "text/html"); r.status != 406 {
			t.Errorf("Accept text/html: got %d, want 406", r.status)
		}
	})
	t.Run("modern, without ids", func(t *testing.T) {
		res := h.open(
			"POST",
			"/mcp",
			call(5, "t_progress", `{"n":2}`, envelope+`,"progressToken":"p"`),
			modern("tools/call", "t_progress")...)
		s := stream(t, res)
		if first := s.next(); first.id != "" || !strings.Contains(first.data, "notifications/progress") {
			t.Errorf("got %+v, want progress without an id", first)
		}
		rest := s.end()
		has(t, rest[len(rest)-1], `"id":5,"result"`)
	})
}

// A person who is asked may take long to answer: the connection stays open without a goroutine.
func TestQuestion(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	id := h.session("2025-11-25")
	s := stream(t, h.open("POST", "/mcp", call(9, "t_ask", `{}`), "Mcp-Session-Id", id))
	q := s.next()
	has(t, q.data, `"method":"elicitation/create"`, `"id":"gh-1"`)
	waitFor(t, "the serving goroutine to leave", func() bool { return h.server.serving.Load() == 0 })
	r := h.do(
		"POST",
		"/mcp",
		`{"jsonrpc":"2.0","id":"gh-1","result":{"action":"accept","content":{"name":"Ada"}}}`,
		"Mcp-Session-Id",
		id,
	)
	if r.status != 202 || r.body != "" {
		t.Errorf("the answer to a question: got %d %q, want 202 and nothing", r.status, r.body)
	}
	rest := s.end()
	if len(rest) != 1 {
		t.Fatalf("got %q, want one message more", rest)
	}
	has(t, rest[0], `"id":9,"result"`, "Ada")
}

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still waiting for %s", what)
		}
	}
}

func TestSentAway(t *testing.T) {
	h := newTestHost(t, Options{Retry: 20 * time.Millisecond}, hosttest.Options{})
	id := h.session("2025-11-25")
	standalone := h.listen(id)
	defer standalone.Body.Close()

	s := stream(t, h.open("POST", "/mcp", call(1, "t_away", `{}`), "Mcp-Session-Id", id))
	prime, _, _ := s.raw()
	if prime.id == "" || prime.retry != "20" {
		t.Fatalf("the first event is %+v, want an id and when to come back", prime)
	}
	if data := s.end(); len(data) != 0 {
		t.Fatalf("got %q, want the stream to end without an answer", data)
	}
	h.release <- "back again"
	again := stream(t, h.listen(id, "Last-Event-ID", prime.id)).end()
	if len(again) != 1 {
		t.Fatalf("got %q, want the answer", again)
	}
	has(t, again[0], `"id":1,"result"`, "back again")
}

// Older clients do not resume, so their connection is not closed.
func TestNotSentAway(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	for _, headers := range [][]string{
		{"Mcp-Session-Id", h.session("2025-06-18")},
		{"Mcp-Session-Id", h.session("2025-11-25"), "Accept", "application/json"},
	} {
		go func() { h.release <- "stayed" }()
		r := h.do("POST", "/mcp", call(1, "t_away", `{}`), headers...)
		has(t, r.body, `"id":1,"result"`, "stayed")
		if ct := r.header.Get("Content-Type"); ct != "application/json" {
			t.Errorf("got %s, want JSON", ct)
		}
	}
}

// If a client crashed and opens its stream again without an event ID, it gets the stream at once,
// because the server notices that the earlier connection is closed.
func TestListeningAgainAfterTheClientDied(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	id := h.session("2025-11-25")
	first := h.listen(id)
	if ev, _, _ := stream(t, first).raw(); ev.id != "0-0" {
		t.Fatalf("the first event is %+v", ev)
	}
	first.Body.Close() // closes the connection, too, which can serve nothing else
	again := h.listen(id)
	for end := time.Now().Add(10 * time.Second); again.StatusCode == 409 &&
		time.Now().Before(end); again = h.listen(id) {
		again.Body.Close() // the end of the first may not have arrived yet
	}
	defer again.Body.Close()
	s := stream(t, again)
	s.raw()
	h.found(id).Notify([]byte(`"note"`))
	if ev := s.next(); again.StatusCode != 200 || ev.data != `"note"` {
		t.Errorf("got %d and %+v, want the stream", again.StatusCode, ev)
	}
}

func TestListening(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	id := h.session("2025-11-25")
	res := h.listen(id)
	defer res.Body.Close()
	s := stream(t, res)
	if ev, _, _ := s.raw(); ev.id != "0-0" || ev.retry == "" {
		t.Errorf("the first event is %+v, want an id and retry", ev)
	}
	h.found(id).Notify([]byte("{\n\"a\":\r\n1}"))
	if ev := s.next(); ev.id != "0-1" || ev.data != `{ "a":  1}` {
		t.Errorf("got %+v, want the message on one line", ev)
	}
	t.Run("a second one is refused while the first is open", func(t *testing.T) {
		if r := h.do("GET", "/mcp", "", "Accept", "text/event-stream", "Mcp-Session-Id", id); r.status != 409 {
			t.Errorf("got %d %s, want 409", r.status, r.body)
		}
	})
	t.Run("one with Last-Event-ID takes over", func(t *testing.T) {
		second := h.listen(id, "Last-Event-ID", "0-0")
		defer second.Body.Close()
		if data := s.end(); len(data) != 0 {
			t.Errorf("the first got %q at its end", data)
		}
		s := stream(t, second)
		if ev := s.next(); ev.id != "0-1" {
			t.Errorf("got %+v, want the message again", ev)
		}
		h.found(id).Notify([]byte(`"more"`))
		if ev := s.next(); ev.data != `"more"` {
			t.Errorf("got %+v, want what is new", ev)
		}
		h.do("DELETE", "/mcp", "", "Mcp-Session-Id", id)
		if data := s.end(); len(data) != 0 {
			t.Errorf("at the end of the session came %q", data)
		}
	})
	other := h.session("2025-11-25")
	for _, c := range []struct {
		name    string
		headers []string
		status  int
	}{
		{"no Accept", []string{"Mcp-Session-Id", other}, 406},
		{"only JSON", []string{"Mcp-Session-Id", other, "Accept", "application/json"}, 406},
		{"no session", []string{"Accept", "text/event-stream"}, 400},
		{"unknown session", []string{"Accept", "text/event-stream", "Mcp-Session-Id", id}, 404},
		{"an unknown event", []string{"Accept", "text/event-stream", "Mcp-Session-Id", other,
			"Last-Event-ID", "77-1"}, 400},
		{"no event at all", []string{"Accept", "text/event-stream", "Mcp-Session-Id", other,
			"Last-Event-ID", "\x80☃"}, 400},
	} {
		if r := h.do("GET", "/mcp", "", c.headers...); r.status != c.status {
			t.Errorf("%s: got %d %s, want %d", c.name, r.status, r.body, c.status)
		}
	}
}

// An open stream keeps its session alive, and needs no goroutine.
func TestAnOpenStreamCostsNoGoroutine(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	const streams = 50
	nethttp.DefaultTransport.(*nethttp.Transport).CloseIdleConnections()
	open := func(i int) net.Conn {
		conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if i%2 == 0 {
			fmt.Fprintf(
				conn,
				"GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nMcp-Session-Id: %s\r\n\r\n",
				h.session("2025-11-25"),
			)
		} else {
			body := `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{` + envelope + `}}}`
			fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"+
				"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: subscriptions/listen\r\n\r\n%s", len(body), body)
		}
		buf := make([]byte, 4096)
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		for seen := ""; !strings.Contains(seen, "\n\n"); {
			n, err := conn.Read(buf)
			if err != nil {
				t.Fatalf("after %q: %v", seen, err)
			}
			seen += string(buf[:n])
		}
		return conn
	}
	open(0)
	open(1)
	nethttp.DefaultTransport.(*nethttp.Transport).CloseIdleConnections()
	waitFor(t, "requests to end", func() bool { return h.server.serving.Load() == 0 })
	before := runtime.NumGoroutine()
	for i := range streams {
		open(i)
	}
	nethttp.DefaultTransport.(*nethttp.Transport).CloseIdleConnections()
	waitFor(t, "the goroutines of open streams to leave", func() bool { return runtime.NumGoroutine() <= before+5 })
	if n := len(h.server.pulse.all()); n != streams+2 {
		t.Errorf("%d streams are open, want %d", n, streams+2)
	}
}

func TestSubscription(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	body := `{"jsonrpc":"2.0","id":77,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{` + envelope + `}}}`
	ctx, leave := context.WithCancel(t.Context())
	res, err := nethttp.DefaultClient.Do(h.request(ctx, "POST", "/mcp", body, modern("subscriptions/listen")...))
	if err != nil {
		t.Fatal(err)
	}
	s := stream(t, res)
	if v := res.Header.Get("X-Accel-Buffering"); v != "no" {
		t.Errorf("X-Accel-Buffering is %q, want no", v)
	}
	has(t, s.next().data, "notifications/subscriptions/acknowledged")
	waitFor(t, "the serving goroutine to leave", func() bool { return h.server.serving.Load() == 0 })
	for _, w := range h.server.pulse.all() {
		w.beat() // an event was just written
		w.beat()
	}
	if ev, _, _ := s.raw(); ev.comment != "alive" {
		t.Errorf("got %+v, want a comment that keeps the stream alive", ev)
	}
	leave()
	for _, w := range h.server.pulse.all() { // a keep-alive finds it later
		waitFor(t, "the server to notice that the client has disconnected", func() bool {
			w.beat()
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.ended
		})
	}
	if n := len(h.server.pulse.all()); n != 0 {
		t.Errorf("%d streams are open after the only client has disconnected", n)
	}
}

// A modern client that closes its connection cancels its request.
func TestModernClientVanishes(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		res, err := nethttp.DefaultClient.Do(
			h.request(ctx, "POST", "/mcp", call(1, "t_hold", `{}`, envelope), modern("tools/call", "t_hold")...),
		)
		if err == nil {
			res.Body.Close()
		}
	}()
	soon(t, h.started, "the call to begin")
	leave()
	if err := soon(t, h.dropped, "the call to be cancelled"); err == nil {
		t.Error("the call has no cause of its cancellation")
	}
	waitFor(t, "the request to end", func() bool { return h.server.serving.Load() == 0 })
}

// A legacy client that closes its connection does not cancel its request: the call continues, and its
// result waits for the client to resume.
func TestLegacyClientVanishes(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	id := h.session("2025-11-25")
	ctx, leave := context.WithCancel(t.Context())
	res, err := nethttp.DefaultClient.Do(h.request(ctx, "POST", "/mcp", call(1, "t_ask", `{}`), "Mcp-Session-Id", id))
	if err != nil {
		t.Fatal(err)
	}
	s := stream(t, res)
	prime, _, _ := s.raw()
	question := s.next()
	leave()
	h.do(
		"POST",
		"/mcp",
		`{"jsonrpc":"2.0","id":"gh-1","result":{"action":"accept","content":{"name":"Ada"}}}`,
		"Mcp-Session-Id",
		id,
	)
	rest := stream(t, h.listen(id, "Last-Event-ID", question.id)).end()
	if len(rest) != 1 {
		t.Fatalf("after the question came %q, want the answer", rest)
	}
	has(t, rest[0], `"id":1,"result"`, "Ada")
	all := stream(t, h.listen(id, "Last-Event-ID", prime.id)).end()
	if len(all) != 2 {
		t.Errorf("from the start came %q, want question and answer", all)
	}

	ctx, leave = context.WithCancel(t.Context())
	go func() {
		if res, err := nethttp.DefaultClient.Do(h.request(ctx, "POST", "/mcp", call(2, "t_hold", `{}`),
			"Mcp-Session-Id", id)); err == nil {
			res.Body.Close()
		}
	}()
	held := soon(t, h.started, "the call to begin")
	leave()
	select {
	case <-held.Done():
		t.Errorf("the call was cancelled: %v", context.Cause(held))
	case <-time.After(50 * time.Millisecond):
	}
	h.release <- "for no client"
}

// A handler that ignores its deadline keeps its goroutine, but delays neither the answer nor the
// client.
func TestStuckHandler(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	defer close(h.release)
	id := h.session("2025-11-25")
	for name, r := range map[string]reply{
		"legacy": h.do("POST", "/mcp", call(1, "t_stuck", `{}`), "Mcp-Session-Id", id),
		"modern": h.do("POST", "/mcp", call(2, "t_stuck", `{}`, envelope), modern("tools/call", "t_stuck")...),
	} {
		if r.status != 200 {
			t.Errorf("%s: got %d %s, want 200", name, r.status, r.body)
		}
		has(t, r.body, `"isError":true`)
	}
}

// In the old transport a stream names the address to post to, and carries the answers.
func TestLegacyStream(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	res := h.open("GET", "/sse", "", "Accept", "text/event-stream")
	defer res.Body.Close()
	s := stream(t, res)
	where := s.next()
	if where.name != "endpoint" || !strings.HasPrefix(where.data, "/messages?session=") {
		t.Fatalf("the first event is %+v, want the endpoint", where)
	}
	say := func(msg string) string {
		t.Helper()
		if r := h.do("POST", where.data, msg); r.status != 202 {
			t.Fatalf("got %d %s, want 202", r.status, r.body)
		}
		ev := s.next()
		if ev.name != "message" {
			t.Errorf("got event %q, want message", ev.name)
		}
		return ev.data
	}
	has(
		t,
		say(
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{}}}`,
		),
		`"protocolVersion":"2024-11-05"`,
	)
	has(t, say(call(2, "t_echo", `{"text":"hi"}`)), `"id":2,"result"`)
	has(t, say(`{`), `-32700`)
	if r := h.do("POST", "/messages?session=x", initialize); r.status != 404 {
		t.Errorf("an unknown stream: got %d, want 404", r.status)
	}
	if r := h.do("POST", where.data, initialize, "Content-Type", "text/plain"); r.status != 415 {
		t.Errorf("plain text: got %d, want 415", r.status)
	}
	res.Body.Close()
	waitFor(t, "the stream to end", func() bool { return h.do("POST", where.data, initialize).status == 404 })
}

// HTTP/2 and TLS keep the goroutine; the behaviour is the same.
func TestWhereTheConnectionIsNotOurs(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	for _, version := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(version, func(t *testing.T) {
			client, url := overTLS(t, h.server, version == "HTTP/2.0")
			tls := *h
			tls.url = url
			do := func(method, body string, headers ...string) *nethttp.Response {
				t.Helper()
				res, err := client.Do(tls.request(t.Context(), method, "/mcp", body, headers...))
				if err != nil {
					t.Fatal(err)
				}
				if res.Proto != version {
					t.Fatalf("spoke %s, want %s", res.Proto, version)
				}
				return res
			}
			id := h.session("2025-11-25")
			listening := stream(t, do("GET", "", "Accept", "text/event-stream", "Mcp-Session-Id", id))
			listening.raw()
			h.found(id).Notify([]byte(`"note"`))
			if ev := listening.next(); ev.data != `"note"` {
				t.Errorf("got %+v, want the notification", ev)
			}
			asking := stream(t, do("POST", call(9, "t_ask", `{}`), "Mcp-Session-Id", id))
			asking.next()
			h.do(
				"POST",
				"/mcp",
				`{"jsonrpc":"2.0","id":"gh-1","result":{"action":"accept","content":{"name":"Ada"}}}`,
				"Mcp-Session-Id",
				id,
			)
			has(t, strings.Join(asking.end(), ""), `"id":9,"result"`, "Ada")
			away := stream(t, do("POST", call(1, "t_away", `{}`), "Mcp-Session-Id", id))
			away.end()
			<-h.started
			h.release <- "never mind"
			h.do("DELETE", "/mcp", "", "Mcp-Session-Id", id)
			listening.end()
			waitFor(t, "the requests to end", func() bool { return h.server.serving.Load() == 0 })
		})
	}
}
