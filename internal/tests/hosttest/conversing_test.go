package hosttest_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"gatehouse/internal/tests/hosttest"
	"gatehouse/module/moduletest"
)

const toolsChanged = "notifications/tools/list_changed"

// changing: each client sees what is its own, and is notified of a change once, if there is one.
func changing(t *testing.T, named hosttest.Named) {
	base := named.Make(t, offering("changing", moduletest.Changing(&moduletest.Board{})))
	ada, bob := base.As("ada"), base.As("bob")
	adas, bobs := ada.Listen(), bob.Listen()
	if base.Traits().Restarts {
		// A client that listens to a host that stops is notified of the end, and reads again at the next host.
		fine(t, "list", ada.Do("tools/list", `{}`, nil))
		same(t, "end of listening", hosttest.Get(adas.Ended(), "resultType"), `"complete"`)
		adas, bobs = nil, nil
	}
	// Without a session an older client cannot be notified and must poll: its lists are right nevertheless.
	if told := adas != nil; told == (base.Traits().Restarts || !base.Traits().CanAsk()) {
		t.Fatalf("listening: %v", told)
	}
	sees := func(h hosttest.Harness, want string) {
		t.Helper()
		same(t, "offer", fmt.Append(nil, hosttest.Names(hosttest.List(t, h, "tools/list"), "name", "extra_")), want)
	}
	hears := func(e *hosttest.Ear) {
		t.Helper()
		if e != nil {
			same(t, "heard", []byte(e.Next()), toolsChanged)
		}
	}
	change := func(h hosttest.Harness, args string) {
		t.Helper()
		fine(t, "change", hosttest.Call(h, "changing_add", args, nil))
	}
	sees(ada, "[]")

	fine(t, "touch", hosttest.Call(ada, "changing_touch", `{}`, nil)) // notifies no client
	change(ada, `{"name":"red"}`)                                     // tells ada
	hears(adas)
	sees(ada, "[extra_red]")
	sees(bob, "[]")
	r := fine(t, "new tool", hosttest.Call(ada, "extra_red", `{}`, nil))
	same(t, "new tool", r.Get("structuredContent"), `{"name":"red","for":"ada"}`)
	failed(t, "somebody else's tool", hosttest.Call(bob, "extra_red", `{}`, nil), -32602, "^unknown tool: extra_red$")

	change(bob, `{"name":"blue","everyone":true}`)
	hears(adas)
	hears(bobs)
	change(ada, `{"name":"blue"}`)                // hers already: notifies no client
	change(ada, `{"name":"red","everyone":true}`) // hers already: tells bob
	hears(bobs)
	change(bob, `{"name":"green"}`) // all clients were checked again when bob is notified
	hears(bobs)
	sees(ada, "[extra_blue extra_red]")
	sees(bob, "[extra_blue extra_green extra_red]")
	sees(base, "[extra_blue extra_red]")
	if adas != nil {
		adas.Quiet()
		bobs.Quiet()
	}
}

// ada answers the questions of the TwoRounds probe. The colour is right only at the second question, so that a
// wrong answer is seen to be asked again.
func ada(asked *[]string) hosttest.Answer {
	wrong := false
	return func(method string, params json.RawMessage) json.RawMessage {
		question := method + strings.Trim(string(hosttest.Get(params, "message")), `"`)
		*asked = append(*asked, question)
		switch question {
		case "elicitation/createWho are you?":
			return json.RawMessage(`{"action":"accept","content":{"name":"Ada"}}`)
		case "elicitation/createWhich colour?":
			if !wrong {
				wrong = true
				return json.RawMessage(`{"action":"accept","content":{"colour":"blue"}}`)
			}
			return json.RawMessage(`{"action":"accept","content":{"colour":"green"}}`)
		case "roots/list":
			return json.RawMessage(`{"roots":[{"uri":"file:///a","name":"a"},{"uri":"file:///b"}]}`)
		}
		return json.RawMessage(`{}`)
	}
}

