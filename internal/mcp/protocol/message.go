package protocol

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/session"
)

// Error codes of JSON-RPC and of the protocol.
const (
	CodeParse             = -32700
	CodeInvalidRequest    = -32600
	CodeMethodNotFound    = -32601
	CodeInvalidParams     = -32602
	CodeInternal          = -32603
	CodeResourceNotFound  = -32002 // until 2025-11-25
	CodeURLElicitation    = -32042 // 2025-11-25 only
	CodeHeaderMismatch    = -32020 // from 2026-07-28
	CodeMissingCapability = -32021
	CodeUnsupportedVer    = -32022
)

// Limits of a frame.
const (
	maxDepth = 128  // nested arrays and objects
	maxBatch = 1000 // messages
)

// Message is one JSON-RPC message, checked but not decoded. Its parts alias
// the bytes it was parsed from.
type Message struct {
	ID     []byte // raw token: a string or an integer; nil for a notification
	Method string // "" for a response
	Params []byte // raw object; nil if absent
	Result []byte // of a response
	Error  []byte // of a response
	// Replaced is the number of lone surrogates in the frame. Each was replaced by U+FFFD.
	Replaced int
	has      members

	// Trace is the W3C traceparent in a header of the message; one in its _meta takes precedence.
	Trace string
	// Forward holds headers of the message that a relay may pass on; see tool.Call. nil if there are none.
	Forward map[string]string
	// By holds what this message's credential proves about the principal of the session, if every
	// message carries a credential: its roles and scopes apply. nil means those of the session. It must
	// not be changed.
	By *session.Facts
}

// IsRequest reports whether the message requires an answer.
func (m *Message) IsRequest() bool { return m.Method != "" && m.ID != nil }

// IsResponse reports whether the message is a response to a request of the server.
func (m *Message) IsResponse() bool { return m.Method == "" }

// Fault is the error with which a message was refused.
type Fault struct {
	Status  int    // HTTP status; other transports ignore it
	Outside bool   // the caller may no longer use its context: the status is sent in a session, too
	Code    int    // JSON-RPC error code
	Message string // says what is wrong and what was expected
	Data    json.RawMessage
	ID      []byte // of the request; nil if it could not be read
	Silent  bool   // it concerns a notification: only a status may report it
	// Challenge is the value of the WWW-Authenticate header.
	Challenge string
}

func (f *Fault) Error() string { return f.Message }

func invalid(id []byte, msg string) *Fault {
	return &Fault{Status: 400, Code: CodeInvalidRequest, Message: msg, ID: id}
}

// Parse parses one frame: a message, or a batch of them. It checks the grammar, the encoding, duplicate
// members and nesting, and replaces lone surrogates in the frame, see Message.Replaced. In a batch each
// bad element becomes a *Fault, and the others are kept; a bad notification is omitted, because it has
// no answer.
func Parse(frame []byte) (msgs []Message, faults []*Fault, batch bool) {
	err := rawjson.Check(frame, maxDepth)
	replaced := 0
	if err != nil {
		if replaced = rawjson.Repair(frame); replaced > 0 {
			err = rawjson.Check(frame, maxDepth)
		}
	}
	if err != nil {
		return nil, []*Fault{parseFault(frame, err)}, false
	}
	switch rawjson.Kind(frame) {
	case '{':
		m, f := parseMessage(frame)
		if f != nil {
			return nil, []*Fault{f}, false
		}
		m.Replaced = replaced
		return []Message{m}, nil, false
	case '[':
		return parseBatch(frame)
	}
	return nil, []*Fault{invalid(nil, "a message is a JSON object")}, false
}

// parseBatch parses the elements of a batch. An element that is not a message becomes a fault.
func parseBatch(frame []byte) (msgs []Message, faults []*Fault, batch bool) {
	n := 0
	for el := range rawjson.Elements(frame) {
		if n++; n > maxBatch {
			return nil, []*Fault{invalid(nil, fmt.Sprintf("a batch has at most %d messages", maxBatch))}, false
		}
		m, f := parseMessage(el)
		switch {
		case f == nil:
			msgs = append(msgs, m)
		case !f.Silent:
			faults = append(faults, f)
		}
	}
	if n == 0 {
		return nil, []*Fault{invalid(nil, "an empty batch")}, false
	}
	return msgs, faults, true
}

// parseFault answers a frame that is not JSON. It has the id of the request if
// that can be found, because a client waits for the answer to its id.
func parseFault(frame []byte, err error) *Fault {
	var s rawjson.Salvage
	s.Write(frame)
	return &Fault{Status: 400, Code: CodeParse, Message: "parse error: " + err.Error(), ID: s.Request()}
}

