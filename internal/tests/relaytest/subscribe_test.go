package relaytest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/packages"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// live is a module of an upstream: a resource that the tool touch updates.
type live struct {
	changed func(module.Audience)

	mu       sync.Mutex
	grown    int
	watchers map[*func(json.RawMessage)]struct{}
}

const watched = "test://watched"

func (l *live) open(_ context.Context, d module.Deps) (module.Module, error) {
	l.changed = d.Changed
	return l, nil
}

func (l *live) Close(context.Context) error { return nil }

func (l *live) Offer(context.Context, module.Audience) (*module.Offer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	more := []module.Resource{}
	for n := range l.grown {
		uri := fmt.Sprintf("test://grown/%d", n)
		more = append(more, module.Resource{URI: uri, Name: uri, Read: readsWatched})
	}
	return &module.Offer{
		Tools: []tool.Tool{tool.New(tool.Def{Name: "touch", Description: "Updates the resource."},
			func(context.Context, *tool.Call, struct{}) (tool.Result, error) {
				l.mu.Lock()
				defer l.mu.Unlock()
				for w := range l.watchers {
					(*w)(json.RawMessage(`{"x":1}`))
				}
				return tool.Result{Content: []tool.Content{{Type: "text", Text: "touched"}}}, nil
			}), l.grow(), hang()},
		Resources: append(more, module.Resource{
			URI: watched, Name: "watched", Read: readsWatched,
			Watch: func(_ tool.Caller, _ string, changed func(json.RawMessage)) (func(), error) {
				l.mu.Lock()
				defer l.mu.Unlock()
				if l.watchers == nil {
					l.watchers = map[*func(json.RawMessage)]struct{}{}
				}
				l.watchers[&changed] = struct{}{}
				return func() {
					l.mu.Lock()
					defer l.mu.Unlock()
					delete(l.watchers, &changed)
				}, nil
			},
		}),
	}, nil
}

func readsWatched(_ context.Context, c *tool.Call) (tool.Result, error) {
	return tool.Result{Content: []tool.Content{tool.TextResource(c.Name, "text/plain", "watched")}}, nil
}

// grow is a tool that adds a resource.
func (l *live) grow() tool.Tool {
	return tool.New(tool.Def{Name: "grow", Description: "Adds a resource."},
		func(context.Context, *tool.Call, struct{}) (tool.Result, error) {
			l.mu.Lock()
			l.grown++
			l.mu.Unlock()
			l.changed(module.Audience{})
			return tool.Result{Content: []tool.Content{{Type: "text", Text: "grown"}}}, nil
		})
}

// hang is a tool that runs until it is cancelled, which it writes to a file.
func hang() tool.Tool {
	return tool.New(tool.Def{Name: "hang", Description: "Runs until it is cancelled.", Timeout: time.Minute},
		func(ctx context.Context, c *tool.Call, in struct {
			File string `json:"file"`
		}) (tool.Result, error) {
			c.Peer.Progress(0.5, 1, "it hangs")
			<-ctx.Done()
			return tool.Result{}, os.WriteFile(in.File, []byte("cancelled"), 0o600)
		})
}

// watcher is a client of one era that watches resources.
type watcher struct {
	*hosttest.Client
	t      *testing.T
	modern bool
}

