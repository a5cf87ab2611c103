package protocol

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"

	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/session"
)

// Modern serves one modern message. The request is cancelled when ctx is done; on HTTP
// that is when the client disconnects. Modern returns when the engine no longer needs
// the calling goroutine, which may be before the answer, because a subscription stays
// open; the sink reports the end. Modern uses no state of earlier messages on the
// connection.
func (e *Engine) Modern(ctx context.Context, who Caller, m *Message, h Header, sink Sink) {
	switch {
	case m.IsResponse():
		sink.Answer(
			400,
			appendError(
				nil,
				invalid(m.ID, "a client sends no responses in this revision; answers travel in inputResponses"),
			),
		)
		return
	case m.ID == nil:
		sink.Drop()
		return
	}
	r := e.newModern(context.Background(), m, h, sink) // ctx ends it
	gone := context.AfterFunc(ctx, func() { r.abandon(context.Cause(ctx)) })
	r.onRelease(func() { gone() })
	if f := r.readEnvelope(who); f != nil {
		r.sendFault(f)
		return
	}
	r.dispatch()
}

// newModern returns a request whose context ends with parent.
func (e *Engine) newModern(parent context.Context, m *Message, h Header, sink Sink) *request {
	r := &request{e: e, msg: m, rev: latest, sink: sink, head: h}
	r.ctx, r.cancel = context.WithCancelCause(parent)
	return r
}

// readEnvelope reads the envelope and checks that the headers match it.
func (r *request) readEnvelope(who Caller) *Fault {
	version, hasVersion := r.msg.envelopeVersion()
	if f := r.checkHeaders(version, hasVersion); f != nil {
		return f
	}
	if !hasVersion {
		return badEnvelope(metaVersion, "a revision such as "+latest.String())
	}
	rev, ok := mcpversion.Parse(version)
	if !ok || !rev.Modern() {
		data, _ := json.Marshal(struct {
			Supported []string `json:"supported"`
			Requested string   `json:"requested"`
		}{mcpversion.Names(), version})
		return &Fault{
			Status:  400,
			Code:    CodeUnsupportedVer,
			Message: "unsupported protocol version " + version,
			Data:    data,
		}
	}
	r.rev = rev
	caps := r.msg.has.of().caps
	if rawjson.Kind(caps) != '{' {
		return badEnvelope(metaCaps, "an object, {} for none")
	}
	r.facts, r.factsOwned = &session.Facts{Caller: who.Caller, Revision: rev, Until: who.Until}, true
	r.facts.Can, r.facts.Connection = abilities(caps, rev), "" // it says nothing about other requests
	if t := r.traceparent(); t != "" {
		r.facts.Trace = t
	}
	if c := r.msg.has.of().client; c != nil {
		r.facts.Client = clientName(c)
	}
	if f := r.note.initModern(&r.msg.has); f != nil {
		return f
	}
	return r.e.assignContext(r.facts, &who, r.msg.has.of().context)
}

func (r *request) traceparent() string {
	s, _ := rawjson.String(r.msg.has.of().traceparent)
	return s
}

func badEnvelope(member, expected string) *Fault {
	return &Fault{Status: 400, Code: CodeInvalidParams, Message: `params._meta["` + member + `"]: expected ` + expected}
}

// enveloped reports whether the message has a member that exists only in the modern
// envelope.
func (m *Message) enveloped() bool {
	meta := m.has.of()
	return meta.version != nil || meta.caps != nil || meta.client != nil || meta.level != nil
}

// envelopeVersion returns the revision that the message states.
func (m *Message) envelopeVersion() (string, bool) {
	return rawjson.String(m.has.of().version)
}

// checkHeaders checks that the version and method headers match the body. Transports
// without headers need no check.
func (r *request) checkHeaders(version string, hasVersion bool) *Fault {
	if r.head == nil {
		return nil
	}
	if f := r.sameHeader("MCP-Protocol-Version", version, hasVersion || version != ""); f != nil {
		return f
	}
	return r.sameHeader("Mcp-Method", r.msg.Method, true)
}

// sameHeader checks that a header occurs once and, if compare is set, that it equals
// the body's value.
func (r *request) sameHeader(name, body string, compare bool) *Fault {
	vals := r.head(name)
	switch {
	case len(vals) == 0:
		return mismatchedHeader("header " + name + " is missing")
	case len(vals) > 1:
		return mismatchedHeader("header " + name + " was sent more than once")
	case compare && strings.Trim(vals[0], " \t") != body:
		return mismatchedHeader("header " + name + " and the body differ")
	}
	return nil
}

func mismatchedHeader(msg string) *Fault {
	return &Fault{Status: 400, Code: CodeHeaderMismatch, Message: msg}
}

// nameHeader checks that Mcp-Name equals the name in the body, before aliases are
// resolved.
func (r *request) nameHeader(body string) *Fault {
	if r.head == nil || r.sess != nil {
		return nil
	}
	vals := r.head("Mcp-Name")
	if len(vals) != 1 {
		return mismatchedHeader("header Mcp-Name must be sent once")
	}
	got, ok := decodeHeader(vals[0])
	if !ok || got != body {
		return mismatchedHeader("header Mcp-Name and the body differ")
	}
	return nil
}

// decodeHeader decodes the encoding of header values that are not plain ASCII: =?base64?...?= around
// base64 of UTF-8.
func decodeHeader(v string) (string, bool) {
	v = strings.Trim(v, " \t")
	enc, ok := strings.CutPrefix(v, "=?base64?")
	if !ok {
		return v, true
	}
	if enc, ok = strings.CutSuffix(enc, "?="); !ok {
		return v, true
	}
	b, err := base64.StdEncoding.Strict().DecodeString(enc)
	if err != nil {
		return "", false
	}
	return string(b), true
}

// paramHeaders checks that the Mcp-Param headers equal the arguments they mirror.
func (r *request) paramHeaders(e *views.Entry, args []byte) *Fault {
	if r.head == nil || r.sess != nil {
		return nil
	}
	for _, h := range e.Headers {
		if f := r.paramHeader(h.Name, argument(args, h.Path)); f != nil {
			return f
		}
	}
	return nil
}

// argument returns the value at a path of names; null counts as absent.
func argument(args []byte, path []string) []byte {
	for _, name := range path {
		if rawjson.Kind(args) != '{' {
			return nil
		}
		v, ok := rawjson.Get(args, name)
		if !ok {
			return nil
		}
		args = v
	}
	if rawjson.Kind(args) == 'n' {
		return nil
	}
	return args
}

func (r *request) paramHeader(name string, val []byte) *Fault {
	header := "Mcp-Param-" + name
	vals := r.head(header)
	switch {
	case val == nil && len(vals) == 0:
		return nil
	case val == nil:
		return mismatchedHeader("header " + header + " has no argument in the body")
	case len(vals) != 1:
		return mismatchedHeader("header " + header + " must be sent once, because the argument is in the body")
	}
	got, ok := decodeHeader(vals[0])
	if !ok || !mirrors(got, val) {
		return mismatchedHeader("header " + header + " and the argument differ")
	}
	return nil
}

// mirrors reports whether a header equals a JSON value: strings as text, integers as numbers, booleans
// by their names.
func mirrors(header string, val []byte) bool {
	switch rawjson.Kind(val) {
	case '"':
		return rawjson.Equal(val, header)
	case '0':
		a, ok1 := rawjson.Int([]byte(header))
		b, ok2 := rawjson.Int(val)
		if ok1 && ok2 {
			return a == b
		}
		return header == string(val)
	default:
		return header == strings.TrimSpace(string(val))
	}
}
