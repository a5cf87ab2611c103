package limit

import (
	"context"
	"math"
	"runtime"
	"sync"
	"time"

	"gatehouse/tool"
)

// Starts lets callers start programs in turns. Starting one keeps a processor and locks of the kernel busy for some
// milliseconds, so that a principal who starts hundreds at once would delay every call of the others. A start never is
// refused: those that wait are calls, which are counted elsewhere. Safe for concurrent use.
type Starts struct{ turns *Queue }

// NewStarts makes Starts for this machine: as many at once as it has processors, and of one principal as many as it
// leaves to others.
func NewStarts() *Starts {
	return &Starts{NewQueue(Options{Calls: max(2, runtime.NumCPU()), Waiting: math.MaxInt32})}
}

// Wait waits until the caller may start a program. done is to be called when the program runs or could not be
// started; it may be called more than once. The error is the cause of ctx.
func (s *Starts) Wait(ctx context.Context, c tool.Caller) (done func(), err error) {
	p, err := s.turns.Enter(ctx, Who{Holder: Holder{Principal: c.Principal}}, time.Duration(math.MaxInt64))
	if err != nil {
		return nil, err
	}
	return sync.OnceFunc(p.Leave), nil
}
