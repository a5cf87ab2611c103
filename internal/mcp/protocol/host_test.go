package protocol_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// visit runs a test with a host of its own, in a synctest bubble.
func visit(t *testing.T, o hosttest.Options, f func(t *testing.T, h *testHost)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newTestHost(t, o)
		f(t, h)
		h.Stop()
	})
}

// testHost is a host with one module, called t, that has entries of every kind.
type testHost struct {
	*hosttest.Host
	clock chan struct{} // a token lets the handlers that wait for it continue

	mu      sync.Mutex
	deps    module.Deps
	extra   []tool.Tool // additional tools
	changed map[string]map[int]func(json.RawMessage)
	opened  int // watches opened in total
	runs    []string
}

func newTestHost(t testing.TB, o hosttest.Options) *testHost {
	h := &testHost{clock: make(chan struct{}, 100), changed: map[string]map[int]func(json.RawMessage){}}
	mods := map[string]module.New{"t": h.make}
	maps.Copy(mods, o.Modules)
	o.Modules = mods
	h.Host = hosttest.New(t, o)
	return h
}

func (h *testHost) make(_ context.Context, d module.Deps) (module.Module, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deps = d
	return h, nil
}

func (*testHost) Close(context.Context) error { return nil }

// offer adds a tool to the module and reports the change.
func (h *testHost) offer(extra ...tool.Tool) {
	h.mu.Lock()
	h.extra = extra
	h.mu.Unlock()
	h.deps.Changed(module.Audience{})
}

// touch reports a change of a resource.
func (h *testHost) touch(uri string) {
	h.mu.Lock()
	var fs []func(json.RawMessage)
	for _, f := range h.changed[uri] {
		fs = append(fs, f)
	}
	h.mu.Unlock()
	for _, f := range fs {
		f(json.RawMessage(`{"v":1}`))
	}
}

// watchers returns the number of open watches.
func (h *testHost) watchers() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, fs := range h.changed {
		n += len(fs)
	}
	return n
}

func (h *testHost) watch(_ tool.Caller, uri string, changed func(json.RawMessage)) (func(), error) {
	if strings.HasSuffix(uri, "broken") {
		return nil, fmt.Errorf("no watch today")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.opened++
	n := h.opened
	if h.changed[uri] == nil {
		h.changed[uri] = map[int]func(json.RawMessage){}
	}
	h.changed[uri][n] = changed
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.changed[uri], n)
	}, nil
}

// ran records that a handler ran.
func (h *testHost) ran(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.runs = append(h.runs, what)
}

func (h *testHost) history() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.runs, " ")
}

func (h *testHost) Offer(context.Context, module.Audience) (*module.Offer, error) {
	h.mu.Lock()
	extra := h.extra
	h.mu.Unlock()
	return &module.Offer{
		Tools:     append(h.tools(), extra...),
		Prompts:   prompts(),
		Resources: h.resources(),
		Templates: []module.Resource{
			{
				URI:      "test://item/{id}",
				Name:     "item",
				Title:    "An item",
				Read:     readItem,
				Watch:    h.watch,
				Complete: completeItem,
			},
		},
		Methods:    map[string]tool.Handler{"test/reverse": reverse},
		Extensions: map[string]json.RawMessage{"test/reverse": json.RawMessage(`{"max":100}`)},
	}, nil
}

type nothing struct{}

type echoIn struct {
	Text string `json:"text" doc:"what to say" min:"1"`
}

type echoOut struct {
	Said string `json:"said"`
}

var echo = tool.New(tool.Def{Name: "t_echo", Description: "Echoes.", Effects: tool.Reads},
	func(_ context.Context, _ *tool.Call, in echoIn) (echoOut, error) { return echoOut{in.Text}, nil })

var asker = tool.New(tool.Def{Name: "t_ask", Description: "Asks.", Effects: tool.Reads},
	func(_ context.Context, c *tool.Call, _ nothing) (echoOut, error) {
		a, err := c.Peer.Ask(tool.Elicit("name", "Who?", nameForm))
		if err != nil {
			return echoOut{}, err
		}
		name, err := elicited(a, "name")
		return echoOut{name}, err
	})

