package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// ask is one request as a fake server sees it.
type ask struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name    string          `json:"name"`
		Cursor  string          `json:"cursor"`
		Args    json.RawMessage `json:"arguments"`
		Version string          `json:"protocolVersion"`
		Meta    map[string]any  `json:"_meta"`
	} `json:"params"`
}

const (
	discovered = `{"supportedVersions":["2026-07-28","2025-11-25"],"capabilities":{},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"fake","version":"1"}}}`
	pageOne    = `{"tools":[{"name":"a","inputSchema":{"type":"object"}}],"nextCursor":"2"}`
	pageTwo    = `{"tools":[{"name":"b","inputSchema":{"type":"object","properties":{"z":{"type":"string"},"region":{"type":"string","x-mcp-header":"Region"}}}}]}`
)

// modernAnswer is what a server of the newest revision answers.
func modernAnswer(a ask) string {
	if a.Params.Meta["io.modelcontextprotocol/protocolVersion"] != "2026-07-28" {
		return `"error":{"code":-32602,"message":"no envelope"}`
	}
	switch {
	case a.Method == "server/discover":
		return `"result":` + discovered
	case a.Method == "tools/list" && a.Params.Cursor == "":
		return `"result":` + pageOne
	case a.Method == "tools/list":
		return `"result":` + pageTwo
	case a.Method == "tools/call":
		return `"result":{"resultType":"complete","content":[{"type":"text","text":"called ` + a.Params.Name + `"}]}`
	}
	return `"error":{"code":-32601,"message":"no such method"}`
}

// legacyAnswer is what a server of an older revision answers.
func legacyAnswer(a ask) string {
	switch a.Method {
	case "initialize":
		return `"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"old","version":"2"}}`
	case "tools/list":
		return `"result":{"tools":[{"name":"a"}]}`
	}
	return `"error":{"code":-32601,"message":"method not found"}`
}

func read(t *testing.T, r *http.Request) (a ask) {
	t.Helper()
	if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
		t.Error(err)
	}
	return a
}

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func TestTheNewestRevisionIsTriedFirst(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		a := read(t, r)
		if r.URL.Path != "/mcp" || r.Header.Get("MCP-Protocol-Version") != "2026-07-28" ||
			r.Header.Get("Mcp-Method") != a.Method {
			t.Errorf("%s %s came with %v", a.Method, r.URL, r.Header)
		}
		if a.Method == "tools/call" &&
			(r.Header.Get("Mcp-Name") != "b" || r.Header.Get("Mcp-Param-Region") != "=?base64?w7xi?=") {
			t.Errorf("the call came with %v", r.Header)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, a.ID, modernAnswer(a))
	})
	c, err := DialHTTP(t.Context(), s.URL, Options{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Version() != "2026-07-28" || c.Server() != (Server{"fake", "1"}) {
		t.Errorf("speaks %s with %v", c.Version(), c.Server())
	}
	tools, err := c.Tools(t.Context())
	if err != nil || len(tools) != 2 {
		t.Fatalf("%d tools, %v; want both pages", len(tools), err)
	}
	if got := tools[1].Input.Properties; len(got) != 2 || got[0].Name != "z" {
		t.Errorf("properties are %v, want them in the order they were written", got)
	}
	r, err := c.Call(t.Context(), tools[1], json.RawMessage(`{"region":"üb"}`))
	if err != nil || len(r.Content) != 1 || r.Content[0].Text != "called b" {
		t.Errorf("got %+v, %v", r, err)
	}
}

// An older server over HTTP refuses the first request, opens a session, and answers a call by a stream
// that it ends in the middle.
func TestAnOlderServerGetsAHandshake(t *testing.T) {
	var methods []string
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		methods = append(methods, r.Method)
		if r.Method != http.MethodPost {
			if r.Header.Get("Mcp-Session-Id") != "s1" {
				t.Errorf("%s without the session", r.Method)
			}
			if r.Method == http.MethodGet {
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprintf(
					w,
					"id: 2\ndata: {\"jsonrpc\":\"2.0\",\"id\":3,\ndata: \"result\":{\"content\":[],\"after\":%q}}\n\n",
					r.Header.Get("Last-Event-ID"),
				)
			}
			return
		}
		a := read(t, r)
		methods[len(methods)-1] = a.Method
		switch {
		case a.Method == "server/discover":
			http.Error(w, "Bad Request: no session", http.StatusBadRequest)
		case a.Method == "notifications/initialized", a.Method == "":
			w.WriteHeader(http.StatusAccepted)
		case a.Method == "tools/call":
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "retry: 1\nid: 1\ndata:\n\n: a comment\n\n")
			io.WriteString(
				w,
				"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":3,\"progress\":1,\"total\":2,\"message\":\"half\"}}\n\n",
			)
			io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"ping\"}\n\n")
		default:
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Mcp-Session-Id", "s1")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, a.ID, legacyAnswer(a))
		}
	})
	var told []string
	c, err := DialHTTP(t.Context(), s.URL+"/mcp", Options{Progress: func(done, total float64, note string) {
		told = append(told, fmt.Sprintf("%v of %v: %s", done, total, note))
	}})
	if err != nil {
		t.Fatal(err)
	}
	if c.Version() != "2025-06-18" || c.Server().Name != "old" {
		t.Errorf("speaks %s with %v", c.Version(), c.Server())
	}
	r, err := c.Call(t.Context(), Tool{Name: "a"}, json.RawMessage(`{}`))
	if err != nil || !strings.Contains(string(r.Raw), `"after":"1"`) {
		t.Errorf("got %s, %v; want the rest after event 1", r.Raw, err)
	}
	if !slices.Equal(told, []string{"1 of 2: half"}) {
		t.Errorf("progress was %v", told)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	want := []string{"server/discover", "initialize", "notifications/initialized", "tools/call", "", "GET", "DELETE"}
	if !slices.Equal(methods, want) {
		t.Errorf("the server saw %q, want %q", methods, want)
	}
}

