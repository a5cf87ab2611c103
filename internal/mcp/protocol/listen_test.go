package protocol_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// listen opens a subscription and reads its acknowledgement.
func (p *peer) listen(notifications string) (id string) {
	p.t.Helper()
	id = p.startModern(tasksCaps, "subscriptions/listen", `"notifications":{`+notifications+`}`)
	has(
		p.t,
		string(p.next()),
		`"method":"notifications/subscriptions/acknowledged"`,
		`"io.modelcontextprotocol/subscriptionId":`+id,
	)
	return id
}

// changed returns the number of list_changed notifications of a list for a subscription.
func changed(notes []string, list, id string) (n int) {
	for _, m := range notes {
		if strings.Contains(m, `"notifications/`+list+`/list_changed"`) &&
			strings.Contains(m, `"io.modelcontextprotocol/subscriptionId":`+id+`}`) {
			n++
		}
	}
	return n
}

func TestTwoSubscriptionsOnOneConnection(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		one, two := p.listen(`"toolsListChanged":true`), p.listen(`"toolsListChanged":true`)
		h.offer(newcomer)
		time.Sleep(time.Second)
		got := p.rest()
		equal(t, "the first", changed(got, "tools", one), 1)
		equal(t, "the second", changed(got, "tools", two), 1)
		equal(t, "both", len(got), 2)

		p.cancel(one)
		h.offer()
		time.Sleep(time.Second)
		got = p.rest()
		equal(t, "the second", changed(got, "tools", two), 1)
		equal(t, "it alone", len(got), 1)

		p.cancel(two)
		h.offer(newcomer)
		time.Sleep(time.Second)
		p.quiet()
	})
}

// No message follows a cancellation, not even one that was queued.
func TestCancelledSubscriptionIsSilentAtOnce(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		for range 50 {
			id := p.listen(`"toolsListChanged":true,"resourceSubscriptions":["test://plain"]`)
			h.offer(newcomer)
			for range 3 {
				h.touch("test://plain")
			}
			p.cancel(id)
			for len(p.in) > 0 {
				<-p.in // was sent before
			}
			h.touch("test://plain")
			p.quiet()
		}
		equal(t, "watches", h.watchers(), 0)
	})
}

func TestOnlyWhatWasAskedFor(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		p.listen(`"promptsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["test://plain"]`)
		h.offer(newcomer)
		time.Sleep(time.Second)
		h.touch("test://ask")
		p.quiet()
		h.touch("test://plain")
		equal(t, "one", len(p.rest()), 1)
	})
}

func TestAcknowledgedSubset(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		for _, c := range []struct{ caps, want, got string }{
			{`{}`, `{}`, `{}`},
			{`{}`, `{"toolsListChanged":true}`, `{"toolsListChanged":true}`},
			{`{}`, `{"toolsListChanged":false,"promptsListChanged":true}`, `{"promptsListChanged":true}`},
			{`{}`, `{"ToolsListChanged":true,"other":[1]}`, `{}`},
			{`{}`, `{"resourceSubscriptions":["test://plain","test://nowhere","test://broken","test://plain"]}`,
				`{"resourceSubscriptions":["test://plain"]}`},
			{`{}`, `{"resourceSubscriptions":["test://blob"]}`, `{"resourceSubscriptions":["test://blob"]}`},
			{`{}`, `{"taskIds":["none"]}`, `{}`},
		} {
			p.startModern(c.caps, "subscriptions/listen", `"notifications":`+c.want)
			has(t, string(p.next()), `"params":{"notifications":`+c.got+`,"_meta":`)
		}
		for _, bad := range []string{`[]`, `null`, `5`, `{"toolsListChanged":1}`,
			`{"resourceSubscriptions":"test://plain"}`, `{"resourceSubscriptions":[5]}`,
			`{"resourceSubscriptions":["` + strings.Repeat(`x","`, 1000) + `"]}`} {
			equal(
				t,
				bad[:min(len(bad), 60)],
				p.modern("", "subscriptions/listen", `"notifications":`+bad).code(),
				-32602,
			)
		}
	})
}

