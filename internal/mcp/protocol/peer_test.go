package protocol_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/tests/conformance"
	"gatehouse/tool"
)

// peer is a client on a pipe. It checks received messages against the schema of its revision.
type peer struct {
	t    testing.TB
	pipe *protocol.Pipe
	in   chan []byte
	rev  string // of the handshake; "" before it
	n    int

	mu    sync.Mutex        // one goroutine may send while another reads
	asked map[string]asking // by raw ID

	unjudged  bool
	receiving sync.Mutex // one connection is one stream of frames
}

type asking struct{ method, rev string }

func (h *testHost) dial(t testing.TB) *peer { return h.dialAs(t, "anonymous") }

func (h *testHost) dialAs(t testing.TB, principal string) *peer {
	p := &peer{t: t, in: make(chan []byte, 10_000), asked: map[string]asking{}}
	p.pipe = h.Engine.Pipe(protocol.Caller{Caller: tool.Caller{Principal: principal}}, func(m []byte) error {
		p.in <- append([]byte(nil), m...)
		return nil
	})
	t.Cleanup(func() { p.pipe.Close(nil) })
	return p
}

// legacy returns an initialized client.
func (h *testHost) legacy(t testing.TB, rev, caps string) *peer {
	p := h.dial(t)
	p.hello(rev, caps)
	return p
}

