package agentprotocol

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Renewal tells the agent that its sandbox was restored from a snapshot and is now a different one. Requests
// in progress lose their client: programs run on, and their output is discarded.
type Renewal struct {
	Epoch   string    // random; distinguishes the answer from frames of the old sandbox
	Clock   time.Time // the current time
	Entropy string    // random bytes for the kernel's generator
}

const longestRandom = 512 // bytes of an epoch or of entropy

// Body encodes the body of a Renew frame.
func (r Renewal) Body() []byte {
	var w writer
	w.writeText(r.Epoch)
	w.writeNumber(r.Clock.UnixNano())
	w.writeText(r.Entropy)
	return w.b
}

// ParseRenewal decodes the body of a Renew frame.
func ParseRenewal(body []byte) (n Renewal, err error) {
	r := reader{b: body}
	n.Epoch = r.readText()
	n.Clock = time.Unix(0, r.readNumber())
	n.Entropy = r.readText()
	if n.Epoch == "" || len(n.Epoch) > longestRandom || len(n.Entropy) > longestRandom {
		r.failShort()
	}
	return n, r.finishReading("a renewal")
}

const (
	portSize      = 2
	requestIDSize = 4
	instantSize   = 8
)

// Instant is the current time.
type Instant struct{ time.Time }

// Body encodes the body of a Resume frame.
func (i Instant) Body() []byte { return binary.BigEndian.AppendUint64(nil, uint64(i.UnixNano())) }

// ParseInstant decodes the body of a Resume frame.
func ParseInstant(body []byte) (Instant, error) {
	if len(body) != instantSize {
		return Instant{}, fmt.Errorf("%w: a time of %d bytes", ErrBroken, len(body))
	}
	return Instant{time.Unix(0, int64(binary.BigEndian.Uint64(body)))}, nil
}

// Port is a TCP port on the loopback interface of the sandbox.
type Port uint16

// Body encodes the body of a Dial or Listen frame.
func (p Port) Body() []byte { return binary.BigEndian.AppendUint16(nil, uint16(p)) }

// ParsePort decodes the body of a Dial or Listen frame.
func ParsePort(body []byte) (Port, error) {
	if len(body) != portSize || body[0] == 0 && body[1] == 0 {
		return 0, fmt.Errorf("%w: %x is not a port", ErrBroken, body)
	}
	return Port(binary.BigEndian.Uint16(body)), nil
}

// RequestID is the number of the request that this one refers to.
type RequestID uint32

// Body encodes the body of an Accept frame.
func (n RequestID) Body() []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

// ParseRequestID decodes the body of an Accept frame.
func ParseRequestID(body []byte) (RequestID, error) {
	if len(body) != requestIDSize {
		return 0, fmt.Errorf("%w: a number of %d bytes", ErrBroken, len(body))
	}
	return RequestID(binary.BigEndian.Uint32(body)), nil
}
