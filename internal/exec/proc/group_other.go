//go:build unix && !linux

package proc

import (
	"os/exec"
	"syscall"
)

// group is the process group that a child leads.
type group struct {
	cmd *exec.Cmd
	pid int
	err error // of the wait
}

// dieWithHost does nothing: on this system the children of a killed host continue to run.
func dieWithHost(*syscall.SysProcAttr) {}

// await also reaps the child. Before the group is killed right afterwards, its number could in theory
// be reused for a new group, but only if all numbers were used up in between.
func (g *group) await() { g.err = g.cmd.Wait() }

func (g *group) reap() error { return g.err }
