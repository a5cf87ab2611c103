package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/tests/hosttest"
)

// drained returns how long the pipe waited for its last answers.
func (p *peer) drained(limit time.Duration) time.Duration {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	began := time.Now()
	p.pipe.Drain(ctx)
	return time.Since(began)
}

func TestDrain(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", canElicit)
		equal(t, "with nothing open", p.drained(time.Minute), 0)
	})
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", canElicit)
		for range 10 {
			p.start("tools/call", `"name":"t_wait"`)
		}
		time.AfterFunc(10*time.Second, func() {
			for range 10 {
				h.clock <- struct{}{}
			}
		})
		equal(t, "with calls that run", p.drained(time.Minute), 10*time.Second)
		equal(t, "answers", len(p.rest()), 10)
	})
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", canElicit)
		p.start("tools/call", `"name":"t_wait"`)
		equal(t, "no longer than it may", p.drained(5*time.Second), 5*time.Second)
	})
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", canElicit)
		for range 5 {
			p.startModern("", "subscriptions/listen", `"notifications":{"toolsListChanged":true}`)
			p.start("tools/call", `"name":"t_ask"`)
		}
		task := p.ask("tools/call", `"name":"t_confirm","task":{}`).get("task.taskId")
		p.start("tasks/result", `"taskId":"`+task+`"`)
		// It does not wait for a request either that starts to wait while the last message is handled.
		equal(t, "with what waits for the client", p.drained(time.Minute), 0)
		got := strings.Join(p.rest(), "\n")
		equal(t, "subscriptions", strings.Count(got, `"result":{"resultType":"complete"`), 5)
		equal(
			t,
			"questions",
			strings.Count(got, `"text":"unanswered: the client has closed its input, so it cannot answer"`),
			5,
		)
		equal(
			t,
			"a task's question",
			strings.Count(got, `"message":"the task waits for an answer; the client has closed its input`),
			1,
		)
	})
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", canElicit)
		task := p.ask("tools/call", `"name":"t_work","task":{}`).get("task.taskId")
		p.start("tasks/result", `"taskId":"`+task+`"`)
		time.AfterFunc(10*time.Second, func() { h.clock <- struct{}{} })
		equal(t, "with a task that works", p.drained(time.Minute), 10*time.Second)
	})
}

// Messages of a client with too many running requests are not read; requests that wait for the client
// do not count.
func TestRequestsInFlight(t *testing.T) {
	visit(t, hosttest.Options{InFlight: 4}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", canElicit)
		for range 10 {
			p.listen(`"toolsListChanged":true`)
			p.start("tools/call", `"name":"t_ask"`)
			p.question()
		}
		for range 4 {
			p.start("tools/call", `"name":"t_wait"`)
		}
		synctest.Wait()
		taken := false
		go func() {
			p.pipe.Receive([]byte(`{"jsonrpc":"2.0","id":"fifth","method":"ping"}`))
			taken = true
		}()
		synctest.Wait()
		equal(t, "a fifth is taken", taken, false)
		p.quiet()
		h.clock <- struct{}{}
		equal(t, "one answer, and the fifth", len(p.rest()), 2)
		equal(t, "taken", taken, true)
		p.pipe.Close(nil)
	})
}

func TestTooManyOpenRequests(t *testing.T) {
	visit(t, hosttest.Options{InFlight: 1}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		for range 16 {
			p.listen(`"toolsListChanged":true`)
		}
		has(t, p.modern("", "tools/list", "").raw, `"code":-32603`, "16 requests are open on this connection")
		p.cancel("1")
		has(t, p.modern("", "tools/list", "").raw, `"result"`)
	})
}

func TestOutputThatFails(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		pipe := h.Engine.Pipe(anybody, func([]byte) error { return errors.New("broken") })
		pipe.Receive(
			[]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + envelope("") + `,"name":"t_wait"}}`),
		)
		synctest.Wait()
		pipe.Receive([]byte(`{"jsonrpc":"2.0","id":2,"method":"ping"}`))
		<-pipe.Done()
		synctest.Wait()
		has(t, h.history(), "t_wait stopped: the client does not read the server's output: broken")
		pipe.Receive([]byte(`{"jsonrpc":"2.0","id":3,"method":"ping"}`))
		pipe.Drain(t.Context())
		equal(t, "slots in use", h.Calls.Running(), 0)
	})
}

// If many clients send many requests at once and cancel some, every request is answered at most once,
// and nothing is left behind.
func TestEverythingAtOnce(t *testing.T) {
	h := newTestHost(t, hosttest.Options{Promote: time.Millisecond, AskFor: time.Minute})
	const clients, requests = 8, 60
	var wg sync.WaitGroup
	for range clients {
		p := h.legacy(t, "2025-11-25", canElicit)
		wg.Go(func() {
			for i := range requests {
				switch i % 6 {
				case 0:
					p.start("tools/call", `"_meta":{"progressToken":1},"name":"t_echo","arguments":{"text":"x"}`)
				case 1:
					p.cancel(p.start("tools/call", `"name":"t_wait"`))
				case 2:
					p.start("tools/call", `"name":"t_ask"`)
				case 3:
					p.startModern(tasksCaps, "tools/call", `"name":"t_slow"`)
					h.clock <- struct{}{}
				case 4:
					p.cancel(
						p.startModern(
							tasksCaps,
							"subscriptions/listen",
							`"notifications":{"toolsListChanged":true,"resourceSubscriptions":["test://plain"]}`,
						),
					)
				case 5:
					if i%2 == 0 {
						h.offer(newcomer)
					} else {
						h.offer()
					}
					h.touch("test://plain")
				}
			}
		})
		wg.Go(func() {
			answered := map[string]int{}
			open := requests / 6 * 3 // echo, ask, slow
			for open > 0 {
				m := string(p.next())
				if q := ourID.FindStringSubmatch(m); q != nil && strings.Contains(m, `"method"`) {
					p.send(`{"jsonrpc":"2.0","id":"` + q[1] + `","result":` + named("Ada") + `}`)
					continue
				}
				if strings.Contains(m, `"method"`) {
					continue
				}
				id, _, _ := strings.Cut(strings.TrimPrefix(m, `{"jsonrpc":"2.0","id":`), ",")
				if answered[id]++; answered[id] > 1 {
					t.Errorf("answered twice: %s", m)
				}
				open--
			}
		})
	}
	wg.Wait()
	h.Stop()
	equal(t, "slots in use", h.Calls.Running(), 0)
	equal(t, "watches", h.watchers(), 0)
}

func TestTenThousandRequests(t *testing.T) {
	h := newTestHost(t, hosttest.Options{})
	p := h.legacy(t, "2025-11-25", "")
	const n = 10_000
	go func() {
		for i := range n {
			p.pipe.Receive(
				fmt.Appendf(
					nil,
					`{"jsonrpc":"2.0","id":"r%d","method":"tools/call","params":{"name":"t_echo","arguments":{"text":"%d"}}}`,
					i,
					i,
				),
			)
		}
	}()
	seen := map[string]bool{}
	for range n {
		m := string(<-p.in)
		has(t, m, `"structuredContent":{"said":"`)
		seen[m] = true
	}
	equal(t, "different answers", len(seen), n)
}
