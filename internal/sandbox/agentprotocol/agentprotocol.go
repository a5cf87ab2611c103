// Package agentprotocol carries frames between the host and the agent inside a
// sandbox, neither of which trusts the other's bytes.
//
// A frame is a kind (1 byte), the number of the request it belongs to (4
// bytes, never 0), the length of its body (4 bytes) and the body. Numbers are
// big-endian.
package agentprotocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// MaxBody is the most bytes one frame carries. Longer streams take several.
const MaxBody = 64 << 10

const headSize = 9

// Kind says what a frame's body is.
type Kind uint8

const (
	Setup  Kind = 1 + iota // a Plan: make this place; the first frame of all, answered by Ready
	Ready                  // the place is made
	Adjust                 // a Plan with other limits and another environment; answered by Ready
	Ping                   // is the other side there; answered by Pong with the same body
	Pong                   // the answer to Ping
	Start                  // a Program: run it
	File                   // a FileWork: do it
	Entry                  // an Info, an answer to File
	Stdin                  // bytes for its standard input; an empty body closes it
	Stdout                 // bytes from its standard output or of a file; an empty body says it was closed
	Stderr                 // bytes from its standard error; an empty body says it was closed
	Credit                 // a Grant: so much more may be sent
	Signal                 // one byte, the number to send
	Resize                 // a Window: the terminal has this size now
	Exit                   // an Ended, the last frame of a request
	Failed                 // a Failure: the request was not done; the last frame of a request
	Still                  // say nothing after the Ready that answers this until Go or Renew comes
	Go                     // the end of Still, an Instant: what time it is; nothing answers it
	Renew                  // a Renewal: this is another place now; answered by Ready with its epoch
	Dial                   // a Port to connect to; answered by Ready, then Stdin and Stdout are its bytes
	Listen                 // a Port to listen at; answered by Ready, and a Signal ends it
	Accept                 // a Port's Listen, by its number: take a connection; then as Dial
	afterKinds
)

// Window is how many bytes of one stream may be under way before the one who
// reads it grants more. Who sends more than was granted breaks the protocol.
const Window = 256 << 10

// ErrBroken is what every malformed frame is. The channel cannot be used any
// further, since where the next frame begins is unknown.
var ErrBroken = errors.New("the other end of the sandbox broke the agent protocol")

// Frame is one message.
type Frame struct {
	Kind Kind
	ID   uint32
	Body []byte
}

// Write sends one frame with one call to w. Callers on several goroutines
// take turns themselves.
func Write(w io.Writer, f Frame) error {
	if err := check(f.Kind, f.ID, len(f.Body)); err != nil {
		return err
	}
	b := make([]byte, headSize, headSize+len(f.Body))
	b[0] = byte(f.Kind)
	binary.BigEndian.PutUint32(b[1:], f.ID)
	binary.BigEndian.PutUint32(b[5:], uint32(len(f.Body)))
	_, err := w.Write(append(b, f.Body...))
	return err
}

// Read takes one frame. It is io.EOF between frames, io.ErrUnexpectedEOF
// inside one, and ErrBroken when the bytes are no frame; nothing is allocated
// for a length that is not allowed.
func Read(r io.Reader) (Frame, error) {
	var head [headSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Kind: Kind(head[0]), ID: binary.BigEndian.Uint32(head[1:])}
	size := binary.BigEndian.Uint32(head[5:])
	if size > MaxBody {
		return Frame{}, fmt.Errorf("%w: a frame of %d bytes, at most %d are allowed", ErrBroken, size, MaxBody)
	}
	if err := check(f.Kind, f.ID, int(size)); err != nil {
		return Frame{}, err
	}
	f.Body = make([]byte, size)
	if _, err := io.ReadFull(r, f.Body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return f, nil
}

func check(k Kind, id uint32, size int) error {
	switch {
	case k == 0 || k >= afterKinds:
		return fmt.Errorf("%w: there is no frame of kind %d", ErrBroken, k)
	case id == 0:
		return fmt.Errorf("%w: a frame that belongs to no request", ErrBroken)
	case size > MaxBody:
		return fmt.Errorf("%w: a frame of %d bytes, at most %d are allowed", ErrBroken, size, MaxBody)
	case k == Signal && size != 1, k == Exit && size != endedSize, k == Credit && size != grantSize, k == Resize && size != resizeSize,
		(k == Dial || k == Listen) && size != portSize, k == Accept && size != numberSize, k == Go && size != instantSize, k == Still && size != 0:
		return fmt.Errorf("%w: a frame of kind %d with %d bytes", ErrBroken, k, size)
	}
	return nil
}
