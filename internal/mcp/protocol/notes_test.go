package protocol_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/tool"
)

// telling returns a tool that sends the notifications of a test.
func telling(f func(c *tool.Call)) tool.Tool {
	return tool.New(tool.Def{Name: "t_tell", Description: "Sends notifications.", Effects: tool.Reads,
		Task: tool.TaskNever},
		func(_ context.Context, c *tool.Call, _ nothing) (tool.Result, error) {
			f(c)
			return tool.Result{Content: []tool.Content{tool.Text("told")}}, nil
		})
}

// progress returns the values of the progress notifications.
func progress(t *testing.T, notes []string) (all []float64) {
	t.Helper()
	for _, n := range notes {
		var m struct {
			Method string
			Params struct{ Progress float64 }
		}
		if err := json.Unmarshal([]byte(n), &m); err != nil {
			t.Fatal(err)
		}
		if m.Method == "notifications/progress" {
			all = append(all, m.Params.Progress)
		}
	}
	return all
}

func TestProgressAdvancesAndIsGathered(t *testing.T) {
	for _, c := range []struct {
		name string
		tell func(p tool.Peer)
		want []float64
	}{
		{"slowly", func(p tool.Peer) {
			for i := range 3 {
				p.Progress(float64(i), 2, "")
				time.Sleep(50 * time.Millisecond)
			}
		}, []float64{0, 1, 2}},
		{"in a burst: the first and the last", func(p tool.Peer) {
			for i := range 100 {
				p.Progress(float64(i), 0, "")
			}
		}, []float64{0, 99}},
		{"in a burst, and then at work: the last is sent in time", func(p tool.Peer) {
			p.Progress(1, 0, "")
			p.Progress(2, 0, "")
			time.Sleep(time.Second)
			p.Progress(3, 0, "")
		}, []float64{1, 2, 3}},
		{"backwards", func(p tool.Peer) {
			for _, v := range []float64{5, 3, 5, 6, 4} {
				p.Progress(v, 0, "")
				time.Sleep(time.Second)
			}
		}, []float64{5, 6}},
		{"backwards in a burst", func(p tool.Peer) {
			for _, v := range []float64{1, 5, 3} {
				p.Progress(v, 0, "")
			}
		}, []float64{1, 5}},
		{"what is no number", func(p tool.Peer) {
			p.Progress(math.NaN(), 0, "")
			p.Progress(math.Inf(1), 0, "")
			p.Progress(1, math.Inf(1), "")
		}, []float64{1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
				h.offer(telling(func(call *tool.Call) { c.tell(call.Peer) }))
				p := h.legacy(t, "2025-11-25", "")
				got := p.ask("tools/call", `"_meta":{"progressToken":"p"},"name":"t_tell"`)
				equal(t, "legacy", fmt.Sprint(progress(t, got.notes)), fmt.Sprint(c.want))
				got = p.await(p.start("tools/call", join(envelope("", `"progressToken":"p"`), `"name":"t_tell"`)))
				equal(t, "modern", fmt.Sprint(progress(t, got.notes)), fmt.Sprint(c.want))
			})
		})
	}
}

func TestProgressTokens(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		h.offer(telling(func(c *tool.Call) { c.Peer.Progress(1, 2, "half") }))
		p := h.legacy(t, "2025-11-25", "")
		for _, token := range []string{`"p"`, `"\u0070\n"`, `7`, `-0`, `123456789012345678901234567890`} {
			got := p.ask("tools/call", `"_meta":{"progressToken":`+token+`},"name":"t_tell"`)
			equal(
				t,
				"notes",
				strings.Join(got.notes, ""),
				`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`+token+
					`,"progress":1,"total":2,"message":"half"}}`,
			)
		}
		for _, none := range []string{`{}`, `{"progressToken":null}`, `{"progressToken":1.5}`, `{"progressToken":{}}`} {
			equal(t, none, len(p.ask("tools/call", `"_meta":`+none+`,"name":"t_tell"`).notes), 0)
		}
	})
}

