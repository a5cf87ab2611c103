package agentprotocol

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

const endedSize = 2 + 8 + 8 + 4

// Ended is how a program ended: by a code of its own, or by a signal.
type Ended struct {
	Code   uint8         // 0 when a signal ended it
	Signal uint8         // 0 when it ended by itself
	CPU    time.Duration // user and system time of it and what it waited for
	MaxRSS int64         // bytes of memory of the largest of them

	OOMKills int64 // what was ended meanwhile for want of memory, where the agent's own group holds that
}

// Body is the body of the Exit frame that tells it.
func (e Ended) Body() []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(e.Code)<<8|uint16(e.Signal))
	b = binary.BigEndian.AppendUint64(b, uint64(e.CPU))
	b = binary.BigEndian.AppendUint64(b, uint64(e.MaxRSS))
	return binary.BigEndian.AppendUint32(b, uint32(min(e.OOMKills, math.MaxUint32)))
}

// ParseEnded reads the body of an Exit frame. A status no kernel gives is
// ErrBroken.
func ParseEnded(body []byte) (Ended, error) {
	if len(body) != endedSize {
		return Ended{}, fmt.Errorf("%w: an exit status of %d bytes", ErrBroken, len(body))
	}
	cpu, rss := binary.BigEndian.Uint64(body[2:]), binary.BigEndian.Uint64(body[10:])
	e := Ended{Code: body[0], Signal: body[1], CPU: time.Duration(cpu), MaxRSS: int64(rss), OOMKills: int64(binary.BigEndian.Uint32(body[18:]))}
	if e.Signal > 64 || e.Signal != 0 && e.Code != 0 || cpu > math.MaxInt64 || rss > math.MaxInt64 {
		return Ended{}, fmt.Errorf("%w: an exit status of code %d and signal %d", ErrBroken, e.Code, e.Signal)
	}
	return e, nil
}
