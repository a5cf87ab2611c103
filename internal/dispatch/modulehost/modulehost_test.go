package modulehost_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/module"
	"gatehouse/tool"
)

// workshop is a module that a test configures.
type workshop struct {
	mu     sync.Mutex
	deps   module.Deps
	offer  func(module.Audience) (*module.Offer, error)
	asked  int
	closed bool
}

func (w *workshop) make(_ context.Context, d module.Deps) (module.Module, error) {
	w.deps = d
	return w, nil
}

func (w *workshop) Offer(_ context.Context, to module.Audience) (*module.Offer, error) {
	w.mu.Lock()
	w.asked++
	w.mu.Unlock()
	return w.offer(to)
}

func (w *workshop) Close(context.Context) error {
	w.closed = true
	return nil
}

// holding returns a workshop with one tool called run.
func holding(run tool.Handler) *workshop {
	o := &module.Offer{Tools: []tool.Tool{{Def: tool.Def{Name: "run"}, Run: run}}}
	return &workshop{offer: func(module.Audience) (*module.Offer, error) { return o, nil }}
}

func newHost(t *testing.T) (*modulehost.Host, *bus.Local, *bytes.Buffer) {
	b, log := bus.New(), new(bytes.Buffer)
	return modulehost.NewHost(modulehost.Options{Bus: b, Log: slog.New(slog.NewTextHandler(log, nil))}), b, log
}

func add(t *testing.T, h *modulehost.Host, name string, w *workshop) {
	t.Helper()
	if err := h.Add(t.Context(), name, w.make); err != nil {
		t.Fatal(err)
	}
}

// run calls a module's tool over the bus.
func run(b bus.Bus, name string, r bus.Request, n bus.Notes) (bus.Outcome, error) {
	r.Module, r.Method, r.Name = name, "tools/call", "run"
	if r.Caller == nil {
		r.Caller = &tool.Caller{}
	}
	return b.Do(context.Background(), &r, n)
}

func said(s string) (tool.Result, error) {
	return tool.Result{Content: []tool.Content{tool.Text(s)}}, nil
}

// An old generation is closed when its last call has returned, and not before; new calls go to the new generation.
func TestGenerations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, b, _ := newHost(t)
		release := make(chan struct{})
		old := holding(func(context.Context, *tool.Call) (tool.Result, error) {
			<-release
			return said("old")
		})
		add(t, h, "m", old)
		var got string
		go func() {
			out, err := run(b, "m", bus.Request{}, nil)
			got = fmt.Sprint(out.Result.Content, err)
		}()
		synctest.Wait()
		replaced := make(chan error)
		fresh := holding(func(context.Context, *tool.Call) (tool.Result, error) { return said("new") })
		go func() { replaced <- h.Add(t.Context(), "m", fresh.make) }()
		synctest.Wait()
		if old.closed {
			t.Fatal("the old generation was closed under its call")
		}
		if out, err := run(b, "m", bus.Request{}, nil); err != nil || out.Result.Content[0].Text != "new" {
			t.Errorf("got %v (%v)", out.Result.Content, err)
		}
		close(release)
		if err := <-replaced; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if !old.closed || !strings.Contains(got, "old") || fresh.closed {
			t.Errorf("old closed %t, answered %s, new closed %t", old.closed, got, fresh.closed)
		}
		if err := h.Close(t.Context()); err != nil || !fresh.closed {
			t.Errorf("got %v, closed %t", err, fresh.closed)
		}
		if _, err := run(b, "m", bus.Request{}, nil); !errors.Is(err, bus.ErrAbsent) {
			t.Errorf("got %v", err)
		}
	})
}

