package procid

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// space returns the PID namespace of this process; "" if it is unknown.
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

// Numbers of fields, as in proc(5).
const (
	stateField = 3
	startTime  = 22 // in ticks since the boot
)

// Stat is the content of /proc/PID/stat from field 3 on.
type Stat []string

// ReadStat reads the Stat of a process.
func ReadStat(pid int) (Stat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	return parse(string(b)), nil
}

// parse omits the number and the name, because the name may contain any character.
func parse(stat string) Stat { return strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) }

// Field returns a field by its number in proc(5), from 3 on; "" if it does not exist.
func (s Stat) Field(number int) string {
	if i := number - stateField; i >= 0 && i < len(s) {
		return s[i]
	}
	return ""
}

// Ended reports whether the process has ended and was not waited for yet.
func (s Stat) Ended() bool { return s.Field(stateField) == "Z" || s.Field(stateField) == "X" }
