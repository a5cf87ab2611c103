//go:build !linux

package procid

import (
	"runtime"
	"strconv"

	"github.com/shirou/gopsutil/v4/process"
)

// space returns a name for the one PID namespace of these systems.
func space() string { return runtime.GOOS }

func statusOf(pid int) status {
	if pid != int(int32(pid)) {
		return status{ended: true}
	}
	there, err := process.PidExists(int32(pid))
	if err != nil || !there {
		return status{ended: err == nil}
	}
	p := process.Process{Pid: int32(pid)}
	began, err := p.CreateTime() // in milliseconds since 1970
	if err != nil {
		return status{}
	}
	return status{began: strconv.FormatInt(began, 10)}
}
