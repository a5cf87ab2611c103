package protocol_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/access/permit"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// gated is a host with one tool whose calls need an approval, and the number of its runs.
type gated struct {
	*hosttest.Host
	ran atomic.Int32
}

func newGated(t *testing.T, then permit.Kind, remember time.Duration) *gated {
	t.Helper()
	g := &gated{}
	wipe := tool.New(tool.Def{Name: "m_wipe", Description: "Wipes.", Effects: tool.Destroys},
		func(_ context.Context, c *tool.Call, in struct {
			Path string `json:"path"`
			Ask  bool   `json:"ask,omitempty"`
		}) (struct {
			Gone string `json:"gone"`
		}, error) {
			out := struct {
				Gone string `json:"gone"`
			}{in.Path}
			if in.Ask {
				if _, err := c.Peer.Ask(tool.Elicit("sure", "Sure?",
					[]byte(`{"type":"object","properties":{}}`))); err != nil {
					return out, err
				}
			}
			g.ran.Add(1)
			return out, nil
		})
	p, err := permit.New(permit.Options{Default: permit.Allow, Rules: []permit.Rule{
		{Name: "wipes", Effects: tool.Destroys, Then: then, Reason: "it cannot be undone", Remember: remember},
	}})
	if err != nil {
		t.Fatal(err)
	}
	g.Host = hosttest.New(t, hosttest.Options{Policy: p, Modules: map[string]module.New{
		"m": func(context.Context, module.Deps) (module.Module, error) {
			return one{&module.Offer{Tools: []tool.Tool{wipe}}}, nil
		},
	}})
	return g
}

// talk is a modern client on a pipe of its own.
type talk struct {
	t    *testing.T
	pipe *protocol.Pipe
	in   chan string
	n    int
	caps string
}

func (g *gated) talk(t *testing.T, caps string) *talk {
	k := &talk{t: t, in: make(chan string, 100), caps: caps}
	k.pipe = g.Engine.Pipe(protocol.Caller{Caller: tool.Caller{Principal: "ann"}}, func(m []byte) error {
		k.in <- string(m)
		return nil
	})
	t.Cleanup(func() { k.pipe.Close(nil) })
	return k
}

func (k *talk) say(method, params string) string {
	k.t.Helper()
	k.n++
	k.pipe.Receive(
		fmt.Appendf(
			nil,
			`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":%s}%s}}`,
			k.n,
			method,
			k.caps,
			params,
		),
	)
	select {
	case m := <-k.in:
		return m
	case <-time.After(time.Minute):
		k.t.Fatal("no answer")
		return ""
	}
}

func state(t *testing.T, answer string) string {
	t.Helper()
	var a struct {
		Result struct {
			State string `json:"requestState"`
		} `json:"result"`
	}
	if err := json.Unmarshal([]byte(answer), &a); err != nil || a.Result.State == "" {
		t.Fatalf("no state in %s", answer)
	}
	return a.Result.State
}

const wipe = `,"name":"m_wipe","arguments":{"path":"x"}`

func yes(st string, extra string) string {
	return wipe + `,"requestState":"` + st +
		`","inputResponses":{"gatehouse_approval":{"action":"accept","content":{"approve":true}}` + extra + `}`
}

func wants(t *testing.T, got, want string) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Fatalf("got %s\nwant %s in it", got, want)
	}
}

func TestAPersonsYesIsGoodForOneCall(t *testing.T) {
	g := newGated(t, permit.AskClient, 0)
	k := g.talk(t, `{"elicitation":{}}`)
	forged := k.say(
		"tools/call",
		wipe+`,"inputResponses":{"gatehouse_approval":{"action":"accept","content":{"approve":true}}}`,
	)
	wants(t, forged, `"resultType":"input_required"`)
	asked := k.say("tools/call", wipe)
	wants(t, asked, `it cannot be undone`)
	st := state(t, asked)
	wants(t, k.say("tools/call", strings.Replace(yes(st, ""), `"x"`, `"y"`, 1)), `requestState`) // with other arguments
	wants(t, k.say("tools/call", yes(st, "")), `"gone":"x"`)
	wants(t, k.say("tools/call", yes(st, "")), `used already`)
	wants(t, k.say("tools/call", wipe), `"resultType":"input_required"`)
	if n := g.ran.Load(); n != 1 {
		t.Fatalf("ran %d times, want once", n)
	}
}

