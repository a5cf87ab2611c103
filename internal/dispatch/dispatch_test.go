package dispatch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/access/confirm"
	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/session"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// workshop is a module with the tools of one test.
type workshop struct {
	tools []tool.Tool
	deps  module.Deps
}

func (w *workshop) make(_ context.Context, d module.Deps) (module.Module, error) {
	w.deps = d
	return w, nil
}

func (w *workshop) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{Tools: w.tools}, nil
}

func (*workshop) Close(context.Context) error { return nil }

type nothing struct{}

func made(name string, e tool.Effects, f func(context.Context, *tool.Call) (tool.Result, error)) tool.Tool {
	return tool.New(tool.Def{Name: name, Description: "For a test.", Effects: e},
		func(ctx context.Context, c *tool.Call, _ nothing) (tool.Result, error) { return f(ctx, c) })
}

func printableText(s string) (tool.Result, error) {
	return tool.Result{Content: []tool.Content{tool.Text(s)}}, nil
}

// visit runs a test on a host with these tools.
func visit(t *testing.T, o hosttest.Options, w *workshop, f func(t *testing.T, h *hosttest.Host)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o.Modules = map[string]module.New{"w": w.make}
		h := hosttest.New(t, o)
		f(t, h)
		h.Stop()
	})
}

var ann = tool.Caller{Principal: "ann", Context: "default", Owner: "ann/default"}

// request returns a call of a tool by ann.
func request(t *testing.T, h *hosttest.Host, name, args string) *dispatch.Request {
	t.Helper()
	f := &session.Facts{Caller: ann, Cut: h.Views.Cut(ann)}
	v, err := h.Views.View(t.Context(), &f.Caller, f.Cut)
	if err != nil {
		t.Fatal(err)
	}
	e := v.Tool(name)
	if e == nil {
		t.Fatalf("no tool %s", name)
	}
	return &dispatch.Request{Facts: f, Entry: e, Method: "tools/call", Args: json.RawMessage(args)}
}

func first(t *testing.T, res dispatch.Result, err error) string {
	t.Helper()
	if err != nil {
		return "error: " + err.Error()
	}
	if len(res.Content) == 0 {
		return string(res.Full)
	}
	return res.Content[0].Text
}