// Notifications about a task are sent only to its owner, and only if the client can follow tasks.
func TestTasksOnASubscription(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p, other := h.dial(t), h.dialAs(t, "other")
		task := p.modern(tasksCaps, "tools/call", `"name":"t_work"`).get("taskId")
		for _, q := range []struct {
			p    *peer
			caps string
		}{{other, tasksCaps}, {p, `{}`}} {
			q.p.startModern(q.caps, "subscriptions/listen", `"notifications":{"taskIds":["`+task+`"]}`)
			has(t, string(q.p.next()), `"notifications":{}`)
		}
		id := p.listen(`"taskIds":["` + task + `"]`)
		h.clock <- struct{}{}
		got := p.rest()
		has(
			t,
			strings.Join(got, ""),
			`"method":"notifications/tasks"`,
			`"status":"completed"`,
			`"result":{"content":`,
			`"io.modelcontextprotocol/subscriptionId":`+id,
		)
		other.quiet()
	})
}

// An offer that is replaced by an equal one causes no notification.
func TestListChangedIsExact(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p, q := h.legacy(t, "2025-11-25", ""), h.dial(t)
		q.listen(`"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true`)
		for range 3 {
			h.offer()
			time.Sleep(time.Second)
		}
		p.quiet()
		q.quiet()
		h.offer(newcomer)
		h.offer() // within the delay in which changes are collected
		time.Sleep(time.Second)
		p.quiet()
		q.quiet()
		h.offer(newcomer)
		time.Sleep(time.Second)
		equal(t, "legacy", strings.Join(p.rest(), ""), `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		equal(t, "modern", changed(q.rest(), "tools", "1"), 1)
	})
}

// No change is missed while a subscription is being opened.
func TestChangesWhileASubscriptionOpens(t *testing.T) {
	var h *testHost
	slow := module.Resource{
		URI:  "slow://x",
		Name: "x",
		Watch: func(tool.Caller, string, func(json.RawMessage)) (func(), error) {
			h.offer(newcomer)
			time.Sleep(time.Second)
			return nil, nil
		},
	}
	o := hosttest.Options{
		Modules: map[string]module.New{"slow": func(context.Context, module.Deps) (module.Module, error) {
			return one{&module.Offer{Resources: []module.Resource{slow}}}, nil
		}},
	}
	visit(t, o, func(t *testing.T, made *testHost) {
		h = made
		p := h.dial(t)
		id := p.listen(`"toolsListChanged":true,"resourceSubscriptions":["slow://x"]`)
		time.Sleep(time.Second)
		equal(t, "notifications", changed(p.rest(), "tools", id), 1)
	})
}

// A session is not notified of changes before its handshake.
func TestChangesAroundTheHandshake(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		for i := range 20 {
			p := h.dial(t)
			if i%2 == 0 {
				h.offer(newcomer)
			} else {
				h.offer()
			}
			time.Sleep(time.Duration(i) * 2 * time.Millisecond)
			p.hello("2025-11-25", "")
			p.ask("tools/list", "")
			time.Sleep(time.Second)
			p.quiet()
		}
	})
}

func TestOneWatchForAllSubscribers(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		var all []*peer
		for i := range 10 {
			p := h.legacy(t, "2025-11-25", "")
			if i%2 == 0 {
				p = h.dial(t)
				p.listen(`"resourceSubscriptions":["test://plain"]`)
			} else {
				p.ask("resources/subscribe", `"uri":"test://plain"`)
				p.ask("resources/subscribe", `"uri":"test://plain"`) // replaces the first
			}
			all = append(all, p)
		}
		equal(t, "opened", h.opened, 1)
		h.touch("test://plain")
		for i, p := range all {
			equal(t, fmt.Sprint("notifications ", i), len(p.rest()), 1)
			p.pipe.Close(nil)
			synctest.Wait()
			equal(t, "watches", h.watchers(), min(len(all)-i-1, 1))
		}
		p := h.dial(t)
		p.listen(`"resourceSubscriptions":["test://plain"]`)
		equal(t, "opened anew", h.opened, 2)
	})
}

// A module that is replaced notifies the subscribers of its predecessor.
func TestWatchOfAModuleThatIsReplaced(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p, q := h.dial(t), h.legacy(t, "2025-11-25", "")
		p.listen(`"resourceSubscriptions":["test://plain"]`)
		q.ask("resources/subscribe", `"uri":"test://plain"`)
		next := &testHost{clock: h.clock, changed: map[string]map[int]func(json.RawMessage){}}
		if err := h.Modules.Add(t.Context(), "t", next.make); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		equal(t, "earlier watches", h.watchers(), 0)
		equal(t, "watches", next.watchers(), 1)
		next.touch("test://plain")
		equal(t, "modern", len(p.rest()), 1)
		equal(t, "legacy", len(q.rest()), 1)
		p.pipe.Close(nil)
		q.pipe.Close(nil)
		synctest.Wait()
		equal(t, "watches", next.watchers(), 0)

		r := h.dial(t)
		r.listen(`"resourceSubscriptions":["test://plain"]`)
		if err := h.Modules.Add(t.Context(), "t",
			func(context.Context,
				module.Deps) (module.Module, error) {
				return one{&module.Offer{}}, nil
			}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		equal(t, "watches of what is there no longer", next.watchers(), 0)
	})
}

// A module may report a change while it opens the watch, and need not close it.
func TestWatchThatTellsAtOnce(t *testing.T) {
	eager := module.Resource{
		URI:  "eager://x",
		Name: "x",
		Watch: func(_ tool.Caller, _ string, changed func(json.RawMessage)) (func(), error) {
			changed(nil)
			return nil, nil
		},
	}
	o := hosttest.Options{
		Modules: map[string]module.New{"eager": func(context.Context, module.Deps) (module.Module, error) {
			return one{&module.Offer{Resources: []module.Resource{eager}}}, nil
		}},
	}
	visit(t, o, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		p.cancel(p.listen(`"resourceSubscriptions":["eager://x"]`))
		q := h.legacy(t, "2025-11-25", "")
		equal(t, "subscribed", q.ask("resources/subscribe", `"uri":"eager://x"`).code(), 0)
	})
}

// If a module refuses to watch a resource, the client made an error; any other failure is internal.
func TestRefusedWatchIsTheClientsMistake(t *testing.T) {
	var shy []module.Resource
	for name, err := range map[string]error{"removed": tool.Refuse("not_found", "it was removed"),
		"odd": tool.Refuse("not_watched", "it is odd"), "broken": errors.New("no luck")} {
		shy = append(
			shy,
			module.Resource{
				URI:   "shy://" + name,
				Name:  name,
				Watch: func(tool.Caller, string, func(json.RawMessage)) (func(), error) { return nil, err },
			},
		)
	}
	o := hosttest.Options{
		Modules: map[string]module.New{"shy": func(context.Context, module.Deps) (module.Module, error) {
			return one{&module.Offer{Resources: shy}}, nil
		}},
	}
	visit(t, o, func(t *testing.T, h *testHost) {
		q := h.legacy(t, "2025-11-25", "")
		equal(t, "removed", q.ask("resources/subscribe", `"uri":"shy://removed"`).code(), -32002)
		equal(t, "odd", q.ask("resources/subscribe", `"uri":"shy://odd"`).code(), -32602)
		equal(t, "broken", q.ask("resources/subscribe", `"uri":"shy://broken"`).code(), -32603)
	})
}

func TestLegacySubscriptionsHaveALimit(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", "")
		for i := range 1000 {
			p.ask("resources/subscribe", fmt.Sprintf(`"uri":"test://item/%d"`, i))
		}
		equal(t, "one more", p.ask("resources/subscribe", `"uri":"test://item/1000"`).code(), -32602)
		equal(t, "one of them again", p.ask("resources/subscribe", `"uri":"test://item/7"`).code(), 0)
		p.ask("resources/unsubscribe", `"uri":"test://item/7"`)
		equal(t, "one less", p.ask("resources/subscribe", `"uri":"test://item/1000"`).code(), 0)
		p.pipe.Close(nil)
		synctest.Wait()
		equal(t, "watches", h.watchers(), 0)
	})
}

// Everything that clients leave open ends with their connections: goroutines, watches, slots.
func TestConnectionsLeaveNothingBehind(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		synctest.Wait()
		before := runtime.NumGoroutine()
		for range 50 {
			p := h.legacy(t, "2025-11-25", canElicit)
			p.listen(`"toolsListChanged":true,"resourceSubscriptions":["test://plain","test://item/1"]`)
			p.ask("resources/subscribe", `"uri":"test://item/1"`)
			p.start("tools/call", `"name":"t_wait"`)
			p.start("tools/call", `"name":"t_ask"`)
			p.startModern(tasksCaps, "tools/call", `"name":"t_slow"`)
			p.rest()
			p.pipe.Close(nil)
		}
		synctest.Wait()
		if after := runtime.NumGoroutine(); after > before+5 { // the runtime's own goroutines may run
			stacks := make([]byte, 1<<20)
			t.Errorf("%d goroutines more:\n%s", after-before, stacks[:runtime.Stack(stacks, true)])
		}
		equal(t, "watches", h.watchers(), 0)
		equal(t, "slots in use", h.Calls.Running(), 0)
	})
}

// A client that does not read delays no other client.
func TestClientThatDoesNotRead(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		stuck := make(chan struct{})
		told := false
		pipe := h.Engine.Pipe(anybody, func(m []byte) error {
			if told {
				<-stuck
			}
			told = true // the acknowledgement is sent
			return nil
		})
		pipe.Receive(
			[]byte(
				`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{` + envelope(
					"",
				) + `,"notifications":{"toolsListChanged":true}}}`,
			),
		)
		legacyStuck := h.Engine.Pipe(anybody, func(m []byte) error {
			if strings.Contains(string(m), "list_changed") {
				<-stuck
			}
			return nil
		})
		legacyStuck.Receive([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`))
		p, q := h.dial(t), h.legacy(t, "2025-11-25", "")
		p.listen(`"toolsListChanged":true`)
		for i := range 5 {
			if i%2 == 0 {
				h.offer(newcomer)
			} else {
				h.offer()
			}
			time.Sleep(time.Second)
			equal(t, "modern", len(p.rest()), 1)
			equal(t, "legacy", len(q.rest()), 1)
		}
		close(stuck)
		pipe.Close(nil)
		legacyStuck.Close(nil)
	})
}

