package protocol_test

import (
	"encoding/base64"
	"fmt"
	"maps"
	"testing"

	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/tests/hosttest"
)

const modernRev = "2026-07-28"

// body returns a modern request; headersOf returns the headers for it.
func body(method, params string) string {
	return `{"jsonrpc":"2.0","id":"i","method":"` + method + `","params":{` + join(envelope(""), params) + `}}`
}

func headersOf(method, name string) headers {
	h := headers{"MCP-Protocol-Version": {modernRev}, "Mcp-Method": {method}}
	if name != "" {
		h["Mcp-Name"] = []string{name}
	}
	return h
}

func (h headers) with(name string, vals ...string) headers {
	h = maps.Clone(h)
	if h[name] = vals; len(vals) == 0 {
		delete(h, name)
	}
	return h
}

func refused(t *testing.T, k *keeper, status, code int) {
	t.Helper()
	equal(t, "status", k.status, status)
	has(t, k.answer, fmt.Sprintf(`{"jsonrpc":"2.0","id":"i","error":{"code":%d,`, code))
}

func TestEnvelope(t *testing.T) {
	const (
		version = `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`
		caps    = `"io.modelcontextprotocol/clientCapabilities":{}`
	)
	for _, c := range []struct {
		name, meta   string
		status, code int
	}{
		{"whole", version + "," + caps, 200, 0},
		{"a client without a name", version + "," + caps + `,"io.modelcontextprotocol/clientInfo":5`, 200, 0},
		{"vendor's members", version + "," + caps + `,"example.com/x":{"a":1},"traceparent":"00-1-2-3"`, 200, 0},
		{"a log level", version + "," + caps + `,"io.modelcontextprotocol/logLevel":"warning"`, 200, 0},
		{"no version", caps, 400, -32602},
		{"a version that is no string", `"io.modelcontextprotocol/protocolVersion":20260728,` + caps, 400, -32602},
		{"no capabilities", version, 400, -32602},
		{"capabilities null", version + `,"io.modelcontextprotocol/clientCapabilities":null`, 400, -32602},
		{"capabilities an array", version + `,"io.modelcontextprotocol/clientCapabilities":[]`, 400, -32602},
		{"an unknown log level", version + "," + caps + `,"io.modelcontextprotocol/logLevel":"loud"`, 400, -32602},
		{"a log level that is none", version + "," + caps + `,"io.modelcontextprotocol/logLevel":1`, 400, -32602},
	} {
		t.Run(c.name, func(t *testing.T) {
			visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
				k := h.post(
					t,
					headersOf("tools/list", ""),
					`{"jsonrpc":"2.0","id":"i","method":"tools/list","params":{"_meta":{`+c.meta+`}}}`,
				)
				if c.code != 0 {
					refused(t, k, c.status, c.code)
					return
				}
				equal(t, "status", k.status, c.status)
				has(t, k.answer, `"result"`)
			})
		})
	}
}

func TestVersionOfAnEnvelope(t *testing.T) {
	ask := func(v string) string {
		return `{"jsonrpc":"2.0","id":"i","method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"` + v + `","io.modelcontextprotocol/clientCapabilities":{}}}}`
	}
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		for _, v := range []string{"2030-01-01", "v999.0.0", "DRAFT"} {
			k := h.post(t, headersOf("tools/list", "").with("MCP-Protocol-Version", v), ask(v))
			refused(t, k, 400, -32022)
			has(t, k.answer, `"requested":"`+v+`"`, `"supported":["2026-07-28","2025-11-25",`)
			// A mismatch is reported first.
			refused(t, h.post(t, headersOf("tools/list", ""), ask(v)), 400, -32020)
		}
		refused(t, h.post(t, headersOf("tools/list", ""), ask("2025-11-25")), 400, -32020)
	})
}

