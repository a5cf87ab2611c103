//go:build !linux

package proc

import (
	"context"
	"os"
	"time"
)

// Detached is a process that does not end with its host. This system does not support them.
type Detached struct {
	mark Mark
	done chan struct{}
}

// Detach fails on this system.
func Detach(Spec) (*Detached, error) { return nil, ErrNotDetached }

// FindDetached fails on this system.
func FindDetached(Mark, time.Duration) (*Detached, error) { return nil, ErrGone }

// Wait waits for the end.
func (d *Detached) Wait() (State, error) { <-d.done; return State{}, nil }

// Leave does nothing here.
func (d *Detached) Leave() {}

// Stop fails on this system.
func (d *Detached) Stop(context.Context) error { return ErrNotDetached }

// Kill fails on this system.
func (d *Detached) Kill() error { return ErrNotDetached }

// Usage fails on this system.
func (d *Detached) Usage() (Usage, error) { return Usage{}, ErrNotDetached }

// Free fails on this system.
func Free(*os.File, int64) error { return ErrNotDetached }
