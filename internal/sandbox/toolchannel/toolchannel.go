// Package toolchannel lets a program in a sandbox call functions of the host over connections that the agent relays.
//
// A message is its length (4 bytes, big-endian) and a JSON object. The program sends {"id", "tool", "args", "line"}
// for a call and gets {"id", "value"} or {"id", "error", "kind"}; {"result"} sets the value that the program returns,
// once, and gets {"id": 0}. The host believes nothing that a program sends: every process of the sandbox may connect,
// and a malformed message ends its connection alone.
package toolchannel

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Limits of messages, in bytes.
const (
	MaxRequest  = 4 << 20  // of a message of a program
	MaxResponse = 16 << 20 // of a message to a program
	maxName     = 256      // of a tool's name
)

// Kinds of errors, which a program can tell apart.
const (
	Failed  = "failed"  // the tool refused or failed
	Expired = "expired" // a question was not answered in time, or the time of the program is up
	Limited = "limited" // a limit of programs
)

// ErrMalformed wraps every error about a message that is none.
var ErrMalformed = errors.New("the program broke the protocol of tools")

// Message is what a program sends: a call, or the value that it returns.
type Message struct {
	ID   uint32          `json:"id"`
	Tool string          `json:"tool"`
	Args json.RawMessage `json:"args"` // an object
	// Line is where the program says that it made the call; 0 means that it does not know.
	Line   int             `json:"line"`
	Result json.RawMessage `json:"result"` // nil for a call
}

// Response answers a call.
type Response struct {
	ID    uint32          `json:"id"`
	Value json.RawMessage `json:"value,omitempty"` // of a call that succeeded
	Error string          `json:"error,omitempty"`
	Kind  string          `json:"kind,omitempty"` // of an error
}

// Read reads one message. It returns io.EOF between messages, io.ErrUnexpectedEOF inside one, and ErrMalformed for
// bytes that are no message. It allocates no more than it has read, and a constant.
func Read(r io.Reader) (Message, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Message{}, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > MaxRequest {
		return Message{}, fmt.Errorf("%w: a message of %d bytes, at most %d are allowed", ErrMalformed, size,
			MaxRequest)
	}
	var b bytes.Buffer
	b.Grow(int(min(size, 64<<10)))
	if n, err := io.CopyN(&b, r, int64(size)); err != nil {
		if errors.Is(err, io.EOF) || n < int64(size) {
			err = io.ErrUnexpectedEOF
		}
		return Message{}, err
	}
	return Parse(b.Bytes())
}

// Parse decodes the body of a message.
func Parse(body []byte) (m Message, err error) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return Message{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if rest := bytes.TrimLeft(body[d.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return Message{}, fmt.Errorf("%w: %d bytes after the message", ErrMalformed, len(rest))
	}
	if m.Result != nil {
		if m.ID != 0 || m.Tool != "" || m.Args != nil {
			return Message{}, fmt.Errorf("%w: a result that is a call too", ErrMalformed)
		}
		return m, nil
	}
	switch {
	case m.ID == 0:
		return Message{}, fmt.Errorf("%w: a call without an id", ErrMalformed)
	case m.Tool == "" || len(m.Tool) > maxName:
		return Message{}, fmt.Errorf("%w: a name of %d bytes", ErrMalformed, len(m.Tool))
	case m.Line < 0 || m.Line > MaxRequest:
		return Message{}, fmt.Errorf("%w: line %d", ErrMalformed, m.Line)
	case m.Args == nil:
		m.Args = json.RawMessage("{}")
	case m.Args[0] != '{':
		return Message{}, fmt.Errorf("%w: arguments that are no object", ErrMalformed)
	}
	return m, nil
}

// Encode encodes a response. One that is too large becomes an error.
func Encode(a Response) []byte {
	b := make([]byte, 4, 64+len(a.Value)+len(a.Error))
	var w bytes.Buffer
	e := json.NewEncoder(&w)
	e.SetEscapeHTML(false)
	if len(a.Value) > MaxResponse-1024 {
		a = Response{ID: a.ID, Kind: Limited,
			Error: fmt.Sprintf("too_large: the result has %d bytes, and a program can get %d", len(a.Value),
				MaxResponse-1024)}
	}
	if err := e.Encode(a); err != nil {
		w.Reset()
		e.Encode(Response{ID: a.ID, Error: "the result is no JSON: " + err.Error(), Kind: Failed})
	}
	b = slices.Concat(b, bytes.TrimRight(w.Bytes(), "\n"))
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}