func TestErasOfMessages(t *testing.T) {
	meta := func(members string) string { return `"_meta":{` + members + `}` }
	const v = `"io.modelcontextprotocol/protocolVersion":`
	for _, c := range []struct {
		name, method, params string
		head                 headers
		want                 protocol.Era
	}{
		{"a bare request", "tools/list", ``, nil, protocol.Legacy},
		{"a modern version", "tools/list", meta(v + `"2026-07-28"`), nil, protocol.Modern},
		{"a future version", "tools/list", meta(v + `"2030-01-01"`), nil, protocol.Modern},
		{"a legacy version", "tools/list", meta(v + `"2025-11-25"`), nil, protocol.Legacy},
		{"capabilities alone", "tools/list", meta(`"io.modelcontextprotocol/clientCapabilities":{}`), nil,
			protocol.Modern},
		{"a version that is no string", "tools/list", meta(v + `5`), nil, protocol.Modern},
		{"a legacy task's member", "tools/list", meta(`"io.modelcontextprotocol/related-task":{"taskId":"x"}`), nil,
			protocol.Legacy},
		{"a progress token", "tools/call", meta(`"progressToken":1`), nil, protocol.Legacy},
		{"the probe", "server/discover", ``, nil, protocol.Modern},
		{"initialize", "initialize", ``, nil, protocol.Legacy},
		{"initialize with an envelope", "initialize", meta(v + `"2026-07-28"`), nil, protocol.Modern},
		{"a modern header", "tools/list", ``, headers{"MCP-Protocol-Version": {"2026-07-28"}}, protocol.Modern},
		{"a legacy header", "initialize", ``, headers{"MCP-Protocol-Version": {"2025-11-25"}}, protocol.Legacy},
		{"a method header alone", "initialize", ``, headers{"Mcp-Method": {"initialize"}}, protocol.Legacy},
		{"a legacy header over a modern envelope", "tools/list", meta(v + `"2026-07-28"`),
			headers{"MCP-Protocol-Version": {"2025-11-25"}}, protocol.Modern},
	} {
		t.Run(c.name, func(t *testing.T) {
			msgs, faults, _ := protocol.Parse(
				[]byte(`{"jsonrpc":"2.0","id":1,"method":"` + c.method + `","params":{` + c.params + `}}`),
			)
			if len(faults) > 0 {
				t.Fatal(faults[0])
			}
			var e *protocol.Engine
			var head protocol.Header
			if c.head != nil {
				head = c.head.get
			}
			equal(t, "era", e.EraOf(&msgs[0], head), c.want)
		})
	}
}

func TestHeadersMustAgreeWithTheBody(t *testing.T) {
	call := body("tools/call", `"name":"t_echo","arguments":{"text":"x"}`)
	good := headersOf("tools/call", "t_echo")
	for _, c := range []struct {
		name string
		head headers
		body string
	}{
		{"no version", good.with("MCP-Protocol-Version"), call},
		{"another version", good.with("MCP-Protocol-Version", "2025-11-25"), call},
		{"two versions", good.with("MCP-Protocol-Version", modernRev, modernRev), call},
		{"no method", good.with("Mcp-Method"), call},
		{"another method", good.with("Mcp-Method", "tasks/get"), call},
		{"a method in capitals", good.with("Mcp-Method", "TOOLS/CALL"), call},
		{"two methods", good.with("Mcp-Method", "tools/call", "tools/call"), call},
		{"no name", good.with("Mcp-Name"), call},
		{"another name", good.with("Mcp-Name", "t_ask"), call},
		{"a name in capitals", good.with("Mcp-Name", "T_ECHO"), call},
		{"two names", good.with("Mcp-Name", "t_echo", "t_echo"), call},
		{"a name in broken base64", good.with("Mcp-Name", "=?base64?dF9lY2hv!?="), call},
		{"a name in base64 without padding", good.with("Mcp-Name", "=?base64?dF9lY2g?="), call},
		{"a prompt's name", headersOf("prompts/get", "t_ask"), body("prompts/get", `"name":"t_greet"`)},
		{"a resource's address", headersOf("resources/read", "test://blob"),
			body("resources/read", `"uri":"test://plain"`)},
		{"a discovery without method", headersOf("server/discover", "").with("Mcp-Method"),
			body("server/discover", "")},
	} {
		t.Run(c.name, func(t *testing.T) {
			visit(
				t,
				hosttest.Options{},
				func(t *testing.T, h *testHost) { refused(t, h.post(t, c.head, c.body), 400, -32020) },
			)
		})
	}
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		for name, head := range map[string]headers{
			"as it is": good,
			"with blanks": good.with("Mcp-Name", "  t_echo\t").with("Mcp-Method",
				" tools/call ").with("MCP-Protocol-Version", " "+modernRev),
			"in base64":  good.with("Mcp-Name", "=?base64?dF9lY2hv?="),
			"and others": good.with("Mcp-Session-Id", "x").with("Last-Event-ID", "1-1").with("Mcp-Param-Word", "w"),
		} {
			k := h.post(t, head, call)
			equal(t, name, k.status, 200)
			has(t, k.answer, `"said":"x"`)
		}
		uri := "test://item/é ü"
		enc := "=?base64?" + base64.StdEncoding.EncodeToString([]byte(uri)) + "?="
		has(
			t,
			h.post(t, headersOf("resources/read", enc), body("resources/read", `"uri":"`+uri+`"`)).answer,
			`"uri":"test://item/é ü"`,
		)
	})
}

