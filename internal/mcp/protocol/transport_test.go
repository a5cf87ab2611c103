package protocol_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/session"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/tool"
)

func parsed(t *testing.T, frame string) *protocol.Message {
	t.Helper()
	msgs, faults, _ := protocol.Parse([]byte(frame))
	if len(faults) > 0 {
		t.Fatal(faults[0])
	}
	return &msgs[0]
}

func (h *testHost) open(t *testing.T, params string) *session.Session {
	t.Helper()
	s, answer, f := h.Engine.Open(
		anybody,
		parsed(t, `{"jsonrpc":"2.0","id":"o","method":"initialize","params":{`+params+`}}`),
	)
	if f != nil {
		t.Fatal(f)
	}
	has(t, string(answer), `{"jsonrpc":"2.0","id":"o","result":{"protocolVersion":`)
	return s
}

func TestHandshakeOfATransportWithSessions(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		s := h.open(t, `"protocolVersion":"2025-06-18","clientInfo":{"name":"c","version":"1"}`)
		f := s.Facts()
		equal(t, "principal", f.Principal, "anonymous")
		equal(t, "owner", f.Owner, "anonymous/default")
		equal(t, "session", f.Session, s.ID)
		equal(t, "client", f.Client, "c/1")
		equal(t, "revision", f.Revision.String(), "2025-06-18")
		equal(t, "sessions", h.Engine.Sessions().Len(), 1)

		_, _, fault := h.Engine.Open(anybody, parsed(t, `{"jsonrpc":"2.0","method":"initialize"}`))
		if fault == nil || fault.Error() != "initialize needs an id" {
			t.Errorf("got %v", fault)
		}
		_, _, fault = h.Engine.Open(
			protocol.Caller{Caller: tool.Caller{Principal: "x", Context: "nowhere"}},
			parsed(t, `{"jsonrpc":"2.0","id":1,"method":"initialize"}`),
		)
		if fault == nil || fault.Status != 404 || string(fault.ID) != "1" {
			t.Errorf("got %+v", fault)
		}
	})
}

func TestNotificationsOfASession(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		s := h.open(t, `"capabilities":{"elicitation":{}}`)
		accept := func(frame string, want bool) {
			t.Helper()
			if f := h.Engine.Accept(s, parsed(t, frame)); (f == nil) != want {
				t.Errorf("%s: got %v", frame, f)
			} else if f != nil {
				equal(t, "status", f.Status, 400)
				lacks(t, string(protocol.Respond(f)), `"id"`)
			}
		}
		accept(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, true)
		accept(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`, true)
		accept(`{"jsonrpc":"2.0","method":"notifications/unknown"}`, true)
		accept(`{"jsonrpc":"2.0","id":"gh-1","result":{}}`, false)
		accept(`{"jsonrpc":"2.0","id":1,"result":{}}`, false)

		k := &keeper{t: t}
		h.Engine.Legacy(s, parsed(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t_ask"}}`), k)
		has(t, strings.Join(k.notes, ""), `"id":"gh-1","method":"elicitation/create"`)
		accept(`{"jsonrpc":"2.0","id":"gh-1","result":`+named("Ada")+`}`, true)
		synctest.Wait()
		has(t, k.answer, `"said":"Ada"`)
		accept(`{"jsonrpc":"2.0","id":"gh-1","result":{}}`, false)

		k = &keeper{t: t}
		go h.Engine.Legacy(s, parsed(t, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"t_wait"}}`), k)
		synctest.Wait()
		accept(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`, true)
		equal(t, "dropped", k.over() && k.dropped, true)
	})
}