// parseMessage parses one object that Check has accepted.
func parseMessage(b []byte) (m Message, f *Fault) {
	if rawjson.Kind(b) != '{' {
		return m, invalid(nil, "a message is a JSON object")
	}
	var version, method, id []byte
	silent := true // a fault is not answered if it concerns a notification
	members := rawjson.Walk(b)
	for {
		key, val, ok := members.Next()
		if !ok {
			break
		}
		switch string(key) {
		case "jsonrpc":
			version = val
		case "id":
			id = val
		case "method":
			method = val
		case "params":
			m.Params = val
		case "result":
			m.Result = val
		case "error":
			m.Error = val
		default:
			if known := wrongCase(string(key)); known != "" {
				f = invalid(nil, "unknown member "+string(key)+", expected "+known)
				silent = silent && known != "id" // a client that sends ID waits for an answer
			}
		}
	}
	if id != nil {
		if !validID(id) {
			return m, invalid(nil, "id must be a string or an integer")
		}
		m.ID = id
	}
	if f != nil {
		f.ID, f.Silent = m.ID, silent && id == nil && rawjson.Kind(method) == '"'
		return m, f
	}
	if !rawjson.Equal(version, "2.0") {
		return m, invalid(m.ID, `jsonrpc must be "2.0"`)
	}
	return m, m.finishParsing(method)
}

// finishParsing checks that the members form a request, a notification or a response.
func (m *Message) finishParsing(method []byte) *Fault {
	if method == nil {
		if m.ID == nil || (m.Result == nil) == (m.Error == nil) {
			return invalid(m.ID, "neither a request (method) nor a response (id with result or error)")
		}
		if m.Error != nil && rawjson.Kind(m.Error) != '{' {
			return invalid(m.ID, "error must be an object")
		}
		return nil
	}
	name, ok := rawjson.String(method)
	if !ok || name == "" {
		return invalid(m.ID, "method must be a string")
	}
	if m.Result != nil || m.Error != nil {
		return invalid(m.ID, "a request has no result or error")
	}
	m.Method = name
	if f := m.readParams(); f != nil {
		f.ID, f.Silent = m.ID, m.ID == nil
		return f
	}
	return nil
}

func (m *Message) readParams() *Fault {
	if m.Params == nil {
		return nil
	}
	if rawjson.Kind(m.Params) != '{' {
		return invalid(nil, "params must be an object")
	}
	meta := m.has.ofParams(m.Params)
	if meta == nil {
		return nil
	}
	if rawjson.Kind(meta) != '{' {
		return &Fault{Status: 400, Code: CodeInvalidParams, Message: "params._meta must be an object"}
	}
	m.has.more().readMeta(meta)
	return nil
}

func validID(tok []byte) bool {
	return rawjson.Kind(tok) == '"' || rawjson.IsInteger(tok)
}

func wrongCase(key string) string {
	for _, known := range [...]string{"jsonrpc", "id", "method", "params", "result", "error"} {
		if strings.EqualFold(key, known) {
			return known
		}
	}
	return ""
}

// appendResult appends a response with a raw result.
func appendResult(dst, id, result []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	dst = append(dst, id...)
	dst = append(dst, `,"result":`...)
	dst = append(dst, result...)
	return append(dst, '}')
}

// appendError appends an error response. It omits an ID that could not be read: JSON-RPC requires null
// for it, which the protocol's schemas do not allow.
func appendError(dst []byte, f *Fault) []byte {
	dst = append(dst, `{"jsonrpc":"2.0",`...)
	if f.ID != nil {
		dst = append(dst, `"id":`...)
		dst = append(dst, f.ID...)
		dst = append(dst, ',')
	}
	dst = append(dst, `"error":{"code":`...)
	dst = strconv.AppendInt(dst, int64(f.Code), 10)
	dst = append(dst, `,"message":`...)
	dst = rawjson.AppendString(dst, f.Message)
	if f.Data != nil {
		dst = append(dst, `,"data":`...)
		dst = append(dst, f.Data...)
	}
	return append(dst, "}}"...)
}

// appendNote appends a notification with raw params.
func appendNote(dst []byte, method string, params []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","method":"`...)
	dst = append(dst, method...)
	dst = append(dst, '"')
	if params != nil {
		dst = append(dst, `,"params":`...)
		dst = append(dst, params...)
	}
	return append(dst, '}')
}

// appendRequest appends a request to the client.
func appendRequest(dst []byte, id, method string, params []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	dst = rawjson.AppendString(dst, id)
	dst = append(dst, `,"method":"`...)
	dst = append(dst, method...)
	dst = append(dst, `","params":`...)
	if params == nil {
		params = []byte("{}")
	}
	dst = append(dst, params...)
	return append(dst, '}')
}