func (p *peer) hello(rev, caps string) {
	p.t.Helper()
	p.rev = rev
	if caps == "" {
		caps = "{}"
	}
	got := p.ask(
		"initialize",
		`"protocolVersion":"`+rev+`","capabilities":`+caps+`,"clientInfo":{"name":"test","version":"1"}`,
	)
	if got.Error != nil {
		p.t.Fatalf("initialize: %s", got.raw)
	}
	p.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// send sends one frame.
func (p *peer) send(frame string) {
	p.note([]byte(frame))
	p.receiving.Lock()
	defer p.receiving.Unlock()
	p.pipe.Receive([]byte(frame))
}

func (p *peer) note(frame []byte) {
	if rawjson.Check(frame, 0) != nil {
		return
	}
	id, ok := rawjson.Get(frame, "id")
	method, _ := rawjson.Get(frame, "method")
	name, isRequest := rawjson.String(method)
	if !ok || !isRequest {
		return
	}
	rev := p.rev
	if strings.Contains(string(frame), "io.modelcontextprotocol/clientCapabilities") || name == "server/discover" {
		rev = "2026-07-28"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, open := p.asked[string(id)]; !open { // an error for an ID in use may answer any request
		p.asked[string(id)] = asking{name, rev}
	}
}

// next returns the next frame; the clock of the bubble advances until it arrives.
func (p *peer) next() []byte {
	p.t.Helper()
	select {
	case m := <-p.in:
		p.see(m)
		return m
	case <-time.After(time.Hour):
		p.t.Fatal("nothing comes")
		return nil
	}
}

// rest returns the frames that have arrived when all goroutines wait.
func (p *peer) rest() (all []string) {
	synctest.Wait()
	for {
		select {
		case m := <-p.in:
			p.see(m)
			all = append(all, string(m))
		default:
			return all
		}
	}
}

// quiet fails the test if a frame has arrived.
func (p *peer) quiet() {
	p.t.Helper()
	for _, m := range p.rest() {
		p.t.Errorf("unexpected: %s", m)
	}
}

// see checks a message against its schema.
func (p *peer) see(m []byte) {
	if judge == nil || p.unjudged {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := conformance.Sighting{Revision: p.rev, Message: m}
	if bytes.Contains(m, []byte(`"jsonrpc":"2.0","error"`)) && p.rev < "2025-11-25" {
		return // an error without an ID, which older schemas do not allow
	}
	id, _ := rawjson.Get(m, "id")
	if _, isRequest := rawjson.Get(m, "method"); !isRequest && m[0] == '{' {
		s.Answers, s.Revision = p.asked[string(id)].method, p.asked[string(id)].rev
		if _, failed := rawjson.Get(m, "error"); !failed {
			delete(p.asked, string(id))
		}
	} else if strings.Contains(string(m), "io.modelcontextprotocol/subscriptionId") {
		s.Revision = "2026-07-28"
	}
	judge.See(s)
}

// answer is a parsed response.
type answer struct {
	ID     json.RawMessage
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
		Data    json.RawMessage
	}
	raw   string
	notes []string // notifications before it
}

// text returns the text of a tool's first block.
func (a answer) text() string {
	var r struct{ Content []struct{ Text string } }
	if json.Unmarshal(a.Result, &r) != nil || len(r.Content) == 0 {
		return "(no text) " + a.raw
	}
	return r.Content[0].Text
}

// get returns a member of the result by a dotted path; "" if it is absent.
func (a answer) get(path string) string {
	v := []byte(a.Result)
	for name := range strings.SplitSeq(path, ".") {
		if rawjson.Kind(v) != '{' {
			return ""
		}
		v, _ = rawjson.Get(v, name)
	}
	if s, ok := rawjson.String(v); ok {
		return s
	}
	return string(v)
}

func (a answer) code() int {
	if a.Error == nil {
		return 0
	}
	return a.Error.Code
}

// ask sends a request of the peer's own session and waits for its answer; params are the members of an
// object.
func (p *peer) ask(method, params string) answer {
	p.t.Helper()
	return p.await(p.start(method, params))
}

// start sends a request and returns its ID.
func (p *peer) start(method, params string) (id string) {
	p.n++
	id = fmt.Sprint(p.n)
	p.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":{` + params + `}}`)
	return id
}

// modern sends a request without a session, of a client with these capabilities, and waits for its
// answer.
func (p *peer) modern(caps, method, params string) answer {
	p.t.Helper()
	return p.await(p.startModern(caps, method, params))
}

func (p *peer) startModern(caps, method, params string) (id string) {
	return p.start(method, join(envelope(caps), params))
}

func join(members ...string) string {
	return strings.Join(strings.FieldsFunc(strings.Join(members, "\x00"), func(r rune) bool { return r == 0 }), ",")
}

// envelope returns the _meta of a modern request, with further members.
func envelope(caps string, more ...string) string {
	if caps == "" {
		caps = "{}"
	}
	return `"_meta":{` + join(append([]string{`"io.modelcontextprotocol/protocolVersion":"2026-07-28"`,
		`"io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"}`,
		`"io.modelcontextprotocol/clientCapabilities":` + caps}, more...)...) + `}`
}

// await waits for the answer to one request.
func (p *peer) await(id string) answer {
	p.t.Helper()
	var notes []string
	for {
		m := p.next()
		if got, _ := rawjson.Get(m, "id"); string(got) != id {
			notes = append(notes, string(m))
			continue
		}
		a := answer{raw: string(m), notes: notes}
		if err := json.Unmarshal(m, &a); err != nil {
			p.t.Fatalf("%s: %v", m, err)
		}
		return a
	}
}

// call calls a tool of the peer's own session.
func (p *peer) call(name, args string) answer {
	p.t.Helper()
	if args == "" {
		args = "{}"
	}
	return p.ask("tools/call", `"name":"`+name+`","arguments":`+args)
}

// reply answers a request of the host.
func (p *peer) reply(id, result string) {
	p.send(`{"jsonrpc":"2.0","id":"` + id + `","result":` + result + `}`)
}

func named(name string) string { return `{"action":"accept","content":{"name":"` + name + `"}}` }

// has fails the test unless got contains every one of these.
func has(t testing.TB, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("got  %s\nwant %s in it", got, w)
		}
	}
}

// lacks fails the test if got contains any of these.
func lacks(t testing.TB, got string, unwanted ...string) {
	t.Helper()
	for _, w := range unwanted {
		if strings.Contains(got, w) {
			t.Errorf("got %s\nand did not want %s in it", got, w)
		}
	}
}

func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// sameJSON reports whether two texts have the same value.
func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && fmt.Sprint(x) == fmt.Sprint(y)
}