// An inner call that needs an agreement runs if the handler around it has got the agreement, for these arguments of this
// tool alone.
func TestAnAgreementHoldsForOneInnerCall(t *testing.T) {
	var w workshop
	args := json.RawMessage(`{}`)
	with := func(change func(context.Context) context.Context) tool.Handler {
		return func(ctx context.Context, c *tool.Call) (tool.Result, error) {
			return w.deps.Call(change(ctx), c, "w_leaf", args)
		}
	}
	w.tools = []tool.Tool{
		made("w_leaf", tool.Writes, func(_ context.Context, c *tool.Call) (tool.Result, error) {
			if err := confirm.Ask(c, "box", "Name it?", "box"); err != nil {
				return tool.Result{}, err
			}
			return printableText("named")
		}),
		made("w_asked", tool.Writes, with(func(ctx context.Context) context.Context {
			return confirm.WithAgreed(ctx, "w_leaf", args)
		})),
		made("w_tool", tool.Writes, with(func(ctx context.Context) context.Context {
			return confirm.WithAgreed(ctx, "w_other", args)
		})),
		made("w_args", tool.Writes, with(func(ctx context.Context) context.Context {
			return confirm.WithAgreed(ctx, "w_leaf", json.RawMessage(`{"a":1}`))
		})),
		made("w_plain", tool.Writes, with(func(ctx context.Context) context.Context { return ctx })),
	}
	visit(t, hosttest.Options{Policy: permit.Open(false)}, &w, func(t *testing.T, h *hosttest.Host) {
		for name, want := range map[string]string{
			"w_asked": "named", "w_tool": "denied:", "w_args": "denied:", "w_plain": "denied:",
		} {
			r := request(t, h, name, "")
			r.Facts.Can = tool.CanElicit
			res, err := h.Calls.Do(t.Context(), r)
			if got := first(t, res, err); !strings.HasPrefix(got, want) {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
	})
}

func TestCallsInsideCalls(t *testing.T) {
	var w workshop
	w.tools = []tool.Tool{
		made("w_leaf", tool.Reads, func(_ context.Context, c *tool.Call) (tool.Result, error) {
			if _, err := c.Peer.Ask(tool.ListRoots("r")); err == nil || errors.Is(err, tool.ErrAsked) {
				t.Errorf("a call inside a call asks: %v", err)
			}
			return printableText("leaf of " + c.Caller.Owner)
		}),
		made("w_branch", tool.Reads, func(ctx context.Context, c *tool.Call) (tool.Result, error) {
			return w.deps.Call(ctx, c, "w_leaf", nil)
		}),
		made("w_loop", tool.Reads, func(ctx context.Context, c *tool.Call) (tool.Result, error) {
			res, err := w.deps.Call(ctx, c, "w_loop", nil)
			if err != nil {
				return tool.Result{}, err
			}
			res.Content[0].Text = "." + res.Content[0].Text
			return res, nil
		}),
		made("w_wrong", tool.Reads, func(ctx context.Context, c *tool.Call) (tool.Result, error) {
			return w.deps.Call(ctx, c, "w_none", nil)
		}),
		made("w_sneaky", tool.Reads, func(ctx context.Context, c *tool.Call) (tool.Result, error) {
			return w.deps.Call(ctx, c, "w_write", nil)
		}),
		made("w_write", tool.Writes, func(context.Context, *tool.Call) (tool.Result, error) {
			t.Error("a hidden tool ran")
			return tool.Result{}, nil
		}),
	}
	o := hosttest.Options{Policy: permit.Open(true), Slots: 1}
	visit(t, o, &w, func(t *testing.T, h *hosttest.Host) {
		do := func(name string) string {
			r := request(t, h, name, "")
			r.Facts.Can = tool.CanListRoots
			res, err := h.Calls.Do(t.Context(), r)
			return first(t, res, err)
		}
		// These calls run with a single slot, which the parent holds.
		if got := do("w_branch"); got != "leaf of ann/default" {
			t.Errorf("got %q", got)
		}
		if got := do("w_loop"); got != strings.Repeat(".", 8)+"denied: calls inside calls go at most 8 deep" {
			t.Errorf("got %q", got)
		}
		for _, name := range []string{"w_wrong", "w_sneaky"} {
			if got := do(name); !strings.HasPrefix(got, "not_found: unknown tool: w_") {
				t.Errorf("%s: got %q", name, got)
			}
		}
		if n := h.Calls.Running(); n != 0 {
			t.Errorf("%d slots in use", n)
		}
	})
}

// brokenBus fails with given errors.
type brokenBus struct {
	bus.Bus
	err error
}

func (b brokenBus) Do(context.Context, *bus.Request, bus.Notes) (bus.Outcome, error) {
	return bus.Outcome{}, b.err
}

func TestWhatErrorsBecome(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("module w: %w", bus.ErrAbsent),
			"unavailable: w_x is not available at the moment; nothing was run\nTry again in a moment."},
		{fmt.Errorf("module w: %w", bus.ErrLost),
			"unavailable: no answer came; w_x may have run\nCheck the outcome before you try again."},
		{context.Canceled, "cancelled: the call was cancelled"},
		{context.DeadlineExceeded,
			"timeout: no result within 1m0s\nPart of the work may have been done. Ask for less at once."},
		{tool.Refuse("stale", "it is old"), "stale: it is old"},
		{fmt.Errorf("wrapped: %w", tool.Refuse("stale", "it is old")), "stale: it is old"},
		{errors.New("anything else"), "anything else"},
		{&tool.WireError{Code: 7, Message: "wires"}, "error: wires (7)"},
	} {
		w := workshop{tools: []tool.Tool{made("w_x", tool.Reads, nil)}}
		o := hosttest.Options{Bus: func(b bus.Bus) bus.Bus { return brokenBus{b, c.err} }}
		visit(t, o, &w, func(t *testing.T, h *hosttest.Host) {
			res, err := h.Calls.Do(t.Context(), request(t, h, "w_x", ""))
			if got := first(t, res, err); got != c.want {
				t.Errorf("%v: got %q, want %q", c.err, got, c.want)
			}
			if err == nil && !res.IsError {
				t.Errorf("%v is a success", c.err)
			}
		})
	}
}