// twoRounds: a handler that asks runs again from the top, performs its effects once, and sends each notification
// once.
func twoRounds(t *testing.T, named hosttest.Named) {
	var effects atomic.Int64
	h := named.Make(t, offering("two", moduletest.TwoRounds(func() (int, error) { return int(effects.Add(1)), nil })))
	if !h.Traits().CanAsk() {
		cannotBeAsked(t, h)
		cannotBeAsked(t, hosttest.Muted(h))
		if n := effects.Load(); n != 0 {
			t.Errorf("the effect ran %d times", n)
		}
		return
	}
	for i, name := range []string{"two_rounds", "two_rounds_task"} {
		var asked []string
		var r hosttest.Reply
		if name == "two_rounds" {
			r = hosttest.Call(h, name, `{}`, ada(&asked))
		} else {
			r = h.Finish(h.Start(name, `{}`), ada(&asked))
		}
		fine(t, name, r)
		same(
			t,
			name,
			r.Get("structuredContent"),
			fmt.Sprintf(`{"name":"Ada","colour":"green","roots":2,"times":%d}`, i+1),
		)
		if n := effects.Load(); n != int64(i+1) {
			t.Errorf("%s: the effect ran %d times in all, want %d", name, n, i+1)
		}
		// Only the wrong colour is asked again.
		slices.Sort(asked[1:3])
		if got := fmt.Sprintf("%q", asked); got != `["elicitation/createWho are you?" "elicitation/createWhich colour?" "roots/list" "elicitation/createWhich colour?"]` {
			t.Errorf("%s: asked %s", name, got)
		}
		if name == "two_rounds" {
			saidOnce(t, &r)
		}
	}
	declined(t, h)
	r := fine(t, "prompt", h.Do("prompts/get", `{"name":"two_prompt"}`, ada(new([]string))))
	same(t, "prompt", r.Get("messages", 0, "content", "text"), `"I am Ada."`)
}

// saidOnce: three log messages, and increasing progress. Progress may be merged, so only its last value must be
// there.
func saidOnce(t *testing.T, r *hosttest.Reply) {
	t.Helper()
	var logs, progress []string
	for _, p := range r.Notifications("notifications/message") {
		logs = append(logs, string(hosttest.Get(p, "data")))
	}
	for _, p := range r.Notifications("notifications/progress") {
		progress = append(progress, string(hosttest.Get(p, "progress")))
	}
	if got := strings.Join(logs, " "); got != `"asking" "working" "done"` {
		t.Errorf("logged %s", got)
	}
	if !slices.IsSorted(progress) || len(slices.Compact(slices.Clone(progress))) != len(progress) ||
		!slices.Contains(progress, "3") {
		t.Errorf("progress %v", progress)
	}
}

func declined(t *testing.T, h hosttest.Harness) {
	t.Helper()
	no := func(string, json.RawMessage) json.RawMessage { return json.RawMessage(`{"action":"decline"}`) }
	refused(t, "declined", hosttest.Call(h, "two_rounds", `{}`, no), "declined: the person would not say (decline)")
	refused(
		t,
		"declined task",
		h.Finish(h.Start("two_rounds_task", `{}`), no),
		"declined: the person would not say (decline)",
	)
}

// cannotBeAsked: without a session the host does not know what an older client can answer, and no answer would
// reach the call. The tool's result says so.
func cannotBeAsked(t *testing.T, h hosttest.Harness) {
	t.Helper()
	refused(
		t,
		"asking",
		hosttest.Call(h, "two_rounds", `{}`, nil),
		"this needs a client that can answer elicitation/create",
	)
	refused(
		t,
		"asking in a task",
		h.Finish(h.Start("two_rounds_task", `{}`), nil),
		"this needs a client that can answer elicitation/create",
	)
	failed(
		t,
		"asking in a prompt",
		h.Do("prompts/get", `{"name":"two_prompt"}`, nil),
		-32600,
		"can answer elicitation/create",
	)
}
