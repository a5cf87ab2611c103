// Package bustest is the suite that every bus passes: that of one process, one that encodes what it carries, and that
// of a cluster.
package bustest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/tool"
)

// Pair is a bus with its two ends, which in one process are the same.
type Pair struct {
	Near bus.Bus // sends requests
	Far  bus.Bus // serves them
	Node string  // the far end in requests
	Name string  // the near end in events that arrive at the far one
}

// patience is how long an event or a cancellation may take.
const patience = time.Minute

// Run runs the suite. open returns new ends, which it closes with the test.
func Run(t *testing.T, open func(t *testing.T) Pair) {
	for name, test := range map[string]func(*testing.T, Pair){
		"a request is answered": requestIsAnswered,
		"errors keep meaning":   errorsKeepMeaning,
		"absent is not run":     absentIsNotRun,
		"notes arrive in order": notesArrive,
		"cancellation arrives":  cancellationArrives,
		"a deadline arrives":    deadlineArrives,
		"a module is replaced":  moduleIsReplaced,
		"many at once":          manyAtOnce,
		"events arrive":         eventsArrive,
		"own events":            ownEvents,
		"a slow reader":         slowReader,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func (p Pair) request(args string) *bus.Request {
	return &bus.Request{
		Call: "c1", Module: "m", Node: p.Node, Method: "tools/call", Name: "do", Args: json.RawMessage(args),
		Caller: &tool.Caller{Principal: "ada", Owner: "ada/x", Context: "x", Scopes: []string{"s"}},
	}
}

func (p Pair) serve(t *testing.T, h bus.Handler) (stop func(context.Context) error) {
	t.Helper()
	stop, err := p.Far.Serve("m", h)
	if err != nil {
		t.Fatal(err)
	}
	return stop
}

// requestIsAnswered sends every part of a request, and gets every part of an outcome.
func requestIsAnswered(t *testing.T, p Pair) {
	r := p.request(`{"a":"<&>","n":12345678901234567890}`)
	r.Recorded = map[string]json.RawMessage{"k": json.RawMessage(`{"x":1}`)}
	r.State, r.Depth, r.Unpaged, r.Logs = []byte{0, 0xff}, 3, true, "debug"
	r.Forward = map[string]string{"X-A": "b"}
	p.serve(t, func(_ context.Context, got *bus.Request, _ bus.Notes) (bus.Outcome, error) {
		if string(got.Args) != string(r.Args) || !reflect.DeepEqual(got.Recorded, r.Recorded) ||
			!reflect.DeepEqual(got.State, r.State) || got.Depth != 3 || !got.Unpaged || got.Logs != "debug" ||
			got.Forward["X-A"] != "b" || got.Caller.Owner != "ada/x" || got.Caller.Scopes[0] != "s" || got.Call != "c1" {
			t.Errorf("the module got %+v, caller %+v", got, got.Caller)
		}
		return bus.Outcome{
			Result: tool.Result{
				Content:    []tool.Content{tool.Text("t<"), {Type: "image", Data: []byte{1, 0xff}, MIME: "image/png"}},
				Structured: json.RawMessage(`{"n":12345678901234567890}`),
				Meta:       map[string]json.RawMessage{"m": json.RawMessage(`"<"`)},
			},
			Recorded: map[string]json.RawMessage{"=v": json.RawMessage(`2`)},
		}, nil
	})
	out, err := p.Near.Do(t.Context(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, ok := out.Result.Structured.(json.RawMessage)
	if !ok || string(raw) != `{"n":12345678901234567890}` || string(out.Result.Meta["m"]) != `"<"` ||
		string(out.Recorded["=v"]) != "2" || len(out.Result.Content) != 2 || out.Result.Content[0].Text != "t<" ||
		!reflect.DeepEqual(out.Result.Content[1].Data, []byte{1, 0xff}) {
		t.Errorf("the outcome is %+v", out)
	}
}

func errorsKeepMeaning(t *testing.T, p Pair) {
	for _, sent := range []error{
		&tool.Refusal{Code: tool.CodeBusy, Message: "later <", Next: "Wait."},
		&tool.WireError{Code: 7, Message: "no", Data: json.RawMessage(`{"n":1}`)},
		errors.New("text"),
	} {
		p.serve(t, func(context.Context, *bus.Request, bus.Notes) (bus.Outcome, error) { return bus.Outcome{}, sent })
		_, err := p.Near.Do(t.Context(), p.request("{}"), nil)
		if err == nil || !reflect.DeepEqual(err, sent) && err.Error() != sent.Error() {
			t.Errorf("sent %#v, got %#v", sent, err)
		}
	}
}

func absentIsNotRun(t *testing.T, p Pair) {
	if _, err := p.Near.Do(t.Context(), p.request("{}"), nil); !errors.Is(err, bus.ErrAbsent) {
		t.Errorf("got %v, want ErrAbsent", err)
	}
}

// notes are what a call reports, in order.
type notes struct {
	mu  sync.Mutex
	all []string
}

func (n *notes) add(s string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, s)
}
func (n *notes) Progress(done, total float64, note string) { n.add(fmt.Sprint(done, total, note)) }
func (n *notes) Log(l slog.Level, p json.RawMessage)       { n.add(l.String() + string(p)) }
func (n *notes) Output(chunk []byte)                       { n.add("output " + string(chunk)) }
func (n *notes) Detach()                                   { n.add("detach") }
func (n *notes) Keep(map[string]json.RawMessage) bool      { return false }

func notesArrive(t *testing.T, p Pair) {
	var want []string
	p.serve(t, func(_ context.Context, _ *bus.Request, n bus.Notes) (bus.Outcome, error) {
		for i := range 20 {
			n.Progress(float64(i), 20, "half")
		}
		n.Output([]byte{0xff, 'x'})
		n.Log(slog.LevelWarn, json.RawMessage(`{"a":"<"}`))
		n.Detach()
		return bus.Outcome{}, nil
	})
	for i := range 20 {
		want = append(want, fmt.Sprint(float64(i), 20.0, "half"))
	}
	want = append(want, "output \xffx", `WARN{"a":"<"}`, "detach")
	var got notes
	if _, err := p.Near.Do(t.Context(), p.request("{}"), &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.all, want) {
		t.Errorf("got %q, want %q", got.all, want)
	}
}

func cancellationArrives(t *testing.T, p Pair) {
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan struct{})
	p.serve(t, func(ctx context.Context, _ *bus.Request, _ bus.Notes) (bus.Outcome, error) {
		cancel(errors.New("no longer wanted"))
		select {
		case <-ctx.Done():
			close(ended)
		case <-time.After(patience):
		}
		return bus.Outcome{}, context.Cause(ctx)
	})
	if _, err := p.Near.Do(ctx, p.request("{}"), nil); err == nil {
		t.Error("a call that was cancelled succeeded")
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the module did not hear of the cancellation")
	}
}

func deadlineArrives(t *testing.T, p Pair) {
	p.serve(t, func(ctx context.Context, r *bus.Request, _ bus.Notes) (bus.Outcome, error) {
		select {
		case <-ctx.Done():
		case <-time.After(patience):
			t.Error("the module did not hear of the deadline")
		}
		return bus.Outcome{}, context.Cause(ctx)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	r := p.request("{}")
	r.Left = 50 * time.Millisecond
	if _, err := p.Near.Do(ctx, r, nil); err == nil {
		t.Error("a call succeeded after its deadline")
	}
}

func moduleIsReplaced(t *testing.T, p Pair) {
	says := func(text string) bus.Handler {
		return func(context.Context, *bus.Request, bus.Notes) (bus.Outcome, error) {
			return bus.Outcome{Result: tool.Result{Content: []tool.Content{tool.Text(text)}}}, nil
		}
	}
	stop := p.serve(t, says("old"))
	last := p.serve(t, says("new"))
	if err := stop(t.Context()); err != nil {
		t.Error(err)
	}
	out, err := p.Near.Do(t.Context(), p.request("{}"), nil)
	if err != nil || out.Result.Content[0].Text != "new" {
		t.Errorf("got %+v, %v", out, err)
	}
	if err := last(t.Context()); err != nil {
		t.Error(err)
	}
	absentIsNotRun(t, p)
}

func manyAtOnce(t *testing.T, p Pair) {
	p.serve(t, func(_ context.Context, r *bus.Request, n bus.Notes) (bus.Outcome, error) {
		n.Progress(1, 1, string(r.Args))
		return bus.Outcome{Result: tool.Result{Structured: r.Args}}, nil
	})
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			var got notes
			args := fmt.Sprint(i)
			out, err := p.Near.Do(t.Context(), p.request(args), &got)
			if raw, _ := out.Result.Structured.(json.RawMessage); err != nil || string(raw) != args ||
				len(got.all) != 1 || got.all[0] != "1 1"+args && got.all[0] != fmt.Sprint(1.0, 1.0, args) {
				t.Errorf("call %d: %+v, %v, notes %q", i, out, err, got.all)
			}
		})
	}
	all.Wait()
}

type made struct {
	N    int    `json:"n"`
	Text string `json:"text"`
}

const madeTopic = bus.Topic[made]("thing.made")

// collect returns the events that f is called for while it returns true.
func collect(t *testing.T, events func(func(bus.Event) bool), f func(bus.Event) bool) {
	t.Helper()
	over := make(chan struct{})
	go func() {
		defer close(over)
		for e := range events {
			if !f(e) {
				return
			}
		}
	}()
	select {
	case <-over:
	case <-time.After(patience):
		t.Error("the events did not arrive")
	}
}

// eventsArrive publishes at the near end and reads at the far one.
func eventsArrive(t *testing.T, p Pair) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	all := p.Far.FollowAll(ctx, "thing.*", 2000)
	deep := p.Far.FollowAll(ctx, "thing.>", 2000)
	for i := range 1000 {
		e, err := madeTopic.Event(made{i, "<&>"})
		if err != nil {
			t.Fatal(err)
		}
		e.Owner = "ada/x"
		p.Near.Publish(e)
	}
	p.Near.Publish(bus.Event{Subject: "thing.made.late"})
	p.Near.Publish(bus.Event{Subject: "thing.over"})
	n := 0
	collect(t, all, func(e bus.Event) bool {
		if e.Subject == "thing.over" {
			return false
		}
		if d, ok := madeTopic.Decode(e); !ok || d != (made{n, "<&>"}) || e.Owner != "ada/x" || e.At.IsZero() ||
			e.Node != p.Name {
			t.Errorf("event %d is %+v, %+v", n, e, d)
		}
		n++
		return true
	})
	if n != 1000 {
		t.Errorf("%d events of 1000", n)
	}
	late := false
	collect(t, deep, func(e bus.Event) bool {
		late = late || e.Subject == "thing.made.late"
		return e.Subject != "thing.over"
	})
	if !late {
		t.Error("a final > did not match two parts")
	}
}

