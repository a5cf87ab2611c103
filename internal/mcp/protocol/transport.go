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
	Modern            // every request stands alone
)

// Header reads one header of the request a message came in, all values. It is
// nil where there are no headers.
type Header func(name string) []string

// Caller is the caller as far as the door knows: filled by identity, completed
// by the engine. An empty Principal is a connection on which no caller has proved
// anything yet; a message on it must bring a token.
type Caller struct {
	tool.Caller
	Bound string    // the only context that the credential allows; "" means any
	Until time.Time // when the credential expires; zero means never

	// Prove returns the identity of a token that comes inside a
	// message, on transports without headers. nil rejects all tokens.
	Prove func(ctx context.Context, token string) (Caller, error)

	// Work returns the folders in which the client of a connection works, and
	// whether its user named them; see tool.Caller. It is called when the
	// client has said something. nil: clients of this listener name none.
	Work func() (folders []string, named bool)

	// Advice tells clients without a token which one to use. It follows
	// "put a token into ...". "" adds nothing.
	Advice string

	// Pace holds a request of a connection until its turn has come, or says
	// that there were too many. nil: as fast as they come.
	Pace func(context.Context) error
}

// EraOf decides how one message is served: modern when its envelope or the
// version header names a modern revision, when the envelope has no version but
// is one otherwise, and server/discover always. Other headers do not decide:
// legacy clients send them too.
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

// Open serves the initialize request. With sessions it opens one, and the
// door sends its id; without them s is nil. f is set when the handshake was
// refused.
func (e *Engine) Open(who Caller, m *Message) (s *session.Session, response []byte, f *Fault) {
	return e.initialize(who, m)
}

// Respond makes the response to a fault.
func Respond(f *Fault) []byte { return appendError(nil, f) }

// Sessions is the table of sessions with an id; nil when the host serves
// without.
func (e *Engine) Sessions() *session.Table { return e.sessions }

// Pipe makes one client's end of a newline-framed connection: all eras, all
// messages, state of its own. write sends one frame, without its newline; it
// is called from one goroutine at a time and its error ends the pipe.
func (e *Engine) Pipe(who Caller, write func(msg []byte) error) *Pipe { return e.newPipe(who, write) }

// ReceiveAsync takes one frame, which the pipe keeps, and returns the work on the
// request in it, if there is one: to be run once, on any goroutine, for as long
// as it takes. Take itself blocks only when the client has too many requests in
// flight or does not read its answers.
func (p *Pipe) ReceiveAsync(frame []byte) (work func()) { return p.receive(frame) }

// Receive takes one frame and works on a goroutine of its own.
func (p *Pipe) Receive(frame []byte) {
	if work := p.receive(frame); work != nil {
		go work()
	}
}

// Done is closed when the pipe has ended, also by a failed write.
func (p *Pipe) Done() <-chan struct{} { return p.done }
