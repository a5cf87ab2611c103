package protocol_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/session"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/tool"
)

func (p *peer) cancel(id string) {
	p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `,"reason":"enough"}}`)
}

func TestCancelledRequestIsSilent(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", "")
		for era, start := range map[string]func() string{
			"legacy": func() string { return p.start("tools/call", `"_meta":{"progressToken":1},"name":"t_wait"`) },
			"modern": func() string { return p.startModern("", "tools/call", `"name":"t_wait"`) },
		} {
			id := start()
			p.quiet()
			equal(t, era+" slots in use", h.Calls.Running(), 1)
			p.cancel(id)
			p.quiet()
			equal(t, era+" slots in use", h.Calls.Running(), 0)
			equal(t, era, h.history(), "t_wait stopped: the client cancelled the request")
			h.runs = nil
			h.clock <- struct{}{} // its ID is free again
			p.n--
			has(t, p.await(start()).raw, "done")
		}
	})
}

// A cancellation may arrive before the request was handled: then nothing is sent, and nothing is left
// behind.
func TestCancelStraightAfterTheRequest(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", canElicit)
		for range 100 {
			for _, params := range []string{`"name":"t_wait"`, `"name":"t_ask"`,
				join(envelope(canElicit), `"name":"t_wait"`)} {
				p.cancel(p.start("tools/call", params))
			}
			p.cancel(p.startModern("", "subscriptions/listen", `"notifications":{"toolsListChanged":true}`))
			p.cancel(p.startModern(tasksCaps, "tools/call", `"name":"t_slow"`))
		}
		got := strings.Join(p.rest(), "\n")
		lacks(t, got, `"result"`, `"error"`)
		equal(t, "slots in use", h.Calls.Running(), 0)
		h.offer(newcomer)
		time.Sleep(time.Second)
		lacks(t, strings.Join(p.rest(), "\n"), "subscriptionId") // the legacy session is notified
	})
}

func TestCancelOfSomethingElse(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p, q := h.legacy(t, "2025-11-25", ""), h.legacy(t, "2025-11-25", "")
		id := p.start("tools/call", `"name":"t_wait"`)
		q.cancel(id) // from another connection
		p.cancel(`"` + id + `"`)
		p.cancel(`999`)
		p.quiet()
		h.clock <- struct{}{}
		has(t, p.await(id).raw, "done")
		p.cancel(id) // too late
		p.quiet()
	})
}

// A cancellation identifies a string ID by its value, not by its encoding.
func TestCancelOfAnIDSpeltOtherwise(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", "")
		p.send(`{"jsonrpc":"2.0","id":"caf\u00e9","method":"tools/call","params":{"name":"t_wait"}}`)
		p.cancel(`"café"`)
		p.quiet()
		equal(t, "slots in use", h.Calls.Running(), 0)
	})
}

// If a transport ties a modern request to its connection, the end of the connection cancels the
// request.
func TestConnectionOfAModernRequestEnds(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		msgs, _, _ := protocol.Parse([]byte(body("tools/call", `"name":"t_wait"`)))
		ctx, disconnect := context.WithCancelCause(t.Context())
		k := &keeper{t: t}
		go h.Engine.Modern(ctx, anybody, &msgs[0], nil, k)
		synctest.Wait()
		disconnect(errors.New("the client disconnected"))
		synctest.Wait()
		equal(t, "dropped", k.over() && k.dropped, true)
		equal(t, "why", h.history(), "t_wait stopped: the client disconnected")
	})
}

// A request that is answered while its client disconnects ends once.
func TestConnectionEndsAtTheLastMoment(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		h.offer(telling(func(*tool.Call) { time.Sleep(time.Second) }))
		for range 200 {
			ctx, disconnect := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, disconnect)
			k := &keeper{t: t}
			h.Engine.Modern(ctx, anybody, parsed(t, body("tools/call", `"name":"t_tell"`)), nil, k)
			synctest.Wait()
			equal(t, "over", k.over(), true)
		}
		equal(t, "slots in use", h.Calls.Running(), 0)
	})
}

