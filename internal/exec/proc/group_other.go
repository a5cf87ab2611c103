//go:build unix && !linux

package proc

import (
	"os/exec"
	"syscall"
)

// group is the process group a child leads.
type group struct {
	cmd *exec.Cmd
	pid int
	err error // of the wait
}

// dieWithHost has no counterpart here: a host that is killed leaves its
// children running.
func dieWithHost(*syscall.SysProcAttr) {}

// await also reaps. Until the group is killed right after, its number could in
// theory be given to a new group; it would take all numbers to be used up in
// between.
func (g *group) await() { g.err = g.cmd.Wait() }

func (g *group) reap() error { return g.err }