func (h *testHost) tools() []tool.Tool {
	return []tool.Tool{
		echo, asker,
		tool.New(tool.Def{
			Name: "t_count", Description: "Counts to three.", Title: "Count", Effects: tool.Reads,
			Icons: []tool.Icon{{Src: "https://example.com/i.png"}}, Meta: json.RawMessage(`{"k":1}`),
		}, func(_ context.Context, c *tool.Call, _ nothing) (tool.Result, error) {
			for i := range 3 {
				c.Peer.Progress(float64(i+1), 3, fmt.Sprintf("step %d", i+1))
				c.Peer.Log(slog.LevelInfo, map[string]int{"step": i + 1})
				c.Peer.Log(slog.LevelDebug, "detail")
				time.Sleep(50 * time.Millisecond)
			}
			return tool.Result{Content: []tool.Content{tool.Text("three")}}, nil
		}),
		tool.New(tool.Def{Name: "t_refuse", Description: "Refuses.", Effects: tool.Reads},
			func(context.Context, *tool.Call, nothing) (echoOut, error) {
				return echoOut{}, &tool.Refusal{Code: "not_found", Message: "no such thing", Next: "Look elsewhere."}
			}),
		tool.New(tool.Def{Name: "t_wire", Description: "Fails on the wire.", Effects: tool.Reads},
			func(context.Context, *tool.Call, nothing) (echoOut, error) {
				return echoOut{}, &tool.WireError{
					Code:    4711,
					Message: "wires crossed",
					Data:    json.RawMessage(`{"a":1}`),
				}
			}),
		tool.New(tool.Def{Name: "t_panic", Description: "Panics.", Effects: tool.Reads},
			func(context.Context, *tool.Call, nothing) (echoOut, error) { panic("oh, dear") }),
		tool.New(
			tool.Def{
				Name:        "t_lies",
				Description: "Gives what it did not promise.",
				Effects:     tool.Reads,
				Output: json.RawMessage(
					`{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}`,
				),
			},
			func(context.Context, *tool.Call, nothing) (tool.Result, error) {
				return tool.Result{Structured: map[string]string{"n": "no"}}, nil
			},
		),
		tool.New(tool.Def{Name: "t_long", Description: "Talks long.", Effects: tool.Reads},
			func(context.Context, *tool.Call, nothing) (tool.Result, error) {
				return tool.Result{Content: []tool.Content{tool.Text(strings.Repeat("0123456789\n", 10_000))}}, nil
			}),
		tool.New(tool.Def{Name: "t_media", Description: "Gives one of each.", Effects: tool.Reads},
			func(context.Context, *tool.Call, nothing) (tool.Result, error) {
				link := tool.Link("test://plain", "plain", "text/plain")
				link.Title, link.Size = "Plain", 5
				shown := 0.5
				text := tool.Text("hello")
				text.Annotations = &tool.Annotations{Audience: []string{"user"}, Priority: &shown}
				text.Meta = json.RawMessage(`{"m":true}`)
				return tool.Result{
					Content: []tool.Content{
						text, tool.Image("image/png", []byte{1, 2}), tool.Audio("audio/wav", []byte{3}),
						tool.TextResource(
							"test://plain",
							"text/plain",
							"inside",
						), tool.BlobResource("test://blob", "", nil), link,
					},
					Meta: map[string]json.RawMessage{"test/took": json.RawMessage("7")},
				}, nil
			}),
		tool.New(tool.Def{Name: "t_bulk", Description: "Reads a lot.", Effects: tool.Reads},
			func(context.Context, *tool.Call, nothing) (bulkOut, error) {
				return bulkOut{Lines: 2, Text: "a <b>\nc"}, nil
			}),
		tool.New(
			tool.Def{
				Name:        "t_list",
				Description: "Gives a list.",
				Effects:     tool.Reads,
				Output:      json.RawMessage(`{"type":"array","items":{"type":"integer"}}`),
			},
			func(context.Context, *tool.Call, nothing) (tool.Result, error) {
				return tool.Result{Structured: []int{1, 2}}, nil
			},
		),
		tool.New(
			tool.Def{Name: "t_write", Description: "Writes.", Effects: tool.Writes | tool.Destroys | tool.OpenWorld},
			func(context.Context, *tool.Call, nothing) (tool.Result, error) { return tool.Result{}, nil },
		),
		tool.New(
			tool.Def{
				Name:        "t_head",
				Description: "Has arguments in headers.",
				Effects:     tool.Reads,
				Input:       json.RawMessage(headInput),
			},
			func(_ context.Context, c *tool.Call, _ nothing) (tool.Result, error) {
				return tool.Result{Content: []tool.Content{tool.Text(string(c.Args))}}, nil
			},
		),
		h.waiting("t_wait", tool.TaskNever), h.waiting("t_slow", tool.TaskAuto),
		h.waiting("t_work", tool.TaskAlways), h.waiting("t_must", tool.TaskRequired),
		h.stubborn(), h.detaching(),
		h.twoRounds(), h.survey(), h.endless(), h.samples(), h.taskAsks(), h.hoarder(),
	}
}