// A request of a session ends at the latest with its session.
func TestSessionEndsWhileCallsRun(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		hello, _, _ := protocol.Parse(
			[]byte(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"capabilities":{"elicitation":{}}}}`),
		)
		s, _, f := h.Engine.Open(anybody, &hello[0])
		if f != nil {
			t.Fatal(f)
		}
		var sinks []*keeper
		for i, call := range []string{"t_wait", "t_ask", "t_work"} {
			msgs, _, _ := protocol.Parse(
				[]byte(
					`{"jsonrpc":"2.0","id":` + string(
						rune('1'+i),
					) + `,"method":"tools/call","params":{"name":"` + call + `"}}`,
				),
			)
			k := &keeper{t: t}
			sinks = append(sinks, k)
			go h.Engine.Legacy(s, &msgs[0], k)
		}
		synctest.Wait()
		h.Table.End(s, session.ErrClosed)
		synctest.Wait()
		for i, k := range sinks {
			equal(t, "dropped", k.over() && k.dropped, true)
			if i == 0 {
				has(t, h.history(), "t_wait stopped: the client ended the session")
			}
		}
		equal(t, "slots in use", h.Calls.Running(), 0)
		msgs, _, _ := protocol.Parse(
			[]byte(`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"t_wait"}}`),
		)
		k := &keeper{t: t}
		h.Engine.Legacy(s, &msgs[0], k)
		has(t, k.answer, "the session has ended")
	})
}

func TestDeadline(t *testing.T) {
	visit(t, hosttest.Options{Timeout: 10 * time.Second}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", "")
		began := time.Now()
		got := p.call("t_wait", "{}")
		equal(t, "after", time.Since(began), 10*time.Second)
		equal(
			t,
			"text",
			got.text(),
			"timeout: no result within 10s\nPart of the work may have been done. Ask for less at once.",
		)
		has(t, got.raw, `"isError":true`)
		equal(t, "slots in use", h.Calls.Running(), 0)
		has(t, h.history(), "t_wait stopped: ")
	})
}

// A handler that ignores its deadline keeps its slot and is counted; its client is answered
// nevertheless, once.
func TestHandlerThatIgnoresItsDeadline(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", "")
		for _, ask := range []func() answer{
			func() answer { return p.call("t_stubborn", "{}") },
			func() answer { return p.modern("", "tools/call", `"name":"t_stubborn"`) },
			func() answer { return p.modern(tasksCaps, "tools/call", `"name":"t_stubborn"`) },
		} {
			began := time.Now()
			has(t, ask().text(), "timeout: no result within 1s")
			if took := time.Since(began); took < time.Second || took > 2*time.Second {
				t.Errorf("answered after %v", took)
			}
			equal(t, "slots in use", h.Calls.Running(), 1)
			equal(t, "overdue", h.Calls.Overdue(), 1)
			h.clock <- struct{}{}
			p.quiet()
			equal(t, "slots in use", h.Calls.Running(), 0)
			equal(t, "overdue", h.Calls.Overdue(), 0)
		}
	})
}

// One principal gets two of four slots.
func TestBusySlots(t *testing.T) {
	visit(t, hosttest.Options{Slots: 4, Timeout: 10 * time.Second}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", "")
		for range 3 {
			p.start("tools/call", `"name":"t_wait"`)
		}
		p.quiet()
		equal(t, "slots in use", h.Calls.Running(), 2)
		h.clock <- struct{}{}
		equal(t, "one is done, the third moves up", len(p.rest()), 1)
		equal(t, "slots in use", h.Calls.Running(), 2)
		for range 2 {
			h.clock <- struct{}{}
		}
		equal(t, "the others", len(p.rest()), 2)

		for range 2 {
			p.start("tools/call", `"name":"t_stubborn"`)
		}
		p.quiet()
		late := p.start("tools/call", `"name":"t_wait"`)
		has(t, p.await(late).text(), "busy: this host has too many calls running")
		for range 2 {
			h.clock <- struct{}{}
		}
	})
}
