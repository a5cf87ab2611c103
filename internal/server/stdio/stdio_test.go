package stdio

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// slow is a module whose one tool answers when a test releases it.
type slow struct{ release chan string }

type text struct {
	Text string `json:"text"`
}

func (s slow) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{Tools: []tool.Tool{
		tool.New(tool.Def{Name: "t_hold", Description: "Waits.", Effects: tool.Reads, Timeout: time.Minute},
			func(ctx context.Context, _ *tool.Call, _ struct{}) (text, error) {
				select {
				case s := <-s.release:
					return text{s}, nil
				case <-ctx.Done():
					return text{}, context.Cause(ctx)
				}
			}),
	}}, nil
}
func (slow) Close(context.Context) error { return nil }

func newHost(t *testing.T) (*hosttest.Host, chan string) {
	s := slow{make(chan string)}
	return hosttest.New(t, hosttest.Options{Modules: map[string]module.New{
		"t": func(context.Context, module.Deps) (module.Module, error) { return s, nil },
	}}), s.release
}

// output holds the written bytes, call by call.
type output struct {
	mu     sync.Mutex
	frames []string
	fail   error
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fail != nil {
		return 0, o.fail
	}
	o.frames = append(o.frames, string(p))
	return len(p), nil
}

func (o *output) all() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.frames, "")
}

const (
	hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`
	hold  = `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"t_hold","arguments":{}}}`
	ping  = `{"jsonrpc":"2.0","id":3,"method":"ping"}`
)

var anonymous = protocol.Caller{Caller: tool.Caller{Principal: "anonymous"}}

// Requests are answered after the end of the input.
func TestTheEndOfInputIsAnswered(t *testing.T) {
	h, release := newHost(t)
	var out output
	go func() { release <- "in time" }()
	err := Serve(t.Context(), h.Engine, anonymous, strings.NewReader(hello+"\r\n\n"+hold), &out, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.frames) != 2 {
		t.Fatalf("wrote %q, want two frames", out.frames)
	}
	for i, want := range []string{`"id":1,"result"`, `in time`} {
		if f := out.frames[i]; !strings.Contains(f, want) || strings.Index(f, "\n") != len(f)-1 {
			t.Errorf("frame %d is %q, want %s on one line", i, f, want)
		}
	}
}

func TestPatienceIsBounded(t *testing.T) {
	h, _ := newHost(t)
	var out output
	began := time.Now()
	if err := Serve(t.Context(), h.Engine, anonymous, strings.NewReader(hello+"\n"+hold), &out,
		Options{Patience: 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("waited %s for a call that does not end", took)
	}
}

func TestAnOversizedLineIsAnsweredAndTheNextWorks(t *testing.T) {
	h, _ := newHost(t)
	var out output
	in := hello + "\n" + strings.Repeat("x", 10_000) + "\n" + ping + "\n{\n" +
		`{"method":"ping","params":{"x":"` + strings.Repeat("y", 10_000) + `"},"jsonrpc":"2.0","id":"long"}` + "\n" +
		`{"method":"ping","params":{"x":nil},"jsonrpc":"2.0","id":"bad"}` + "\n" +
		`{"method":"ping","params":{"x":"\ud83d"},"jsonrpc":"2.0","id":"lone"}` + "\n"
	if err := Serve(t.Context(), h.Engine, anonymous, strings.NewReader(in), &out, Options{Limit: 1000}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"id":1,"result"`, "longer than 1000 bytes", `"id":3,"result":{}`, "-32700",
		`{"jsonrpc":"2.0","id":"long","error":{"code":-32600`, `{"jsonrpc":"2.0","id":"bad","error":{"code":-32700`,
		`{"jsonrpc":"2.0","id":"lone","result":{}}`} {
		if !strings.Contains(out.all(), want) {
			t.Errorf("got %s\nwant %s in it", out.all(), want)
		}
	}
}

func TestBrokenInput(t *testing.T) {
	h, _ := newHost(t)
	broken := errors.New("the cable is cut")
	in := io.MultiReader(strings.NewReader(hello+"\n"), failing{broken})
	if err := Serve(t.Context(), h.Engine, anonymous, in, new(output), Options{}); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestBrokenOutput(t *testing.T) {
	h, _ := newHost(t)
	broken := errors.New("broken pipe")
	in, w := io.Pipe()
	defer w.Close()
	go io.WriteString(w, hello+"\n")
	if err := Serve(t.Context(), h.Engine, anonymous, in, &output{fail: broken}, Options{}); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}

// Serve returns when its context ends, although the input stays open.
func TestStop(t *testing.T) {
	h, _ := newHost(t)
	in, w := io.Pipe()
	defer w.Close()
	ctx, stop := context.WithCancel(t.Context())
	out := &output{}
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, h.Engine, anonymous, in, out, Options{}) }()
	io.WriteString(w, hello+"\n")
	for range 2000 {
		if out.all() != "" {
			break
		}
		time.Sleep(time.Millisecond)
	}
	stop()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the server does not close")
	}
	before := out.all()
	io.WriteString(w, ping+"\n")
	if after := out.all(); after != before {
		t.Errorf("a server that has closed wrote %q", after[len(before):])
	}
}

// Many concurrent answers are written as whole lines.
//
//redteam:attack Nothing but protocol reaches standard output: many answers are written at once
func TestLinesStayWhole(t *testing.T) {
	h, _ := newHost(t)
	var in bytes.Buffer
	in.WriteString(hello + "\n")
	for range 1000 {
		in.WriteString(
			`{"jsonrpc":"2.0","id":"` + strings.Repeat(
				"i",
				2000,
			) + `-` + time.Now().
				String() +
				`","method":"ping"}` + "\n",
		)
	}
	var out output
	if err := Serve(t.Context(), h.Engine, anonymous, &in, &out, Options{}); err != nil {
		t.Fatal(err)
	}
	for _, f := range out.frames {
		if !strings.HasPrefix(f, "{") || !strings.HasSuffix(f, "}\n") || strings.Count(f, "\n") != 1 {
			t.Fatalf("a frame is %.80q", f)
		}
	}
	if n := len(out.frames); n < 1001 {
		t.Errorf("%d answers, want 1001", n)
	}
}
