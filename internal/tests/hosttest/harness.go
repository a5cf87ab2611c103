package hosttest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// Harness is one way to reach the modules of a host: an era, a connection, a
// bus. A test that runs over all of them proves that a module need not know
// which one it is. A harness has one user at a time.
type Harness interface {
	// Traits are what this way has by nature.
	Traits() Traits
	// Host is the one that serves now; with Traits.Restarts it is another
	// after every request.
	Host() *Host
	// As reaches the same host as another user.
	As(principal string) Harness
	// Do sends a request and gives its answer. What is asked meanwhile,
	// answer answers, over as many rounds as it takes; nil answers nothing.
	// A call that becomes a task is followed to its end.
	Do(method, params string, answer Answer) Reply
	// Start has a tool run as a task, in the way this client asks for one,
	// and gives its id.
	Start(name, args string) (task string)
	// Finish follows a task to its end.
	Finish(task string, answer Answer) Reply
	// Listen opens an ear for what is told outside requests; nil where this
	// client cannot be told.
	Listen() *Ear
}

// Traits are how a harness differs from others.
type Traits struct {
	Modern   bool // every request stands alone
	Session  bool // the host remembers the client between requests
	Restarts bool // the host is stopped and a new one built between any two requests
	Mute     bool // nothing can be told before the answer
}

// CanAsk reports whether questions reach the client.
func (t Traits) CanAsk() bool { return t.Modern || t.Session }

// Answer answers one question with a raw result object.
type Answer func(method string, params json.RawMessage) json.RawMessage

// Reply is what came of a request.
type Reply struct {
	Result json.RawMessage
	Error  *tool.WireError // set when there is no result
	Notes  []Note          // told before the answer, in all rounds
	Rounds int             // 1 for a request that asked nothing
	Task   string          // set when the call became a task
	Sent   json.RawMessage // the params of the last request
}

// Note is one notification.
type Note struct {
	Method string
	Params json.RawMessage
}

// Notifications are the params of the notes of one method.
func (r Reply) Notifications(method string) (all []json.RawMessage) {
	for _, n := range r.Notes {
		if n.Method == method {
			all = append(all, n.Params)
		}
	}
	return all
}

// IsError reports whether a tool said that it failed.
func (r Reply) IsError() bool { return string(r.Get("isError")) == "true" }

// Text is the text of a result's first block.
func (r Reply) Text() string {
	s, _ := rawjson.String(r.Get("content", 0, "text"))
	return s
}

// Get is the value at a path of names and positions; nil when there is none.
func (r Reply) Get(path ...any) []byte { return Get(r.Result, path...) }

// Get is the value at a path of names and positions; nil when there is none.
func Get(v []byte, path ...any) []byte {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			if rawjson.Kind(v) != '{' {
				return nil
			}
			v, _ = rawjson.Get(v, step)
		case int:
			v = element(v, step)
		}
	}
	return v
}

func element(v []byte, at int) []byte {
	if rawjson.Kind(v) != '[' {
		return nil
	}
	for el := range rawjson.Elements(v) {
		if at--; at < 0 {
			return el
		}
	}
	return nil
}

// List gives all entries of a list, over all its pages, as they were written.
func List(t testing.TB, h Harness, method string) (entries []json.RawMessage) {
	t.Helper()
	member := map[string]string{
		"tools/list": "tools", "prompts/list": "prompts", "resources/list": "resources",
		"resources/templates/list": "resourceTemplates",
	}[method]
	for params := `{}`; ; {
		r := h.Do(method, params, nil)
		if r.Error != nil {
			t.Fatalf("%s: %v", method, r.Error)
		}
		for el := range rawjson.Elements(r.Get(member)) {
			entries = append(entries, slices.Clone(el))
		}
		next := r.Get("nextCursor")
		if next == nil {
			return entries
		}
		params = `{"cursor":` + string(next) + `}`
	}
}

// Names are the names, or URIs, of listed entries that begin with prefix.
func Names(entries []json.RawMessage, member, prefix string) (names []string) {
	for _, e := range entries {
		if s, _ := rawjson.String(Get(e, member)); len(s) >= len(prefix) && s[:len(prefix)] == prefix {
			names = append(names, s)
		}
	}
	return names
}

// Call calls a tool.
func Call(h Harness, name, args string, answer Answer) Reply {
	return h.Do("tools/call", callParams(name, args), answer)
}

func callParams(name, args string) string {
	return `{"name":` + string(rawjson.AppendString(nil, name)) + `,"arguments":` + args + `}`
}

// Read reads a resource.
func Read(h Harness, uri string) Reply {
	return h.Do("resources/read", `{"uri":`+string(rawjson.AppendString(nil, uri))+`}`, nil)
}

// Harnesses are all there are.
func Harnesses() []Named {
	return []Named{
		{"legacy session", newLegacy},
		{"modern", newModern},
		{"no session", newStateless},
		{"encoding bus", newEncoding},
		{"restarted", newRestarted},
	}
}

// Named is a harness that can be made.
type Named struct {
	Name string
	Make func(testing.TB, Options) Harness
}

// line is a connection as the harnesses use one.
type line interface {
	Send(frame string)
	Next() json.RawMessage
}

// frame writes a request.
func frame(id int, method, params string) string {
	return `{"jsonrpc":"2.0","id":` + strconv.Itoa(id) + `,"method":"` + method + `","params":` + params + `}`
}

// capabilities are what the clients of the harnesses say they can.
const capabilities = `{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`

// join puts members in front of those of an object.
func join(members, object string) string {
	if object == "{}" {
		return "{" + members + "}"
	}
	return "{" + members + "," + object[1:]
}

// await reads a line until the answer to a request has come; heard gets
// everything that came before it.
func await(
	t testing.TB,
	l line,
	id int,
	heard func(msg json.RawMessage),
) (result json.RawMessage, fault *tool.WireError) {
	t.Helper()
	for {
		msg := l.Next()
		if Get(msg, "method") != nil || string(Get(msg, "id")) != strconv.Itoa(id) {
			heard(msg)
			continue
		}
		if e := Get(msg, "error"); e != nil {
			return nil, wireError(e)
		}
		return Get(msg, "result"), nil
	}
}

func noteOf(msg json.RawMessage) Note {
	m, _ := rawjson.String(Get(msg, "method"))
	return Note{m, Get(msg, "params")}
}

// Ear hears what a host tells outside requests.
type Ear struct {
	t testing.TB
	c *Client
}

// Next is the next note.
func (e *Ear) Next() string {
	e.t.Helper()
	return noteOf(e.c.Next()).Method
}

// Quiet fails the test if something was told that has not been heard. It
// waits a moment, but a host that is slower than that goes unnoticed: have
// something else told first that the host would tell later.
func (e *Ear) Quiet() {
	e.t.Helper()
	e.c.Quiet()
}

// Ended waits for the end of the subscription and gives its result.
func (e *Ear) Ended() json.RawMessage {
	e.t.Helper()
	for {
		if msg := e.c.Next(); Get(msg, "result") != nil {
			return Get(msg, "result")
		}
	}
}

// pollEvery is how often a harness looks at a task.
const pollEvery = 2 * time.Millisecond

func failure(method string, r *Reply) string {
	return fmt.Sprintf("%s: got %s, %v", method, r.Result, r.Error)
}