const (
	modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},` +
		`"io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"}}`
	here = "package://up/" + watched
)

// watch subscribes a new client to a resource of the package. It returns the error, if any.
func watch(t *testing.T, h *hosttest.Host, modern bool, uri string) (w *watcher, refused string) {
	t.Helper()
	w = &watcher{h.Dial(t), t, modern}
	quoted := string(rawjson.AppendString(nil, uri))
	if modern {
		w.Send(`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{` + modernMeta +
			`,"notifications":{"resourceSubscriptions":[` + quoted + `]}}}`)
		if ack := string(w.Next()); !strings.Contains(ack, quoted) {
			return w, ack
		}
		return w, ""
	}
	greet(w.Client)
	w.Send(`{"jsonrpc":"2.0","id":2,"method":"resources/subscribe","params":{"uri":` + quoted + `}}`)
	if r := w.Next(); hosttest.Get(r, "result") == nil {
		return w, string(r)
	}
	return w, ""
}

// greet opens a legacy session.
func greet(c *hosttest.Client) {
	c.Send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",` +
		`"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
	c.Next()
	c.Send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// hear waits for an update and returns its params.
func (w *watcher) hear() json.RawMessage {
	w.t.Helper()
	for {
		m := w.Next()
		if rawjson.Equal(hosttest.Get(m, "method"), "notifications/resources/updated") {
			if uri := hosttest.Get(m, "params", "uri"); !rawjson.Equal(uri, here) {
				w.t.Errorf("it was told of %s", uri)
			}
			return hosttest.Get(m, "params")
		}
	}
}

// leave ends the subscription.
func (w *watcher) leave() {
	if w.modern {
		w.Send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		return
	}
	w.Send(`{"jsonrpc":"2.0","id":3,"method":"resources/unsubscribe","params":{"uri":"` + here + `"}}`)
}

// liveUpstreams are servers with a watched resource in both eras and over several
// transports, by name.
func liveUpstreams(t *testing.T) map[string]packages.Record {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	at := func(url string) packages.Record {
		return packages.Record{Source: packages.Source{Kind: packages.URL, From: url}}
	}
	return map[string]packages.Record{
		"child": {
			Source: packages.Source{Kind: packages.Command}, Command: self,
			Env: childEnv(t, "1"),
		},
		"http":        at(serveFixture(t, false, gatehouse.WithModule("live", (&live{}).open)).URL + "/mcp"),
		"legacy http": at(serveFixture(t, true, gatehouse.WithModule("live", (&live{}).open)).URL + "/mcp"),
		"sse":         at(serveSSE(t) + "/sse"),
	}
}

// Updates of a server's resource reach all who watch it, in both eras on both sides. After a
// restart of the server they are told to read again, and the next update reaches them.
func TestUpdatesReachThoseWhoWatch(t *testing.T) {
	for name, r := range liveUpstreams(t) {
		t.Run(name, func(t *testing.T) {
			m, make := install(t, r, nil)
			h := hosttest.New(t, hosttest.Options{Modules: map[string]module.New{"package": make}})
			var all []*watcher
			for _, modern := range []bool{false, true, false, true} {
				w, refused := watch(t, h, modern, here)
				if refused != "" {
					t.Fatalf("modern %v: refused: %s", modern, refused)
				}
				all = append(all, w)
			}
			touch := func() {
				t.Helper()
				if raw, err := m.Call(t.Context(), "up", "touch", json.RawMessage(`{}`), nil, nil); err != nil {
					t.Fatalf("touch: %s, %v", raw, err)
				}
				for _, w := range all {
					w.hear()
				}
			}
			touch()
			if _, err := m.Restart(t.Context(), "up"); err != nil {
				t.Fatal(err)
			}
			for _, w := range all {
				w.hear() // it is to read again
			}
			touch()
		})
	}
}

// Clients share one subscription at the server, which ends with the last of them.
func TestClientsShareOneSubscription(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		t.Run(map[bool]string{false: "modern", true: "legacy"}[legacy], func(t *testing.T) {
			l := &live{}
			u := serveFixture(t, legacy, gatehouse.WithModule("live", l.open))
			var mu sync.Mutex
			var asked []string
			count := func(w http.ResponseWriter, r *http.Request, body []byte) bool {
				mu.Lock()
				defer mu.Unlock()
				method, _ := rawjson.Get(body, "method")
				if name, _ := rawjson.String(method); strings.Contains(name, "subscribe") ||
					name == "subscriptions/listen" && bytes.Contains(body, []byte(watched)) {
					asked = append(asked, name)
				}
				return false
			}
			u.refuse.Store(&count)
			_, make := install(t, packages.Record{Source: packages.Source{Kind: packages.URL, From: u.URL + "/mcp"}},
				nil)
			h := hosttest.New(t, hosttest.Options{Modules: map[string]module.New{"package": make}})
			var all []*watcher
			for i := range 6 {
				w, refused := watch(t, h, i%2 == 0, here)
				if refused != "" {
					t.Fatal(refused)
				}
				all = append(all, w)
			}
			watching := func() int {
				l.mu.Lock()
				defer l.mu.Unlock()
				return len(l.watchers)
			}
			for _, w := range all[1:] {
				w.leave()
			}
			if n := watching(); n != 1 {
				t.Errorf("the server is watched %d times", n)
			}
			all[0].leave()
			// A server of the modern era notices the end of a stream when it next writes to it,
			// for which the test does not wait.
			for end := time.Now().Add(time.Minute); legacy && watching() > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the server is still watched")
				}
			}
			want := []string{"subscriptions/listen"}
			if legacy {
				want = []string{"resources/subscribe", "resources/unsubscribe"}
			}
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(asked, want) {
				t.Errorf("it was asked for %v", asked)
			}
		})
	}
}

// A client is told that a server does not notify of updates, and what a server refuses.
func TestASubscriptionIsRefusedAsTheServerDoes(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		uri  string
		says string
	}{
		"no subscriptions": {[]string{"mute"}, here, `"code":-32601`},
		"unknown resource": {nil, "package://up/test://none", "no such resource"},
	} {
		t.Run(name, func(t *testing.T) {
			_, make := install(t, packages.Record{
				Source: packages.Source{Kind: packages.URL, From: serveSSE(t, c.args...) + "/sse"},
			}, nil)
			h := hosttest.New(t, hosttest.Options{Modules: map[string]module.New{"package": make}})
			if _, refused := watch(t, h, false, c.uri); !strings.Contains(refused, c.says) {
				t.Errorf("a legacy client is told %s", refused)
			}
			if _, refused := watch(t, h, true, c.uri); !strings.Contains(refused, `"notifications":{}`) {
				t.Errorf("a modern client is told %s", refused)
			}
		})
	}
}

// A server whose session is lost gets the subscription again in the next.
func TestASubscriptionOutlivesASession(t *testing.T) {
	u := serveFixture(t, true, gatehouse.WithModule("live", (&live{}).open))
	m, make := install(t, packages.Record{Source: packages.Source{Kind: packages.URL, From: u.URL + "/mcp"}}, nil)
	h := hosttest.New(t, hosttest.Options{Modules: map[string]module.New{"package": make}})
	w, refused := watch(t, h, true, here)
	if refused != "" {
		t.Fatal(refused)
	}
	var lost atomic.Bool
	forget := func(w http.ResponseWriter, r *http.Request, body []byte) bool {
		if !bytes.Contains(body, []byte("tools/call")) || lost.Swap(true) {
			return false
		}
		http.Error(w, "session not found", http.StatusNotFound)
		return true
	}
	u.refuse.Store(&forget)
	if _, err := m.Call(t.Context(), "up", "touch", json.RawMessage(`{}`), nil, nil); err != nil {
		t.Fatal(err)
	}
	w.hear() // it is to read again, or the update
}
