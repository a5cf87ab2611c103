package proc

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"
)

// ErrNoInput is returned by Type if the child's input was not kept open, is closed, or has no reader.
var ErrNoInput = errors.New("its input is closed")

// typeWait is how long Type waits for a child that does not read.
const typeWait = 5 * time.Second

// input is the input of a child with Spec.Input or Spec.Terminal.
type input struct {
	mu       sync.Mutex
	to       *os.File // nil if there is none
	terminal bool
	closed   bool
}

// Type writes to the input of a child that was started with Input or Terminal. It waits until ctx ends,
// at most 5 s, if the child does not read, and returns the number of bytes written. Concurrent calls
// are serialized.
func (p *Process) Type(ctx context.Context, b []byte) (int, error) {
	in := &p.input
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.to == nil || in.closed {
		return 0, ErrNoInput
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	in.to.SetWriteDeadline(time.Now().Add(typeWait))
	forget := context.AfterFunc(ctx, func() { in.to.SetWriteDeadline(time.Unix(1, 0)) })
	defer forget()
	n, err := in.to.Write(b)
	switch {
	case err == nil:
		return n, nil
	case ctx.Err() != nil:
		return n, context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, err
	}
	return n, ErrNoInput
}

// CloseInput closes the child's input. To a terminal it sends Ctrl-D, which ends the input of programs
// that read lines.
func (p *Process) CloseInput(ctx context.Context) error {
	if p.input.terminal {
		_, err := p.Type(ctx, []byte{4})
		return err
	}
	p.input.mu.Lock()
	defer p.input.mu.Unlock()
	if p.input.to == nil || p.input.closed {
		return ErrNoInput
	}
	p.input.closed = true
	return p.input.to.Close()
}
