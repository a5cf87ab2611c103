package protocol

import (
	"context"
	"time"

	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/session"
	"gatehouse/tool"
)

// This file is the interface between the engine and the transports. A
// transport passes frames in and sends messages out. It knows only the methods
// that open or end sessions. Newline-framed transports use a Pipe. The HTTP
// transport determines the era of each message (EraOf) and then calls Open,
// Accept, Legacy or Modern.

// Sink receives what the engine sends for one request. The transport implements it. The
// engine calls it from any goroutine, one call at a time, and never after Answer or
// Drop. A sink must copy a message that it keeps after the call returns.
type Sink interface {
	// Note sends a message that precedes the answer: a notification or, to a
	// legacy client, a request. It blocks no longer than the write deadline.
	// It returns false if the client accepts no message before the answer;
	// the engine then sends it another way.
	Note(msg []byte) bool
	// Answer sends the response and ends the request. status is the HTTP
	// status; other transports ignore it.
	Answer(status int, msg []byte)
	// Drop ends the request without a response: it was cancelled.
	Drop()
	// A sink of a transport with headers also has Challenge(header string). It
	// is called before an Answer that requires another credential.

	// Detach closes the connection while the request continues, if the
	// client can resume the stream. Otherwise it does nothing.
	Detach()
}

// Era is the protocol generation of a message.
type Era uint8

const (
	Legacy Era = iota // handshake and session
	Modern            // no session
)

// Header returns all values of one header of the request in which a message arrived. It is nil on
// transports without headers.
type Header func(name string) []string

// Caller is the caller as far as the transport knows: filled by identity, completed by the engine. An
// empty Principal is a connection that has not authenticated yet; a message on it must carry a token.
type Caller struct {
	tool.Caller
	Bound string    // the only context that the credential allows; "" means any
	Until time.Time // when the credential expires; zero means never

	// Prove returns the identity of a token inside a message, on transports without headers. nil
	// rejects all tokens.
	Prove func(ctx context.Context, token string) (Caller, error)

	// Work returns the folders in which the client of a connection works, and whether its user named
	// them; see tool.Caller. It is called after the client has sent a message. nil: clients of this
	// listener name none.
	Work func() (folders []string, named bool)

	// Advice tells clients without a token which one to use. It follows
	// "put a token into ...". "" adds nothing.
	Advice string

	// Pace delays a request of a connection to the caller's rate, or returns an error if there are too
	// many. nil: no rate.
	Pace func(context.Context) error
}

// EraOf determines the era of one message: it is modern if its envelope or the version header names a
// modern revision, if it has an envelope without a version, or if the method is server/discover. Other
// headers are ignored, because legacy clients send them too.
func (e *Engine) EraOf(m *Message, h Header) Era {
	if v, ok := m.envelopeVersion(); ok {
		if mcpversion.ModernName(v) {
			return Modern
		}
	} else if m.Method == "server/discover" || m.enveloped() {
		return Modern
	}
	if h != nil {
		if v := h("MCP-Protocol-Version"); len(v) > 0 && mcpversion.ModernName(v[0]) {
			return Modern
		}
	}
	return Legacy
}

// Open serves the initialize request. With sessions it opens one, whose ID the transport sends; without
// sessions s is nil. f is set if the handshake was refused.
func (e *Engine) Open(who Caller, m *Message) (s *session.Session, response []byte, f *Fault) {
	return e.initialize(who, m)
}

// Respond returns the response for a fault.
func Respond(f *Fault) []byte { return appendError(nil, f) }

// Sessions returns the table of sessions with an ID; nil if the host serves without sessions.
func (e *Engine) Sessions() *session.Table { return e.sessions }

// Pipe returns the server's end of a newline-framed connection: all eras, all messages, with its own
// state. write sends one frame, without its newline; it is called from one goroutine at a time, and its
// error ends the pipe.
func (e *Engine) Pipe(who Caller, write func(msg []byte) error) *Pipe { return e.newPipe(who, write) }

// ReceiveAsync accepts one frame, which the pipe keeps, and returns the work on the request in it, if
// there is one: the caller must run it once, on any goroutine. ReceiveAsync itself blocks only if the
// client has too many running requests or does not read its answers. It and Receive are called from one
// goroutine at a time, that which reads the connection.
func (p *Pipe) ReceiveAsync(frame []byte) (work func()) { return p.receive(frame) }

// Receive accepts one frame and works on it on a new goroutine.
func (p *Pipe) Receive(frame []byte) {
	if work := p.receive(frame); work != nil {
		go work()
	}
}

// Done returns a channel that is closed when the pipe has ended, also by a failed write.
func (p *Pipe) Done() <-chan struct{} { return p.done }
