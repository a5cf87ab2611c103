package protocol_test

import (
	"fmt"
	"strings"
	"testing"

	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/tests/hosttest"
)

func TestIDsAreEchoedTokenForToken(t *testing.T) {
	ids := []string{
		`1`, `0`, `-1`, `-0`, `9007199254740993123`, `-99999999999999999999999999999`,
		`"a"`, `""`, `"1"`, `"\u0061\n\"é"`, `"` + strings.Repeat("x", 10_000) + `"`,
	}
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		for _, id := range ids {
			p.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"ping"}`)
			equal(t, "answer", string(p.next()), `{"jsonrpc":"2.0","id":`+id+`,"result":{}}`)
			p.send(`{"jsonrpc":"2.0","id": ` + id + ` ,"method":"no/such"}`)
			has(t, string(p.next()), `{"jsonrpc":"2.0","id":`+id+`,"error":`)
		}
	})
}

func TestRefusedFrames(t *testing.T) {
	deep := func(n int) string {
		return `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":` + strings.Repeat(
			"[",
			n,
		) + strings.Repeat(
			"]",
			n,
		) + `}}`
	}
	const parse, invalid, params = -32700, -32600, -32602
	for _, c := range []struct {
		name, frame string
		code        int
		id          string // returned by the server; "" if there must be none
	}{
		{"nothing", ``, parse, ""},
		{"cut short", `{"jsonrpc":"2.0","id":1`, parse, ""},
		{"two values", `{"jsonrpc":"2.0","id":1,"method":"ping"} {}`, parse, "1"},
		{"invalid UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"p\xff\"}", parse, "1"},
		{"a lone surrogate, which is replaced", `{"jsonrpc":"2.0","id":1,"method":"\ud800"}`, -32601, "1"},
		{"NUL", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\x00", parse, "1"},
		{"NUL in a string", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"pi\x00ng\"}", parse, "1"},
		{"too deep", deep(127), parse, "1"},
		{"duplicate member", `{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`, parse, ""},
		{"duplicate member, escaped", `{"jsonrpc":"2.0","id":1,"method":"ping","\u006dethod":"x"}`, parse, "1"},
		{"duplicate member, deep",
			`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":[{"b":1,"b":1}]}}`, parse, "1"},
		{"a number with a leading zero", `{"jsonrpc":"2.0","id":01,"method":"ping"}`, parse, ""},
		{"NaN", `{"jsonrpc":"2.0","id":NaN,"method":"ping"}`, parse, ""},

		{"a string", `"ping"`, invalid, ""},
		{"a number", `1`, invalid, ""},
		{"null", `null`, invalid, ""},
		{"an empty batch", `[]`, invalid, ""},
		{"an empty object", `{}`, invalid, ""},
		{"id null", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, invalid, ""},
		{"id 1.5", `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, invalid, ""},
		{"id 1.0", `{"jsonrpc":"2.0","id":1.0,"method":"ping"}`, invalid, ""},
		{"id 1e2", `{"jsonrpc":"2.0","id":1e2,"method":"ping"}`, invalid, ""},
		{"id true", `{"jsonrpc":"2.0","id":true,"method":"ping"}`, invalid, ""},
		{"id an object", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, invalid, ""},
		{"id an array", `{"jsonrpc":"2.0","id":[1],"method":"ping"}`, invalid, ""},
		{"no version", `{"id":1,"method":"ping"}`, invalid, "1"},
		{"version 1.0", `{"jsonrpc":"1.0","id":1,"method":"ping"}`, invalid, "1"},
		{"version a number", `{"jsonrpc":2.0,"id":1,"method":"ping"}`, invalid, "1"},
		{"method a number", `{"jsonrpc":"2.0","id":1,"method":1}`, invalid, "1"},
		{"method empty", `{"jsonrpc":"2.0","id":1,"method":""}`, invalid, "1"},
		{"no method", `{"jsonrpc":"2.0","id":1}`, invalid, "1"},
		{"no method and no id", `{"jsonrpc":"2.0","params":{}}`, invalid, ""},
		{"Method", `{"jsonrpc":"2.0","id":1,"Method":"ping"}`, invalid, "1"},
		{"ID", `{"jsonrpc":"2.0","ID":1,"method":"ping"}`, invalid, ""},
		{"Params", `{"jsonrpc":"2.0","id":"a","method":"ping","Params":{}}`, invalid, `"a"`},
		{"JSONRPC besides", `{"jsonrpc":"2.0","JSONRPC":"2.0","id":1,"method":"ping"}`, invalid, "1"},
		{"params an array", `{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}`, invalid, "1"},
		{"params null", `{"jsonrpc":"2.0","id":1,"method":"ping","params":null}`, invalid, "1"},
		{"params a string", `{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}`, invalid, "1"},
		{"_meta an array", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":[]}}`, params, "1"},
		{"a request with a result", `{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}`, invalid, "1"},
		{"result and error", `{"jsonrpc":"2.0","id":1,"result":{},"error":{}}`, invalid, "1"},
		{"error a string", `{"jsonrpc":"2.0","id":1,"error":"x"}`, invalid, "1"},
		{"a response without id", `{"jsonrpc":"2.0","result":{}}`, invalid, ""},
		{"a batch where there are none", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, invalid, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
				p := h.legacy(t, "2025-11-25", "")
				p.send(c.frame)
				got := p.rest()
				if len(got) != 1 {
					t.Fatalf("got %d answers: %s", len(got), got)
				}
				has(t, got[0], fmt.Sprintf(`"error":{"code":%d,`, c.code))
				if c.id == "" {
					lacks(t, got[0], `"id"`)
				} else {
					has(t, got[0], `"id":`+c.id+`,`)
				}
				equal(t, "the connection goes on", string(p.ask("ping", "").Result), "{}")
			})
		})
	}
}

