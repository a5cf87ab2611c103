package daemon

import (
	"bytes"
	"slices"
	"strings"

	"gatehouse/internal/mcp/rawjson"
)

const deepest = 128 // nested arrays and objects

// message is a message of the client on its way to a daemon.
type message struct {
	raw    []byte
	ids    []string // IDs of its requests without an answer, as JSON
	calls  []string // those of ids that must not run twice
	method string   // "" for a response or a batch
	uri    string   // of a subscription
	batch  bool
	modern bool // it belongs to no session
	n      uint64
	// cancelled means that the client no longer waits for an answer.
	cancelled bool
	// doubt means that it is a call that may have run, of a tool that may change nothing; the next
	// daemon can decide.
	doubt bool
	// again means that it was sent before; its acknowledgement is not passed on a second time.
	again bool
}

// encodeLine returns the message with a line end.
func (m *message) encodeLine() []byte { return append(m.raw[:len(m.raw):len(m.raw)], '\n') }

// metaVersion is the key in a request's _meta that marks a request without a session.
const (
	metaVersion = "io.modelcontextprotocol/protocolVersion"
	metaContext = "gatehouse/context"
)

// repeatable are the methods that have no effect when they are served twice.
var repeatable = []string{
	"initialize", "ping", "server/discover", "tools/list", "prompts/list", "prompts/get", "resources/list",
	"resources/read",
	"resources/templates/list", "resources/subscribe", "resources/unsubscribe", "completion/complete",
	"logging/setLevel",
	"subscriptions/listen", "tasks/get", "tasks/list", "tasks/result", "tasks/cancel",
}

const listen = "subscriptions/listen"

// parseMessage parses a line. A line that is not JSON is forwarded unchanged, so that the host answers
// it.
func parseMessage(line []byte) *message {
	m := &message{raw: line}
	if rawjson.Check(line, deepest) != nil {
		// The line is forwarded unchanged, because the host reports bytes that it replaced.
		line = bytes.Clone(line)
		if rawjson.Repair(line) == 0 || rawjson.Check(line, deepest) != nil {
			return m
		}
	}
	switch rawjson.Kind(line) {
	case '{':
		id, method, params := parts(line)
		m.method = method
		m.request(id, method)
		if method == "resources/subscribe" || method == "resources/unsubscribe" {
			uri, _ := rawjson.Get(params, "uri")
			m.uri, _ = rawjson.String(uri)
		}
		m.modern = modern(params)
	case '[':
		m.batch = true
		for el := range rawjson.Elements(line) {
			if rawjson.Kind(el) == '{' {
				id, method, _ := parts(el)
				m.request(id, method)
			}
		}
	}
	return m
}

func (m *message) request(id []byte, method string) {
	if id == nil || method == "" {
		return
	}
	m.ids = append(m.ids, string(id))
	if !slices.Contains(repeatable, method) {
		m.calls = append(m.calls, string(id))
	}
}

// tool returns the tool that a call names; "" for anything else.
func (m *message) tool() (name string) {
	if m.batch || m.method != "tools/call" {
		return ""
	}
	_, _, params := parts(m.raw)
	if rawjson.Kind(params) == '{' {
		raw, _ := rawjson.Get(params, "name")
		name, _ = rawjson.String(raw)
	}
	return name
}

// answered removes an ID, and reports whether none is left.
func (m *message) answered(id string) bool {
	m.ids = slices.DeleteFunc(m.ids, func(s string) bool { return s == id })
	m.calls = slices.DeleteFunc(m.calls, func(s string) bool { return s == id })
	return len(m.ids) == 0
}

// parts returns the members of a message that identify it. id is nil for a notification.
func parts(obj []byte) (id []byte, method string, params []byte) {
	for k, v := range rawjson.Object(obj) {
		switch string(k) {
		case "id":
			id = v
		case "method":
			method, _ = rawjson.String(v)
		case "params":
			params = v
		}
	}
	return id, method, params
}

func modern(params []byte) bool {
	if rawjson.Kind(params) != '{' {
		return false
	}
	meta, _ := rawjson.Get(params, "_meta")
	if rawjson.Kind(meta) != '{' {
		return false
	}
	_, there := rawjson.Get(meta, metaVersion)
	return there
}

// inContext adds the context to a message that opens a session or belongs to none.
func inContext(line []byte, context string) []byte {
	if context == "" || rawjson.Check(line, deepest) != nil || rawjson.Kind(line) != '{' {
		return line
	}
	_, method, params := parts(line)
	if method == "" || method != "initialize" && !modern(params) {
		return line
	}
	if rawjson.Kind(params) != '{' {
		params = []byte("{}")
	}
	meta, _ := rawjson.Get(params, "_meta")
	if rawjson.Kind(meta) != '{' {
		meta = []byte("{}")
	}
	meta = rawjson.Splice(meta, rawjson.Edit{Key: metaContext, Value: rawjson.AppendString(nil, context)})
	params = rawjson.Splice(params, rawjson.Edit{Key: "_meta", Value: meta})
	return rawjson.Splice(line, rawjson.Edit{Key: "params", Value: params})
}

// interrupted returns error responses to the requests of a message that may have run.
func (m *message) interrupted() []byte {
	var all [][]byte
	for _, id := range m.ids {
		all = append(all, m.lost(id))
	}
	return m.joined(all)
}

// lost returns the response to one request that may have run, or whose answer was lost.
func (m *message) lost(id string) []byte {
	const why = "the host ended while this ran, and it may have run. Check its result before you repeat it."
	if m.method != "tools/call" {
		return fault(id, why)
	}
	end := ""
	if m.modern {
		end = `,"resultType":"complete"`
	}
	return []byte(
		`{"jsonrpc":"2.0","id":` + id + `,"result":{"content":[{"type":"text","text":"interrupted: ` + why +
			`"}],"isError":true` + end + `}}`,
	)
}

// refused returns error responses to the requests of a message that will not be served.
func (m *message) refused(why string) []byte {
	var all [][]byte
	for _, id := range m.ids {
		all = append(all, fault(id, why))
	}
	return m.joined(all)
}

func (m *message) joined(all [][]byte) []byte {
	switch {
	case len(all) == 0:
		return nil
	case m.batch:
		return slices.Concat([]byte("["), bytes.Join(all, []byte(",")), []byte("]"))
	}
	return all[0]
}

func fault(id, why string) []byte {
	b := []byte(`{"jsonrpc":"2.0","id":` + id + `,"error":{"code":-32603,"message":`)
	return append(rawjson.AppendString(b, strings.ReplaceAll(why, "\n", " ")), "}}"...)
}
