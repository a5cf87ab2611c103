package nodebus

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/bus/bustest"
	"gatehouse/tool"
)

// framesTo returns streams of frames to a bus, which end with the test.
func framesTo(t testing.TB, far bus.Bus) *Streams {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { ServeFrames(ctx, ln, far, time.Second, slog.New(slog.DiscardHandler)) })
	s := &Streams{Dial: func(_, service string) net.Conn {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil || service != FrameService {
			return nil
		}
		return c
	}}
	t.Cleanup(func() { s.Close(); stop(); serving.Wait() })
	return s
}

// noHTTP fails every request, so that calls go as frames.
type noHTTP struct{ t testing.TB }

func (n noHTTP) RoundTrip(*http.Request) (*http.Response, error) {
	n.t.Error("a call was sent over HTTP")
	return nil, errors.New("there is no HTTP")
}

// TestSuiteAsFrames runs the suite of the bus with two ends that share bytes alone.
func TestSuiteAsFrames(t *testing.T) {
	bustest.Run(t, func(t *testing.T) bustest.Pair {
		near, far, w := bus.New(), bus.New(), &wire{}
		carry(t, near, wireEnd{w, here})
		carry(t, far, wireEnd{w, there})
		return bustest.Pair{Near: &Bus{
			Bus: near, Self: here, Transport: noHTTP{t}, Streams: framesTo(t, far),
			Node: func(id string) (known, alive bool) { return true, true },
		}, Far: far, Node: there, Name: here}
	})
}

// fill sets every field of a value to something that is not zero.
func fill(t *testing.T, v reflect.Value, n int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("text ", n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(n + 1))
	case reflect.Uint16:
		v.SetUint(uint64(n + 1))
	case reflect.Float64:
		v.SetFloat(float64(n) + .5)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), n+i)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		value := reflect.New(v.Type().Elem()).Elem()
		fill(t, value, n)
		v.SetMapIndex(reflect.ValueOf("key").Convert(v.Type().Key()), value)
	case reflect.Slice:
		switch v.Type() {
		case reflect.TypeFor[json.RawMessage]():
			v.SetBytes(fmt.Appendf(nil, `{"n":%d}`, n))
		case reflect.TypeFor[[]byte]():
			v.SetBytes([]byte{byte(n), 0xff})
		default:
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
			fill(t, v.Index(0), n)
			fill(t, v.Index(1), n+1)
		}
	case reflect.Interface:
		v.Set(reflect.ValueOf(json.RawMessage(`{"large":12345678901234567890}`)))
	default:
		t.Fatalf("what is a %v?", v.Type())
	}
}

// TestFramesCarryEveryField encodes requests, callers and outcomes whose fields are all set, or none.
func TestFramesCarryEveryField(t *testing.T) {
	for _, full := range []bool{true, false} {
		r := bus.Request{Caller: &tool.Caller{}}
		var out bus.Outcome
		if full {
			fill(t, reflect.ValueOf(&r).Elem(), 1)
			fill(t, reflect.ValueOf(&out).Elem(), 1)
		}
		b, err := appendCall(nil, &r, r.Caller)
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := readCall(b)
		if err != nil || !reflect.DeepEqual(*got, r) {
			t.Errorf("sent %+v by %+v, got %+v by %+v, %v", r, r.Caller, got, got.Caller, err)
		}
		for n := range b {
			readCall(b[:n]) // must not panic
		}
		if b, err = appendOutcome(nil, out); err != nil {
			t.Fatal(err)
		}
		if got, err := readOutcome(b); err != nil || !reflect.DeepEqual(got, out) {
			t.Errorf("sent %+v, got %+v, %v", out, got, err)
		}
		for n := range b {
			readOutcome(b[:n])
		}
	}
	texts := bus.Outcome{Result: tool.Result{
		Content: []tool.Content{tool.Text("a"), tool.Text("")}, Structured: map[string]int{"n": 1},
	}}
	b, err := appendOutcome(nil, texts)
	if err != nil || bytes.Contains(b, []byte(`"type"`)) {
		t.Errorf("plain texts became %q, %v", b, err)
	}
	texts.Result.Structured = json.RawMessage(`{"n":1}`)
	if got, err := readOutcome(b); err != nil || !reflect.DeepEqual(got, texts) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func FuzzFrames(f *testing.F) {
	r := request(there)
	b, err := appendCall(nil, r, r.Caller)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(endFrame(append(beginFrame(nil, frameCall), b...)))
	f.Fuzz(func(t *testing.T, b []byte) {
		readCall(b)
		readOutcome(b)
		readFrame(bufio.NewReader(bytes.NewReader(b)))
	})
}

// TestFramesOfOtherNodes sends what no node of this version does.
func TestFramesOfOtherNodes(t *testing.T) {
	far := bus.New()
	var ran bool
	if _, err := far.Serve("m", func(context.Context, *bus.Request, bus.Notes) (bus.Outcome, error) {
		ran = true
		return bus.Outcome{}, nil
	}); err != nil {
		t.Fatal(err)
	}
	s := framesTo(t, far)
	exchange := func(frame []byte) (byte, []byte, error) {
		c := newFrameStream(s.Dial(there, FrameService))
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Minute))
		c.Write(frame)
		return readFrame(c.in)
	}
	newer := endFrame(binary.AppendUvarint(beginFrame(nil, frameCall), cluster.Format+1))
	if kind, body, err := exchange(newer); kind != frameFormat || !strings.Contains(string(body), "format") || err != nil {
		t.Errorf("a newer format: %q %q, %v", kind, body, err)
	}
	for _, frame := range [][]byte{
		{0xff, 0xff, 0xff, 0xff, frameCall}, {0, 0, 0, 0, frameCall}, endFrame(beginFrame(nil, frameCall)),
		endFrame(beginFrame(nil, 'x')),
	} {
		if kind, _, err := exchange(frame); err == nil {
			t.Errorf("%v was answered with %q", frame, kind)
		}
	}
	if ran {
		t.Error("a call was run that is none")
	}
}

// TestAFrameCallIsCancelled ends a call whose caller leaves, and one that runs when the other host stops.
func TestAFrameCallIsCancelled(t *testing.T) {
	far := bus.New()
	began, cancelled := make(chan struct{}, 1), make(chan struct{}, 1)
	if _, err := far.Serve("m", func(ctx context.Context, r *bus.Request, _ bus.Notes) (bus.Outcome, error) {
		if r.Call == "quick" {
			return bus.Outcome{}, nil
		}
		began <- struct{}{}
		<-ctx.Done()
		cancelled <- struct{}{}
		return bus.Outcome{}, ctx.Err()
	}); err != nil {
		t.Fatal(err)
	}
	b := &Bus{
		Bus: bus.New(), Self: here, Transport: noHTTP{t}, Streams: framesTo(t, far),
		Node: func(string) (known, alive bool) { return true, true },
	}
	for range 3 {
		quick := request(there)
		quick.Call = "quick"
		if _, err := b.Do(t.Context(), quick, nil); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-began; time.Sleep(4 * watchAfter); cancel() }()
		if _, err := b.Do(ctx, request(there), nil); !errors.Is(err, context.Canceled) {
			t.Errorf("a call was cancelled: %v", err)
		}
		select {
		case <-cancelled:
		case <-time.After(time.Minute):
			t.Fatal("the other node does not notice that the caller has left")
		}
	}
}
