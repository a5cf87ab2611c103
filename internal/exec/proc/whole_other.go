//go:build !linux

package proc

import (
	"errors"
	"os/exec"
)

// whole does nothing on this system.
type whole struct{}

// cgroups exist on Linux only.
type cgroups struct{}

func (w *whole) prepare(*exec.Cmd, *Spec)            {}
func (w *whole) enterShare(string)                   {}
func (w *whole) withdraw(*exec.Cmd) bool             { return false }
func (w *whole) started(*exec.Cmd)                   {}
func (w *whole) requestEnd()                         {}
func (w *whole) kill()                               {}
func (w *whole) close()                              {}
func (w *whole) launchKept(**exec.Cmd) error         { return errNotKept }
func (w *whole) leader(cmd *exec.Cmd) int            { return cmd.Process.Pid }
func (w *whole) await() bool                         { return false }
func (w *whole) reap() bool                          { return false }
func (w *whole) correct(*State)                      {}
func (p *Process) Contained() (cgroup, limited bool) { return false, false }

// SharesProcessors returns "" because nothing on this system divides the processors among principals.
func SharesProcessors() string { return "" }

// Usage is not supported on this system.
func (p *Process) Usage() (Usage, error) { return UsageBelow(p.Pid()) }

// UsageBelow fails on this system.
func UsageBelow(int) (Usage, error) {
	return Usage{}, errors.New("what a process uses is told on Linux only")
}