// An offer for every caller is requested once; a personal one once for each principal.
func TestOffersAreRemembered(t *testing.T) {
	h, b, _ := newHost(t)
	personal := false
	w := &workshop{}
	w.offer = func(to module.Audience) (*module.Offer, error) {
		return &module.Offer{
			Personal: personal,
			Tools: []tool.Tool{
				{Def: tool.Def{Name: "run"}, Run: func(context.Context, *tool.Call) (tool.Result, error) {
					return said(to.Principal)
				}},
			},
		}, nil
	}
	add(t, h, "m", w)
	ask := func(who string) (generation uint64, said string) {
		o := h.Offers(t.Context(), module.Audience{Principal: who})
		out, err := run(b, "m", bus.Request{Caller: &tool.Caller{Principal: who}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return o[0].Generation, out.Result.Content[0].Text
	}
	one, _ := ask("ann")
	two, _ := ask("bob")
	if one != two || w.asked != 1 {
		t.Errorf("generations %d and %d, asked %d times", one, two, w.asked)
	}
	personal = true
	told := 0
	h.OnChange(func(module.Audience) { told++ })
	w.deps.Changed(module.Audience{})
	ann, forAnn := ask("ann")
	bob, forBob := ask("bob")
	if ann == bob || forAnn != "ann" || forBob != "bob" || told != 1 || w.asked != 3 {
		t.Errorf(
			"generations %d and %d for %s and %s, asked %d times, told %d times",
			ann,
			bob,
			forAnn,
			forBob,
			w.asked,
			told,
		)
	}
	w.deps.Changed(module.Audience{Principal: "ann"})
	ann2, _ := ask("ann")
	bob2, _ := ask("bob")
	if ann2 == ann || bob2 != bob {
		t.Errorf("ann %d then %d, bob %d then %d", ann, ann2, bob, bob2)
	}
}

// A module that cannot list its offer has no effect on the others.
func TestModulesThatFail(t *testing.T) {
	h, b, log := newHost(t)
	add(t, h, "good", holding(func(context.Context, *tool.Call) (tool.Result, error) { return said("ok") }))
	add(
		t,
		h,
		"fails",
		&workshop{offer: func(module.Audience) (*module.Offer, error) { return nil, errors.New("not today") }},
	)
	add(t, h, "panics", &workshop{offer: func(module.Audience) (*module.Offer, error) { panic("oh") }})
	add(t, h, "nothing", &workshop{offer: func(module.Audience) (*module.Offer, error) { return nil, nil }})
	if o := h.Offers(t.Context(), module.Audience{}); len(o) != 1 || o[0].Module != "good" {
		t.Errorf("got %v", o)
	}
	for _, name := range []string{"fails", "panics", "nothing"} {
		if _, err := run(b, name, bus.Request{}, nil); err == nil || !strings.Contains(log.String(), "module="+name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := h.Add(t.Context(), "bad", func(context.Context, module.Deps) (module.Module, error) { return nil, errors.New("no") }); err == nil ||
		len(h.Names()) != 4 {
		t.Errorf("got %v, names %v", err, h.Names())
	}
}

func TestHandlersThatPanic(t *testing.T) {
	h, b, log := newHost(t)
	add(t, h, "m", holding(func(context.Context, *tool.Call) (tool.Result, error) { panic("secret") }))
	_, err := run(b, "m", bus.Request{}, nil)
	w, ok := errors.AsType[*tool.WireError](err)
	if !ok || w.Code != -32603 || strings.Contains(w.Message, "secret") {
		t.Fatalf("got %v", err)
	}
	id := strings.Fields(strings.TrimPrefix(w.Message, "internal error, see "))[0]
	if !strings.Contains(log.String(), id) || !strings.Contains(log.String(), "secret") {
		t.Errorf("the log does not know %s", id)
	}
}

func TestRequestsForWhatHasGone(t *testing.T) {
	h, b, _ := newHost(t)
	add(t, h, "m", holding(nil))
	for _, r := range []bus.Request{
		{Method: "tools/call", Name: "gone"}, {Method: "resources/read", Name: "x://gone"},
		{Method: "prompts/get", Name: "gone"},
		{Method: "completion/complete", Name: "gone"}, {Method: "x/gone", Name: "x/gone"},
		{Method: "tools/call", Name: "run"},
	} {
		r.Module, r.Caller = "m", &tool.Caller{}
		_, err := b.Do(t.Context(), &r, nil)
		if ref, ok := errors.AsType[*tool.Refusal](err); !ok || ref.Code != "not_found" {
			t.Errorf("%s %s: got %v", r.Method, r.Name, err)
		}
	}
}

// notes collects what a call reports.
type notes struct{ told []string }

func (n *notes) Progress(done, total float64, note string) {
	n.told = append(n.told, fmt.Sprint(done, "/", total, note))
}
func (n *notes) Log(_ slog.Level, data json.RawMessage) { n.told = append(n.told, string(data)) }
func (n *notes) Output(b []byte)                        { n.told = append(n.told, string(b)) }
func (n *notes) Detach()                                { n.told = append(n.told, "detach") }
func (*notes) Keep(map[string]json.RawMessage) bool     { return false }

const form = `{"type":"object","properties":{"n":{"type":"string"}},"required":["n"]}`

func TestAsking(t *testing.T) {
	h, b, _ := newHost(t)
	yes := json.RawMessage(`{"action":"accept","content":{"n":"x"}}`)
	add(t, h, "m", holding(func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		c.Peer.Log(slog.LevelInfo, "one")
		n, err := tool.Once(c, "k", func() (int, error) { return 7, nil })
		if err != nil {
			return tool.Result{}, err
		}
		tool.Detach(ctx, c)
		a, err := c.Peer.Ask(tool.Elicit("q", "?", []byte(form)), tool.Elicit("r", "?", []byte(form)))
		if _, err2 := c.Peer.Ask(tool.Elicit("q", "?", []byte(form))); err2 != nil {
			err = err2
		}
		if err != nil {
			return said("a result returned with a question does not count")
		}
		c.Peer.Progress(1, 2, "two")
		return said(fmt.Sprint(n, len(a)))
	}))
	caller := &tool.Caller{Can: tool.CanElicit}
	do := func(recorded map[string]json.RawMessage) (bus.Outcome, string) {
		var n notes
		out, err := run(b, "m", bus.Request{Caller: caller, Recorded: recorded}, &n)
		if err != nil {
			t.Fatal(err)
		}
		return out, strings.Join(n.told, " ")
	}
	out, told := do(nil)
	if in := out.Result.Input; in == nil || len(in.Questions) != 2 || in.Questions[0].Key != "q" ||
		in.Questions[1].Key != "r" ||
		out.Result.Content != nil {
		t.Fatalf("got %+v", out.Result)
	}
	if told != `{"data":"one"} detach` || string(out.Recorded["=k"]) != "7" {
		t.Errorf("told %s, recorded %s", told, out.Recorded)
	}
	out.Recorded["q"] = yes
	kept := fmt.Sprint(out.Recorded)
	again, told := do(out.Recorded)
	if in := again.Result.Input; in == nil || len(in.Questions) != 1 || in.Questions[0].Key != "r" || told != "" {
		t.Errorf("got %+v, told %s", again.Result, told)
	}
	if fmt.Sprint(out.Recorded) != kept {
		t.Error("what an earlier round recorded was changed")
	}
	out.Recorded["r"] = yes
	last, told := do(out.Recorded)
	if last.Result.Input != nil || last.Result.Content[0].Text != "7 2" || told != "1/2two" {
		t.Errorf("got %+v, told %s", last.Result, told)
	}
	out.Recorded["r"] = json.RawMessage(`{"action":"accept","content":{"n":5}}`)
	if wrong, _ := do(out.Recorded); wrong.Result.Input == nil {
		t.Errorf("an answer that does not fit was accepted: %+v", wrong.Result)
	}
	caller = &tool.Caller{}
	if _, err := run(b, "m", bus.Request{Caller: caller}, nil); err != nil {
		t.Errorf("a handler that does not pass the error on decides itself: %v", err)
	}
}

func TestAnswersThatFit(t *testing.T) {
	for _, c := range []struct {
		q    tool.Question
		a    string
		want bool
	}{
		{tool.ListRoots("q"), `{"roots":[]}`, true},
		{tool.ListRoots("q"), `{"roots":[{"uri":"file:///x"}]}`, true},
		{tool.ListRoots("q"), `{}`, false},
		{tool.ListRoots("q"), `{"roots":5}`, false},
		{tool.Sample("q", nil), `{"role":"assistant","content":{"type":"text"}}`, true},
		{tool.Sample("q", nil), `{"role":"assistant"}`, false},
		{tool.Sample("q", nil), `5`, false},
		{tool.ElicitURL("q", "?", "https://example.com"), `{"action":"accept"}`, true},
		{tool.ElicitURL("q", "?", "https://example.com"), `{"action":"perhaps"}`, false},
		{tool.Elicit("q", "?", []byte(form)), `{"action":"decline"}`, true},
		{tool.Elicit("q", "?", []byte(form)), `{"action":"accept","content":{}}`, false},
		{tool.Elicit("q", "?", []byte(form)), `null`, false},
		// An invalid form is an error of its author, not of the user.
		{tool.Elicit("q", "?", []byte(`{"type":"object","properties":{"deep":{"type":"object"}}}`)),
			`{"action":"accept","content":{"deep":{}}}`, true},
		{tool.Question{Key: "q", Method: "x/other"}, `5`, true},
	} {
		h, b, _ := newHost(t)
		add(t, h, "m", holding(func(_ context.Context, call *tool.Call) (tool.Result, error) {
			_, err := call.Peer.Ask(c.q)
			return tool.Result{}, err
		}))
		out, err := run(
			b,
			"m",
			bus.Request{
				Caller:   &tool.Caller{Can: 0xff},
				Recorded: map[string]json.RawMessage{"q": json.RawMessage(c.a)},
			},
			nil,
		)
		if fits := out.Result.Input == nil; err != nil || fits != c.want {
			t.Errorf("%s answered with %s: fits %t, want %t (%v)", c.q.Method, c.a, fits, c.want, err)
		}
	}
}

func TestQuestionsThatCannotBeAsked(t *testing.T) {
	for name, q := range map[string]tool.Question{
		`{"elicitation":{"form":{}}}`: tool.Elicit("q", "?", []byte(form)),
		`{"elicitation":{"url":{}}}`:  tool.ElicitURL("q", "?", "https://example.com"),
		`{"sampling":{}}`:             tool.Sample("q", nil),
		`{"sampling":{"tools":{}}}`:   tool.Sample("q", map[string]any{"tools": []int{}}),
		`{"roots":{}}`:                tool.ListRoots("q"),
		"key":                         tool.ListRoots(""),
		"recorded":                    tool.ListRoots("=x"),
	} {
		h, b, _ := newHost(t)
		add(t, h, "m", holding(func(_ context.Context, call *tool.Call) (tool.Result, error) {
			_, err := call.Peer.Ask(q)
			return tool.Result{}, err
		}))
		var can tool.Abilities
		if !strings.HasPrefix(name, "{") {
			can = 0xff
		}
		_, err := run(b, "m", bus.Request{Caller: &tool.Caller{Can: can}}, nil)
		w, ok := errors.AsType[*tool.WireError](err)
		if strings.HasPrefix(name, "{") != ok || err == nil {
			t.Errorf("%s: got %v", name, err)
		}
		if ok && (w.Code != -32021 || string(w.Data) != `{"requiredCapabilities":`+name+`}`) {
			t.Errorf("got %d %s, want %s", w.Code, w.Data, name)
		}
	}
}

func TestRecordingHasALimit(t *testing.T) {
	h, b, _ := newHost(t)
	add(t, h, "m", holding(func(_ context.Context, c *tool.Call) (tool.Result, error) {
		if err := c.Peer.Record("small", 1); err != nil {
			return tool.Result{}, err
		}
		err := c.Peer.Record("large", strings.Repeat("x", modulehost.RecordLimit))
		if ref, ok := errors.AsType[*tool.Refusal](err); !ok || ref.Code != "too_large" {
			t.Errorf("got %v", err)
		}
		if err := c.Peer.Record("odd", func() {}); err == nil {
			t.Error("a function was recorded")
		}
		_, large := c.Peer.Recall("large")
		small, _ := c.Peer.Recall("small")
		return said(fmt.Sprint(large, string(small)))
	}))
	out, err := run(b, "m", bus.Request{}, nil)
	if err != nil || out.Result.Content[0].Text != "false1" {
		t.Errorf("got %v (%v)", out.Result.Content, err)
	}
}

// ErrAsked without a question is an error that names the cause.
func TestAskedWithoutAsking(t *testing.T) {
	h, b, _ := newHost(t)
	add(
		t,
		h,
		"m",
		holding(func(context.Context, *tool.Call) (tool.Result, error) { return tool.Result{}, tool.ErrAsked }),
	)
	if _, err := run(b, "m", bus.Request{}, nil); err == nil || errors.Is(err, tool.ErrAsked) ||
		!strings.Contains(err.Error(), "without having asked") {
		t.Errorf("got %v", err)
	}
}

// A relay sets its own questions, its state, and the node for the retry.
func TestRelayedQuestions(t *testing.T) {
	h, b, _ := newHost(t)
	add(t, h, "m", holding(func(_ context.Context, c *tool.Call) (tool.Result, error) {
		if string(c.State) == "upstream" {
			return said("resumed")
		}
		return tool.Result{
			Input: &tool.Input{
				Questions: []tool.Question{{Key: "up", Method: "roots/list"}},
				State:     []byte("upstream"),
				Here:      true,
			},
		}, nil
	}))
	out, err := run(b, "m", bus.Request{}, nil)
	if in := out.Result.Input; err != nil || in == nil || !in.Here || string(in.State) != "upstream" ||
		len(in.Questions) != 1 {
		t.Fatalf("got %+v (%v)", out.Result, err)
	}
	out, err = run(b, "m", bus.Request{State: out.Result.Input.State}, nil)
	if err != nil || out.Result.Content[0].Text != "resumed" {
		t.Errorf("got %+v (%v)", out.Result, err)
	}
}

// folders is a tool.Roots that has only names.
type folders struct {
	tool.Roots
	name string
}

func (f folders) List() []tool.Root { return []tool.Root{{Name: f.name}} }

// A call runs in the folders it was narrowed to, and its inner calls and jobs receive how it was narrowed.
func TestCallsAreNarrowed(t *testing.T) {
	b := bus.New()
	var trace []string
	note := func(format string, args ...any) { trace = append(trace, fmt.Sprintf(format, args...)) }
	h := modulehost.NewHost(modulehost.Options{
		Bus: b, Log: slog.New(slog.DiscardHandler), Roots: folders{name: "all"},
		Narrow: func(module string, c *tool.Call, inner bool, from any) (any, func(), error) {
			note("narrow %s %v %v", module, inner, from)
			if string(c.Args) == `"refuse"` {
				return nil, nil, tool.Refuse("denied", "not this one")
			}
			if string(c.Args) == `"ask"` {
				if _, err := c.Peer.Ask(tool.ListRoots("where")); err != nil {
					return nil, nil, err
				}
			}
			c.Roots = folders{name: "some"}
			return "as " + string(c.Args), func() { note("done") }, nil
		},
	})
	w := holding(nil)
	w.offer = func(module.Audience) (*module.Offer, error) {
		return &module.Offer{
			Tools: []tool.Tool{
				{Def: tool.Def{Name: "run"}, Run: func(ctx context.Context, c *tool.Call) (tool.Result, error) {
					note("run in %s", c.Roots.List()[0].Name)
					switch string(c.Args) {
					case `"outer"`:
						return w.deps.Call(ctx, c, "run", json.RawMessage(`"inner"`))
					case `"job"`:
						_, err := w.deps.Job(c, "later", func(_ context.Context, c *tool.Call) (tool.Result, error) {
							note("job in %s", c.Roots.List()[0].Name)
							return said("done")
						})
						return tool.Result{}, err
					case `"panic"`:
						panic("oh")
					}
					return said("ran")
				}},
			},
		}, nil
	}
	add(t, h, "shop", w)
	h.Bind(
		func(ctx context.Context, who tool.Caller, depth int, name string, args json.RawMessage) (tool.Result, error) {
			out, err := b.Do(
				ctx,
				&bus.Request{
					Module: "shop",
					Method: "tools/call",
					Name:   name,
					Args:   args,
					Caller: &who,
					Depth:  depth + 1,
				},
				nil,
			)
			return out.Result, err
		},
		nil,
		func(_ tool.Caller, _ string, run modulehost.Round, _ *modulehost.Start) (string, error) {
			_, err := run(context.Background(), nil, nil, nil)
			return "id", err
		},
	)
	can := &tool.Caller{Can: tool.CanListRoots}
	for args, want := range map[string]string{
		`"plain"`:  `[narrow shop false <nil> run in some done]`,
		`"outer"`:  `[narrow shop false <nil> run in some narrow shop true as "outer" run in some done done]`,
		`"job"`:    `[narrow shop false <nil> run in some narrow shop false as "job" job in some done done]`,
		`"refuse"`: `[narrow shop false <nil>]`,
		`"ask"`:    `[narrow shop false <nil>]`,
		`"panic"`:  `[narrow shop false <nil> run in some done]`,
	} {
		trace = nil
		out, err := run(b, "shop", bus.Request{Args: json.RawMessage(args), Caller: can}, nil)
		if got := fmt.Sprint(trace); got != want {
			t.Errorf("%s: got %s, want %s", args, got, want)
		}
		if wants := args == `"refuse"` || args == `"panic"`; (err != nil) != wants {
			t.Errorf("%s: %v", args, err)
		}
		if asked := out.Result.Input != nil; asked != (args == `"ask"`) {
			t.Errorf("%s: asked is %v", args, asked)
		}
	}
}

// A result names the job in which its call continues, if there is exactly one.
func TestAResultNamesTheJob(t *testing.T) {
	h, b, _ := newHost(t)
	var start int
	w := holding(nil)
	w.offer = func(module.Audience) (*module.Offer, error) {
		return &module.Offer{
			Tools: []tool.Tool{
				{Def: tool.Def{Name: "run"}, Run: func(_ context.Context, c *tool.Call) (tool.Result, error) {
					for range start {
						if _, err := w.deps.Job(c, "later",
							func(context.Context, *tool.Call) (tool.Result, error) { return said("done") }); err != nil {
							return tool.Result{}, err
						}
					}
					switch string(c.Args) {
					case `"relay"`:
						return tool.Result{Raw: json.RawMessage(`{}`)}, nil
					case `"fail"`:
						return tool.Result{IsError: true}, nil
					}
					return said("begun")
				}},
			},
		}, nil
	}
	add(t, h, "shop", w)
	made := 0
	h.Bind(nil, nil, func(tool.Caller, string, modulehost.Round, *modulehost.Start) (string, error) {
		made++
		return fmt.Sprint("job", made), nil
	})
	for _, c := range []struct {
		args  string
		start int
		want  string
	}{{`"none"`, 0, ""}, {`"one"`, 1, `"job1"`}, {`"two"`, 2, ""}, {`"relay"`, 1, ""}, {`"fail"`, 1, ""}} {
		start = c.start
		out, err := run(b, "shop", bus.Request{Args: json.RawMessage(c.args)}, nil)
		if got := string(out.Result.Meta[modulehost.JobMeta]); err != nil || got != c.want {
			t.Errorf("%s: the job is %s, %v; want %s", c.args, got, err, c.want)
		}
	}
	if made != 5 {
		t.Errorf("%d jobs were started, want 5", made)
	}
}
