package hosttest

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/seal"
)

// modernClient speaks 2026-07-28 on a pipe. It declares all abilities, tasks
// among them.
type modernClient struct {
	t    testing.TB
	host *servant
	who  string

	c    *Client
	on   *Host // where c leads
	next int
}

// servant is the host that serves at the moment.
type servant struct {
	t       testing.TB
	now     *Host
	restart func() *Host // nil: there is one host only
}

// turn stops the host and builds a new one over what the old one left.
func (s *servant) turn() {
	if s.restart != nil {
		s.now.Stop()
		s.now = s.restart()
	}
}

func newModern(t testing.TB, o Options) Harness {
	return &modernClient{t: t, host: &servant{t: t, now: New(t, o)}, who: "anonymous"}
}

// newEncoding is the modern harness over a bus that encodes everything.
func newEncoding(t testing.TB, o Options) Harness {
	o.Bus = func(b bus.Bus) bus.Bus { return encodingBus{b} }
	return newModern(t, o)
}

// newRestarted is the modern harness with a host that is stopped after every
// request. The keys, the jobs and the spool stay, and so does what the modules
// stand on; the rest is new.
func newRestarted(t testing.TB, o Options) Harness {
	dir := t.TempDir()
	o.JobsFile, o.SpoolDir = filepath.Join(dir, "jobs.db"), filepath.Join(dir, "spool")
	build := func() *Host {
		ring, err := seal.Load(filepath.Join(dir, "keys"))
		if err != nil {
			t.Fatal(err)
		}
		o.Seal = ring
		return New(t, o)
	}
	return &modernClient{t: t, host: &servant{t: t, now: build(), restart: build}, who: "anonymous"}
}

func (m *modernClient) Traits() Traits {
	return Traits{Modern: true, Restarts: m.host.restart != nil}
}

func (m *modernClient) Host() *Host { return m.host.now }

func (m *modernClient) As(who string) Harness {
	return &modernClient{t: m.t, host: m.host, who: who}
}

const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"hosttest","version":"1"},` +
	`"io.modelcontextprotocol/clientCapabilities":` + capabilities +
	`,"io.modelcontextprotocol/logLevel":"info","progressToken":"p"}`

// line gives the connection to the host that serves now.
func (m *modernClient) line() *Client {
	if m.on != m.host.now {
		m.on = m.host.now
		m.c = m.on.DialAs(m.t, m.who)
	}
	return m.c
}

// once sends one request and adds what came of it to a reply.
func (m *modernClient) once(method, params string, r *Reply) {
	m.t.Helper()
	m.next++
	params = join(modernMeta, params)
	l := m.line()
	l.Send(frame(m.next, method, params))
	r.Sent = json.RawMessage(params)
	r.Result, r.Error = await(m.t, l, m.next, func(msg json.RawMessage) { r.Notes = append(r.Notes, noteOf(msg)) })
}

func (m *modernClient) Do(method, params string, answer Answer) (r Reply) {
	m.t.Helper()
	m.host.turn()
	m.once(method, params, &r)
	for r.Rounds = 1; m.kind(&r) == "input_required"; r.Rounds++ {
		if r.Rounds > 20 {
			m.t.Fatalf("%s asks without end", method)
		}
		again := `"inputResponses":` + m.answers(
			r.Get("inputRequests"),
			answer,
		) + `,"requestState":` + string(
			r.Get("requestState"),
		)
		m.host.turn()
		m.once(method, join(again, params), &r)
	}
	if m.kind(&r) == "task" {
		id, _ := rawjson.String(r.Get("taskId"))
		end := m.Finish(id, answer)
		end.Notes, end.Rounds = append(r.Notes, end.Notes...), r.Rounds+end.Rounds-1
		return end
	}
	return r
}

func (m *modernClient) kind(r *Reply) string {
	s, _ := rawjson.String(r.Get("resultType"))
	return s
}

// answers answers what is asked under its keys.
func (m *modernClient) answers(asked []byte, answer Answer) string {
	m.t.Helper()
	if answer == nil {
		m.t.Fatalf("asked without being ready to answer: %s", asked)
	}
	var all []string
	for key, q := range rawjson.Object(asked) {
		method, _ := rawjson.String(Get(q, "method"))
		all = append(all, string(rawjson.AppendString(nil, string(key)))+":"+string(answer(method, Get(q, "params"))))
	}
	return "{" + strings.Join(all, ",") + "}"
}

// Start works for tools that always run as tasks where the client can follow
// one, and for those that are slow.
func (m *modernClient) Start(name, args string) string {
	m.t.Helper()
	m.host.turn()
	var r Reply
	m.once("tools/call", callParams(name, args), &r)
	if m.kind(&r) != "task" {
		m.t.Fatal(failure("no task of "+name, &r))
	}
	id, _ := rawjson.String(r.Get("taskId"))
	return id
}

// Finish looks at the task until it is idle. With a host that restarts, the
// restarts happen while nothing runs: before an answer and before the last
// look.
func (m *modernClient) Finish(task string, answer Answer) (r Reply) {
	m.t.Helper()
	r.Rounds = 1
	id := `{"taskId":"` + task + `"}`
	for {
		m.idle(id, &r)
		m.host.turn()
		m.once("tasks/get", id, &r)
		if r.Error != nil {
			return r
		}
		status, _ := rawjson.String(r.Get("status"))
		switch status {
		case "input_required":
			m.host.turn()
			var up Reply
			m.once("tasks/update", join(`"inputResponses":`+m.answers(r.Get("inputRequests"), answer), id), &up)
			if up.Error != nil {
				m.t.Fatal(failure("tasks/update", &up))
			}
			r.Rounds++
		case "completed":
			r.Task, r.Result = task, r.Get("result")
			return r
		case "failed":
			r.Task, r.Error = task, wireError(r.Get("error"))
			r.Result = nil
			return r
		case "cancelled":
			r.Task = task
			return r
		}
	}
}

// idle looks at a task until no round of it runs.
func (m *modernClient) idle(id string, r *Reply) {
	m.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(pollEvery) {
		if m.once("tasks/get", id, r); r.Error != nil || string(r.Get("status")) != `"working"` {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatal(failure("the task works for ever", r))
		}
	}
}

// Listen subscribes to all lists on a connection of its own.
func (m *modernClient) Listen() *Ear {
	m.t.Helper()
	e := &Ear{t: m.t, c: m.host.now.DialAs(m.t, m.who)}
	e.c.Send(frame(1, "subscriptions/listen", join(modernMeta,
		`{"notifications":{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true}}`)))
	if got := e.Next(); got != "notifications/subscriptions/acknowledged" {
		m.t.Fatalf("subscribed, and heard %s", got)
	}
	return e
}
