package subject

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"syscall"
)

// Usage is what a process has used, by its own account.
type Usage struct {
	CPU        int64  `json:"cpu"`        // nanoseconds, user and system
	Bytes      uint64 `json:"bytes"`      // allocated since the start
	Objects    uint64 `json:"objects"`    // likewise
	Heap       uint64 `json:"heap"`       // bytes in use
	Stack      uint64 `json:"stack"`      // bytes in use
	Resident   int64  `json:"resident"`   // bytes; 0 where the system does not tell
	Goroutines int    `json:"goroutines"` //
	Files      int    `json:"files"`      // open descriptors; 0 where the system does not tell
	Cycles     uint32 `json:"cycles"`     // garbage collections since the start
}

// Order is one thing the driver asks of a subject; Usage or an error comes
// back.
type Order struct {
	Do  string `json:"do"` // usage, collect, profile, or a name of Doors.Extra
	Arg string `json:"arg,omitempty"`
}

// Report is the answer to an Order.
type Report struct {
	Usage
	Error string `json:"error,omitempty"`
}

// control answers orders on a Unix socket.
func control(path string, extra map[string]func(string) error) error {
	ln, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go obey(conn, extra)
		}
	}()
	return nil
}

func obey(conn net.Conn, extra map[string]func(string) error) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	out := json.NewEncoder(conn)
	for lines.Scan() {
		var o Order
		err := json.Unmarshal(lines.Bytes(), &o)
		if err == nil {
			err = o.carryOut(extra)
		}
		r := Report{Usage: now()}
		if err != nil {
			r.Error = err.Error()
		}
		if out.Encode(r) != nil {
			return
		}
	}
}

func (o Order) carryOut(extra map[string]func(string) error) error {
	switch o.Do {
	case "usage":
		return nil
	case "collect": // twice: what has a finalizer goes in the second round
		runtime.GC()
		runtime.GC()
		debug.FreeOSMemory()
		return nil
	case "profile":
		return profile(o.Arg)
	}
	if f := extra[o.Do]; f != nil {
		return f(o.Arg)
	}
	return fmt.Errorf("unknown order %q", o.Do)
}

// profile starts a CPU profile below the prefix or, with "", ends it. What was
// allocated is stored at both ends, for pprof's -base.
func profile(prefix string) error {
	if prefix == "" {
		pprof.StopCPUProfile()
		return allocations(running + ".allocs")
	}
	running = prefix
	if err := allocations(prefix + ".base"); err != nil {
		return err
	}
	f, err := os.Create(prefix + ".cpu")
	if err != nil {
		return err
	}
	return pprof.StartCPUProfile(f)
}

func allocations(file string) error {
	runtime.GC() // the profile is as of the last collection
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return pprof.Lookup("allocs").WriteTo(f, 0)
}

// running is where the current profile goes; orders come one at a time.
var running string

func now() Usage {
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return Usage{
		CPU:        r.Utime.Nano() + r.Stime.Nano(),
		Bytes:      m.TotalAlloc,
		Objects:    m.Mallocs,
		Heap:       m.HeapInuse,
		Stack:      m.StackInuse,
		Resident:   resident(),
		Goroutines: runtime.NumGoroutine(),
		Files:      files(),
		Cycles:     m.NumGC,
	}
}

func resident() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	f := bytes.Fields(b)
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(string(f[1]), 10, 64)
	return pages * int64(os.Getpagesize())
}

func files() int {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return 0
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	return len(names)
}
