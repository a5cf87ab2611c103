package sandbox

import (
	"fmt"
	"time"
)

// Limits are what one sandbox may use. A zero member takes the value of
// Defaults.
type Limits struct {
	MemoryMiB   int           // memory of everything in it together
	VCPUs       int           // processors it may keep busy
	Processes   int           // processes and threads alive at once
	DiskMiB     int           // bytes of its writable file systems together
	Descriptors int           // files one process may have open
	OutputBytes int           // bytes kept of each output stream of a call
	Call        time.Duration // how long one call may take
}

// LeastMemoryMiB is the least memory of a sandbox: with less the agent in it may
// not even start, or ends with the first program.
const LeastMemoryMiB = 16

// Defaults are the limits of a sandbox nobody asked otherwise for.
func Defaults() Limits {
	return Limits{
		MemoryMiB: 256, VCPUs: 2, Processes: 256, DiskMiB: 1024, Descriptors: 1024,
		OutputBytes: 1 << 20, Call: 30 * time.Second,
	}
}

// A LimitError is a limit that may not be asked for.
type LimitError struct{ text string }

func (e *LimitError) Error() string { return e.text }

// Within fills in what l leaves open and checks it against the most that may
// be asked for. The error names the member and the range.
func (l Limits) Within(most Limits) (Limits, error) {
	d := Defaults()
	for _, m := range []struct {
		name                    string
		v                       *int
		byDefault, atMax, least int
	}{
		{"memory_mib", &l.MemoryMiB, d.MemoryMiB, most.MemoryMiB, LeastMemoryMiB},
		{"vcpu_count", &l.VCPUs, d.VCPUs, most.VCPUs, 1},
		{"processes", &l.Processes, d.Processes, most.Processes, 1},
		{"disk_mib", &l.DiskMiB, d.DiskMiB, most.DiskMiB, 1},
		{"descriptors", &l.Descriptors, d.Descriptors, most.Descriptors, 1},
		{"output_bytes", &l.OutputBytes, d.OutputBytes, most.OutputBytes, 1},
	} {
		if *m.v == 0 {
			*m.v = min(m.byDefault, m.atMax)
		}
		if *m.v < m.least || *m.v > m.atMax {
			return Limits{}, &LimitError{fmt.Sprintf("%s is %d; it may be %d to %d", m.name, *m.v, m.least, m.atMax)}
		}
	}
	if l.Call == 0 {
		l.Call = min(d.Call, most.Call)
	}
	if l.Call < 0 || l.Call > most.Call {
		return Limits{}, &LimitError{fmt.Sprintf("the time of a call is %v; it may be up to %v", l.Call, most.Call)}
	}
	return l, nil
}