// lines answers the lines of a connection; "" stays silent.
func lines(t *testing.T, conn net.Conn, answer func(ask) string) {
	defer conn.Close()
	in := bufio.NewScanner(conn)
	for in.Scan() {
		var a ask
		if err := json.Unmarshal(in.Bytes(), &a); err != nil {
			t.Error(err)
			return
		}
		if reply := answer(a); reply != "" && a.ID != nil {
			fmt.Fprintf(conn, "{\"jsonrpc\":\"2.0\",\"id\":%s,%s}\n", a.ID, reply)
		}
	}
}

func TestLinesInBothEras(t *testing.T) {
	for version, answer := range map[string]func(ask) string{"2026-07-28": modernAnswer, "2025-06-18": legacyAnswer} {
		ours, theirs := net.Pipe()
		go lines(t, theirs, answer)
		c, err := Over(t.Context(), "the fake", ours, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if c.Version() != version {
			t.Errorf("speaks %s, want %s", c.Version(), version)
		}
		if tools, err := c.Tools(t.Context()); err != nil || tools[0].Name != "a" {
			t.Errorf("%s: got %v, %v", version, tools, err)
		}
		c.Close()
	}
}

// A modern server that starts slowly reads server/discover and initialize together, and refuses the second.
func TestASlowServerOfTheNewEra(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		asked := 0
		go lines(t, theirs, func(a ask) string {
			switch {
			case a.Method == "server/discover" && asked == 0:
				asked++
				return "" // this client has given up when the answer comes
			case a.Method == "initialize":
				return `"error":{"code":-32022,"message":"connection is serving the 2026-07-28 protocol"}`
			}
			return modernAnswer(a)
		})
		c, err := Over(t.Context(), "the fake", ours, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if c.Version() != "2026-07-28" {
			t.Errorf("speaks %s", c.Version())
		}
		c.Close()
		synctest.Wait()
	})
}

// Over TCP, which has no headers, every request carries the token.
func TestATokenGoesIntoTheMessages(t *testing.T) {
	for version, answer := range map[string]func(ask) string{"2026-07-28": modernAnswer, "2025-06-18": legacyAnswer} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		go func() {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			lines(t, conn, func(a ask) string {
				if a.ID != nil && a.Params.Meta["gatehouse/token"] != "gh_x" {
					t.Errorf("%s: %s came with %v", version, a.Method, a.Params.Meta)
				}
				return answer(a)
			})
		}()
		c, err := DialTCP(t.Context(), "tcp://"+ln.Addr().String(), Options{Token: "gh_x"})
		if err != nil {
			t.Fatal(err)
		}
		if tools, err := c.Tools(t.Context()); err != nil || c.Version() != version || tools[0].Name != "a" {
			t.Errorf("%s: got %v, %v in %s", version, tools, err, c.Version())
		}
		c.Close()
	}
	for _, address := range []string{"tcp://", "tcp://127.0.0.1", "tcp://127.0.0.1:1/mcp", "127.0.0.1:1",
		"tcp:127.0.0.1:1"} {
		if _, err := DialTCP(t.Context(), address, Options{}); err == nil ||
			!strings.Contains(err.Error(), "expected a URL such as tcp://") {
			t.Errorf("%s: got %v", address, err)
		}
	}
}

