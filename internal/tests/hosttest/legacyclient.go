package hosttest

import (
	"encoding/json"
	"slices"
	"strconv"
	"testing"
	"time"

	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// legacyClient speaks 2025-11-25: in a session on a pipe, or without one, request by request.
type legacyClient struct {
	t       testing.TB
	host    *Host
	who     string
	session bool
	mute    bool

	l    line
	next int
}

func newLegacy(t testing.TB, o Options) Harness {
	return legacySession(t, New(t, o), "anonymous")
}

// newStateless returns a host without sessions, as behind a load balancer: only the headers of a request identify
// the caller.
func newStateless(t testing.TB, o Options) Harness {
	o.NoTable = true
	return stateless(t, New(t, o), "anonymous", false)
}

func stateless(t testing.TB, h *Host, who string, mute bool) *legacyClient {
	return &legacyClient{
		t:    t,
		host: h,
		who:  who,
		mute: mute,
		l:    &oneByOne{t: t, host: h, who: who, mute: mute, in: make(chan []byte, 10_000)},
	}
}

// Muted is a harness like one without sessions, but for a client that reads
// only the answer.
func Muted(h Harness) Harness {
	l := h.(*legacyClient)
	return stateless(l.t, l.host, l.who, true)
}

func legacySession(t testing.TB, h *Host, who string) *legacyClient {
	t.Helper()
	return &legacyClient{t: t, host: h, who: who, session: true, l: greeted(t, h, who)}
}

// greeted opens a pipe and shakes hands.
func greeted(t testing.TB, h *Host, who string) *Client {
	t.Helper()
	c := h.DialAs(t, who)
	c.Send(
		frame(
			0,
			"initialize",
			`{"protocolVersion":"2025-11-25","clientInfo":{"name":"hosttest","version":"1"},"capabilities":`+
				capabilities+`}`,
		),
	)
	if _, fault := await(t, c, 0, func(json.RawMessage) {}); fault != nil {
		t.Fatalf("initialize: %v", fault)
	}
	c.Send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return c
}

func (l *legacyClient) Traits() Traits { return Traits{Session: l.session, Mute: l.mute} }
func (l *legacyClient) Host() *Host    { return l.host }

func (l *legacyClient) As(who string) Harness {
	if l.session {
		return legacySession(l.t, l.host, who)
	}
	return stateless(l.t, l.host, who, l.mute)
}

func (l *legacyClient) Do(method, params string, answer Answer) (r Reply) {
	l.t.Helper()
	l.next++
	params = join(`"_meta":{"progressToken":"p"}`, params)
	r.Rounds, r.Sent = 1, json.RawMessage(params)
	var open int // questions of the round that have been answered in it
	l.l.Send(frame(l.next, method, params))
	r.Result, r.Error = await(l.t, l.l, l.next, func(msg json.RawMessage) {
		if Get(msg, "id") == nil {
			r.Notes, open = append(r.Notes, noteOf(msg)), 0
			return
		}
		// Questions that come without anything between them are of one round.
		if open++; open == 1 {
			r.Rounds++
		}
		l.reply(msg, answer)
	})
	return r
}

// reply answers a request of the host.
func (l *legacyClient) reply(msg json.RawMessage, answer Answer) {
	l.t.Helper()
	if answer == nil {
		l.t.Fatalf("asked without being ready to answer: %s", msg)
	}
	method, _ := rawjson.String(Get(msg, "method"))
	l.l.Send(
		`{"jsonrpc":"2.0","id":` + string(
			Get(msg, "id"),
		) + `,"result":` + string(
			answer(method, Get(msg, "params")),
		) + `}`,
	)
}

func (l *legacyClient) Start(name, args string) string {
	l.t.Helper()
	r := l.Do("tools/call", join(`"task":{"ttl":60000}`, callParams(name, args)), nil)
	id, ok := rawjson.String(r.Get("task", "taskId"))
	if !ok {
		l.t.Fatal(failure("no task of "+name, &r))
	}
	return id
}

func (l *legacyClient) Finish(task string, answer Answer) Reply {
	l.t.Helper()
	r := l.Do("tasks/result", `{"taskId":"`+task+`"}`, answer)
	r.Task = task
	return r
}

func (l *legacyClient) Listen() *Ear {
	if !l.session {
		return nil
	}
	return &Ear{t: l.t, c: greeted(l.t, l.host, l.who)}
}

// oneByOne brings each message to the host on a session of its own, as the
// HTTP door does on a host without sessions.
type oneByOne struct {
	t    testing.TB
	host *Host
	who  string
	mute bool
	in   chan []byte
}

func (o *oneByOne) Send(frame string) {
	o.t.Helper()
	msgs, faults, _ := protocol.Parse([]byte(frame))
	if len(faults) > 0 || len(msgs) != 1 || !msgs[0].IsRequest() {
		o.t.Fatalf("%s: not one request: %v", frame, faults)
	}
	s, fault := o.host.Engine.Stateless(protocol.Caller{Caller: tool.Caller{Principal: o.who}}, "2025-11-25")
	if fault != nil {
		o.t.Fatal(fault)
	}
	go o.host.Engine.Legacy(s, &msgs[0], oneAnswer{o})
}

func (o *oneByOne) Next() json.RawMessage {
	o.t.Helper()
	select {
	case m := <-o.in:
		return m
	case <-time.After(silence):
		o.t.Fatal("the host says nothing")
		return nil
	}
}

// oneAnswer takes what one request sends back.
type oneAnswer struct{ o *oneByOne }

func (a oneAnswer) Note(msg []byte) bool {
	if !a.o.mute {
		a.o.in <- slices.Clone(msg)
	}
	return !a.o.mute
}

func (a oneAnswer) Answer(_ int, msg []byte) { a.o.in <- slices.Clone(msg) }
func (a oneAnswer) Drop()                    {}
func (a oneAnswer) Detach()                  {}

// wireError reads a JSON-RPC error object.
func wireError(raw []byte) *tool.WireError {
	e := &tool.WireError{Data: Get(raw, "data")}
	e.Message, _ = rawjson.String(Get(raw, "message"))
	e.Code, _ = strconv.Atoi(string(Get(raw, "code")))
	return e
}
