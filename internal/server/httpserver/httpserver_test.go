package httpserver

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	nethttp "net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// testHost is a host behind its HTTP server, with tools whose behaviour a test defines.
type testHost struct {
	*hosttest.Host
	t       testing.TB
	server  *Server
	url     string
	started chan context.Context // a call of t_hold has begun
	release chan string          // its answer
	dropped chan error           // the cause of its cancellation
}

type text struct {
	Text string `json:"text"`
}

type count struct {
	N int `json:"n"`
}

func (h *testHost) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{Tools: []tool.Tool{
		tool.New(tool.Def{Name: "t_echo", Description: "Echoes.", Effects: tool.Reads, Budget: -1},
			func(_ context.Context, _ *tool.Call, in text) (text, error) { return in, nil }),
		tool.New(tool.Def{Name: "t_hold", Description: "Waits.", Effects: tool.Reads, Timeout: time.Minute}, h.hold),
		tool.New(
			tool.Def{
				Name:        "t_away",
				Description: "Sends the client away, then waits.",
				Effects:     tool.Reads,
				Timeout:     time.Minute,
			},
			func(ctx context.Context, c *tool.Call, in struct{}) (text, error) {
				tool.Detach(ctx, c)
				return h.hold(ctx, c, in)
			},
		),
		tool.New(
			tool.Def{
				Name:        "t_stuck",
				Description: "Heeds no deadline.",
				Effects:     tool.Reads,
				Timeout:     50 * time.Millisecond,
			},
			func(_ context.Context, c *tool.Call, _ struct{}) (text, error) {
				return text{<-h.release}, nil
			},
		),
		tool.New(tool.Def{Name: "t_progress", Description: "Reports its progress.", Effects: tool.Reads},
			func(_ context.Context, c *tool.Call, in count) (text, error) {
				for i := range in.N {
					c.Peer.Progress(float64(i+1), float64(in.N), "")
				}
				return text{"done"}, nil
			}),
		tool.New(tool.Def{Name: "t_log", Description: "Logs a lot.", Effects: tool.Reads, Timeout: time.Minute},
			func(ctx context.Context, c *tool.Call, in count) (text, error) {
				filler := strings.Repeat("x", 64<<10)
				for range in.N {
					if ctx.Err() != nil {
						return text{}, ctx.Err()
					}
					c.Peer.Log(slog.LevelError, filler)
				}
				return text{"done"}, nil
			}),
		tool.New(tool.Def{Name: "t_ask", Description: "Asks.", Effects: tool.Reads},
			func(_ context.Context, c *tool.Call, _ struct{}) (text, error) {
				a, err := c.Peer.Ask(
					tool.Elicit(
						"name",
						"Who?",
						[]byte(`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`),
					),
				)
				if err != nil {
					return text{}, err
				}
				var v struct{ Name string }
				_, err = tool.Elicited(a["name"], &v)
				return text{v.Name}, err
			}),
	}}, nil
}

func (h *testHost) Close(context.Context) error { return nil }

func (h *testHost) hold(ctx context.Context, _ *tool.Call, _ struct{}) (text, error) {
	h.started <- ctx
	select {
	case s := <-h.release:
		return text{s}, nil
	case <-ctx.Done():
		h.dropped <- context.Cause(ctx)
		return text{}, context.Cause(ctx)
	}
}

func newTestHost(t testing.TB, o Options, ho hosttest.Options) *testHost {
	t.Helper()
	h := &testHost{
		t:       t,
		started: make(chan context.Context, 100),
		release: make(chan string),
		dropped: make(chan error, 100),
	}
	ho.Modules = map[string]module.New{"t": func(context.Context, module.Deps) (module.Module, error) { return h, nil }}
	h.Host = hosttest.New(t, ho)
	o.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	if h.server, err = New(h.Engine, o); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h.server)
	t.Cleanup(func() {
		h.server.Close()
		server.CloseClientConnections()
		server.Close()
	})
	h.url = server.URL
	return h
}

// reply is a complete response.
type reply struct {
	status int
	header nethttp.Header
	body   string
}

