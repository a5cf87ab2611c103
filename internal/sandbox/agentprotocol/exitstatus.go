package agentprotocol

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

const exitStatusSize = 2 + 8 + 8 + 4

// ExitStatus is how a program ended: by an exit code or by a signal.
type ExitStatus struct {
	Code   uint8         // 0 if a signal killed it
	Signal uint8         // 0 if it exited
	CPU    time.Duration // user and system time of the program and of the children it waited for
	MaxRSS int64         // bytes of memory of the largest of these processes

	OOMKills int64 // processes killed meanwhile because memory ran out, if the agent's own control group counts them
}

// Body encodes the body of an Exit frame.
func (e ExitStatus) Body() []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(e.Code)<<8|uint16(e.Signal))
	b = binary.BigEndian.AppendUint64(b, uint64(e.CPU))
	b = binary.BigEndian.AppendUint64(b, uint64(e.MaxRSS))
	return binary.BigEndian.AppendUint32(b, uint32(min(e.OOMKills, math.MaxUint32)))
}

// ParseExitStatus decodes the body of an Exit frame. It returns ErrBroken for a status that no kernel reports.
func ParseExitStatus(body []byte) (ExitStatus, error) {
	if len(body) != exitStatusSize {
		return ExitStatus{}, fmt.Errorf("%w: an exit status of %d bytes", ErrBroken, len(body))
	}
	cpu, rss := binary.BigEndian.Uint64(body[2:]), binary.BigEndian.Uint64(body[10:])
	e := ExitStatus{
		Code:     body[0],
		Signal:   body[1],
		CPU:      time.Duration(cpu),
		MaxRSS:   int64(rss),
		OOMKills: int64(binary.BigEndian.Uint32(body[18:])),
	}
	if e.Signal > 64 || e.Signal != 0 && e.Code != 0 || cpu > math.MaxInt64 || rss > math.MaxInt64 {
		return ExitStatus{}, fmt.Errorf("%w: an exit status of code %d and signal %d", ErrBroken, e.Code, e.Signal)
	}
	return e, nil
}