func TestLevelsOfLogs(t *testing.T) {
	levels := []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		h.offer(telling(func(c *tool.Call) {
			for _, l := range []slog.Level{-8, -4, 0, 1, 2, 4, 8, 12, 16, 20, 99} {
				c.Peer.Log(l, l)
			}
			c.Peer.Log(slog.LevelError+8, func() {}) // not JSON: the client receives the error
		}))
		p := h.legacy(t, "2025-11-25", "")
		for i, least := range levels {
			p.ask("logging/setLevel", `"level":"`+least+`"`)
			legacy := p.call("t_tell", "{}").notes
			modern := p.await(
				p.start(
					"tools/call",
					join(envelope("", `"io.modelcontextprotocol/logLevel":"`+least+`"`), `"name":"t_tell"`),
				),
			).notes
			equal(t, least, strings.Join(legacy, ""), strings.Join(modern, ""))
			for j, l := range levels {
				equal(t, least+" hears "+l, strings.Contains(strings.Join(legacy, ""), `"level":"`+l+`"`), j >= i)
			}
		}
		equal(t, "no level, no logs", len(p.modern("", "tools/call", `"name":"t_tell"`).notes), 0)
		q := h.legacy(t, "2025-11-25", "")
		notes := strings.Join(q.call("t_tell", "{}").notes, "")
		has(t, notes, `"level":"info"`)
		lacks(t, notes, `"level":"debug"`)
	})
}

// A goroutine that a handler leaves behind sends nothing into a finished call.
func TestNotesAfterTheEnd(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		var late sync.WaitGroup
		h.offer(telling(func(c *tool.Call) {
			peer := c.Peer
			late.Go(func() {
				time.Sleep(time.Second)
				peer.Progress(9, 0, "")
				peer.Log(slog.LevelError, "late")
				fmt.Fprint(peer.Output(), "late")
				if _, err := peer.Ask(tool.ListRoots("r")); err == nil || err == tool.ErrAsked {
					t.Errorf("a call that has ended asks: %v", err)
				}
			})
		}))
		p := h.legacy(t, "2025-11-25", `{"roots":{}}`)
		equal(t, "notes", len(p.ask("tools/call", `"_meta":{"progressToken":"p"},"name":"t_tell"`).notes), 0)
		time.Sleep(2 * time.Second)
		late.Wait()
		p.quiet()
	})
}

// If many goroutines of one handler report progress, it is sent in order.
func TestProgressFromManyGoroutines(t *testing.T) {
	h := newTestHost(t, hosttest.Options{})
	h.offer(telling(func(c *tool.Call) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for i := range 200 {
					c.Peer.Progress(float64(i), 200, "")
					c.Peer.Log(slog.LevelInfo, i)
				}
			})
		}
		wg.Wait()
	}))
	p := h.legacy(t, "2025-11-25", "")
	got := p.ask("tools/call", `"_meta":{"progressToken":"p"},"name":"t_tell"`)
	last := -1.0
	for _, v := range progress(t, got.notes) {
		if v <= last {
			t.Fatalf("%v after %v", v, last)
		}
		last = v
	}
	equal(t, "the last", last, 199)
}

// A sink that accepts no notification gets none; the answer is sent nevertheless.
func TestMuteSink(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		h.offer(telling(func(c *tool.Call) { c.Peer.Progress(1, 2, ""); c.Peer.Progress(2, 2, "") }))
		msgs, _, _ := protocol.Parse([]byte(body("tools/call", `"name":"t_tell"`)))
		k := &keeper{t: t, mute: true}
		h.Engine.Modern(t.Context(), anybody, &msgs[0], nil, k)
		has(t, k.answer, "told")
		msgs, _, _ = protocol.Parse([]byte(body("subscriptions/listen", `"notifications":{"toolsListChanged":true}`)))
		k = &keeper{t: t, mute: true}
		h.Engine.Modern(t.Context(), anybody, &msgs[0], nil, k)
		refused(t, k, 406, -32600)
	})
}
