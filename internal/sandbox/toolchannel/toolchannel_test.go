package toolchannel

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func frame(body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// What a program sends is a call, a result or an error, and nothing is read past a message.
func TestMessages(t *testing.T) {
	for body, want := range map[string]string{
		`{"id":1,"tool":"a","args":{"x":1},"line":3}`: `{"id":1,"tool":"a","args":{"x":1},"line":3,"result":null}`,
		`{"id":1,"tool":"a"}`:                         `{"id":1,"tool":"a","args":{},"line":0,"result":null}`,
		`{"result":null}`:                             `{"id":0,"tool":"","args":null,"line":0,"result":null}`,
		`{"id":1,"tool":"a","args":null}`:             ``,
		`{"result":[1]}`:                              `{"id":0,"tool":"","args":null,"line":0,"result":[1]}`,
		`{"result":1,"id":2}`:                         ``,
		`{"id":1,"tool":"a","owner":"x"}`:             ``,
		`{"id":1,"tool":"a","args":[]}`:               ``,
		`{"id":1,"tool":"a","line":-1}`:               ``,
		`{"id":1,"tool":""}`:                          ``,
		`{"id":4294967296,"tool":"a"}`:                ``,
		`{"id":1,"tool":"a"} {}`:                      ``,
		``:                                            ``,
	} {
		r := bytes.NewReader(append(frame(body), "rest"...))
		m, err := Read(r)
		if want == "" {
			if !errors.Is(err, ErrMalformed) {
				t.Errorf("%s: got %+v, %v", body, m, err)
			}
			continue
		}
		got, _ := json.Marshal(m)
		rest, _ := io.ReadAll(r)
		if err != nil || string(got) != want || string(rest) != "rest" {
			t.Errorf("%s: got %s, %v, and %q is left", body, got, err, rest)
		}
	}
	for _, b := range [][]byte{{0, 0}, frame(`{"id":1}`)[:6]} {
		if _, err := Read(bytes.NewReader(b)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%v: %v", b, err)
		}
	}
	if _, err := Read(bytes.NewReader(nil)); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	if _, err := Read(bytes.NewReader([]byte{0xff, 0xff, 0xff, 0xff, 1})); !errors.Is(err, ErrMalformed) {
		t.Errorf("a long message: %v", err)
	}
}

// A result that is too large or no JSON becomes an error that a program can read.
func TestAnswersAreBounded(t *testing.T) {
	for _, value := range []string{`"` + strings.Repeat("x", MaxResponse) + `"`, `{`} {
		b := Encode(Response{ID: 3, Value: json.RawMessage(value)})
		var a Response
		if err := json.Unmarshal(b[4:], &a); err != nil || a.ID != 3 || a.Error == "" || len(b) > MaxResponse {
			t.Errorf("got %d bytes, %v", len(b), err)
		}
	}
}

// echo answers each call with its arguments.
type echo struct {
	calls atomic.Int64
	block chan struct{}
}

func (e *echo) Call(ctx context.Context, m Message) Response {
	e.calls.Add(1)
	select {
	case <-e.block:
	case <-ctx.Done():
	}
	return Response{ID: m.ID, Value: m.Args}
}
func (e *echo) Return(Message) error { return nil }

// No more than MaxConcurrent calls run at once, on however many connections, and Serve returns when all have ended.
func TestConcurrentCallsAreBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	e := &echo{block: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Serve(ctx, l, e)
	}()
	for range 2 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		go c.Write(bytes.Repeat(frame(`{"id":1,"tool":"a"}`), MaxConcurrent))
	}
	for e.calls.Load() < MaxConcurrent {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond)
	if n := e.calls.Load(); n != MaxConcurrent {
		t.Errorf("%d calls run", n)
	}
	cancel()
	<-ended
}

func FuzzRead(f *testing.F) {
	for _, s := range []string{`{"id":1,"tool":"a","args":{}}`, `{"result":1}`, `{`, ``} {
		f.Add(frame(s))
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		for {
			m, err := Read(r)
			if err != nil {
				if !errors.Is(err, ErrMalformed) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatalf("another error: %v", err)
				}
				return
			}
			if m.Result == nil && (m.ID == 0 || m.Tool == "" || m.Line < 0 || !json.Valid(m.Args) || m.Args[0] != '{') {
				t.Fatalf("accepted %+v", m)
			}
			if m.Result != nil && (m.ID != 0 || m.Tool != "") {
				t.Fatalf("accepted %+v", m)
			}
		}
	})
}
