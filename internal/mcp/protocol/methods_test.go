package protocol_test

import (
	"strings"
	"testing"

	"gatehouse/internal/tests/hosttest"
)

// The methods of the revisions, with valid params, listed independently of the code.
var methodTable = []struct {
	method, params string
	revisions      string // one letter each: a 2024-11-05, b 2025-03-26, c 2025-06-18, d 2025-11-25, e 2026-07-28
}{
	{"ping", ``, "abcd"},
	{"server/discover", ``, "abcde"}, // modern in any session
	{"tools/list", ``, "abcde"},
	{"tools/call", `"name":"t_echo","arguments":{"text":"x"}`, "abcde"},
	{"resources/list", ``, "abcde"},
	{"resources/templates/list", ``, "abcde"},
	{"resources/read", `"uri":"test://plain"`, "abcde"},
	{"resources/subscribe", `"uri":"test://plain"`, "abcd"},
	{"resources/unsubscribe", `"uri":"test://plain"`, "abcd"},
	{"prompts/list", ``, "abcde"},
	{"prompts/get", `"name":"t_greet","arguments":{"name":"x"}`, "abcde"},
	{
		"completion/complete",
		`"ref":{"type":"ref/prompt","name":"t_greet"},"argument":{"name":"name","value":""}`,
		"abcde",
	},
	{"logging/setLevel", `"level":"info"`, "abcd"},
	{"tasks/list", ``, "d"},
	{"tasks/get", `"taskId":"x"`, "de"},
	{"tasks/cancel", `"taskId":"x"`, "de"},
	{"tasks/result", `"taskId":"x"`, "d"},
	{"tasks/update", `"taskId":"x","inputResponses":{}`, "e"},
	{"roots/list", ``, ""},
	{"sampling/createMessage", ``, ""},
	{"elicitation/create", ``, ""},
	{"notifications/initialized", ``, ""},
	{"Tools/list", ``, ""},
	{"test/reverse", `"text":"abc"`, "abcde"}, // an extension of the module
}

const tasksCaps = `{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`

func TestMethodsOfEachRevision(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		for i, rev := range legacyRevisions {
			p := h.legacy(t, rev, "")
			for _, m := range methodTable {
				exists(t, rev, m.method, p.ask(m.method, m.params), strings.Contains(m.revisions, "abcd"[i:i+1]))
			}
		}
		p := h.dial(t)
		for _, m := range methodTable {
			exists(
				t,
				"2026-07-28",
				m.method,
				p.modern(tasksCaps, m.method, m.params),
				strings.Contains(m.revisions, "e"),
			)
		}
		exists(t, "2026-07-28", "initialize", p.modern("", "initialize", `"protocolVersion":"2025-11-25"`), false)
	})
}

func exists(t *testing.T, rev, method string, got answer, want bool) {
	t.Helper()
	if (got.code() == -32601) == want {
		t.Errorf("%s in %s: got %s, want it to exist: %t", method, rev, got.raw, want)
	}
}

func TestNegotiation(t *testing.T) {
	for _, c := range []struct{ params, want string }{
		{``, "2025-11-25"},
		{`"protocolVersion":"2024-11-05"`, "2024-11-05"},
		{`"protocolVersion":"2025-03-26"`, "2025-03-26"},
		{`"protocolVersion":"2025-06-18"`, "2025-06-18"},
		{`"protocolVersion":"2025-11-25"`, "2025-11-25"},
		{`"protocolVersion":"2026-07-28"`, "2025-11-25"}, // has no handshake
		{`"protocolVersion":"2099-01-01"`, "2025-11-25"},
		{`"protocolVersion":"1.0.0"`, "2025-11-25"},
		{`"protocolVersion":""`, "2025-11-25"},
		{`"capabilities":null,"clientInfo":5`, "2025-11-25"},
	} {
		t.Run(c.params, func(t *testing.T) {
			visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
				p := h.dial(t)
				equal(t, "revision", p.ask("initialize", c.params).get("protocolVersion"), c.want)
				if p.rev = c.want; p.ask("tools/list", "").Error != nil {
					t.Error("there is no list straight after the handshake")
				}
			})
		})
	}
}

func TestHandshakeThatIsNone(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		for _, m := range methodTable {
			if m.method == "ping" || m.method == "server/discover" {
				continue
			}
			has(t, p.ask(m.method, m.params).raw, "initialize first")
		}
		equal(t, "a bad version", p.ask("initialize", `"protocolVersion":5`).code(), -32602)
		has(t, p.ask("tools/list", "").raw, "initialize first")
		p.hello("2025-06-18", "")
		got := p.ask("initialize", `"protocolVersion":"2025-11-25"`)
		equal(t, "a second one", got.code(), -32600)
		has(t, p.ask("tools/list", "").raw, "outputSchema") // still as in the first handshake
	})
}

func TestCapabilitiesOfEachRevision(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		for _, rev := range legacyRevisions {
			caps := h.dial(t).ask("initialize", `"protocolVersion":"`+rev+`"`).get("capabilities")
			has(t, caps, `"tools":{"listChanged":true}`, `"logging":{}`, `"subscribe":true`)
			equal(t, rev+" names completions", rev >= "2025-03-26", strings.Contains(caps, `"completions"`))
			equal(t, rev+" names tasks", rev == "2025-11-25", strings.Contains(caps, `"tasks"`))
			lacks(t, caps, `"extensions"`)
		}
		d := h.dial(t).modern("", "server/discover", "")
		has(t, d.get("capabilities"), `"extensions":{"io.modelcontextprotocol/tasks":{},"test/reverse":{"max":100}}`)
		lacks(t, d.get("capabilities"), `"tasks":`)
		equal(
			t,
			"supported",
			d.get("supportedVersions"),
			`["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"]`,
		)
		has(
			t,
			d.raw,
			`"ttlMs":`,
			`"cacheScope":"public"`,
			`"io.modelcontextprotocol/serverInfo":{"name":"gatehouse-test","version":"0.0.0"}`,
		)
	})
}
