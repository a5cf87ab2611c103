package protocol_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/tests/hosttest"
	"gatehouse/tool"
)

func TestStructuredOutputByRevision(t *testing.T) {
	const (
		object = `"structuredContent":{"said":"x"}`
		array  = `"structuredContent":[1,2]`
		text   = `{"content":[{"type":"text","text":"a <b>\nc"},{"type":"text","text":"\n[lines=2]"}]`
		fields = `"gatehouse/fields":{"lines":2}`
	)
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		for _, rev := range append(legacyRevisions, modernRev) {
			p := h.dial(t)
			call := func(name, args string) answer {
				return p.modern("", "tools/call", `"name":"`+name+`","arguments":`+args)
			}
			if rev != modernRev {
				p.hello(rev, "")
				call = p.call
			}
			echoed, list, big := call("t_echo", `{"text":"x"}`), call("t_list", `{}`), call("t_bulk", `{}`)
			equal(t, rev+" object", strings.Contains(echoed.raw, object), rev >= "2025-06-18")
			equal(t, rev+" array", strings.Contains(list.raw, array), rev >= modernRev)
			has(t, big.raw, text, fields)
			lacks(t, big.raw, `"structuredContent"`)
			if rev >= "2025-06-18" {
				equal(t, rev+" text", echoed.text(), `{"said":"x"}`)
			} else {
				equal(t, rev+" text", echoed.text(), "{\n  \"said\": \"x\"\n}")
			}
		}
	})
}

func TestContentThatARevisionLacks(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		for rev, want := range map[string]struct{ audio, link bool }{
			"2024-11-05": {false, false}, "2025-03-26": {true, false}, "2025-06-18": {true, true},
			"2025-11-25": {true, true},
		} {
			got := h.legacy(t, rev, "").call("t_media", "")
			equal(
				t,
				rev+" audio",
				strings.Contains(got.raw, `{"type":"audio","data":"Aw==","mimeType":"audio/wav"}`),
				want.audio,
			)
			equal(
				t,
				rev+" no audio",
				strings.Contains(got.raw, `{"type":"text","text":"[audio, audio/wav]"}`),
				!want.audio,
			)
			equal(t, rev+" link", strings.Contains(got.raw, `"type":"resource_link"`), want.link)
			equal(
				t,
				rev+" no link",
				strings.Contains(got.raw, `{"type":"text","text":"[plain: test://plain]"}`),
				!want.link,
			)
			has(
				t,
				got.raw,
				`"_meta":{"test/took":7}`,
				`"annotations":{"audience":["user"],"priority":0.5}`,
				`"blob":""`,
			)
		}
	})
}

func TestFailuresOfTools(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", "")
		for name, want := range map[string]string{
			"t_refuse": "not_found: no such thing\nLook elsewhere.",
			"t_echo":   "invalid_arguments: text: required, expected a string of at least 1 character",
		} {
			got := p.call(name, "{}")
			equal(t, name, got.text(), want)
			has(t, got.raw, `"isError":true`)
		}
		has(t, p.call("t_echo", `{"Text":"x"}`).text(), `did you mean "text"`)
		got := p.call("t_wire", "{}")
		has(t, got.raw, `"error":{"code":4711,"message":"wires crossed","data":{"a":1}}`)
		got = p.call("t_none", "{}")
		has(t, got.raw, `"error":{"code":-32602,"message":"unknown tool: t_none"`)
		has(
			t,
			p.call("t_ehco", "{}").raw,
			`"error":{"code":-32602,"message":"unknown tool: t_ehco; did you mean t_echo?"`,
		)
		for _, args := range []string{`[]`, `"x"`, `5`, `true`} {
			equal(t, "arguments "+args, p.call("t_echo", args).code(), -32602)
		}
		equal(t, "arguments null are none", p.call("t_bulk", "null").text(), "a <b>\nc")
		for _, params := range []string{``, `"name":5`, `"name":""`, `"Name":"t_echo"`} {
			equal(t, "params "+params, p.ask("tools/call", params).code(), -32602)
		}
	})
}