// A client that missed notifications is asked to read again.
func TestClientThatFellBehind(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		stuck := make(chan struct{})
		var got []string
		pipe := h.Engine.Pipe(anybody, func(m []byte) error {
			if strings.Contains(string(m), "resources/updated") {
				<-stuck
			}
			got = append(got, string(m))
			return nil
		})
		pipe.Receive([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`))
		pipe.Receive([]byte(`{"jsonrpc":"2.0","id":2,"method":"resources/subscribe","params":{"uri":"test://plain"}}`))
		synctest.Wait()
		for range 1000 {
			h.touch("test://plain")
		}
		synctest.Wait()
		close(stuck)
		synctest.Wait()
		all := strings.Join(got, "\n")
		has(t, all, "tools/list_changed", "prompts/list_changed", "resources/list_changed", `"uri":"test://plain"}`)
		if len(got) > 600 {
			t.Errorf("%d messages", len(got))
		}
		pipe.Close(nil)
	})
}

func TestThousandsOfSessions(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		hello, _, _ := protocol.Parse([]byte(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`))
		for range 5000 {
			if _, _, f := h.Engine.Open(anybody, &hello[0]); f != nil {
				t.Fatal(f)
			}
		}
		p := h.legacy(t, "2025-11-25", "")
		h.offer(newcomer)
		time.Sleep(time.Second)
		equal(t, "notifications", len(p.rest()), 1)
		equal(t, "goroutines of sessions without a reader", runtime.NumGoroutine() < 200, true)
	})
}

func TestHostStops(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", "")
		id := p.listen(`"toolsListChanged":true,"resourceSubscriptions":["test://plain"]`)
		call := p.start("tools/call", `"name":"t_wait"`)
		p.quiet()
		h.Stop()
		got := strings.Join(p.rest(), "\n")
		has(
			t,
			got,
			`"id":`+id+`,"result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":`+id+`}}`,
		)
		has(t, got, `"id":`+call+`,"result":{"content":[{"type":"text","text":"`)
		equal(t, "watches", h.watchers(), 0)
		equal(t, "slots in use", h.Calls.Running(), 0)
		has(t, p.modern("", "subscriptions/listen", `"notifications":{}`).raw, "the host is stopping")
	})
}
