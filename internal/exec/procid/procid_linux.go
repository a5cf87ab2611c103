package procid

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// space is that of this process's numbers; "" if it is not known.
func space() string {
	link, _ := os.Readlink("/proc/self/ns/pid")
	return strings.Trim(strings.TrimPrefix(link, "pid:"), "[]")
}

func statusOf(pid int) status {
	stat, err := ReadStat(pid)
	if err != nil {
		return status{ended: errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)}
	}
	return status{stat.Field(startTime), stat.Ended()}
}

// Numbers of fields, as proc(5) counts them.
const (
	stateField = 3
	startTime  = 22 // in ticks since the machine started
)

// Stat is what /proc/PID/stat says of a process.
type Stat []string

// ReadStat reads the Stat of a process.
func ReadStat(pid int) (Stat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	return parse(string(b)), nil
}

// parse leaves the number and the name out: the name may hold anything.
func parse(stat string) Stat { return strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) }

// Field is the field of a number from 3 on, as proc(5) counts them; "" if there is
// none.
func (s Stat) Field(number int) string {
	if i := number - stateField; i >= 0 && i < len(s) {
		return s[i]
	}
	return ""
}

// Ended reports whether the process has ended and its parent has not waited for
// it yet.
func (s Stat) Ended() bool { return s.Field(stateField) == "Z" || s.Field(stateField) == "X" }