func TestGivingUpCancelsTheRequest(t *testing.T) {
	ours, theirs := net.Pipe()
	saw := make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	go lines(t, theirs, func(a ask) string {
		saw <- a.Method
		if a.Method == "tools/call" {
			cancel()
			return ""
		}
		return modernAnswer(a)
	})
	c, err := Over(t.Context(), "the fake", ours, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Call(ctx, Tool{Name: "slow"}, json.RawMessage(`{}`)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the cancellation", err)
	}
	for _, want := range []string{"server/discover", "tools/call", "notifications/cancelled"} {
		select {
		case got := <-saw:
			if got != want {
				t.Errorf("the server saw %s, want %s", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("the server never saw %s", want)
		}
	}
}

func TestUnreachableServers(t *testing.T) {
	closed := httptest.NewServer(nil)
	closed.Close()
	locked := serve(
		t,
		func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "who are you?", http.StatusUnauthorized) },
	)
	other := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>page") })
	for address, want := range map[string]string{
		closed.URL:         "connection refused",
		locked.URL:         "401 Unauthorized: who are you?",
		other.URL:          "200 OK: <html>page",
		"localhost:3000":   "expected a URL",
		"ftp://a.example/": "expected a URL",
	} {
		_, err := DialHTTP(t.Context(), address, Options{})
		if _, ok := errors.AsType[*ConnectError](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want a ConnectError with %q", address, err, want)
		}
	}
	if _, err := DialUnix(t.Context(), t.TempDir()+"/none.sock", Options{}); err == nil {
		t.Error("connected to a socket that is not there")
	}
}

func TestHeaderValues(t *testing.T) {
	for in, want := range map[string]string{
		"file_read": "file_read", "": "", "two words": "two words",
		" edge": "=?base64?IGVkZ2U=?=", "ü": "=?base64?w7w=?=", "=?base64?x": "=?base64?PT9iYXNlNjQ/eA==?=",
		"a\nb": "=?base64?YQpi?=",
	} {
		if got := headerValue(in); got != want {
			t.Errorf("headerValue(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzStream(f *testing.F) {
	f.Add("id: 1\ndata: a\ndata: b\n\n")
	f.Add("retry: 5\r\ndata:\r\n\r\n: comment\n\nevent")
	f.Fuzz(func(t *testing.T, in string) {
		s := newStream(strings.NewReader(in), answerLimit)
		for range len(in) + 1 {
			data, err := s.nextEvent()
			if err != nil {
				return
			}
			if len(data) > len(in) {
				t.Fatalf("%d bytes of data from %d bytes", len(data), len(in))
			}
		}
		t.Fatal("more events than bytes")
	})
}

func FuzzToolEntry(f *testing.F) {
	f.Add(
		`{"name":"a","inputSchema":{"type":["object","null"],"properties":{"x":{"type":"integer","default":3},"y":true}}}`,
	)
	f.Add(`{"inputSchema":{"properties":{"a":{"properties":{"b":{"x-mcp-header":"B"}}}}}}`)
	f.Fuzz(func(t *testing.T, in string) {
		var entry Tool
		if json.Unmarshal([]byte(in), &entry) != nil {
			return
		}
		for name, value := range paramHeaders(entry.Input, json.RawMessage(`{"a":{"b":"v\n"},"x":1}`)) {
			if strings.ContainsAny(value, "\r\n") {
				t.Errorf("header %s would hold a line break", name)
			}
		}
	})
}

// A modern server that answers server/discover too late has read it, and refuses initialize. It is asked again.
func TestASlowServerIsDiscoveredAgain(t *testing.T) {
	ours, theirs := net.Pipe()
	late := false
	go lines(t, theirs, func(a ask) string {
		switch {
		case a.Method == "initialize":
			late = true
			return `"error":{"code":-32022,"message":"this connection serves 2026-07-28"}`
		case a.Method == "server/discover" && !late:
			return ""
		}
		return modernAnswer(a)
	})
	c, err := Over(t.Context(), "the fake", ours, Options{})
	if err != nil || c.Version() != "2026-07-28" {
		t.Fatalf("got %v", err)
	}
	c.Close()
}
