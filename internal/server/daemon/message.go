package daemon

import (
	"bytes"
	"slices"
	"strings"

	"gatehouse/internal/mcp/rawjson"
)

const deepest = 128 // arrays and objects inside each other

// message is one of the client's, as it goes to a daemon.
type message struct {
	raw    []byte
	ids    []string // of requests in it that have no answer yet, as they are written
	calls  []string // those of ids that must not run twice
	method string   // "" for a response or a batch
	uri    string   // of a subscription
	batch  bool
	modern bool // it stands alone
	n      uint64
	// cancelled means that the client waits for no answer any longer.
	cancelled bool
	// doubt means that it is a call that may have run, of a tool that may change
	// nothing; the next daemon knows.
	doubt bool
	// again means that it was sent before: a subscription is acknowledged once.
	again bool
}

// encodeLine is the message as it is sent, with its end.
func (m *message) encodeLine() []byte { return append(m.raw[:len(m.raw):len(m.raw)], '\n') }

// metaVersion is what says in a request's _meta that it stands alone.
const (
	metaVersion = "io.modelcontextprotocol/protocolVersion"
	metaContext = "gatehouse/context"
)

// repeatable are the methods that change nothing when they are served twice.
var repeatable = []string{
	"initialize", "ping", "server/discover", "tools/list", "prompts/list", "prompts/get", "resources/list", "resources/read",
	"resources/templates/list", "resources/subscribe", "resources/unsubscribe", "completion/complete", "logging/setLevel",
	"subscriptions/listen", "tasks/get", "tasks/list", "tasks/result", "tasks/cancel",
}

const listen = "subscriptions/listen"

// parseMessage reads what a line is. One that is no JSON is passed on as it is, to be
// answered by the host.
func parseMessage(line []byte) *message {
	m := &message{raw: line}
	if rawjson.Check(line, deepest) != nil {
		// The line is passed on as it came, because the host says what it replaced.
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

// answered takes an id off, and reports whether none is left.
func (m *message) answered(id string) bool {
	m.ids = slices.DeleteFunc(m.ids, func(s string) bool { return s == id })
	m.calls = slices.DeleteFunc(m.calls, func(s string) bool { return s == id })
	return len(m.ids) == 0
}

// parts are the members of a message that say what it is. id is nil for a
// notification.
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

// inContext adds to a message that opens a session, or stands alone, which
// context it is for.
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

// interrupted answers the requests of a message that may have run.
func (m *message) interrupted() []byte {
	var all [][]byte
	for _, id := range m.ids {
		all = append(all, m.lost(id))
	}
	return m.joined(all)
}

// lost is the answer to one request that may have run, or that was answered
// to no client.
func (m *message) lost(id string) []byte {
	const why = "the host ended while this ran, and it may have run. Look what has become of it before asking again."
	if m.method != "tools/call" {
		return fault(id, why)
	}
	end := ""
	if m.modern {
		end = `,"resultType":"complete"`
	}
	return []byte(
		`{"jsonrpc":"2.0","id":` + id + `,"result":{"content":[{"type":"text","text":"interrupted: ` + why + `"}],"isError":true` + end + `}}`,
	)
}

// refused answers the requests of a message that will not be served.
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
