package protocol_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/tool"
)

const canElicit = `{"elicitation":{}}`

// asked returns the keys of an input_required result.
func (a answer) asked() string {
	var keys []string
	for k := range rawjson.Object([]byte(a.get("inputRequests"))) {
		keys = append(keys, string(k))
	}
	return strings.Join(keys, " ")
}

// retry sends answers to a round.
func (p *peer) retry(a answer, call string, answers ...string) answer {
	p.t.Helper()
	return p.modern(
		canElicit,
		"tools/call",
		join(
			call,
			`"requestState":`+string(mustGet(p.t, a.Result, "requestState")),
			`"inputResponses":{`+join(answers...)+`}`,
		),
	)
}

func mustGet(t testing.TB, obj []byte, name string) []byte {
	t.Helper()
	v, ok := rawjson.Get(obj, name)
	if !ok {
		t.Fatalf("no %s in %s", name, obj)
	}
	return v
}

func TestRounds(t *testing.T) {
	const call = `"name":"t_two","arguments":{"of":"x","at":1}`
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		first := p.modern(canElicit, "tools/call", call)
		equal(t, "kind", first.get("resultType"), "input_required")
		equal(t, "asked", first.asked(), "one")
		equal(t, "done", h.history(), "first")
		second := p.retry(first, `"arguments": { "at" : 1, "of":"\u0078" },"name":"t_two"`, `"one":`+named("Ada"))
		equal(t, "asked", second.asked(), "two")
		equal(t, "done", h.history(), "first second")
		if first.get("requestState") == second.get("requestState") {
			t.Error("two rounds have one state")
		}
		last := p.retry(second, call, `"two":`+named("Bob"))
		equal(t, "said", last.text(), `{"said":"Ada Bob 42"}`)
		equal(t, "done", h.history(), "first second")

		// A state can be replayed, because it contains the recorded effects.
		again := p.retry(second, call, `"two":`+named("Eve"))
		equal(t, "said", again.text(), `{"said":"Ada Eve 42"}`)
		equal(t, "done", h.history(), "first second")
	})
}

func TestAnswersThatAreNone(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		first := p.modern(canElicit, "tools/call", `"name":"t_ask"`)
		for _, bad := range []string{
			``, `"other":` + named("Ada"), `"name":12345`, `"name":null`, `"name":{}`, `"name":{"action":"accept"}`,
			`"name":{"action":"maybe"}`, `"name":{"action":"accept","content":{"name":"A"}}`, // too short
			`"name":{"action":"accept","content":{"name":5}}`, `"name":{"action":"accept","content":{"nme":"Ada"}}`,
		} {
			got := p.retry(first, `"name":"t_ask"`, bad)
			equal(t, "asked again after "+bad, got.asked(), "name")
			equal(t, "and then", p.retry(got, `"name":"t_ask"`, `"name":`+named("Ada")).text(), `{"said":"Ada"}`)
		}
		for _, bad := range []string{`null`, `[]`, `"x"`, `5`} {
			got := p.modern(canElicit, "tools/call", `"name":"t_ask","inputResponses":`+bad)
			equal(t, "responses "+bad, got.code(), -32602)
		}
		equal(t, "a no", p.retry(first, `"name":"t_ask"`, `"name":{"action":"decline"}`).text(), `{"said":"decline"}`)
		equal(t, "a cancel", p.retry(first, `"name":"t_ask"`, `"name":{"action":"cancel"}`).text(), `{"said":"cancel"}`)
		big := p.retry(first, `"name":"t_ask"`, `"name":`+named(strings.Repeat("x", 70_000)))
		equal(t, "too much at once", big.code(), -32602)
	})
}

func TestAnswersBeforeTheirQuestions(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		early := func(call, answers string) answer {
			return p.modern(canElicit, "tools/call", join(call, `"inputResponses":{`+answers+`}`))
		}
		equal(t, "one", early(`"name":"t_ask"`, `"name":`+named("Ada")).text(), `{"said":"Ada"}`)
		equal(t, "one that does not fit", early(`"name":"t_ask"`, `"name":12345`).asked(), "name")
		equal(t, "the wrong key", early(`"name":"t_ask"`, `"wrong":`+named("Ada")).asked(), "name")
		equal(
			t,
			"both rounds",
			early(`"name":"t_two"`, `"two":`+named("Bob")+`,"one":`+named("Ada")).text(),
			`{"said":"Ada Bob 42"}`,
		)
		equal(t, "effects", h.history(), "first second")

		// Values in a client's answers never replace values that a handler has recorded.
		forged := early(`"name":"t_two"`, `"=first":666,"first":666,"":1,"one":`+named("Ada"))
		equal(t, "forged", forged.asked(), "two")
		equal(
			t,
			"said",
			p.retry(forged, `"name":"t_two"`, `"=second":666,"two":`+named("Bob")).text(),
			`{"said":"Ada Bob 42"}`,
		)

		// The first run with answers sends its notifications once.
		id := p.start(
			"tools/call",
			join(envelope(canElicit, `"io.modelcontextprotocol/logLevel":"info"`), `"name":"t_two"`,
				`"inputResponses":{"x":1,"one":`+named("Ada")+`,"two":`+named("Bob")+`}`),
		)
		got := p.await(id)
		equal(t, "notes", fmt.Sprint(len(got.notes)), "2")
		has(t, got.notes[0], `"data":"starting"`)
		has(t, got.notes[1], `"data":"ending"`)
	})
}

