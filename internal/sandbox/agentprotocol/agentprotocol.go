// Package agentprotocol encodes the frames between the host and the agent inside a sandbox. Neither side
// trusts the other's bytes.
//
// A frame is a kind (1 byte), the number of the request it belongs to (4 bytes, never 0), the length of its
// body (4 bytes) and the body. Numbers are big-endian.
package agentprotocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// MaxBody is the most bytes in the body of one frame. Longer streams take several frames.
const MaxBody = 64 << 10

const headSize = 9

// Kind says how to decode a frame's body.
type Kind uint8

const (
	Setup   Kind = 1 + iota // a Plan: set up the sandbox; the first frame of all, answered by Ready
	Ready                   // the request is done, or the program runs
	Adjust                  // a Plan with other limits and another environment; answered by Ready
	Ping                    // checks that the other side answers, by Pong with the same body
	Pong                    // the answer to Ping
	Start                   // a Program to run
	File                    // a FileRequest to do
	Entry                   // an Info, an answer to File
	Stdin                   // bytes of standard input; an empty body closes it
	Stdout                  // bytes of standard output or of a file; an empty body says it was closed
	Stderr                  // bytes of standard error; an empty body says it was closed
	Credit                  // a Grant: so many more bytes may be sent
	Signal                  // one byte, the number of the signal
	Resize                  // a Size: the terminal's new size
	Exit                    // an Ended, the last frame of a request
	Failed                  // a Failure: the request failed; the last frame of a request
	Quiesce                 // after the Ready that answers this, send nothing until Resume or Renew arrives
	Resume                  // ends Quiesce; the body is an Instant, the current time; it has no answer
	Renew                   // a Renewal: the sandbox was restored from a snapshot; answered by Ready with its epoch
	Dial                    // a Port to connect to; answered by Ready, after which Stdin and Stdout carry its bytes
	Listen                  // a Port to listen on; answered by Ready, and a Signal ends it
	Accept                  // the RequestID of a Listen: accept a connection; then as Dial
	Judged                  // lines of package supervisor about what a program with Lists started
	afterKinds
)

// Window is how many bytes of one stream may be in flight before the reader grants more. A sender that exceeds
// what was granted breaks the protocol.
const Window = 256 << 10

// ErrBroken wraps every error about a malformed frame. The channel cannot be used any further, since it is
// unknown where the next frame begins.
var ErrBroken = errors.New("the other end of the sandbox broke the agent protocol")

// Frame is one message.
type Frame struct {
	Kind Kind
	ID   uint32
	Body []byte
}

// Write sends one frame with one call to w. Concurrent callers must serialize their calls.
func Write(w io.Writer, f Frame) error {
	if err := checkFrame(f.Kind, f.ID, len(f.Body)); err != nil {
		return err
	}
	b := make([]byte, headSize, headSize+len(f.Body))
	b[0] = byte(f.Kind)
	binary.BigEndian.PutUint32(b[1:], f.ID)
	binary.BigEndian.PutUint32(b[5:], uint32(len(f.Body)))
	_, err := w.Write(append(b, f.Body...))
	return err
}

// Read reads one frame. It returns io.EOF between frames, io.ErrUnexpectedEOF inside one, and ErrBroken if the
// bytes are not a frame. It allocates nothing for a length that exceeds MaxBody.
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
	if err := checkFrame(f.Kind, f.ID, int(size)); err != nil {
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

func checkFrame(k Kind, id uint32, size int) error {
	switch {
	case k == 0 || k >= afterKinds:
		return fmt.Errorf("%w: there is no frame of kind %d", ErrBroken, k)
	case id == 0:
		return fmt.Errorf("%w: a frame that belongs to no request", ErrBroken)
	case size > MaxBody:
		return fmt.Errorf("%w: a frame of %d bytes, at most %d are allowed", ErrBroken, size, MaxBody)
	case k == Signal && size != 1,
		k == Exit && size != exitStatusSize,
		k == Credit && size != grantSize,
		k == Resize && size != resizeSize,
		(k == Dial || k == Listen) && size != portSize,
		k == Accept && size != requestIDSize,
		k == Resume && size != instantSize,
		k == Quiesce && size != 0:
		return fmt.Errorf("%w: a frame of kind %d with %d bytes", ErrBroken, k, size)
	}
	return nil
}