// do sends one request; headers are pairs, and an empty value removes a default header.
func (h *testHost) do(method, path, body string, headers ...string) reply {
	h.t.Helper()
	res := h.open(method, path, body, headers...)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		h.t.Fatalf("%s %s: read the answer: %v", method, path, err)
	}
	return reply{res.StatusCode, res.Header, string(b)}
}

func (h *testHost) open(method, path, body string, headers ...string) *nethttp.Response {
	h.t.Helper()
	res, err := nethttp.DefaultClient.Do(h.request(h.t.Context(), method, path, body, headers...))
	if err != nil {
		h.t.Fatalf("%s %s: %v", method, path, err)
	}
	return res
}

func (h *testHost) request(ctx context.Context, method, path, body string, headers ...string) *nethttp.Request {
	h.t.Helper()
	req, err := nethttp.NewRequestWithContext(ctx, method, h.url+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	if method == "POST" {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
	}
	for i := 0; i < len(headers); i += 2 {
		switch {
		case headers[i] == "Host":
			req.Host = headers[i+1]
		case headers[i+1] == "":
			req.Header.Del(headers[i])
		default:
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	return req
}

// session opens a session of a revision and returns its ID.
func (h *testHost) session(revision string) string {
	h.t.Helper()
	r := h.do(
		"POST",
		"/mcp",
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+revision+
			`","capabilities":{"elicitation":{}}}}`,
	)
	id := r.header.Get("Mcp-Session-Id")
	if r.status != 200 || id == "" {
		h.t.Fatalf("initialize: %d %s", r.status, r.body)
	}
	return id
}

// call returns a message that calls a tool.
func call(id any, name, args string, meta ...string) string {
	m := ""
	if len(meta) > 0 {
		m = `,"_meta":{` + meta[0] + `}`
	}
	enc, _ := json.Marshal(id)
	return fmt.Sprintf(
		`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s%s}}`,
		enc,
		name,
		args,
		m,
	)
}

const envelope = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`

// modern returns the headers of a modern request.
func modern(method string, name ...string) []string {
	h := []string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", method}
	if len(name) > 0 {
		h = append(h, "Mcp-Name", name[0])
	}
	return h
}

// events reads an event stream.
type events struct {
	t   testing.TB
	res *nethttp.Response
	r   *bufio.Reader
}

type event struct{ id, name, data, retry, comment string }

func stream(t testing.TB, res *nethttp.Response) *events {
	t.Helper()
	if ct := res.Header.Get("Content-Type"); res.StatusCode != 200 || ct != "text/event-stream" {
		b, _ := io.ReadAll(res.Body)
		t.Fatalf("got %d %s %s, want an event stream", res.StatusCode, ct, b)
	}
	return &events{t, res, bufio.NewReader(res.Body)}
}

// raw reads one block, including comments; ok is false at an orderly end.
func (e *events) raw() (ev event, ok bool, err error) {
	for {
		line, err := e.r.ReadString('\n')
		if err == io.EOF && line == "" {
			return ev, false, nil
		}
		if err != nil {
			return ev, false, err
		}
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			return ev, true, nil
		}
		key, val, _ := strings.Cut(line, ":")
		val = strings.TrimPrefix(val, " ")
		switch key {
		case "id":
			ev.id = val
		case "event":
			ev.name = val
		case "data":
			ev.data += val
		case "retry":
			ev.retry = val
		case "":
			ev.comment = val
		}
	}
}

// next returns the next event with data.
func (e *events) next() event {
	e.t.Helper()
	for {
		ev, ok, err := e.raw()
		if err != nil || !ok {
			e.t.Fatalf("the stream has ended (%v), want another event", err)
		}
		if ev.data != "" {
			return ev
		}
	}
}

// end reads to the end of the stream and returns the data of the events.
func (e *events) end() (data []string) {
	e.t.Helper()
	for {
		ev, ok, err := e.raw()
		if err != nil {
			e.t.Fatalf("the stream broke: %v", err)
		}
		if !ok {
			return data
		}
		if ev.data != "" {
			data = append(data, ev.data)
		}
	}
}

func has(t testing.TB, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("got %.500s\nwant %s in it", got, w)
		}
	}
}

func soon[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("still waiting: %s", what)
		panic("unreachable")
	}
}
