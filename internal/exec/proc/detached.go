package proc

import (
	"context"
	"errors"
)

// ErrGone is what Find returns for a process that is not there any more.
var ErrGone = errors.New("the process is gone")

// ErrNotDetached is what Detach and Find return where the system cannot do that.
var ErrNotDetached = errors.New(
	"this system cannot let a process outlive its host and find it again; that takes Linux 5.10",
)

// Mark names a detached process, for a later host to find it by. It holds no
// secret.
type Mark struct {
	Pid   int    `json:"pid"`
	Born  string `json:"born"`            // tells it from another process of that number
	Boot  string `json:"boot"`            // and of that start of the system
	V2    string `json:"v2,omitempty"`    // the group of all that came of it, in one of the hierarchies
	V1    string `json:"v1,omitempty"`    // or
	Label string `json:"label,omitempty"` // the variable in their environment
}

// Type fails: a detached process has nothing to read.
func (d *Detached) Type(context.Context, []byte) (int, error) { return 0, ErrNoInput }

// CloseInput fails: a detached process has nothing to read.
func (d *Detached) CloseInput(context.Context) error { return ErrNoInput }

// Resize fails: a detached process has no terminal.
func (d *Detached) Resize(Size) error { return errors.New("it has no terminal") }

// Pid is the number of the process, and of its group.
func (d *Detached) Pid() int { return d.mark.Pid }

// Mark is by what it is found again.
func (d *Detached) Mark() Mark { return d.mark }

// Done is closed when the process and all that came of it have ended. It is not
// when the process was left.
func (d *Detached) Done() <-chan struct{} { return d.done }
