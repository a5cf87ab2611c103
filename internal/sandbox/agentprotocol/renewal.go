package agentprotocol

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Renewal is what the agent of a sandbox hears that was restored from a
// snapshot: it is another one now. What was under way is nobody's any more;
// programs run on, and what they say is thrown away.
type Renewal struct {
	Epoch   string    // random; tells the answer from what the old sandbox said
	Clock   time.Time // what time it is
	Entropy string    // random bytes for the kernel's generator
}

const longestRandom = 512 // bytes of an epoch or of entropy

// Body is the body of a Renew frame.
func (r Renewal) Body() []byte {
	var w writer
	w.text(r.Epoch)
	w.number(r.Clock.UnixNano())
	w.text(r.Entropy)
	return w.b
}

// ParseRenewal reads the body of a Renew frame.
func ParseRenewal(body []byte) (n Renewal, err error) {
	r := reader{b: body}
	n.Epoch = r.text()
	n.Clock = time.Unix(0, r.number())
	n.Entropy = r.text()
	if n.Epoch == "" || len(n.Epoch) > longestRandom || len(n.Entropy) > longestRandom {
		r.fail()
	}
	return n, r.done("a renewal")
}

const (
	portSize    = 2
	numberSize  = 4
	instantSize = 8
)

// Instant is what time it is.
type Instant struct{ time.Time }

// Body is the body of a Go frame.
func (i Instant) Body() []byte { return binary.BigEndian.AppendUint64(nil, uint64(i.UnixNano())) }

// ParseInstant reads the body of a Go frame.
func ParseInstant(body []byte) (Instant, error) {
	if len(body) != instantSize {
		return Instant{}, fmt.Errorf("%w: a time of %d bytes", ErrBroken, len(body))
	}
	return Instant{time.Unix(0, int64(binary.BigEndian.Uint64(body)))}, nil
}

// Port is one on the loopback of the sandbox.
type Port uint16

// Body is the body of a Dial or Listen frame.
func (p Port) Body() []byte { return binary.BigEndian.AppendUint16(nil, uint16(p)) }

// ParsePort reads the body of a Dial or Listen frame.
func ParsePort(body []byte) (Port, error) {
	if len(body) != portSize || body[0] == 0 && body[1] == 0 {
		return 0, fmt.Errorf("%w: %x is no port", ErrBroken, body)
	}
	return Port(binary.BigEndian.Uint16(body)), nil
}

// Number is that of a request another one belongs to.
type Number uint32

// Body is the body of an Accept frame.
func (n Number) Body() []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

// ParseNumber reads the body of an Accept frame.
func ParseNumber(body []byte) (Number, error) {
	if len(body) != numberSize {
		return 0, fmt.Errorf("%w: a number of %d bytes", ErrBroken, len(body))
	}
	return Number(binary.BigEndian.Uint32(body)), nil
}
