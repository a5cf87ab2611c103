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
	typeWait  = 10 * time.Second // for a process to read what is typed
	mostTyped = 1 << 20          // bytes that wait to be read, unless they are one text
	mostTexts = 64               // that wait to be read
)

var errNotRead = fmt.Errorf("it has not read what was typed before, and no more than %d KiB in %d texts wait for it: type this again when it reads, or end it", mostTyped>>10, mostTexts)

// typing is what a process is to read, in order.
type typing struct {
	in    *io.PipeWriter
	texts chan text
	bytes atomic.Int64 // of texts that it has not read
}

type text struct {
	b    []byte
	end  bool
	done chan error // takes one
}

func newTyping(in *io.PipeWriter) *typing { return &typing{in: in, texts: make(chan text, mostTexts)} }

// pass passes on what is typed until the process ends. Whoever sees its end
// closes the pipe, for what it does not read.
func (t *typing) pass(p sandbox.Process) {
	for {
		select {
		case one := <-t.texts:
			var err error
			if len(one.b) > 0 {
				_, err = t.in.Write(one.b)
			}
			t.bytes.Add(-int64(len(one.b)))
			if one.end {
				t.in.Close()
			}
			one.done <- err
		case <-p.Done():
			return
		}
	}
}

// add has a text wait to be read.
func (t *typing) add(b []byte, end bool) (done <-chan error, err error) {
	if n := int64(len(b)); t.bytes.Add(n) > max(mostTyped, n) {
		t.bytes.Add(-n)
		return nil, errNotRead
	}
	one := text{b, end, make(chan error, 1)}
	select {
	case t.texts <- one:
		return one.done, nil
	default:
		t.bytes.Add(-int64(len(b)))
		return nil, errNotRead
	}
}

// Type gives it something to read, which it keeps, and end the end of that. The
// error tells that it does not read.
func (g *Background) Type(ctx context.Context, b []byte, end bool) error {
	if g.over() {
		return errHasEnded
	}
	done, err := g.typing.add(b, end)
	if err != nil {
		return err
	}
	select {
	case err := <-done:
		if errors.Is(err, io.ErrClosedPipe) {
			return errors.New("its input was closed")
		}
		return err
	case <-g.p.Done():
		return errHasEnded
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(typeWait):
		return errors.New("it does not read what was typed before; this waits for it")
	}
}

var errHasEnded = errors.New("it has ended")