var incident = regexp.MustCompile(`internal error, see ([a-z0-9_]+) in the log`)

func TestAPanicAffectsNoOtherRequest(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", "")
		id := p.start("tools/call", `"name":"t_wait"`)
		got := p.call("t_panic", "{}")
		equal(t, "code", got.code(), -32603)
		if !incident.MatchString(got.raw) {
			t.Errorf("no incident in %s", got.raw)
		}
		lacks(t, got.raw, "oh, dear", "panic:", "goroutine")
		h.clock <- struct{}{}
		equal(t, "the other call", p.await(id).text(), `{"said":"done"}`)
		equal(t, "slots in use", h.Calls.Running(), 0)
	})
}

func TestOutputThatDoesNotFitItsSchema(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		got := h.legacy(t, "2025-11-25", "").call("t_lies", "{}")
		equal(t, "code", got.code(), -32603)
		if !incident.MatchString(got.raw) {
			t.Errorf("no incident in %s", got.raw)
		}
	})
}

// A text over its budget ends at a line and names the resource with the rest, which can be read page by
// page.
func TestTextThatIsTooLong(t *testing.T) {
	visit(t, hosttest.Options{Budget: 1000}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", "")
		text := p.call("t_long", "{}").text()
		if len(text) > 1200 {
			t.Fatalf("%d bytes", len(text))
		}
		whole := strings.Repeat("0123456789\n", 10_000)
		m := regexp.MustCompile(`\n\[cut after (\d+) of 110000 bytes; read (gatehouse:///spool/\S+)\?offset=(\d+) for the rest\]$`).
			FindStringSubmatch(text)
		if m == nil || m[1] != m[3] {
			t.Fatalf("got %s", text[max(0, len(text)-200):])
		}
		var read strings.Builder
		read.WriteString(text[:strings.LastIndex(text, "[cut")])
		uri := m[2] + "?offset=" + m[3]
		for uri != "" {
			got := p.ask("resources/read", `"uri":"`+uri+`"`)
			var r struct{ Contents []struct{ Text string } }
			if err := json.Unmarshal(got.Result, &r); err != nil || len(r.Contents) != 1 {
				t.Fatalf("%s: %s", uri, got.raw)
			}
			page := r.Contents[0].Text
			uri = ""
			if m2 := regexp.MustCompile(`\n\[\d+ of 110000 bytes read; to read on, use (\?offset=\d+)\]$`).FindStringSubmatch(page); m2 != nil {
				page = page[:strings.LastIndex(page, "[")]
				uri = m[2] + m2[1]
			}
			read.WriteString(page)
		}
		equal(t, "all of it", read.String() == whole, true)

		q := h.dialAs(t, "another")
		q.hello("2025-11-25", "")
		has(t, q.ask("resources/read", `"uri":"`+m[2]+`"`).raw, `"code":-32002`, "no such output")
	})
}

func TestWhatACallPrints(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		h.offer(tool.New(tool.Def{Name: "t_print", Description: "Prints.", Effects: tool.Reads},
			func(_ context.Context, c *tool.Call, _ nothing) (tool.Result, error) {
				for i := range 5 {
					fmt.Fprintf(c.Peer.Output(), "line %d é\n", i)
					time.Sleep(200 * time.Millisecond)
				}
				return tool.Result{Content: []tool.Content{tool.Text("done")}}, nil
			}))
		p := h.legacy(t, "2025-11-25", "")
		got := p.ask("tools/call", `"_meta":{"progressToken":1},"name":"t_print"`)
		equal(t, "its tail rides on progress", len(got.notes), 5)
		has(t, got.notes[0], `"message":"line 0 é\n"`)
		has(t, got.notes[4], `"message":"line 4 é\n"`)
		link := regexp.MustCompile(`"uri":"(gatehouse:///spool/[^"]+)","name":"output","mimeType":"text/plain","size":50`).
			FindStringSubmatch(got.raw)
		if link == nil {
			t.Fatalf("no link in %s", got.raw)
		}
		has(
			t,
			p.ask("resources/read", `"uri":"`+link[1]+`"`).raw,
			`"text":"line 0 é\nline 1 é\nline 2 é\nline 3 é\nline 4 é\n"`,
		)
	})
}

