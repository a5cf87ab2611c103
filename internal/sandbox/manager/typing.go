package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"gatehouse/internal/sandbox"
)

const (
	typeWait  = 10 * time.Second // for a process to read its input
	mostTyped = 1 << 20          // bytes that wait to be read, unless they are one text
	mostTexts = 64               // texts that wait to be read
)

var errNotRead = fmt.Errorf("the process has not read its earlier input; at most %d KiB in %d texts may wait: "+
	"send this again when it reads, or end it", mostTyped>>10, mostTexts)

// inputQueue queues the input of a process.
type inputQueue struct {
	in    *io.PipeWriter
	texts chan text
	bytes atomic.Int64 // bytes of unread texts
	// passed is closed when no text will be read any more.
	passed chan struct{}
}

type text struct {
	b    []byte
	end  bool
	done chan error // has a buffer of one
}

func newTyping(in *io.PipeWriter) *inputQueue {
	return &inputQueue{in: in, texts: make(chan text, mostTexts), passed: make(chan struct{})}
}

// pass writes the queued texts until the process ends. The goroutine that waits for its end closes the pipe.
func (i *inputQueue) pass(p sandbox.Process) {
	defer close(i.passed)
	for {
		select {
		case one := <-i.texts:
			var err error
			if len(one.b) > 0 {
				_, err = i.in.Write(one.b)
			}
			i.bytes.Add(-int64(len(one.b)))
			if one.end {
				i.in.Close()
			}
			one.done <- err
		case <-p.Done():
			return
		}
	}
}

// enqueue queues a text.
func (i *inputQueue) enqueue(b []byte, end bool) (done <-chan error, err error) {
	if n := int64(len(b)); i.bytes.Add(n) > max(mostTyped, n) {
		i.bytes.Add(-n)
		return nil, errNotRead
	}
	one := text{b, end, make(chan error, 1)}
	select {
	case i.texts <- one:
		return one.done, nil
	default:
		i.bytes.Add(-int64(len(b)))
		return nil, errNotRead
	}
}

// Type sends input to the process; end closes its input afterwards. It returns an error if the process does
// not read.
func (g *Background) Type(ctx context.Context, b []byte, end bool) error {
	if g.over() {
		return errHasEnded
	}
	done, err := g.typing.enqueue(b, end)
	if err != nil {
		return err
	}
	select {
	case err := <-done:
		return g.readError(err)
	case <-g.typing.passed: // it may have ended by reading this text
		select {
		case err := <-done:
			return g.readError(err)
		default:
			return errHasEnded
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(typeWait):
		return errors.New("the process does not read its input; the text waits for it")
	}
}

func (g *Background) readError(err error) error {
	switch {
	case !errors.Is(err, io.ErrClosedPipe):
		return err
	case g.over():
		return errHasEnded
	}
	return errors.New("the input of the process is closed")
}

var errHasEnded = errors.New("the process has ended")