func TestDeepestMessage(t *testing.T) {
	frame := `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":` + strings.Repeat(
		"[",
		126,
	) + strings.Repeat(
		"]",
		126,
	) + `}}`
	if _, faults, _ := protocol.Parse([]byte(frame)); len(faults) > 0 {
		t.Errorf("128 levels: %v", faults[0])
	}
}

func TestToleratedFrames(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		for _, frame := range []string{
			`{"jsonrpc":"2.0","id":1,"method":"ping","x-extra":{"a":1},"trace":null}`,
			` { "method" : "ping" , "id" : 1 , "jsonrpc" : "2.0" } `,
			`{"jsonrpc":"2.\u0030","id":1,"method":"p\u0069ng","params":{}}`,
		} {
			p.send(frame)
			equal(t, frame, string(p.next()), `{"jsonrpc":"2.0","id":1,"result":{}}`)
		}
	})
}

func TestNotificationsAreNeverAnswered(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", "")
		for _, frame := range []string{
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","method":"notifications/unknown","params":{"a":1}}`,
			`{"jsonrpc":"2.0","method":"tools/list"}`,
			`{"jsonrpc":"2.0","method":"initialize","params":{}}`,
			`{"jsonrpc":"2.0","method":"server/discover"}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled"}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":[1]}`,
			`{"jsonrpc":"2.0","method":"notifications/x","params":"no"}`,
			`{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":5}}`,
			`{"jsonrpc":"2.0","method":"notifications/x","Params":{}}`,
			`{"jsonrpc":"2.0","method":"notifications/x","params":{` + envelope("") + `}}`,
		} {
			p.send(frame)
			if got := p.rest(); len(got) > 0 {
				t.Errorf("%s was answered: %s", frame, got)
			}
		}
	})
}

func TestResponsesToNothingAreIgnored(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", "")
		for _, id := range []string{`1`, `"gh-1"`, `"gh-99999999999"`} {
			p.send(`{"jsonrpc":"2.0","id":` + id + `,"result":{}}`)
			p.send(`{"jsonrpc":"2.0","id":` + id + `,"error":{"code":1,"message":"x"}}`)
		}
		p.quiet()
	})
}

func TestAnIDIsNotUsedTwiceAtOnce(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", "")
		wait := func(id, more string) {
			p.send(
				`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{` + join(
					more,
					`"name":"t_wait"`,
				) + `}}`,
			)
		}
		wait(`"a"`, "")
		wait(`"\u0061"`, "") // the same string
		has(t, string(p.next()), "a request with this id is already running")
		wait(`"a"`, envelope("")) // the other era uses the same connection
		has(t, string(p.next()), "a request with this id is already running")
		wait(`1`, "")
		wait(`"1"`, "") // another ID
		p.quiet()
		for range 3 {
			h.clock <- struct{}{}
		}
		equal(t, "answers", len(p.rest()), 3)
		wait(`"a"`, "") // free again
		h.clock <- struct{}{}
		has(t, string(p.next()), "done")
	})
}

func TestBatch(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-03-26", "")
		p.send(`[{"jsonrpc":"2.0","id":1,"method":"ping"},
			{"jsonrpc":"2.0","method":"notifications/x"},
			{"jsonrpc":"2.0","id":"w","method":"tools/call","params":{"name":"t_wait"}},
			{"jsonrpc":"2.0","id":1,"result":{}},
			"no",
			{"jsonrpc":"2.0","id":2,"method":"no/such"}]`)
		p.quiet() // one is still running
		h.clock <- struct{}{}
		got := p.rest()
		if len(got) != 1 || !strings.HasPrefix(got[0], "[") {
			t.Fatalf("got %s", got)
		}
		has(
			t,
			got[0],
			`{"jsonrpc":"2.0","id":1,"result":{}}`,
			`"id":"w","result"`,
			`"id":2,"error":{"code":-32601`,
			`{"jsonrpc":"2.0","error":{"code":-32600`,
		)

		p.send(`[` + strings.Repeat(`1,`, 1000) + `1]`)
		equal(
			t,
			"a giant batch",
			string(p.next()),
			`{"jsonrpc":"2.0","error":{"code":-32600,"message":"a batch has at most 1000 messages"}}`,
		)

		p.send(`[{"jsonrpc":"2.0","id":"w","method":"tools/call","params":{"name":"t_wait"}}]`)
		p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"w"}}`)
		p.quiet() // no answer follows
		p.send(
			`[{"jsonrpc":"2.0","id":"w","method":"tools/call","params":{"name":"t_wait"}},{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"w"}},{"jsonrpc":"2.0","id":"p","method":"ping"}]`,
		)
		equal(t, "the rest of a batch", string(p.next()), `[{"jsonrpc":"2.0","id":"p","result":{}}]`)
	})
}

func TestOversizedFrame(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		p.pipe.Oversized(1000, nil)
		has(t, string(p.next()), `-32600`, "longer than 1000 bytes")
		equal(t, "the connection goes on", string(p.ask("ping", "").Result), "{}")
	})
}