const headInput = `{"type":"object","properties":{
	"s":{"type":"string","x-mcp-header":"Word"},
	"n":{"type":"integer","x-mcp-header":"Number"},
	"b":{"type":"boolean","x-mcp-header":"Flag"},
	"in":{"type":"object","properties":{"s":{"type":"string","x-mcp-header":"Inner"}}}}}`

type bulkOut struct {
	Lines int    `json:"lines"`
	Text  string `json:"text" text:"product"`
}

// waiting returns a tool that works until the clock ticks or it is cancelled.
func (h *testHost) waiting(name string, mode tool.TaskMode) tool.Tool {
	return tool.New(tool.Def{Name: name, Description: "Waits.", Effects: tool.Reads, Task: mode},
		func(ctx context.Context, c *tool.Call, _ nothing) (echoOut, error) {
			select {
			case <-h.clock:
				return echoOut{"done"}, nil
			case <-ctx.Done():
				h.ran(name + " stopped: " + context.Cause(ctx).Error())
				return echoOut{}, ctx.Err()
			}
		})
}

// stubborn returns a tool that ignores its deadline.
func (h *testHost) stubborn() tool.Tool {
	return tool.New(
		tool.Def{
			Name:        "t_stubborn",
			Description: "Ignores its deadline.",
			Effects:     tool.Reads,
			Task:        tool.TaskNever,
			Timeout:     time.Second,
		},
		func(context.Context, *tool.Call, nothing) (echoOut, error) {
			<-h.clock
			return echoOut{"late"}, nil
		},
	)
}

// detaching returns a tool that detaches and continues.
func (h *testHost) detaching() tool.Tool {
	return tool.New(tool.Def{Name: "t_detach", Description: "Detaches.", Effects: tool.Reads},
		func(ctx context.Context, c *tool.Call, _ nothing) (echoOut, error) {
			tool.Detach(ctx, c)
			c.Peer.Progress(1, 2, "half way")
			select {
			case <-h.clock:
			case <-ctx.Done():
				return echoOut{}, ctx.Err()
			}
			return echoOut{"detached"}, nil
		})
}

var nameForm = json.RawMessage(
	`{"type":"object","properties":{"name":{"type":"string","minLength":2}},"required":["name"]}`,
)

func elicited(a map[string]tool.Answer, key string) (string, error) {
	var v struct{ Name string }
	action, err := tool.Elicited(a[key], &v)
	if action != "accept" {
		return action, err
	}
	return v.Name, err
}

