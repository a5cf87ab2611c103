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

// Harness is one way to reach the modules of a host: an era, a connection, a bus. A test that runs with all of them
// proves that a module need not know which one is used. A harness has one user at a time.
type Harness interface {
	// Traits returns the properties of this way.
	Traits() Traits
	// Host returns the present host; with Traits.Restarts it is another one after every request.
	Host() *Host
	// As returns a harness of the same host for another user.
	As(principal string) Harness
	// Do sends a request and returns its answer. answer answers questions, over as many rounds as necessary; nil
	// answers none. A call that becomes a task is followed to its end.
	Do(method, params string, answer Answer) Reply
	// Start runs a tool as a task, as this client requests one, and returns its id.
	Start(name, args string) (task string)
	// Finish follows a task to its end.
	Finish(task string, answer Answer) Reply
	// Listen subscribes to notifications outside of requests; nil if this client cannot receive them.
	Listen() *Ear
}

// Traits are the properties in which harnesses differ.
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

// Reply is the result of a request.
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

// Notifications returns the params of the notifications of one method.
func (r Reply) Notifications(method string) (all []json.RawMessage) {
	for _, n := range r.Notes {
		if n.Method == method {
			all = append(all, n.Params)
		}
	}
	return all
}

// IsError reports whether a tool failed.
func (r Reply) IsError() bool { return string(r.Get("isError")) == "true" }

// Text returns the text of a result's first block.
func (r Reply) Text() string {
	s, _ := rawjson.String(r.Get("content", 0, "text"))
	return s
}

// Get returns the value at a path of names and positions; nil if there is none.
func (r Reply) Get(path ...any) []byte { return Get(r.Result, path...) }

// Get returns the value at a path of names and positions; nil if there is none.
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

// List returns all entries of a list, over all its pages, unchanged.
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

// Names returns the names, or URIs, of listed entries that begin with prefix.
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

// Harnesses returns all harnesses.
func Harnesses() []Named {
	return []Named{
		{"legacy session", newLegacy},
		{"modern", newModern},
		{"no session", newStateless},
		{"encoding bus", newEncoding},
		{"restarted", newRestarted},
	}
}

// Named is a harness that can be created.
type Named struct {
	Name string
	Make func(testing.TB, Options) Harness
}

// line is a connection of a harness.
type line interface {
	Send(frame string)
	Next() json.RawMessage
}

// frame writes a request.
func frame(id int, method, params string) string {
	return `{"jsonrpc":"2.0","id":` + strconv.Itoa(id) + `,"method":"` + method + `","params":` + params + `}`
}

// capabilities are those that the clients of the harnesses announce.
const capabilities = `{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`

// join adds members at the beginning of an object.
func join(members, object string) string {
	if object == "{}" {
		return "{" + members + "}"
	}
	return "{" + members + "," + object[1:]
}

// await reads lines until the answer to a request; heard receives everything before it.
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

// Ear receives the notifications of a host outside of requests.
type Ear struct {
	t testing.TB
	c *Client
}

// Next returns the next notification.
func (e *Ear) Next() string {
	e.t.Helper()
	return noteOf(e.c.Next()).Method
}

// Quiet fails the test if there are notifications that were not read. It waits only a moment: for a reliable test,
// cause another notification first that the host would send later.
func (e *Ear) Quiet() {
	e.t.Helper()
	e.c.Quiet()
}

// Ended waits for the end of the subscription and returns its result.
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