func TestRelayedResultsAreNotRetyped(t *testing.T) {
	const raw = `{"content":[{"type":"text","text":"x","vendor":1e400},{"type":"theirs","z":1,"a":{"b":1,"a":2}}],"n":12345678901234567890,"z":1,"a":2}`
	const listed = `"execution":{"taskSupport":"optional"},"inputSchema":{"type":"object","maximum":12345678901234567890},"vendor":{"b":1,"a":2}}`
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		h.offer(tool.Tool{Def: tool.Def{Name: "t_relay", Raw: json.RawMessage(`{"name":"theirs",` + listed)},
			Run: func(context.Context, *tool.Call) (tool.Result, error) {
				return tool.Result{Raw: json.RawMessage(raw)}, nil
			}})
		p := h.legacy(t, "2025-11-25", "")
		p.unjudged = true // relayed results are not checked
		equal(t, "legacy", string(p.call("t_relay", "{}").Result), raw)
		equal(
			t,
			"modern",
			string(p.modern("", "tools/call", `"name":"t_relay"`).Result),
			raw[:len(raw)-1]+`,"resultType":"complete"}`,
		)
		has(t, p.ask("tools/list", "").raw, `{"name":"t_relay",`+listed)
		has(t, p.modern("", "tools/list", "").raw, `{"name":"t_relay",`+listed)
	})
}

func TestReadingResources(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", "")
		has(
			t,
			p.ask("resources/read", `"uri":"test://plain"`).raw,
			`"contents":[{"uri":"test://plain","mimeType":"text/plain","text":"hello"}]`,
		)
		has(
			t,
			p.ask("resources/read", `"uri":"test://blob"`).raw,
			`"contents":[{"uri":"test://blob","mimeType":"application/octet-stream","blob":"AP8="}]`,
		)
		has(t, p.ask("resources/read", `"uri":"test://item/a%20b"`).raw, `"text":"item a b"`)
		for rev, code := range map[string]int{"2024-11-05": -32002, "2025-11-25": -32002, modernRev: -32602} {
			q := h.dial(t)
			for _, uri := range []string{"test://nowhere", "test://item/none",
				"test://item/" + strings.Repeat("x", 10_000)} {
				var got answer
				if rev == modernRev {
					got = q.modern("", "resources/read", `"uri":"`+uri+`"`)
				} else {
					if q.rev == "" {
						q.hello(rev, "")
					}
					got = q.ask("resources/read", `"uri":"`+uri+`"`)
				}
				equal(t, rev, got.code(), code)
				has(t, got.raw, `"data":{"uri":"test://`)
			}
		}
		equal(t, "a read that fails", p.ask("resources/read", `"uri":"test://broken"`).code(), -32603)
		equal(t, "no address", p.ask("resources/read", ``).code(), -32602)
	})
}

// JavaScript encodes a string that was cut inside a character with a lone surrogate, which UTF-8 cannot
// represent.
func TestLoneSurrogatesAreReplacedAndTheAnswerSaysSo(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", "")
		p.send(
			`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t_echo","arguments":{"text":"a\ud83d"}}}`,
		)
		has(
			t,
			string(p.next()),
			`"id":7,`,
			`"structuredContent":{"said":"a`+"\ufffd"+`"}`,
			`[lone surrogates in the request, replaced by U+FFFD: 1]`,
		)
	})
}