// ownEvents checks that events of another node reach no reader of this one's own, and are not sent back.
func ownEvents(t *testing.T, p Pair) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	own, all := p.Far.Follow(ctx, "thing.*", 10), p.Far.FollowAll(ctx, "thing.*", 10)
	back := p.Near.FollowAll(ctx, "thing.*", 10)
	p.Near.Publish(bus.Event{Subject: "thing.near"})
	collect(t, all, func(e bus.Event) bool { return e.Subject != "thing.near" })
	p.Far.Publish(bus.Event{Subject: "thing.far"})
	var got, seen []string
	collect(t, own, func(e bus.Event) bool {
		got = append(got, e.Subject)
		return e.Subject != "thing.far"
	})
	collect(t, back, func(e bus.Event) bool {
		seen = append(seen, e.Subject)
		return e.Subject != "thing.far"
	})
	want := []string{"thing.near", "thing.far"}
	if !reflect.DeepEqual(seen, want) {
		t.Errorf("the near end saw %q, want %q", seen, want)
	}
	if p.Name != "" {
		want = want[1:]
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the far end's own events are %q, want %q", got, want)
	}
}

// slowReader loses the oldest events, and is told how many.
func slowReader(t *testing.T, p Pair) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	slow, done := p.Far.FollowAll(ctx, "thing.*", 2), p.Far.FollowAll(ctx, "thing.*", 100)
	for range 10 {
		p.Near.Publish(bus.Event{Subject: "thing.made"})
	}
	p.Near.Publish(bus.Event{Subject: "thing.over"})
	collect(t, done, func(e bus.Event) bool { return e.Subject != "thing.over" })
	got, lost := 0, 0
	// The other reader may have been served first.
	collect(t, slow, func(e bus.Event) bool {
		got, lost = got+1, lost+e.Lost
		return e.Subject != "thing.over"
	})
	if got+lost != 11 || got > 3 {
		t.Errorf("%d events and %d lost, want 11 together", got, lost)
	}
}