// Of several errors, the one that a client can fix is reported first.
func TestOrderOfChecks(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		noMeta := func(method string) string {
			return `{"jsonrpc":"2.0","id":"i","method":"` + method + `","params":{}}`
		}
		refused(t, h.post(t, headersOf("server/discover", ""), noMeta("server/discover")), 400, -32602)
		refused(t, h.post(t, headersOf("x", ""), noMeta("server/discover")), 400, -32020)
		refused(t, h.post(t, headersOf("tools/call", ""), noMeta("tools/call")), 400, -32602)
		// The method is checked before its name, because tasks/result has none.
		refused(t, h.post(t, headersOf("tasks/result", ""), body("tasks/result", `"taskId":"x"`)), 404, -32601)
		// The extension is checked before the task's name.
		refused(t, h.post(t, headersOf("tasks/get", ""), body("tasks/get", `"taskId":"x"`)), 400, -32021)
		// The name is checked before whether the tool exists.
		refused(t, h.post(t, headersOf("tools/call", "other"), body("tools/call", `"name":"none"`)), 400, -32020)
		refused(t, h.post(t, headersOf("tools/call", "none"), body("tools/call", `"name":"none"`)), 400, -32602)
		refused(t, h.post(t, headersOf("no/such", ""), body("no/such", ``)), 404, -32601)
		for _, gone := range []string{"initialize", "ping", "logging/setLevel", "resources/subscribe",
			"resources/unsubscribe"} {
			refused(t, h.post(t, headersOf(gone, ""), body(gone, ``)), 404, -32601)
		}
		// Invalid arguments are reported in a result, which the model reads.
		k := h.post(t, headersOf("tools/call", "  t_echo  "), body("tools/call", `"name":"t_echo","arguments":{}`))
		equal(t, "status", k.status, 200)
		has(t, k.answer, `"isError":true`)
		k = h.post(t, headersOf("resources/read", "test://nowhere"), body("resources/read", `"uri":"test://nowhere"`))
		refused(t, k, 400, -32602)
		has(t, k.answer, `"data":{"uri":"test://nowhere"}`)
	})
}

