package wire

import (
	"encoding/binary"
	"fmt"
)

const endedSize = 2

// Ended is how a program ended: by a code of its own, or by a signal.
type Ended struct {
	Code   uint8 // 0 when a signal ended it
	Signal uint8 // 0 when it ended by itself
}

// Body is the body of the Exit frame that tells it.
func (e Ended) Body() []byte {
	return binary.BigEndian.AppendUint16(nil, uint16(e.Code)<<8|uint16(e.Signal))
}

// ParseEnded reads the body of an Exit frame. A status no kernel gives is
// ErrBroken.
func ParseEnded(body []byte) (Ended, error) {
	if len(body) != endedSize {
		return Ended{}, fmt.Errorf("%w: an exit status of %d bytes", ErrBroken, len(body))
	}
	e := Ended{Code: body[0], Signal: body[1]}
	if e.Signal > 64 || e.Signal != 0 && e.Code != 0 {
		return Ended{}, fmt.Errorf("%w: an exit status of code %d and signal %d", ErrBroken, e.Code, e.Signal)
	}
	return e, nil
}
