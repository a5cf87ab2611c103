package nodebus

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"sync"
	"testing"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/tool"
)

const (
	here  = "aaaaaaaaaa"
	there = "bbbbbbbbbb"
)

// toServer sends every request to one server.
type toServer struct{ host string }

func (to toServer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL = &url.URL{Scheme: "http", Host: to.host, Path: r.URL.Path}
	return http.DefaultTransport.RoundTrip(r)
}

// ways are those in which calls are sent.
var ways = []string{"HTTP", "frames"}

// twoNodes returns the bus of one node; h serves the module m of the other one, and local that of this one.
func twoNodes(t *testing.T, way string, h, local bus.Handler) *Bus {
	t.Helper()
	far, near := bus.New(), bus.New()
	for b, h := range map[*bus.Local]bus.Handler{far: h, near: local} {
		if h == nil {
			continue
		}
		if _, err := b.Serve("m", h); err != nil {
			t.Fatal(err)
		}
	}
	b := &Bus{
		Bus: near, Self: here, Transport: noHTTP{t},
		Node: func(id string) (known, alive bool) { return id == here || id == there, true },
	}
	if way == "frames" {
		b.Streams = framesTo(t, far)
		return b
	}
	server := httptest.NewServer(Handler(far))
	t.Cleanup(server.Close)
	b.Transport = toServer{server.Listener.Addr().String()}
	return b
}

func request(node string) *bus.Request {
	return &bus.Request{
		Module: "m", Node: node, Method: "tools/call", Args: json.RawMessage(`{"id":"<a>"}`),
		Caller: &tool.Caller{Principal: "ada", Owner: "ada/", Session: "s", Scopes: []string{"x"}},
	}
}

// heard is what notes tell.
type heard struct {
	mu  sync.Mutex
	all []string
}

func (h *heard) add(s string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, s)
}
func (h *heard) Progress(_, _ float64, note string)            { h.add("progress " + note) }
func (h *heard) Log(l slog.Level, p json.RawMessage)           { h.add(l.String() + string(p)) }
func (h *heard) Output(chunk []byte)                           { h.add("output " + string(chunk)) }
func (h *heard) Detach()                                       { h.add("detach") }
func (h *heard) Keep(recorded map[string]json.RawMessage) bool { return true }

// TestACallRunsOnTheNodeItNames sends a call with everything that it can tell while it runs.
func TestACallRunsOnTheNodeItNames(t *testing.T) {
	for _, way := range ways {
		t.Run(way, func(t *testing.T) { aCallRunsOnTheNodeItNames(t, way) })
	}
}

func aCallRunsOnTheNodeItNames(t *testing.T, way string) {
	b := twoNodes(t, way, func(_ context.Context, r *bus.Request, n bus.Notes) (bus.Outcome, error) {
		if r.Caller.Principal != "ada" || r.Caller.Session != "" || string(r.Args) != `{"id":"<a>"}` {
			t.Errorf("the other node got %+v, caller %+v", r, r.Caller)
		}
		n.Progress(1, 2, "half")
		n.Output([]byte{0xff, 'x'})
		n.Log(slog.LevelWarn, json.RawMessage(`{"a":"<"}`))
		n.Detach()
		if n.Keep(nil) {
			t.Error("another node promises to run the call again")
		}
		return bus.Outcome{Result: tool.Result{Structured: json.RawMessage(`{"n":12345678901234567890}`)}}, nil
	}, nil)
	var notes heard
	out, err := b.Do(t.Context(), request(there), &notes)
	if err != nil {
		t.Fatal(err)
	}
	if raw, ok := out.Result.Structured.(json.RawMessage); !ok || string(raw) != `{"n":12345678901234567890}` {
		t.Errorf("the result is %v", out.Result.Structured)
	}
	want := []string{"progress half", "output \xffx", `WARN{"a":"<"}`, "detach"}
	if !reflect.DeepEqual(notes.all, want) {
		t.Errorf("heard %q, want %q", notes.all, want)
	}
	for _, node := range []string{"", here, "cccccccccc", "other"} {
		if _, err := b.Do(t.Context(), request(node), nil); !errors.Is(err, bus.ErrAbsent) {
			t.Errorf("a call for node %q ran elsewhere: %v", node, err)
		}
	}
}

// TestAnOpenCallGoesOnWhereItIs asks on one node and is answered by way of the other.
func TestAnOpenCallGoesOnWhereItIs(t *testing.T) {
	for _, way := range ways {
		t.Run(way, func(t *testing.T) { anOpenCallGoesOnWhereItIs(t, way) })
	}
}

func anOpenCallGoesOnWhereItIs(t *testing.T, way string) {
	ask := func(name string) bus.Handler {
		return func(_ context.Context, r *bus.Request, _ bus.Notes) (bus.Outcome, error) {
			if len(r.State) == 0 {
				return bus.Outcome{Result: tool.Result{Input: &tool.Input{State: []byte("open"), Here: true}}}, nil
			}
			return bus.Outcome{Result: tool.Result{Content: []tool.Content{tool.Text(name + " " + string(r.State))}}}, nil
		}
	}
	b := twoNodes(t, way, ask("there"), ask("here"))
	for node, want := range map[string]string{"": "here open", there: "there open"} {
		out, err := b.Do(t.Context(), request(node), nil)
		if err != nil || out.Result.Input == nil {
			t.Fatalf("%+v, %v", out, err)
		}
		again := request("")
		again.State = out.Result.Input.State
		if out, err = b.Do(t.Context(), again, nil); err != nil || out.Result.Content[0].Text != want {
			t.Errorf("%+v, %v, want %s", out, err, want)
		}
	}
}

// TestErrorsOfAnotherNode checks that what has a meaning to the caller keeps it.
func TestErrorsOfAnotherNode(t *testing.T) {
	for _, way := range ways {
		t.Run(way, func(t *testing.T) { errorsOfAnotherNode(t, way) })
	}
}

func errorsOfAnotherNode(t *testing.T, way string) {
	refusal := &tool.Refusal{Code: "busy", Message: "later <", Next: "Wait."}
	wire := &tool.WireError{Code: 7, Message: "no", Data: json.RawMessage(`{"n":1}`)}
	for _, sent := range []error{refusal, wire, bus.ErrLost, bus.ErrAbsent, errors.New("text")} {
		b := twoNodes(t, way, func(context.Context, *bus.Request, bus.Notes) (bus.Outcome, error) {
			return bus.Outcome{}, sent
		}, nil)
		_, err := b.Do(t.Context(), request(there), nil)
		if err == nil || !reflect.DeepEqual(err, sent) && !errors.Is(err, sent) && err.Error() != sent.Error() {
			t.Errorf("sent %#v, got %#v", sent, err)
		}
	}
	b := twoNodes(t, way, func(context.Context, *bus.Request, bus.Notes) (bus.Outcome, error) { panic(http.ErrAbortHandler) }, nil)
	if _, err := b.Do(t.Context(), request(there), nil); !errors.Is(err, bus.ErrLost) {
		t.Errorf("a node that ends in the middle: %v", err)
	}
	b.Node = func(id string) (known, alive bool) { return true, false }
	_, err := b.Do(t.Context(), request(there), nil)
	if ref, ok := errors.AsType[*tool.Refusal](err); !ok || ref.Code != tool.CodeGone {
		t.Errorf("a node that is not heard: %v", err)
	}
}