// A state is valid for its owner, its call and a limited time only, and only unchanged.
func TestStateOfAnotherCall(t *testing.T) {
	visit(t, hosttest.Options{AskFor: time.Minute}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		const call = `"name":"t_two","arguments":{"of":"x","at":1}`
		first := p.modern(canElicit, "tools/call", call)
		state := string(mustGet(t, first.Result, "requestState"))
		try := func(p *peer, method, params, state string) answer {
			return p.modern(
				canElicit,
				method,
				join(params, `"requestState":`+state, `"inputResponses":{"one":`+named("Ada")+`}`),
			)
		}
		refuse := func(what string, got answer) {
			t.Helper()
			equal(t, what, got.code(), -32602)
			has(t, got.raw, "params.requestState", "repeat the call without it")
		}
		refuse("another tool", try(p, "tools/call", `"name":"t_ask"`, state))
		refuse("other arguments", try(p, "tools/call", `"name":"t_two","arguments":{"of":"y","at":1}`, state))
		refuse("fewer arguments", try(p, "tools/call", `"name":"t_two","arguments":{"of":"x"}`, state))
		refuse("no arguments", try(p, "tools/call", `"name":"t_two"`, state))
		refuse("another method", try(p, "prompts/get", `"name":"t_ask"`, state))
		refuse("another owner", try(h.dialAs(t, "another"), "tools/call", call, state))
		refuse("a longer one", try(p, "tools/call", call, state[:len(state)-1]+`-TAMPERED"`))
		refuse("a shorter one", try(p, "tools/call", call, state[:len(state)-2]+`"`))
		refuse("an empty one", try(p, "tools/call", call, `""`))
		for _, none := range []string{`5`, `null`, `{}`} {
			equal(t, "state "+none, try(p, "tools/call", call, none).code(), -32602)
		}
		equal(t, "unharmed", try(p, "tools/call", call, state).asked(), "two")

		h.offer(newcomer) // another tool does not change the definition of this one
		equal(t, "the same definition", try(p, "tools/call", call, state).asked(), "two")
		time.Sleep(61 * time.Second)
		refuse("an old one", try(p, "tools/call", call, state))
	})
}

func TestEveryByteOfAStateCounts(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		first := p.modern(canElicit, "tools/call", `"name":"t_ask"`)
		state := first.get("requestState")
		for i := range len(state) {
			for _, c := range []byte("A_z") {
				if state[i] == c {
					continue
				}
				altered := state[:i] + string(c) + state[i+1:]
				got := p.modern(
					canElicit,
					"tools/call",
					`"name":"t_ask","requestState":"`+altered+`","inputResponses":{"name":`+named("Ada")+`}`,
				)
				if got.code() != -32602 {
					t.Fatalf("byte %d: %s", i, got.raw)
				}
			}
		}
	})
}

func TestStateOfADefinitionThatHasChanged(t *testing.T) {
	ask := func(description string) tool.Tool {
		a := asker
		a.Name, a.Description = "t_changing", description
		return a
	}
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		h.offer(ask("Asks."))
		first := p.modern(canElicit, "tools/call", `"name":"t_changing"`)
		h.offer(ask("Asks for more than it did."))
		equal(t, "code", p.retry(first, `"name":"t_changing"`, `"name":`+named("Ada")).code(), -32602)
	})
}

func TestStateOfPromptsAndResources(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		for _, c := range []struct{ method, params, want string }{
			{"prompts/get", `"name":"t_ask"`, `{"type":"text","text":"Ada"}`},
			{"resources/read", `"uri":"test://ask"`, `"contents":[{"uri":"test://ask","text":"Ada"}]`},
		} {
			first := p.modern(canElicit, c.method, c.params)
			equal(t, c.method, first.asked(), "name")
			lacks(t, first.raw, "ttlMs", "cacheScope")
			got := p.modern(
				canElicit,
				c.method,
				join(
					c.params,
					`"requestState":"`+first.get("requestState")+`"`,
					`"inputResponses":{"name":`+named("Ada")+`}`,
				),
			)
			has(t, got.raw, c.want)
		}
		lacks(t, p.modern(canElicit, "tools/list", `"inputResponses":{}`).raw, "input_required")
	})
}

