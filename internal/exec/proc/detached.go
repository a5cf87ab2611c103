package proc

import (
	"context"
	"errors"
)

// ErrGone is returned by Find for a process that has ended.
var ErrGone = errors.New("the process is gone")

// ErrNotDetached is returned by Detach and Find on systems that cannot detach processes.
var ErrNotDetached = errors.New(
	"this system cannot let a process outlive its host and find it again; that takes Linux 5.10",
)

// Mark identifies a detached process, so that a later host can find it. It contains no secret.
type Mark struct {
	Pid   int    `json:"pid"`
	Born  string `json:"born"`            // distinguishes it from another process with that number
	Boot  string `json:"boot"`            // the boot of the system, in which the number is valid
	V2    string `json:"v2,omitempty"`    // the group of the process and its descendants, in one of the hierarchies
	V1    string `json:"v1,omitempty"`    // or
	Label string `json:"label,omitempty"` // the variable in their environment
}

// Type fails, because a detached process has no input.
func (d *Detached) Type(context.Context, []byte) (int, error) { return 0, ErrNoInput }

// CloseInput fails, because a detached process has no input.
func (d *Detached) CloseInput(context.Context) error { return ErrNoInput }

// Resize fails: a detached process has no terminal.
func (d *Detached) Resize(Size) error { return errors.New("it has no terminal") }

// Pid returns the number of the process, and of its group.
func (d *Detached) Pid() int { return d.mark.Pid }

// Mark returns the mark by which a later host finds the process.
func (d *Detached) Mark() Mark { return d.mark }

// Done returns a channel that is closed when the process and its descendants have ended. Leave does not
// close it.
func (d *Detached) Done() <-chan struct{} { return d.done }