//redteam:attack What is advertised is enforced: results that are not as the schema says
func TestOutputsOfTools(t *testing.T) {
	type out struct {
		N    int    `json:"n"`
		Text string `json:"text" text:"product"`
	}
	object := json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`)
	raw := func(v any) func(context.Context, *tool.Call) (tool.Result, error) {
		return func(context.Context, *tool.Call) (tool.Result, error) { return tool.Result{Structured: v}, nil }
	}
	schemad := func(name string, v any) tool.Tool {
		t := made(name, tool.Reads, raw(v))
		t.Output = object
		return t
	}
	w := workshop{tools: []tool.Tool{
		tool.New(tool.Def{Name: "w_typed", Description: "Typed.", Effects: tool.Reads},
			func(context.Context, *tool.Call, nothing) (out, error) { return out{1, "a\n<b>"}, nil }),
		schemad("w_good", map[string]int{"n": 1}),
		schemad("w_more", json.RawMessage(`{"n":1,"extra":12345678901234567890}`)),
		schemad("w_bad", map[string]string{"n": "x"}),
		schemad("w_none", nil),
		schemad("w_broken", json.RawMessage(`{"n":1`)),
		schemad("w_unencodable", func() {}),
		made("w_free", tool.Reads, raw([]string{"<&>"})),
	}}
	visit(t, hosttest.Options{}, &w, func(t *testing.T, h *hosttest.Host) {
		for name, want := range map[string]string{
			"w_good": `{"n":1}`, "w_more": `{"n":1,"extra":12345678901234567890}`, "w_free": `["<&>"]`,
			"w_bad": "error: internal error, see call_", "w_none": "error: internal error, see call_",
			"w_broken": "error: internal error, see call_", "w_unencodable": "error: internal error, see call_",
		} {
			res, err := h.Calls.Do(t.Context(), request(t, h, name, ""))
			if got := first(t, res, err); !strings.HasPrefix(got, want) {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
		res, err := h.Calls.Do(t.Context(), request(t, h, "w_typed", ""))
		if err != nil || string(res.Fields) != `{"n":1}` || string(res.Full) != `{"n":1,"text":"a\n<b>"}` ||
			res.Product != "a\n<b>" ||
			!res.HasProduct ||
			res.Facts != "[n=1]" ||
			res.Complete {
			t.Errorf("got %s, %s, %q, %q (%v)", res.Fields, res.Full, res.Product, res.Facts, err)
		}
		r := request(t, h, "w_typed", "")
		r.Complete = true
		if res, err := h.Calls.Do(t.Context(), r); err != nil || !res.Complete || !res.HasProduct ||
			res.Product != "a\n<b>" {
			t.Errorf("with all of it asked for: %+v (%v)", res, err)
		}
	})
}

func TestBudget(t *testing.T) {
	lines := strings.Repeat("0123456789\n", 100)
	long := strings.Repeat("é", 1000) // 2000 bytes, one line
	w := workshop{tools: []tool.Tool{
		made("w_lines", tool.Reads,
			func(context.Context, *tool.Call) (tool.Result, error) { return printableText(lines) }),
		made("w_long", tool.Reads,
			func(context.Context, *tool.Call) (tool.Result, error) { return printableText(long) }),
		made("w_two", tool.Reads, func(context.Context, *tool.Call) (tool.Result, error) {
			return tool.Result{
				Content: []tool.Content{tool.Text(strings.Repeat("a\n", 400)), tool.Text(strings.Repeat("b\n", 600))},
			}, nil
		}),
		tool.New(tool.Def{Name: "w_all", Description: "All.", Effects: tool.Reads, Budget: -1},
			func(context.Context, *tool.Call, nothing) (tool.Result, error) { return printableText(lines) }),
		tool.New(tool.Def{Name: "w_little", Description: "Little.", Effects: tool.Reads, Budget: 100},
			func(context.Context, *tool.Call, nothing) (struct {
				T string `json:"t" text:"product"`
			}, error) {
				return struct {
					T string `json:"t" text:"product"`
				}{lines}, nil
			}),
	}}
	visit(t, hosttest.Options{Budget: 1001}, &w, func(t *testing.T, h *hosttest.Host) {
		do := func(name string) dispatch.Result {
			res, err := h.Calls.Do(t.Context(), request(t, h, name, ""))
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		if got := do("w_lines").Content[0].Text; !strings.HasPrefix(
			got,
			lines[:1001-1001%11-1]+"\n[cut after 1001 of 1100 bytes; read gatehouse:///spool/",
		) {
			t.Errorf("got %q", got)
		}
		if got := do("w_long").Content[0].Text; !strings.HasPrefix(
			got,
			strings.Repeat("é", 500)+"\n[cut after 1000 of 2000 bytes;",
		) {
			t.Errorf("got %q", got)
		}
		if got := do("w_all").Content[0].Text; got != lines {
			t.Errorf("got %q", got)
		}
		two := do("w_two").Content
		if strings.Contains(two[0].Text, "[cut") || !strings.Contains(two[1].Text, "[cut after 1000 of 1200 bytes") {
			t.Errorf("got %q and %q", two[0].Text, two[1].Text)
		}
		little := do("w_little")
		if !strings.Contains(little.Product, "[cut after 99 of 1100 bytes") ||
			strings.Contains(string(little.Full), "[cut") {
			t.Errorf("got %q and %s", little.Product, little.Full)
		}
	})
}

// Structured output is never cut: if it is too large the call is refused, and all of it can be read from the
// spool.
func TestBudgetOfStructuredOutput(t *testing.T) {
	type names struct {
		Names []string `json:"names"`
	}
	type page struct {
		Names []string `json:"names"`
		Text  string   `json:"text" text:"product"`
	}
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprint("name ", i))
	}
	little := func(name string, budget int) tool.Def {
		return tool.Def{Name: name, Description: "Lists.", Effects: tool.Writes, Budget: budget}
	}
	w := workshop{tools: []tool.Tool{
		tool.New(
			little("w_names", 500),
			func(context.Context, *tool.Call, nothing) (names, error) { return names{many}, nil },
		),
		tool.New(
			little("w_page", 500),
			func(context.Context, *tool.Call, nothing) (page, error) { return page{many, "text"}, nil },
		),
		tool.New(
			little("w_all", -1),
			func(context.Context, *tool.Call, nothing) (names, error) { return names{many}, nil },
		),
		tool.New(little("w_huge", -1), func(context.Context, *tool.Call, nothing) (names, error) {
			return names{[]string{strings.Repeat("x", 17<<20)}}, nil
		}),
	}}
	visit(t, hosttest.Options{}, &w, func(t *testing.T, h *hosttest.Host) {
		do := func(name string, complete bool) dispatch.Result {
			r := request(t, h, name, "")
			r.Complete = complete
			res, err := h.Calls.Do(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		refused := do("w_names", false)
		words := refused.Content[0].Text
		if !refused.IsError || refused.Full != nil ||
			!strings.HasPrefix(words, "too_large: the call has run; its result has ") {
			t.Errorf("got %+v", refused)
		}
		_, handle, _ := strings.Cut(words, "\nRead "+dispatch.SpoolURI)
		handle, _, _ = strings.Cut(handle, " ")
		if link := refused.Content[len(refused.Content)-1]; link.Type != "resource_link" ||
			link.URI != dispatch.SpoolURI+handle ||
			link.Size < 1000 {
			t.Errorf("the link is %+v", link)
		}
		kept, err := h.Spool.Read(request(t, h, "w_names", "").Facts.Owner, handle, 0, 1<<20)
		var whole names
		if err != nil || json.Unmarshal(kept.Data, &whole) != nil || !slices.Equal(whole.Names, many) {
			t.Errorf("kept is %.100s, %v", kept.Data, err)
		}
		if all := do("w_names", true); all.IsError || !all.Complete {
			t.Errorf("asked for all: got %+v", all)
		}
		if all := do("w_all", false); all.IsError || !all.Complete {
			t.Errorf("without a budget: got %+v", all)
		}
		if huge := do("w_huge", true); !huge.IsError || !strings.Contains(huge.Content[0].Text, "too_large") {
			t.Errorf("more than a message holds: got %.100q", huge.Content[0].Text)
		}
		// A text is cut to its budget; fields beside it do not cause a refusal.
		got := do("w_page", false)
		if got.IsError || got.Product != "text" || got.Complete || len(got.Facts) > 1200 {
			t.Errorf("got %+v", got)
		}
	})
}

// Text that cannot be spooled is cut nevertheless, and the result states it.
func TestBudgetWithoutSpool(t *testing.T) {
	w := workshop{tools: []tool.Tool{
		made(
			"w_x",
			tool.Reads,
			func(context.Context, *tool.Call) (tool.Result, error) {
				return printableText(strings.Repeat("x\n", 1000))
			},
		),
	}}
	visit(t, hosttest.Options{Budget: 1000}, &w, func(t *testing.T, h *hosttest.Host) {
		r := request(t, h, "w_x", "")
		r.Facts.Owner = strings.Repeat("o", 2000) // no spool takes that
		res, err := h.Calls.Do(t.Context(), r)
		if got := first(t, res, err); !strings.HasSuffix(got,
			"[cut after 1000 of 2000 bytes; it could not be stored]") {
			t.Errorf("got %q", got)
		}
	})
}

// A handler receives canonical arguments, whatever the caller sent.
//
//redteam:attack What is advertised is enforced: arguments that the schema does not have
func TestArgumentsAreCanonical(t *testing.T) {
	var seen string
	w := workshop{tools: []tool.Tool{
		tool.New(tool.Def{Name: "w_args", Description: "Args.", Effects: tool.Reads},
			func(_ context.Context, c *tool.Call, _ struct {
				A int    `json:"a" default:"7"`
				B string `json:"b"`
			}) (tool.Result, error) {
				seen = string(c.Args)
				return printableText("ok")
			}),
	}}
	visit(t, hosttest.Options{}, &w, func(t *testing.T, h *hosttest.Host) {
		r := request(t, h, "w_args", ` { "b" : "x" } `)
		if _, err := h.Calls.Do(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		var got struct {
			A int
			B string
		}
		if json.Unmarshal([]byte(seen), &got) != nil || got.A != 7 || got.B != "x" {
			t.Errorf("got %s", seen)
		}
		res, err := h.Calls.Do(t.Context(), request(t, h, "w_args", `{"b":5}`))
		if got := first(t, res, err); !strings.HasPrefix(got, "invalid_arguments: b: ") || !res.IsError {
			t.Errorf("got %q", got)
		}
	})
}

func TestFactsOfCalls(t *testing.T) {
	w := workshop{tools: []tool.Tool{
		made("w_ok", tool.Reads, func(context.Context, *tool.Call) (tool.Result, error) { return printableText("ok") }),
		made(
			"w_no",
			tool.Reads,
			func(context.Context, *tool.Call) (tool.Result, error) { return tool.Result{}, tool.Refuse("no", "no") },
		),
		made(
			"w_err",
			tool.Reads,
			func(context.Context, *tool.Call) (tool.Result, error) { return tool.Result{}, &tool.WireError{Code: 1} },
		),
		made("w_ask", tool.Reads, func(_ context.Context, c *tool.Call) (tool.Result, error) {
			_, err := c.Peer.Ask(tool.ListRoots("r"))
			return tool.Result{}, err
		}),
	}}
	visit(t, hosttest.Options{}, &w, func(t *testing.T, h *hosttest.Host) {
		ctx, stop := context.WithCancel(t.Context())
		facts := h.Bus.Follow(ctx, "call.finished", 10)
		for _, name := range []string{"w_ok", "w_no", "w_err", "w_ask"} {
			r := request(t, h, name, "")
			r.Facts.Can = tool.CanListRoots
			h.Calls.Do(t.Context(), r)
		}
		want := []string{"ok", "refused", "error", "asked"}
		for f := range facts {
			var d struct{ Call, Method, Module, Name, Outcome string }
			if err := json.Unmarshal(f.Data, &d); err != nil {
				t.Fatal(err)
			}
			if d.Outcome != want[0] || d.Method != "tools/call" || d.Module != "w" ||
				!strings.HasPrefix(d.Call, "call_") ||
				f.Owner != ann.Owner {
				t.Errorf("got %s of %s, want %s", f.Data, f.Owner, want[0])
			}
			if want = want[1:]; len(want) == 0 {
				break
			}
		}
		stop()
	})
}

// Slow is called once, and not for a call that has ended.
func TestSlowCalls(t *testing.T) {
	w := workshop{tools: []tool.Tool{
		made("w_sleep", tool.Reads, func(ctx context.Context, _ *tool.Call) (tool.Result, error) {
			select {
			case <-time.After(10 * time.Second):
				return printableText("rested")
			case <-ctx.Done():
				return tool.Result{}, ctx.Err()
			}
		}),
	}}
	visit(t, hosttest.Options{Timeout: 20 * time.Second}, &w, func(t *testing.T, h *hosttest.Host) {
		for after, want := range map[time.Duration]int32{time.Second: 1, 9 * time.Second: 1, 11 * time.Second: 0,
			time.Hour: 0} {
			var n atomic.Int32
			r := request(t, h, "w_sleep", "")
			r.Slow, r.SlowAfter = func() { n.Add(1) }, after
			r.Late = func(dispatch.Result, error) { t.Error("late") }
			res, err := h.Calls.Do(t.Context(), r)
			time.Sleep(time.Minute)
			if got := first(t, res, err); n.Load() != want || got != "rested" {
				t.Errorf("slow after %v: told %d times, got %q", after, n.Load(), got)
			}
		}
	})
}

// The tools that a view lists are those that can be called, because the same gate decides.
func TestListedIsCallable(t *testing.T) {
	var w workshop
	effects := []tool.Effects{
		0,
		tool.Reads,
		tool.Writes,
		tool.Destroys,
		tool.Reads | tool.OpenWorld,
		tool.Reads | tool.Writes,
		tool.Idempotent,
		tool.Reads | tool.Idempotent,
	}
	for i, e := range effects {
		w.tools = append(
			w.tools,
			made(
				fmt.Sprintf("w_%d", i),
				e,
				func(context.Context, *tool.Call) (tool.Result, error) { return printableText("ran") },
			),
		)
	}
	for _, readOnly := range []bool{false, true} {
		visit(t, hosttest.Options{Policy: permit.Open(readOnly)}, &w, func(t *testing.T, h *hosttest.Host) {
			v, err := h.Views.View(t.Context(), &ann, h.Views.Cut(ann))
			if err != nil {
				t.Fatal(err)
			}
			for i, e := range effects {
				name := fmt.Sprintf("w_%d", i)
				listed := v.Tool(name) != nil
				if listed != (!readOnly || e.ReadOnly()) {
					t.Errorf("read-only %t, effects %b: listed %t", readOnly, e, listed)
				}
				res, err := h.Calls.Inner(t.Context(), ann, 0, name, nil)
				if ran := err == nil && len(res.Content) == 1 && res.Content[0].Text == "ran"; ran != listed {
					t.Errorf("read-only %t, effects %b: listed %t and ran %t (%v)", readOnly, e, listed, ran, err)
				}
			}
			for _, e := range v.Entries(views.Tools) {
				if e.Gate.Decide(nil, nil).Kind != permit.Allow {
					t.Errorf("%s is listed and refused", e.Listed)
				}
			}
		})
	}
}