func TestANoIsANo(t *testing.T) {
	g := newGated(t, permit.AskClient, 0)
	k := g.talk(t, `{"elicitation":{}}`)
	for _, answer := range []string{
		`{"action":"decline"}`, `{"action":"cancel"}`, `{"action":"accept","content":{"approve":false}}`,
		`{"action":"accept"}`, `7`,
	} {
		st := state(t, k.say("tools/call", wipe))
		got := k.say("tools/call", wipe+`,"requestState":"`+st+`","inputResponses":{"gatehouse_approval":`+answer+`}`)
		wants(t, got, `not approved`)
	}
	wants(t, g.talk(t, `{}`).say("tools/call", wipe), `cannot wait for one`)
	if g.ran.Load() != 0 {
		t.Fatal("it ran without a yes")
	}
}

func TestAYesCoversTheCallsOwnQuestions(t *testing.T) {
	g := newGated(t, permit.AskClient, 0)
	k := g.talk(t, `{"elicitation":{}}`)
	asking := strings.Replace(wipe, `"x"`, `"x","ask":true`, 1)
	st := state(t, k.say("tools/call", asking))
	second := k.say("tools/call", strings.Replace(yes(st, ""), `"x"`, `"x","ask":true`, 1))
	wants(t, second, `"sure"`)
	retry := asking + `,"requestState":"` + state(
		t,
		second,
	) + `","inputResponses":{"sure":{"action":"accept","content":{}}}`
	wants(t, k.say("tools/call", retry), `"gone":"x"`)
	wants(t, k.say("tools/call", retry), `used already`)
	if n := g.ran.Load(); n != 1 {
		t.Fatalf("ran %d times, want once", n)
	}
}

func TestARememberedYesIsNotAskedForAgain(t *testing.T) {
	g := newGated(t, permit.AskClient, time.Hour)
	k := g.talk(t, `{"elicitation":{}}`)
	wants(t, k.say("tools/call", yes(state(t, k.say("tools/call", wipe)), "")), `"gone":"x"`)
	wants(t, k.say("tools/call", wipe), `"gone":"x"`)
	wants(t, k.say("tools/call", strings.Replace(wipe, `"x"`, `"y"`, 1)), `input_required`)
}

// pending waits until a request for approval is in the store.
func pending(t *testing.T, b *approvals.Store) approvals.Request {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if list, err := b.Pending(false); err == nil && len(list) == 1 {
			return list[0]
		}
	}
	t.Fatal("nothing waits for approval")
	return approvals.Request{}
}

func TestAnOperatorDecidesWhileNoClientWaits(t *testing.T) {
	g := newGated(t, permit.AskOperator, 0)
	tasks := g.talk(t, `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`)
	for _, c := range []struct {
		yes  bool
		want string
	}{{true, `"gone":"x"`}, {false, `the operator refused`}} {
		created := tasks.say("tools/call", wipe)
		wants(t, created, `"resultType":"task"`)
		var a struct{ Result struct{ TaskID string } }
		json.Unmarshal([]byte(created), &a)
		req := pending(t, g.Approvals)
		if req.Tool != "m_wipe" || string(req.Args) != `{"path":"x"}` || req.Owner != "ann/default" {
			t.Fatalf("asked for %+v", req)
		}
		if _, err := g.Approvals.Decide(req.ID, c.yes, "op"); err != nil {
			t.Fatal(err)
		}
		var got string
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			got = tasks.say("tasks/get", `,"taskId":"`+a.Result.TaskID+`"`)
			if strings.Contains(got, `"status":"completed"`) {
				break
			}
		}
		wants(t, got, c.want)
	}
	plain := g.talk(t, `{}`).say("tools/call", wipe)
	if strings.Contains(plain, `"gone"`) {
		t.Fatalf("it ran without a yes: %s", plain)
	}
	if n := g.ran.Load(); n != 1 {
		t.Fatalf("ran %d times, want once", n)
	}
}
