package hosttest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// padModule has a tool of each class. Its writing tool asks a question first.
type padModule struct{}

func newPad(context.Context, module.Deps) (module.Module, error) { return padModule{}, nil }

func (padModule) Close(context.Context) error { return nil }

type padIn struct {
	Word string `json:"word" doc:"what is written on it" min:"1"`
}

type padOut struct {
	Said string `json:"said"`
}

func (padModule) Offer(context.Context, module.Audience) (*module.Offer, error) {
	one := func(name, does string, e tool.Effects) tool.Tool {
		return tool.New(tool.Def{Name: name, Description: does, Effects: e},
			func(_ context.Context, c *tool.Call, in padIn) (padOut, error) {
				return padOut{name + " " + in.Word}, nil
			})
	}
	ask := tool.New(tool.Def{Name: "pad_write", Description: "Writes on the pad.", Effects: tool.Writes},
		func(_ context.Context, c *tool.Call, in padIn) (padOut, error) {
			answers, err := c.Peer.Ask(tool.Elicit("sure", "Sure?", json.RawMessage(
				`{"type":"object","properties":{"ok":{"type":"boolean"}}}`)))
			if err != nil {
				return padOut{}, err
			}
			return padOut{"wrote " + in.Word + string(answers["sure"])}, nil
		})
	return &module.Offer{Tools: []tool.Tool{
		one("pad_read", "Shows the newest page of the pad.", tool.Reads),
		one("pad_clear", "Empties the pad.", tool.Writes|tool.Destroys),
		one("pad_other", "Does something with a cupboard.", 0),
		one("pad_hidden", "Shows the hidden page of the pad.", tool.Reads),
		ask,
	}}, nil
}

// names keeps the tools that a ledger has lines of.
type ledgerNames struct {
	mu  sync.Mutex
	all []string
}

func (l *ledgerNames) Note(e audit.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, e.Tool)
}

func (l *ledgerNames) Keep(_ context.Context, e audit.Entry) error { l.Note(e); return nil }
func (l *ledgerNames) Ready() error                                { return nil }

// A context that searches lists five tools and what is pinned, finds the others, and calls them as if they were
// called by their own names, in each class with its own tool.
func TestToolsAreFoundAndCalled(t *testing.T) {
	for _, n := range hosttest.Harnesses() {
		t.Run(n.Name, func(t *testing.T) {
			lines := &ledgerNames{}
			policy, err := permit.New(permit.Options{
				Default: permit.Allow,
				Rules:   []permit.Rule{{Names: []string{"pad_hidden"}, Then: permit.Refuse, Methods: []string{"*"}}},
			})
			if err != nil {
				t.Fatal(err)
			}
			h := n.Make(t, hosttest.Options{
				Modules: map[string]module.New{"pad": newPad}, Policy: policy, Ledger: lines,
				Spec: &views.Spec{List: views.ListSearch, Pinned: []string{"pad_r*"}},
			})
			listed := hosttest.Names(hosttest.List(t, h, "tools/list"), "name", "")
			want := []string{
				"pad_read", "tool_call_destructive", "tool_call_read", "tool_call_write", "tool_describe",
				"tool_search",
			}
			if !slices.Equal(listed, want) {
				t.Errorf("listed: %q", listed)
			}
			call := func(name, args string) hosttest.Reply {
				t.Helper()
				return hosttest.Call(h, name, args, func(string, json.RawMessage) json.RawMessage {
					return json.RawMessage(`{"action":"accept","content":{"ok":true}}`)
				})
			}
			if got := call("tool_search", `{"query":"erase everything on it"}`).Text(); !strings.HasPrefix(
				got,
				"pad_clear(word: string) [tool_call_destructive]",
			) {
				t.Errorf("the search found %s", got)
			}
			if got := call("tool_search", `{"query":"hidden page"}`).Text(); strings.Contains(got, "hidden") {
				t.Errorf("the search shows what is refused: %s", got)
			}
			if got := call("tool_describe", `{"name":"pad_other"}`).Text(); !strings.Contains(got, "cupboard") ||
				!strings.Contains(got, `"minLength"`) {
				t.Errorf("described as %s", got)
			}
			for _, c := range []struct{ by, name, args, want string }{
				{"tool_call_read", "pad_read", `{"word":"a"}`, "pad_read a"},
				{"tool_call_destructive", "pad_clear", `{"word":"b"}`, "pad_clear b"},
				{"tool_call_destructive", "pad_other", `{"word":"c"}`, "pad_other c"},
				{"tool_call_read", "pad_clear", `{"word":"b"}`, "Call it with tool_call_destructive."},
				{"tool_call_write", "pad_clear", `{"word":"b"}`, "Call it with tool_call_destructive."},
				{"tool_call_read", "pad_other", `{"word":"b"}`, "Call it with tool_call_destructive."},
				{"tool_call_read", "pad_read", `{"word":""}`, "word: expected a string of at least 1"},
				{"tool_call_read", "pad_hidden", `{"word":"x"}`, "there is no tool pad_hidden"},
				{"tool_call_read", "tool_search", `{"query":"x"}`, "called directly"},
				{"tool_call_read", "pad_raed", `{"word":"x"}`, "Did you mean pad_read?"},
			} {
				got := call(c.by, fmt.Sprintf(`{"name":%q,"arguments":%s}`, c.name, c.args)).Text()
				if !strings.Contains(got, c.want) {
					t.Errorf("%s %s %s: got %s, want %s", c.by, c.name, c.args, got, c.want)
				}
			}
			if h.Traits().CanAsk() {
				direct, inside := call(
					"pad_write",
					`{"word":"w"}`,
				), call(
					"tool_call_write",
					`{"name":"pad_write","arguments":{"word":"w"}}`,
				)
				if string(direct.Result) == "" || string(direct.Get("content")) != string(inside.Get("content")) ||
					inside.Rounds != direct.Rounds {
					t.Errorf("direct %s in %d rounds, through another tool %s in %d", direct.Result, direct.Rounds,
						inside.Result, inside.Rounds)
				}
			}
			lines.mu.Lock()
			defer lines.mu.Unlock()
			if !slices.Contains(lines.all, "pad_clear") {
				t.Errorf("the ledger has %q", lines.all)
			}
		})
	}
}

