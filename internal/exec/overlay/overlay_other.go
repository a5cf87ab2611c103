//go:build !linux

package overlay

import (
	"os"
	"os/exec"
)

// Holder is a view. It exists on Linux alone.
type Holder struct{}

// Hold returns ErrNone.
func Hold(Plan) (*Holder, error) { return nil, ErrNone }

// Root returns ErrNone.
func (*Holder) Root(string) (*os.Root, error) { return nil, ErrNone }

// Mount returns ErrNone.
func (*Holder) Mount(string, bool) (*os.File, error) { return nil, ErrNone }

// Add returns ErrNone.
func (*Holder) Add(Layer) error { return ErrNone }

// Space returns ErrNone.
func (*Holder) Space() (*Space, error) { return nil, ErrNone }

func (*Holder) probe(string) error { return ErrNone }

// Left returns nil.
func (*Holder) Left() []string { return nil }

// Done returns nil, which is never closed.
func (*Holder) Done() <-chan struct{} { return nil }

// Close does nothing.
func (*Holder) Close() {}

// Prepare returns ErrNone.
func (*Space) Prepare(*exec.Cmd) error { return ErrNone }

// Users returns nil: there are no processes in a view.
func Users(string) []int { return nil }