func TestArgumentsInHeaders(t *testing.T) {
	const word, number, flag, inner = "Mcp-Param-Word", "Mcp-Param-Number", "Mcp-Param-Flag", "Mcp-Param-Inner"
	for _, c := range []struct {
		name, args string
		head       map[string]string
		ok         bool
	}{
		{"none", `{}`, nil, true},
		{"a string", `{"s":"Hello"}`, map[string]string{word: "Hello"}, true},
		{"a string in base64", `{"s":"Hello"}`, map[string]string{word: "=?base64?SGVsbG8=?="}, true},
		{"what only looks like base64", `{"s":"SGVsbG8="}`, map[string]string{word: "SGVsbG8="}, true},
		{"an unfinished sentinel", `{"s":"=?base64?SGVsbG8="}`, map[string]string{word: "=?base64?SGVsbG8="}, true},
		{"an empty string", `{"s":""}`, map[string]string{word: ""}, true},
		{"beyond ASCII", `{"s":"é"}`, map[string]string{word: "=?base64?w6k=?="}, true},
		{"edges of blanks", `{"s":" x "}`, map[string]string{word: "=?base64?IHgg?="}, true},
		{"a string with escapes", `{"s":"H\u0065llo"}`, map[string]string{word: "Hello"}, true},
		{"an integer", `{"n":42}`, map[string]string{number: "42"}, true},
		{"an integer otherwise spelt", `{"n":42}`, map[string]string{number: "4.2e1"}, true},
		{"a large integer", `{"n":9007199254740993}`, map[string]string{number: "9007199254740993"}, true},
		{"true", `{"b":true}`, map[string]string{flag: "true"}, true},
		{"false", `{"b":false}`, map[string]string{flag: "false"}, true},
		{"null", `{"s":null}`, nil, true},
		{"nested", `{"in":{"s":"x"}}`, map[string]string{inner: "x"}, true},
		{"nested nowhere", `{"in":{}}`, nil, true},

		{"a missing header", `{"s":"x"}`, nil, false},
		{"a missing argument", `{}`, map[string]string{word: "x"}, false},
		{"null and a header", `{"s":null}`, map[string]string{word: "null"}, false},
		{"another string", `{"s":"x"}`, map[string]string{word: "y"}, false},
		{"another case", `{"s":"x"}`, map[string]string{word: "X"}, false},
		{"bad padding", `{"s":"Hello"}`, map[string]string{word: "=?base64?SGVsbG8?="}, false},
		{"bad letters", `{"s":"Hello"}`, map[string]string{word: "=?base64?SGVs!!!bG8=?="}, false},
		{"another integer", `{"n":42}`, map[string]string{number: "43"}, false},
		{"a neighbour of a large integer", `{"n":9007199254740993}`,
			map[string]string{number: "9007199254740992"}, false},
		{"no integer", `{"n":42}`, map[string]string{number: "42x"}, false},
		{"another boolean", `{"b":true}`, map[string]string{flag: "false"}, false},
		{"a boolean's number", `{"b":true}`, map[string]string{flag: "1"}, false},
		{"another nested", `{"in":{"s":"x"}}`, map[string]string{inner: "y"}, false},
		{"nested and missing", `{"in":{"s":"x"}}`, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
				head := headersOf("tools/call", "t_head")
				for name, val := range c.head {
					head = head.with(name, val)
				}
				k := h.post(t, head, body("tools/call", `"name":"t_head","arguments":`+c.args))
				if !c.ok {
					refused(t, k, 400, -32020)
					return
				}
				equal(t, "status", k.status, 200)
				lacks(t, k.answer, `"error"`)
			})
		})
	}
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		head := headersOf("tools/call", "t_head").with(word, "x", "x")
		refused(t, h.post(t, head, body("tools/call", `"name":"t_head","arguments":{"s":"x"}`)), 400, -32020)
	})
}

// A large integer is equal if both sides spell it the same way.
func TestHugeIntegerInAHeader(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		const huge = "123456789012345678901234567890"
		head := headersOf("tools/call", "t_head")
		k := h.post(
			t,
			head.with("Mcp-Param-Number", huge),
			body("tools/call", `"name":"t_head","arguments":{"n":`+huge+`}`),
		)
		equal(t, "status", k.status, 200)
		k = h.post(
			t,
			head.with("Mcp-Param-Number", huge+"1"),
			body("tools/call", `"name":"t_head","arguments":{"n":`+huge+`}`),
		)
		refused(t, k, 400, -32020)
	})
}

func TestModernMessagesThatAreNoRequests(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		k := h.post(
			t,
			headersOf("notifications/x", ""),
			`{"jsonrpc":"2.0","method":"notifications/x","params":{`+envelope("")+`}}`,
		)
		equal(t, "a notification is dropped", k.dropped, true)
		k = h.post(t, headersOf("", ""), `{"jsonrpc":"2.0","id":"i","result":{}}`)
		refused(t, k, 400, -32600)
	})
}