// twoRounds returns a tool that does something once, asks, does something once more, and asks again.
func (h *testHost) twoRounds() tool.Tool {
	return tool.New(tool.Def{Name: "t_two", Description: "Asks twice.", Effects: tool.Reads},
		func(_ context.Context, c *tool.Call, _ struct {
			Of string `json:"of,omitempty"`
			At int    `json:"at,omitempty"`
		}) (echoOut, error) {
			c.Peer.Log(slog.LevelInfo, "starting")
			n, err := tool.Once(c, "first", func() (int, error) { h.ran("first"); return 41, nil })
			if err != nil {
				return echoOut{}, err
			}
			a, err := c.Peer.Ask(tool.Elicit("one", "One?", nameForm))
			if err != nil {
				return echoOut{}, err
			}
			m, err := tool.Once(c, "second", func() (int, error) { h.ran("second"); return n + 1, nil })
			if err != nil {
				return echoOut{}, err
			}
			b, err := c.Peer.Ask(tool.Elicit("two", "Two?", nameForm))
			if err != nil {
				return echoOut{}, err
			}
			c.Peer.Log(slog.LevelInfo, "ending")
			one, _ := elicited(a, "one")
			two, _ := elicited(b, "two")
			return echoOut{fmt.Sprintf("%s %s %d", one, two, m)}, nil
		})
}

// survey returns a tool that asks three questions at once.
func (h *testHost) survey() tool.Tool {
	return tool.New(tool.Def{Name: "t_survey", Description: "Asks much.", Effects: tool.Reads},
		func(_ context.Context, c *tool.Call, _ nothing) (echoOut, error) {
			h.ran("survey")
			a, err := c.Peer.Ask(tool.Elicit("who", "Who?", nameForm), tool.ListRoots("where"),
				tool.Sample("what", map[string]any{"messages": []any{}, "maxTokens": 5}))
			if err != nil {
				return echoOut{}, err
			}
			who, err := elicited(a, "who")
			return echoOut{who + " " + string(a["where"])}, err
		})
}

// endless returns a tool that asks without end.
func (h *testHost) endless() tool.Tool {
	return tool.New(tool.Def{Name: "t_endless", Description: "Asks for ever.", Effects: tool.Reads},
		func(_ context.Context, c *tool.Call, _ nothing) (echoOut, error) {
			for i := 0; ; i++ {
				if _, err := c.Peer.Ask(tool.Elicit(fmt.Sprint("q", i), "More?", nameForm)); err != nil {
					return echoOut{}, err
				}
			}
		})
}

func (h *testHost) samples() tool.Tool {
	return tool.New(tool.Def{Name: "t_sample", Description: "Asks the model.", Effects: tool.Reads},
		func(_ context.Context, c *tool.Call, _ nothing) (echoOut, error) {
			a, err := c.Peer.Ask(tool.Sample("s", map[string]any{"messages": []any{}, "maxTokens": 5}))
			return echoOut{string(a["s"])}, err
		})
}

// taskAsks returns a job that asks twice.
func (h *testHost) taskAsks() tool.Tool {
	return tool.New(
		tool.Def{Name: "t_confirm", Description: "A job that asks.", Effects: tool.Reads, Task: tool.TaskAlways},
		func(_ context.Context, c *tool.Call, _ nothing) (echoOut, error) {
			h.ran("confirm")
			a, err := c.Peer.Ask(tool.Elicit("one", "One?", nameForm), tool.Elicit("two", "Two?", nameForm))
			if err != nil {
				return echoOut{}, err
			}
			one, _ := elicited(a, "one")
			two, err := elicited(a, "two")
			return echoOut{one + " " + two}, err
		},
	)
}

// hoarder returns a tool that stores more than the limit.
func (h *testHost) hoarder() tool.Tool {
	return tool.New(tool.Def{Name: "t_hoard", Description: "Remembers too much.", Effects: tool.Reads},
		func(_ context.Context, c *tool.Call, in struct {
			Size int `json:"size"`
		}) (echoOut, error) {
			if _, err := tool.Once(c, "heap",
				func() (string, error) { return strings.Repeat("x", in.Size), nil }); err != nil {
				return echoOut{}, err
			}
			_, err := c.Peer.Ask(tool.Elicit("name", "Who?", nameForm))
			return echoOut{"kept"}, err
		})
}