// A client without a stream is asked on the session's stream, or gets an error.
func TestAskingAClientWithoutAStream(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		s := h.open(t, `"capabilities":{"elicitation":{}}`)
		k := &keeper{t: t, mute: true}
		h.Engine.Legacy(s, parsed(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t_ask"}}`), k)
		synctest.Wait()
		has(t, k.answer, "unanswered: the client reads no stream on which it can get requests")

		var r reader
		if err := s.Queue().Attach(&r, 0, false, false); err != nil {
			t.Fatal(err)
		}
		k = &keeper{t: t, mute: true}
		h.Engine.Legacy(s, parsed(t, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"t_ask"}}`), k)
		synctest.Wait()
		has(t, strings.Join(r.got, ""), `"id":"gh-2","method":"elicitation/create"`)
		h.Engine.Accept(s, parsed(t, `{"jsonrpc":"2.0","id":"gh-2","result":`+named("Ada")+`}`))
		synctest.Wait()
		has(t, k.answer, `"said":"Ada"`)
	})
}

// reader reads the stream of a session.
type reader struct{ got []string }

func (r *reader) WriteEvent(_ string, msg []byte) error {
	r.got = append(r.got, string(msg))
	return nil
}
func (*reader) Close() {}

// A legacy client of HTTP treats any status but 200 as a connection failure; only requests that are not
// valid in a session get another.
func TestStatusesOfLegacyErrors(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		s := h.open(t, ``)
		for frame, want := range map[string]int{
			`"method":"no/such"`:                                         200,
			`"method":"tools/call","params":{"name":"none"}`:             200,
			`"method":"tools/call"`:                                      200,
			`"method":"resources/read","params":{"uri":"x"}`:             200,
			`"method":"tools/list","params":{"cursor":"x"}`:              200,
			`"method":"tools/call","params":{"name":"t_panic"}`:          200,
			`"method":"tools/call","params":{"name":"t_must"}`:           200,
			`"method":"tools/call","params":{"name":"t_ask"}`:            200,
			`"method":"logging/setLevel","params":{"level":"loud"}`:      200,
			`"method":"completion/complete","params":{"ref":{}}`:         200,
			`"method":"resources/subscribe","params":{"uri":"test://n"}`: 200,
		} {
			k := &keeper{t: t}
			h.Engine.Legacy(s, parsed(t, `{"jsonrpc":"2.0","id":1,`+frame+`}`), k)
			equal(t, frame, k.status, want)
		}
	})
}

func TestHostWithoutSessions(t *testing.T) {
	visit(t, hosttest.Options{NoTable: true}, func(t *testing.T, h *testHost) {
		if s := h.open(t, `"capabilities":{"elicitation":{}}`); s != nil {
			t.Fatal("there is a session")
		}
		for version, want := range map[string]string{"": "2025-03-26", "2024-11-05": "2024-11-05",
			"2025-11-25": "2025-11-25"} {
			s, f := h.Engine.Stateless(anybody, version)
			if f != nil {
				t.Fatal(f)
			}
			equal(t, "revision", s.Facts().Revision.String(), want)
			k := &keeper{t: t}
			h.Engine.Legacy(
				s,
				parsed(
					t,
					`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t_echo","arguments":{"text":"x"}}}`,
				),
				k,
			)
			has(t, k.answer, `said`)
			k = &keeper{t: t} // no client could return the answer
			h.Engine.Legacy(s, parsed(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t_ask"}}`), k)
			has(t, k.answer, "unsupported: ")
		}
		for _, version := range []string{"2026-07-28", "1999-01-01", "x"} {
			if _, f := h.Engine.Stateless(anybody, version); f == nil || f.Status != 400 {
				t.Errorf("%s: got %v", version, f)
			}
		}
	})
}

// Failures of a module's own job.
func TestJobsOfModulesThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		run  func() (tool.Result, error)
		want string
	}{
		"a refusal": {func() (tool.Result, error) { return tool.Result{}, tool.Refuse("busy", "no") },
			`"isError":true`},
		"an error": {func() (tool.Result, error) { return tool.Result{}, errors.New("broken") },
			`"text":"broken"`},
		"a wire error": {func() (tool.Result, error) {
			return tool.Result{},
				&tool.WireError{Code: 7, Message: "wires"}
		}, `"error":{"code":7,"message":"wires"}`},
		"no JSON": {func() (tool.Result, error) { return tool.Result{Structured: func() {}}, nil },
			`"error":{"code":-32603,"message":"output: `},
		"a panic": {func() (tool.Result, error) { panic("oh") },
			`"error":{"code":-32603,"message":"internal error, see `},
		"no question": {func() (tool.Result, error) { return tool.Result{Input: &tool.Input{}}, nil },
			`"isError":true`},
		"what is right": {func() (tool.Result, error) { return tool.Result{Structured: 7}, nil },
			`"structuredContent":7`},
	} {
		t.Run(name, func(t *testing.T) {
			visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
				h.offer(tool.New(tool.Def{Name: "t_start", Description: "Starts a job.", Effects: tool.Reads},
					func(_ context.Context, call *tool.Call, _ nothing) (echoOut, error) {
						id, err := h.deps.Job(
							call,
							"a job",
							func(_ context.Context, call *tool.Call) (tool.Result, error) {
								call.Peer.Progress(1, 2, "half way")
								return c.run()
							},
						)
						return echoOut{id}, err
					}))
				p := h.dial(t)
				id := p.modern(tasksCaps, "tools/call", `"name":"t_start"`).get("structuredContent.said")
				synctest.Wait()
				has(t, p.task("tasks/get", id).raw, c.want, `"statusMessage"`)
			})
		})
	}
}