func TestQuestionsHaveTheirLimits(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		got := p.modern(canElicit, "tools/call", `"name":"t_endless"`)
		n := 0
		for ; got.get("resultType") == "input_required" && n < 20; n++ {
			got = p.retry(got, `"name":"t_endless"`, fmt.Sprintf(`"q%d":%s`, n, named("Ada")))
		}
		equal(t, "rounds", n, 10)
		has(t, got.raw, "too_many_rounds", `"isError":true`)

		equal(
			t,
			"16 KiB are fine",
			p.modern(canElicit, "tools/call", `"name":"t_hoard","arguments":{"size":16000}`).asked(),
			"name",
		)
		has(
			t,
			p.modern(canElicit, "tools/call", `"name":"t_hoard","arguments":{"size":16384}`).raw,
			"too_large",
			`"isError":true`,
		)

		// Answers count towards the limit as well, if they must be kept.
		two := p.modern(canElicit, "tools/call", `"name":"t_two"`)
		has(t, p.retry(two, `"name":"t_two"`, `"one":`+named(strings.Repeat("x", 17_000))).raw, "too_large")
		last := p.retry(
			p.modern(canElicit, "tools/call", `"name":"t_ask"`),
			`"name":"t_ask"`,
			`"name":`+named(strings.Repeat("x", 17_000)),
		)
		lacks(t, last.raw, "too_large") // nothing of it is stored
	})
}

// Three questions at once are sent in one result or as three requests.
func TestSeveralQuestionsAtOnce(t *testing.T) {
	const caps = `{"elicitation":{},"sampling":{},"roots":{}}`
	const sampled = `{"role":"assistant","model":"m","content":{"type":"text","text":"ok"}}`
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		first := p.modern(caps, "tools/call", `"name":"t_survey"`)
		equal(t, "asked", first.asked(), "who where what")
		has(
			t,
			first.raw,
			`"who":{"method":"elicitation/create"`,
			`"where":{"method":"roots/list","params":{}}`,
			`"what":{"method":"sampling/createMessage"`,
		)
		got := p.modern(
			caps,
			"tools/call",
			`"name":"t_survey","requestState":"`+first.get(
				"requestState",
			)+`","inputResponses":{"what":`+sampled+`,"who":`+named(
				"Ada",
			)+`}`,
		)
		equal(t, "what is missing", got.asked(), "where")
		got = p.modern(
			caps,
			"tools/call",
			`"name":"t_survey","requestState":"`+got.get("requestState")+`","inputResponses":{"where":{"roots":[]}}`,
		)
		equal(t, "said", got.text(), `{"said":"Ada {\"roots\":[]}"}`)
	})
}

func TestCapabilitiesThatAreNeeded(t *testing.T) {
	for _, c := range []struct{ caps, tool, missing string }{
		{`{}`, "t_ask", `{"elicitation":{"form":{}}}`},
		{`{"elicitation":{"url":{}}}`, "t_ask", `{"elicitation":{"form":{}}}`},
		{`{"elicitation":{}}`, "t_ask", ``},
		{`{"elicitation":{"form":{}}}`, "t_ask", ``},
		{`{"elicitation":null}`, "t_ask", `{"elicitation":{"form":{}}}`},
		{`{"elicitation":{}}`, "t_sample", `{"sampling":{}}`},
		{`{"sampling":{}}`, "t_sample", ``},
		{`{"elicitation":{},"sampling":{}}`, "t_survey", `{"roots":{}}`},
	} {
		t.Run(c.caps+" "+c.tool, func(t *testing.T) {
			visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
				got := h.dial(t).modern(c.caps, "tools/call", `"name":"`+c.tool+`"`)
				if c.missing == "" {
					equal(t, "kind", got.get("resultType"), "input_required")
					return
				}
				equal(t, "code", got.code(), -32021)
				if !sameJSON(got.Error.Data, []byte(`{"requiredCapabilities":`+c.missing+`}`)) {
					t.Errorf("got %s, want %s", got.Error.Data, c.missing)
				}
				p := h.legacy(t, "2025-11-25", c.caps)
				has(t, p.call(c.tool, "{}").raw, `"isError":true`, "unsupported: ")
			})
		})
	}
}

func TestStateSurvivesJSONThatLooksLikeMarkup(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		first := p.modern(canElicit, "tools/call", `"name":"t_two"`)
		second := p.retry(first, `"name":"t_two"`, `"one":`+named(`<&>é\u2028`))
		got := p.retry(second, `"name":"t_two"`, `"two":`+named("Bob"))
		var said echoOut
		if err := json.Unmarshal([]byte(got.text()), &said); err != nil || said.Said != "<&>é\u2028 Bob 42" {
			t.Errorf("got %q (%v)", said.Said, err)
		}
	})
}
