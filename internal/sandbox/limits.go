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
		name             string
		v                *int
		byDefault, atMax int
	}{
		{"memory_mib", &l.MemoryMiB, d.MemoryMiB, most.MemoryMiB},
		{"vcpu_count", &l.VCPUs, d.VCPUs, most.VCPUs},
		{"processes", &l.Processes, d.Processes, most.Processes},
		{"disk_mib", &l.DiskMiB, d.DiskMiB, most.DiskMiB},
		{"descriptors", &l.Descriptors, d.Descriptors, most.Descriptors},
		{"output_bytes", &l.OutputBytes, d.OutputBytes, most.OutputBytes},
	} {
		if *m.v == 0 {
			*m.v = min(m.byDefault, m.atMax)
		}
		if *m.v < 1 || *m.v > m.atMax {
			return Limits{}, &LimitError{fmt.Sprintf("%s is %d; it may be 1 to %d", m.name, *m.v, m.atMax)}
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