func prompts() []module.Prompt {
	return []module.Prompt{{
		Name: "t_greet", Title: "Greet", Description: "Greets a person.",
		Args: []module.PromptArg{{Name: "name", Title: "Name", Description: "whom", Required: true}, {Name: "style"}},
		Get: func(_ context.Context, c *tool.Call) (tool.Result, error) {
			var in struct{ Name, Style string }
			if err := json.Unmarshal(c.Args, &in); err != nil {
				return tool.Result{}, err
			}
			return tool.Result{Description: "A greeting.", Messages: []tool.Message{
				{Role: "user", Content: tool.Text("Greet " + in.Name + in.Style)},
				{Role: "assistant", Content: tool.Audio("audio/wav", []byte{1})},
			}}, nil
		},
		Complete: func(_ context.Context, c *tool.Call) (tool.Result, error) {
			var in module.Completing
			if err := json.Unmarshal(c.Args, &in); err != nil {
				return tool.Result{}, err
			}
			return tool.Result{
				Completion: &tool.Completion{Values: []string{in.Argument + ":" + in.Value + "!", in.Known["style"]}},
			}, nil
		},
	}, {
		Name: "t_ask", Description: "Asks before it speaks.",
		Get: func(_ context.Context, c *tool.Call) (tool.Result, error) {
			a, err := c.Peer.Ask(tool.Elicit("name", "Who?", nameForm))
			if err != nil {
				return tool.Result{}, err
			}
			name, err := elicited(a, "name")
			return tool.Result{Messages: []tool.Message{{Role: "user", Content: tool.Text(name)}}}, err
		},
	}}
}

func (h *testHost) resources() []module.Resource {
	return []module.Resource{
		{
			URI:         "test://plain",
			Name:        "plain",
			Title:       "Plain",
			Description: "Text.",
			MIME:        "text/plain",
			Size:        5,
			Watch:       h.watch,
			Read: func(context.Context, *tool.Call) (tool.Result, error) {
				return tool.Result{Content: []tool.Content{tool.Text("hello")}}, nil
			},
		},
		{URI: "test://blob", Name: "blob", MIME: "application/octet-stream",
			Read: func(_ context.Context, c *tool.Call) (tool.Result, error) {
				return tool.Result{Content: []tool.Content{tool.BlobResource("", "", []byte{0, 255})}}, nil
			}},
		{URI: "test://ask", Name: "ask", Watch: h.watch,
			Read: func(_ context.Context, c *tool.Call) (tool.Result, error) {
				a, err := c.Peer.Ask(tool.Elicit("name", "Who?", nameForm))
				if err != nil {
					return tool.Result{}, err
				}
				name, err := elicited(a, "name")
				return tool.Result{Content: []tool.Content{tool.Text(name)}}, err
			}},
		{URI: "test://broken", Name: "broken", Watch: h.watch,
			Read: func(context.Context, *tool.Call) (tool.Result, error) {
				return tool.Result{},
					fmt.Errorf("no luck")
			}},
	}
}

func readItem(_ context.Context, c *tool.Call) (tool.Result, error) {
	var in struct{ ID string }
	if err := json.Unmarshal(c.Args, &in); err != nil {
		return tool.Result{}, err
	}
	if in.ID == "none" {
		return tool.Result{}, tool.Refuse("not_found", "no item %s", in.ID)
	}
	return tool.Result{Content: []tool.Content{tool.Text("item " + in.ID)}}, nil
}

func completeItem(context.Context, *tool.Call) (tool.Result, error) {
	var c tool.Completion
	for i := range 150 {
		c.Values = append(c.Values, fmt.Sprint(i))
	}
	return tool.Result{Completion: &c}, nil
}

func reverse(_ context.Context, c *tool.Call) (tool.Result, error) {
	var in struct{ Text string }
	if err := json.Unmarshal(c.Params, &in); err != nil {
		return tool.Result{}, err
	}
	b := []byte(in.Text)
	for i := range len(b) / 2 {
		b[i], b[len(b)-1-i] = b[len(b)-1-i], b[i]
	}
	return tool.Result{Structured: map[string]string{"text": string(b)}}, nil
}

// newcomer is a tool that is added later.
var newcomer = tool.New(tool.Def{Name: "t_new", Description: "Is new.", Effects: tool.Reads},
	func(context.Context, *tool.Call, nothing) (tool.Result, error) {
		return tool.Result{Content: []tool.Content{tool.Text("new")}}, nil
	})
