package hosttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/tool"
)

// station is a bus with one handler behind it.
func station(h bus.Handler) bus.Bus {
	b := bus.New()
	if h != nil {
		b.Serve("m", h)
	}
	return encodingBus{b}
}

// What a run that ended early still wants arrives whole, and also that only
// this node can go on with it.
func TestQuestionsCrossTheEncodingBus(t *testing.T) {
	sent := bus.Outcome{
		Result: tool.Result{Input: &tool.Input{
			Questions: []tool.Question{
				tool.Elicit("k", "Which one?", json.RawMessage(`{"type":"object"}`)),
			}, State: []byte{0xff, 0}, Here: true,
		}},
		Recorded: map[string]json.RawMessage{"n": json.RawMessage(`12345678901234567890`)},
	}
	b := station(func(context.Context, *bus.Request, bus.Notes) (bus.Outcome, error) { return sent, nil })
	got, err := b.Do(t.Context(), &bus.Request{Module: "m"}, nil)
	if err != nil || got.Result.Input == sent.Result.Input || !reflect.DeepEqual(got, sent) {
		t.Errorf("got %+v, %v; want a copy of %+v", got, err, sent)
	}
}

// What has a meaning to the caller keeps it on the way; the rest is text.
func TestErrorsCrossTheEncodingBus(t *testing.T) {
	refusal := &tool.Refusal{Code: "busy", Message: "later", Next: "Wait."}
	wire := &tool.WireError{Code: 7, Message: "<no>", Data: json.RawMessage(`{"n":12345678901234567890}`)}
	for name, c := range map[string]struct {
		sent error
		kept func(error) bool
	}{
		"refusal": {fmt.Errorf("wrapped: %w", refusal), func(err error) bool {
			r, ok := errors.AsType[*tool.Refusal](err)
			return ok && r != refusal && *r == *refusal
		}},
		"wire": {wire, func(err error) bool {
			w, ok := errors.AsType[*tool.WireError](err)
			return ok && w != wire && reflect.DeepEqual(w, wire)
		}},
		"lost": {fmt.Errorf("cut off: %w", bus.ErrLost), func(err error) bool { return errors.Is(err, bus.ErrLost) }},
		"other": {context.DeadlineExceeded, func(err error) bool {
			return err.Error() == context.DeadlineExceeded.Error() && !errors.Is(err, context.DeadlineExceeded)
		}},
	} {
		b := station(
			func(context.Context, *bus.Request, bus.Notes) (bus.Outcome, error) { return bus.Outcome{}, c.sent },
		)
		if _, err := b.Do(t.Context(), &bus.Request{Module: "m"}, nil); err == nil || !c.kept(err) {
			t.Errorf("%s: got %#v", name, err)
		}
	}
	if _, err := station(nil).Do(t.Context(), &bus.Request{Module: "m"}, nil); !errors.Is(err, bus.ErrAbsent) {
		t.Errorf("nobody there: got %v", err)
	}
}

// The handler gets a copy of everything, its deadline and its end.
func TestRequestsCrossTheEncodingBus(t *testing.T) {
	sent := &bus.Request{
		Call: "c", Module: "m", Method: "tools/call", Name: "n", Args: json.RawMessage(`{"s":"<&>","n":1e400}`),
		Caller: &tool.Caller{Principal: "ada", Can: tool.CanElicit}, State: []byte{0xff, 0}, Left: time.Hour,
		Recorded: map[string]json.RawMessage{"k": json.RawMessage(`12345678901234567890`)},
	}
	ctx, cancel := context.WithCancel(t.Context())
	b := station(func(ctx context.Context, r *bus.Request, _ bus.Notes) (bus.Outcome, error) {
		if r == sent || !reflect.DeepEqual(r, sent) {
			t.Errorf("got %+v, want a copy of %+v", r, sent)
		}
		if at, ok := ctx.Deadline(); !ok || time.Until(at) > time.Hour {
			t.Errorf("deadline %v, %v", at, ok)
		}
		cancel()
		<-ctx.Done()
		return bus.Outcome{
			Result: tool.Result{Structured: map[string]any{"n": json.Number("12345678901234567890")}},
		}, nil
	})
	out, err := b.Do(ctx, sent, nil)
	if err != nil {
		t.Fatal(err)
	}
	if raw, ok := out.Result.Structured.(json.RawMessage); !ok || string(raw) != `{"n":12345678901234567890}` {
		t.Errorf("structured output came as %#v", out.Result.Structured)
	}
}