// A session moves to another context that its caller may enter, and hears that its list has changed. A client without a
// session is told where that context is, and one that may not enter learns nothing.
func TestASessionChangesItsContext(t *testing.T) {
	for _, n := range hosttest.Harnesses()[:3] {
		t.Run(n.Name, func(t *testing.T) {
			policy, err := permit.New(permit.Options{
				Default: permit.Allow,
				Access:  []permit.Access{{Context: "closed", Roles: []string{"boss"}}},
			})
			if err != nil {
				t.Fatal(err)
			}
			h := n.Make(t, hosttest.Options{
				Modules: map[string]module.New{"pad": newPad}, Policy: policy,
				Spec: &views.Spec{List: views.ListSearch, Pinned: []string{"pad_read"}},
				Others: []views.Spec{
					{Name: "second", List: views.ListSearch, Pinned: []string{"pad_other"}}, {Name: "closed"},
				},
			})
			names := func() []string { return hosttest.Names(hosttest.List(t, h, "tools/list"), "name", "pad_") }
			use := func(name string) string {
				return string(hosttest.Call(h, "context_use", fmt.Sprintf(`{"name":%q}`, name), nil).Result)
			}
			has(t, use(""), `"contexts":["default","second"]`)
			has(t, use("closed"), "not_found")
			has(t, use("none"), "not_found")
			if !h.Traits().Session {
				has(t, use("second"), "unsupported: this client has no session", "/mcp/second")
				return
			}
			moved := hosttest.Call(h, "context_use", `{"name":"second"}`, nil)
			has(t, string(moved.Result), `"context":"second"`)
			for end := time.Now().Add(10 * time.Second); len(moved.Notifications("notifications/tools/list_changed")) == 0; {
				if time.Now().After(end) {
					t.Fatalf("the client was told %+v", moved.Notes)
				}
				moved.Notes = append(moved.Notes, h.Do("ping", "{}", nil).Notes...)
			}
			if got := names(); !slices.Equal(got, []string{"pad_other"}) {
				t.Errorf("in the second context: %q", got)
			}
			has(t, use("default"), `"context":"default"`)
			if got := names(); !slices.Equal(got, []string{"pad_read"}) {
				t.Errorf("back in the first: %q", got)
			}
		})
	}
}
