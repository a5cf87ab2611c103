package hosttest_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/module/moduletest"
)

// TestProbes runs five modules, which between them use everything the
// contract has, over five ways to reach a module. Where a combination cannot
// be what the others are, the test says so and what is right instead.
func TestProbes(t *testing.T) {
	probes := []struct {
		name string
		idle bool // it mostly waits, so that all its harnesses may at once
		run  func(*testing.T, hosttest.Named)
	}{
		{"typed", true, typed},
		{"relay", false, relay},
		{"changing", false, changing},
		{"two rounds", false, twoRounds},
		{"slow job", false, slowJob},
	}
	for _, p := range probes {
		for _, h := range hosttest.Harnesses() {
			t.Run(p.name+"/"+h.Name, func(t *testing.T) {
				if p.idle {
					t.Parallel()
				}
				p.run(t, h)
			})
		}
	}
}

func offering(name string, m module.New) hosttest.Options {
	return hosttest.Options{Modules: map[string]module.New{name: m}}
}

// same compares text that must not differ in a byte.
func same(t *testing.T, what string, got []byte, want string) {
	t.Helper()
	if string(got) != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

// fine fails the test unless there is a result.
func fine(t *testing.T, what string, r hosttest.Reply) hosttest.Reply {
	t.Helper()
	if r.Error != nil || r.Result == nil || r.IsError() {
		t.Fatalf("%s: %s, %v", what, r.Result, r.Error)
	}
	return r
}

// refused checks that a tool said no, in words.
func refused(t *testing.T, what string, r hosttest.Reply, words string) {
	t.Helper()
	if r.Error != nil || !r.IsError() || !strings.Contains(r.Text(), words) {
		t.Errorf("%s: got %s, %v, want a tool error with %q", what, r.Result, r.Error, words)
	}
}

// failed checks a JSON-RPC error.
func failed(t *testing.T, what string, r hosttest.Reply, code int, words string) {
	t.Helper()
	if r.Error == nil || r.Error.Code != code || !regexp.MustCompile(words).MatchString(r.Error.Message) {
		t.Errorf("%s: got %s, %v, want error %d %s", what, r.Result, r.Error, code, words)
	}
}

func typed(t *testing.T, named hosttest.Named) {
	h := named.Make(t, offering("typed", moduletest.Typed))
	typedTools(t, h)
	typedFailures(t, h)
	typedResources(t, h)
	typedPrompt(t, h)
}

func typedTools(t *testing.T, h hosttest.Harness) {
	tools := hosttest.List(t, h, "tools/list")
	if got, want := hosttest.Names(tools, "name", "typed_"),
		[]string{"typed_deaf", "typed_fail", "typed_number", "typed_repeat", "typed_wrong"}; !slices.Equal(
		got,
		want,
	) {
		t.Fatalf("listed %v, want %v", got, want)
	}
	i := slices.IndexFunc(
		tools,
		func(e json.RawMessage) bool { return string(hosttest.Get(e, "name")) == `"typed_repeat"` },
	)
	same(t, "input schema", hosttest.Get(tools[i], "inputSchema"), `{"type":"object","properties":{`+
		`"text":{"type":"string","minLength":1,"description":"what to repeat"},`+
		`"times":{"type":"integer","minimum":1,"maximum":100000,"description":"how often","default":2},`+
		`"style":{"type":"string","enum":["plain","loud"],"description":"how to say it","default":"plain"},`+
		`"tags":{"type":"array","items":{"type":"string"},"description":"passed through"}},"required":["text"],"additionalProperties":false}`)
	same(t, "output schema of a tool whose product is text", hosttest.Get(tools[i], "outputSchema"), "")
	i = slices.IndexFunc(
		tools,
		func(e json.RawMessage) bool { return string(hosttest.Get(e, "name")) == `"typed_number"` },
	)
	if hosttest.Get(tools[i], "outputSchema") == nil {
		t.Errorf("typed_number has no output schema")
	}

	r := fine(t, "defaults", hosttest.Call(h, "typed_repeat", `{"text":"ho"}`, nil))
	same(t, "product", []byte(r.Text()), "ho\nho\n")
	same(t, "facts", r.Get("content", 1, "text"), `"\n[times=2; style=plain]"`)
	same(t, "fields", r.Get("_meta", "gatehouse/fields"), `{"times":2,"style":"plain"}`)
	same(t, "structured", r.Get("structuredContent"), "")
	r = fine(t, "big number", hosttest.Call(h, "typed_number", `{"n":9007199254740993}`, nil))
	same(
		t,
		"structured",
		r.Get("structuredContent"),
		`{"n":9007199254740993,"below":[9007199254740992,9007199254740991,9007199254740990,9007199254740989],"none":null}`,
	)
	refused(t, "enum", hosttest.Call(h, "typed_repeat", `{"text":"ho","style":"lound"}`, nil), "style")
	refused(t, "unknown member", hosttest.Call(h, "typed_repeat", `{"txt":"ho"}`, nil), "did you mean")

	// A result over its budget is cut at a line; the rest is a resource.
	line := "this line has forty characters with end\n"
	r = fine(
		t,
		"long",
		hosttest.Call(h, "typed_repeat", `{"text":"this line has forty characters with end","times":2000}`, nil),
	)
	cut := regexp.MustCompile(`\[cut after (\d+) of 80000 bytes; read (gatehouse:///spool/\w+\?offset=\d+) for the rest\]$`).
		FindStringSubmatch(r.Text())
	if cut == nil {
		t.Fatalf("the long result ends with %q", r.Text()[max(0, len(r.Text())-200):])
	}
	rest := fine(t, "rest", hosttest.Read(h, cut[2]))
	if text, _ := rawjson.String(rest.Get("contents", 0, "text")); !strings.HasPrefix(text, line+line) {
		t.Errorf("the rest begins with %.100q", text)
	}
}

func typedFailures(t *testing.T, h hosttest.Harness) {
	refused(t, "refusal", hosttest.Call(h, "typed_fail", `{}`, nil), "busy: somebody else is at it\nWait a little.")
	refused(t, "error", hosttest.Call(h, "typed_fail", `{"how":"error"}`, nil), "the disk is on fire")
	wire := hosttest.Call(h, "typed_fail", `{"how":"wire"}`, nil)
	failed(t, "wire error", wire, -31055, "not on this wire")
	same(t, "its data", wire.Error.Data, `{"n":12345678901234567890}`)
	failed(
		t,
		"panic",
		hosttest.Call(h, "typed_fail", `{"how":"panic"}`, nil),
		-32603,
		`^internal error, see \w+ in the log$`,
	)
	failed(
		t,
		"output that does not fit",
		hosttest.Call(h, "typed_wrong", `{}`, nil),
		-32603,
		`^internal error, see \w+ in the log$`,
	)

	// One that ignores its deadline is answered for, and counted while it goes on.
	refused(t, "deaf", hosttest.Call(h, "typed_deaf", `{"ms":700}`, nil), "timeout: no result within 50ms")
	if n := h.Host().Calls.Overdue(); n != 1 {
		t.Errorf("%d calls are overdue, want 1", n)
	}
}

func typedResources(t *testing.T, h hosttest.Harness) {
	same(
		t,
		"resources",
		fmt.Append(nil, hosttest.Names(hosttest.List(t, h, "resources/list"), "uri", "typed:")),
		"[typed:///dot typed:///motd]",
	)
	same(
		t,
		"templates",
		fmt.Append(nil, hosttest.Names(hosttest.List(t, h, "resources/templates/list"), "uriTemplate", "typed:")),
		"[typed:///page/{book}/{number}]",
	)
	read := func(uri string) []byte { return fine(t, uri, hosttest.Read(h, uri)).Get("contents") }
	same(
		t,
		"text",
		read("typed:///motd"),
		`[{"uri":"typed:///motd","mimeType":"text/plain","text":"All doors are open.\n"}]`,
	)
	same(
		t,
		"blob",
		read("typed:///dot"),
		`[{"uri":"typed:///dot","mimeType":"application/octet-stream","blob":"/w=="}]`,
	)
	same(
		t,
		"template",
		read("typed:///page/atlas/7"),
		`[{"uri":"typed:///page/atlas/7","mimeType":"text/plain","text":"page 7 of the atlas"}]`,
	)
	code := -32002
	if h.Traits().Modern {
		code = -32602
	}
	failed(t, "no such book", hosttest.Read(h, "typed:///page/novel/7"), code, "no book novel")
	failed(t, "no such resource", hosttest.Read(h, "typed:///none"), code, "resource not found: typed:///none")

	r := fine(
		t,
		"completion",
		h.Do(
			"completion/complete",
			`{"ref":{"type":"ref/resource","uri":"typed:///page/{book}/{number}"},"argument":{"name":"book","value":"a"}}`,
			nil,
		),
	)
	same(t, "completion", r.Get("completion"), `{"values":["almanac","atlas"],"total":2}`)
}

func typedPrompt(t *testing.T, h hosttest.Harness) {
	r := fine(t, "prompt", h.Do("prompts/get", `{"name":"typed_letter","arguments":{"to":"Ada","tone":"formal"}}`, nil))
	same(t, "description", r.Get("description"), `"A letter to Ada"`)
	same(
		t,
		"messages",
		r.Get("messages"),
		`[{"role":"user","content":{"type":"text","text":"Write a formal letter to Ada."}},{"role":"assistant","content":{"type":"text","text":"Dear Ada,"}}]`,
	)
	failed(t, "argument missing", h.Do("prompts/get", `{"name":"typed_letter"}`, nil), -32602, "arguments.to")
	r = fine(
		t,
		"completion",
		h.Do(
			"completion/complete",
			`{"ref":{"type":"ref/prompt","name":"typed_letter"},"argument":{"name":"tone","value":"fo"}}`,
			nil,
		),
	)
	same(t, "completion", r.Get("completion"), `{"values":["formal"],"total":1}`)
}

// relay: what a module forwards arrives in every byte, but for the name it is
// listed under and, in the modern era, the one member that era demands.
func relay(t *testing.T, named hosttest.Named) {
	h := named.Make(t, offering("relay", moduletest.Relay))
	whole := func(raw string) string {
		if h.Traits().Modern {
			return strings.TrimSuffix(raw, "}") + `,"resultType":"complete"}`
		}
		return raw
	}
	find := func(method, member, name string) []byte {
		for _, e := range hosttest.List(t, h, method) {
			if string(hosttest.Get(e, member)) == `"`+name+`"` {
				return e
			}
		}
		t.Fatalf("%s lists no %s", method, name)
		return nil
	}
	same(
		t,
		"tool",
		find("tools/list", "name", "relay_get"),
		strings.Replace(moduletest.RelayedTool, "up.get-input", "relay_get", 1),
	)
	same(
		t,
		"prompt",
		find("prompts/list", "name", "relay_prompt"),
		strings.Replace(moduletest.RelayedPrompt, "up.prompt", "relay_prompt", 1),
	)
	same(t, "resource", find("resources/list", "uri", "up:///thing"), moduletest.RelayedResource)

	r := h.Do(
		"tools/call",
		`{"name":"relay_get","arguments":{"z":1.50,"n":12345678901234567890,"a":"<é>"},"x-extra":{"b":1e400,"a":[-0.0]}}`,
		nil,
	)
	same(t, "result", r.Result, whole(`{"params":`+string(r.Sent)+`,`+moduletest.RelayedResult+`}`))
	r = hosttest.Call(h, "relay_get", `{"n":"one"}`, nil) // the relayed server checks its arguments
	same(
		t,
		"result of arguments that do not fit",
		r.Result,
		whole(`{"params":`+string(r.Sent)+`,`+moduletest.RelayedResult+`}`),
	)
	r = h.Do("prompts/get", `{"name":"relay_prompt","arguments":{"q":"1"}}`, nil)
	same(t, "prompt result", r.Result, whole(moduletest.RelayedPromptResult))
	contents := whole(moduletest.RelayedContents)
	if h.Traits().Modern { // what the upstream left out and the revision demands
		contents = strings.TrimSuffix(contents, "}") + `,"ttlMs":0,"cacheScope":"private"}`
	}
	same(t, "contents", hosttest.Read(h, "up:///thing").Result, contents)
	r = h.Do("up.example/echo", `{"b":12345678901234567890,"a":"\u003c"}`, nil)
	same(t, "extension method", r.Result, whole(`{"params":`+string(r.Sent)+`,"n":12345678901234567890}`))

	r = hosttest.Call(h, "relay_fail", `{}`, nil)
	failed(t, "upstream error", r, -31999, "^upstream says <no>$")
	same(t, "its data", r.Error.Data, `{"z":12345678901234567890,"a":"\u003c"}`)
	relayedQuestions(t, h)
}

// relayedQuestions: answers, state and params pass through sealed state and
// through jobs, and come out as they went in.
func relayedQuestions(t *testing.T, h hosttest.Harness) {
	if !h.Traits().CanAsk() {
		return // see twoRounds
	}
	n := 0
	answer := func(string, json.RawMessage) json.RawMessage {
		n++
		return json.RawMessage(
			fmt.Sprintf(
				`{"x-z":"<%d>","action":"accept","content":{"n":12345678901234567890},"_meta":{"b":1.50,"a":"\u003c"}}`,
				n,
			),
		)
	}
	params := `{"name":"%s","arguments":{"big":12345678901234567890,"s":"<\u003c>"},"x-extra":1.50}`
	for _, name := range []string{"relay_ask", "relay_ask_task"} {
		n = 0
		r := fine(t, name, h.Do("tools/call", fmt.Sprintf(params, name), answer))
		same(
			t,
			"answers",
			r.Get("answers"),
			`[{"x-z":"<1>","action":"accept","content":{"n":12345678901234567890},"_meta":{"b":1.50,"a":"\u003c"}},`+
				`{"x-z":"<2>","action":"accept","content":{"n":12345678901234567890},"_meta":{"b":1.50,"a":"\u003c"}}]`,
		)
		var state []byte
		if err := json.Unmarshal(r.Get("state"), &state); err != nil ||
			string(state) != string(moduletest.RelayState)+"second" {
			t.Errorf("state %q, %v", state, err)
		}
		same(t, "arguments", hosttest.Get(r.Get("params"), "arguments"), `{"big":12345678901234567890,"s":"<\u003c>"}`)
		same(t, "extra", hosttest.Get(r.Get("params"), "x-extra"), `1.50`)
	}
}
