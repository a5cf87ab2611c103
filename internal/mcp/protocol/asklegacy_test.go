package protocol_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/tests/hosttest"
)

var ourID = regexp.MustCompile(`"id":"(gh-\d+)"`)

// question returns the ID of the next frame, which must be a request.
func (p *peer) question() string {
	p.t.Helper()
	m := ourID.FindSubmatch(p.next())
	if m == nil {
		p.t.Fatal("no question")
	}
	return string(m[1])
}

func TestTwoCallsThatAskAtOnceDoNotMix(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", canElicit)
		one := p.start("tools/call", `"name":"t_ask"`)
		q1 := p.question()
		two := p.start("tools/call", `"name":"t_ask"`)
		q2 := p.question()
		p.reply(q2, named("Bob"))
		equal(t, "the second", p.await(two).text(), `{"said":"Bob"}`)
		p.reply(q1, named("Ada"))
		equal(t, "the first", p.await(one).text(), `{"said":"Ada"}`)
		p.reply(q1, named("Eve"))
		p.quiet()
	})
}

// Clients of different connections cannot answer each other's questions.
func TestQuestionsOfAnotherConnection(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p, q := h.legacy(t, "2025-11-25", canElicit), h.legacy(t, "2025-11-25", canElicit)
		id := p.start("tools/call", `"name":"t_ask"`)
		ask := p.question()
		q.reply(ask, named("Eve"))
		q.quiet()
		p.quiet()
		p.reply(ask, named("Ada"))
		equal(t, "said", p.await(id).text(), `{"said":"Ada"}`)
	})
}

func TestUnansweredQuestions(t *testing.T) {
	visit(t, hosttest.Options{AskFor: time.Minute}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", canElicit)
		id := p.start("tools/call", `"name":"t_ask"`)
		ask := p.question()
		time.Sleep(time.Minute - time.Second)
		p.quiet()
		time.Sleep(2 * time.Second)
		got := p.await(id)
		has(t, got.text(), "unanswered: no answer arrived in time")
		has(t, strings.Join(got.notes, ""), `"method":"notifications/cancelled","params":{"requestId":"`+ask+`"`)
		p.reply(ask, named("late"))
		p.quiet()
	})
}

func TestCancelledWhileAsking(t *testing.T) {
	visit(t, hosttest.Options{AskFor: time.Minute}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", canElicit)
		id := p.start("tools/call", `"name":"t_ask"`)
		ask := p.question()
		p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
		p.quiet()
		p.reply(ask, named("Ada"))
		p.quiet()
		time.Sleep(2 * time.Minute) // and without an answer
		p.quiet()
	})
}

func TestConnectionEndsWhileAsking(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", `{"elicitation":{},"sampling":{},"roots":{}}`)
		p.start("tools/call", `"name":"t_survey"`)
		p.start("tools/call", `"name":"t_ask"`)
		equal(t, "questions", len(p.rest()), 4)
		p.pipe.Close(nil)
		p.pipe.Close(nil)
		<-p.pipe.Done()
		p.rest()
		equal(t, "runs", h.history(), "survey")
		equal(t, "slots in use", h.Calls.Running(), 0)
	})
}

// If a client closes its input it can still read: a call that waits for its answer ends with an error.
func TestInputEndsWhileAsking(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", canElicit)
		p.start("tools/call", `"name":"t_ask"`)
		p.question()
		began := time.Now()
		p.pipe.Drain(t.Context())
		equal(t, "waited", time.Since(began), 0)
		has(t, strings.Join(p.rest(), "\n"), "unanswered: the client has closed its input, so it cannot answer")
	})
}

func TestLegacyRoundsHaveTheirLimit(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", canElicit)
		id := p.start("tools/call", `"name":"t_endless"`)
		for range 10 {
			p.reply(p.question(), named("Ada"))
		}
		has(t, p.await(id).text(), "too_many_rounds")
	})
}

func TestLegacyAnswersAreChecked(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", canElicit)
		id := p.start("tools/call", `"name":"t_ask"`)
		for _, bad := range []string{`5`, `null`, `{}`, `{"action":"accept"}`,
			`{"action":"accept","content":{"name":"A"}}`} {
			p.reply(p.question(), bad)
		}
		p.reply(p.question(), named("Ada"))
		equal(t, "said", p.await(id).text(), `{"said":"Ada"}`)
	})
}

// Notifications of a round that is repeated are not sent again.
func TestLegacyRoundsTellOnce(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", canElicit)
		id := p.start("tools/call", `"name":"t_two"`)
		has(t, string(p.next()), `"data":"starting"`)
		p.reply(p.question(), named("Ada"))
		p.reply(p.question(), named("Bob"))
		got := p.await(id)
		equal(
			t,
			"notes",
			fmt.Sprint(got.notes),
			`[{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"ending"}}]`,
		)
		equal(t, "said", got.text(), `{"said":"Ada Bob 42"}`)
		equal(t, "effects", h.history(), "first second")
	})
}

// A client of a revision without elicitation is not asked, whatever capabilities it declares.
func TestElicitationNeedsItsRevision(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		for _, rev := range legacyRevisions {
			p := h.legacy(t, rev, canElicit)
			id := p.start("tools/call", `"name":"t_ask"`)
			if rev < "2025-06-18" {
				has(t, p.await(id).text(), "unsupported: ")
				continue
			}
			p.reply(p.question(), named("Ada"))
			equal(t, rev, p.await(id).get("isError"), "")
		}
	})
}
