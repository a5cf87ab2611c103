// Package stdio serves one client over a pair of pipes: the client writes messages to standard input
// and reads messages from standard output, one per line.
//
// Only messages of the protocol are written to the output.
package stdio

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"gatehouse/internal/mcp/newline"
	"gatehouse/internal/mcp/protocol"
)

// Options configures Serve. The zero value is usable.
type Options struct {
	Limit    int           // bytes of one message; 0 means 24 MiB
	Patience time.Duration // for running requests when the input ends; 0 means 60 s
	Stop     time.Duration // the same when the listener closes; 0 means 5 s
	Log      *slog.Logger  // nil: nothing is logged
}

// unblockTime is how long a read that was interrupted may take to return.
const unblockTime = 100 * time.Millisecond

// Serve serves one client until its input ends, ctx is done or the output fails. At the end of the
// input, running requests are still answered, for at most Options.Patience, and after ctx is done for
// at most Options.Stop; the result is nil then.
//
// If a read from in cannot be interrupted, its goroutine stays until in ends; what it reads is
// discarded.
func Serve(ctx context.Context, e *protocol.Engine, who protocol.Caller, in io.Reader, out io.Writer, o Options) error {
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	if o.Stop == 0 {
		o.Stop = 5 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	w := newline.NewWriter(out)
	failed := make(chan error, 1)
	pipe := e.Pipe(who, func(msg []byte) error {
		err := w.Write(msg)
		if err != nil {
			select {
			case failed <- err:
			default:
			}
		}
		return err
	})
	defer pipe.Close(nil)
	read := make(chan error, 1)
	go func() { read <- newline.NewReader(in, o.Limit).Feed(open{ctx, pipe}) }()
	select {
	case err := <-read:
		return drain(ctx, pipe, failed, err, o)
	case <-ctx.Done():
		unblock(in, read)
		drainPipe(ctx, pipe, o.Stop)
		pipe.Close(context.Cause(ctx))
		o.Log.DebugContext(ctx, "standard input is no longer read", "why", context.Cause(ctx))
		return nil
	case <-pipe.Done():
		unblock(in, read)
		return ended(failed)
	}
}

// drain answers running requests after the input has ended.
func drain(ctx context.Context, pipe *protocol.Pipe, failed <-chan error, err error, o Options) error {
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.Patience)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(o.Stop, cancel) })()
	pipe.Drain(last)
	if err != nil {
		return errors.Join(errors.New("reading the input failed"), err)
	}
	select {
	case err := <-failed:
		return outputFailed(err)
	default:
		return nil
	}
}

// drainPipe answers running requests after the last message was read.
func drainPipe(ctx context.Context, pipe *protocol.Pipe, patience time.Duration) {
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	pipe.Drain(last)
}

// ended returns the reason for which a pipe ended without being stopped.
func ended(failed <-chan error) error {
	select {
	case err := <-failed:
		return outputFailed(err)
	default:
		return nil // the engine has ended
	}
}

func outputFailed(err error) error {
	return errors.Join(errors.New("writing the output failed"), err)
}

// open passes frames on until ctx is done.
type open struct {
	// ctx belongs to the one call of Serve that this value belongs to.
	ctx  context.Context
	pipe *protocol.Pipe
}

func (o open) ReceiveAsync(frame []byte) (work func()) {
	if o.ctx.Err() == nil {
		return o.pipe.ReceiveAsync(frame)
	}
	return nil
}

func (o open) Oversized(limit int, id []byte) {
	if o.ctx.Err() == nil {
		o.pipe.Oversized(limit, id)
	}
}

// unblock interrupts a read if the input supports that, and waits a moment for it to return.
func unblock(in io.Reader, read <-chan error) {
	d, ok := in.(interface{ SetReadDeadline(time.Time) error })
	if !ok || d.SetReadDeadline(time.Now()) != nil {
		return
	}
	select {
	case <-read:
	case <-time.After(unblockTime):
	}
}
