package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// A Part runs for as long as the host does. Run blocks until ctx is done or the part cannot continue, and returns
// only after every goroutine it started has ended.
type Part struct {
	Name string
	Run  func(ctx context.Context) error
}

// errStop is the cause with which the context of a part is cancelled when the part is stopped.
var errStop = errors.New("the host is stopping")

// Run starts the parts in order and waits until ctx is done or one of them has ended, with or without an error.
// Then it stops them one at a time in reverse order: each has its own context, so that it stops when its turn
// comes and not when ctx is done, and each may need up to patience. A part that needs longer is abandoned and
// reported. All errors are joined; the end of a context is not an error.
func Run(ctx context.Context, log *slog.Logger, patience time.Duration, parts ...Part) error {
	ended := make(chan *running, len(parts))
	var all []*running
	for _, p := range parts {
		all = append(all, startPart(context.WithoutCancel(ctx), p, ended))
	}
	select {
	case <-ctx.Done():
		log.Debug("stopping", "cause", context.Cause(ctx))
	case r := <-ended:
		log.Debug("stopping", "ended", r.Name, "err", r.err)
	}
	var errs []error
	for _, r := range slices.Backward(all) {
		errs = append(errs, r.stopPart(patience))
	}
	return errors.Join(errs...)
}

// running is a part that has been started.
type running struct {
	Part
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error // set before done is closed
}

func startPart(ctx context.Context, p Part, ended chan<- *running) *running {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &running{Part: p, cancel: cancel, done: make(chan struct{})}
	go func() {
		r.err = p.Run(ctx)
		close(r.done)
		ended <- r
	}()
	return r
}

func (r *running) stopPart(patience time.Duration) error {
	r.cancel(errStop)
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-r.done:
	case <-late.C:
		return fmt.Errorf("%s did not stop within %v", r.Name, patience)
	}
	if r.err == nil || errors.Is(r.err, context.Canceled) || errors.Is(r.err, errStop) {
		return nil
	}
	return fmt.Errorf("%s: %w", r.Name, r.err)
}

// Closing returns a part that is only closed when its turn comes. close receives a context that ends after
// patience.
func Closing(name string, patience time.Duration, close func(context.Context) error) Part {
	return Part{name, func(ctx context.Context) error {
		<-ctx.Done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		return close(ctx)
	}}
}

// Together returns one part that runs several. It ends when all of them have ended, or when one fails: then the
// others are stopped.
func Together(name string, parts ...Part) Part {
	return Part{name, func(ctx context.Context) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		failed := make(chan error, len(parts))
		for _, p := range parts {
			go func() {
				err := p.Run(ctx)
				if err != nil && ctx.Err() == nil {
					err = fmt.Errorf("%s: %w", p.Name, err)
					cancel(err)
				}
				failed <- err
			}()
		}
		var errs []error
		for range parts {
			if err := <-failed; err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, errStop) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	}}
}
