package sandbox

import (
	"fmt"
	"time"
)

// Limits are the resources that one sandbox may use. A zero field takes the value of Defaults.
type Limits struct {
	MemoryMiB   int           // memory of all processes together
	VCPUs       int           // processors that may be busy at once
	Processes   int           // processes and threads alive at once
	DiskMiB     int           // bytes of its writable file systems together
	Descriptors int           // files one process may have open
	OutputBytes int           // bytes kept of each output stream of a call
	Call        time.Duration // how long one call may take
}

// LeastMemoryMiB is the least memory of a sandbox. With less, the agent inside may not start, or may be killed
// with the first program.
const LeastMemoryMiB = 16

// Defaults returns the limits of a sandbox that is created without any.
func Defaults() Limits {
	return Limits{
		MemoryMiB: 256, VCPUs: 2, Processes: 256, DiskMiB: 1024, Descriptors: 1024,
		OutputBytes: 1 << 20, Call: 30 * time.Second,
	}
}

// A LimitError reports a limit outside the allowed range.
type LimitError struct{ text string }

func (e *LimitError) Error() string { return e.text }

// Within returns l with its zero fields filled in, or an error if a field exceeds most. The error names the
// field and the range.
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
