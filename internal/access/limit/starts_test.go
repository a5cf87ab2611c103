package limit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"gatehouse/tool"
)

// One principal has hundreds of starts waiting. The next one of another principal waits for none of them, and who gave
// up is passed over.
//
//redteam:attack No principal takes the host from the others: one principal starts programs without end
func TestStartsTakeTurns(t *testing.T) {
	s := &Starts{NewQueue(Options{Calls: 4, Waiting: 1 << 20})}
	as := func(name string) tool.Caller { return tool.Caller{Principal: name} }
	var running []func()
	for range 2 { // half of them; the next ones wait
		done, err := s.Wait(t.Context(), as("flood"))
		if err != nil {
			t.Fatal(err)
		}
		running = append(running, done)
	}
	const waiting = 600
	ctx, giveUp := context.WithCancelCause(t.Context())
	ended := make(chan error, waiting)
	for range waiting {
		go func() {
			done, err := s.Wait(ctx, as("flood"))
			if err == nil {
				done()
			}
			ended <- err
		}()
	}
	for s.turns.Stats().Waiting < waiting { // the goroutines are on their way
		select {
		case err := <-ended:
			t.Fatalf("a start beyond the share ended: %v", err)
		default:
			runtime.Gosched()
		}
	}
	for i := range 50 {
		done, err := s.Wait(t.Context(), as(fmt.Sprint("quiet ", i)))
		if err != nil {
			t.Fatal(err)
		}
		done()
		done() // once more does nothing
	}
	if n := s.turns.Running(); n != len(running) {
		t.Fatalf("%d starts run, not %d", n, len(running))
	}
	why := errors.New("the client has gone")
	giveUp(why)
	for range waiting {
		if err := <-ended; !errors.Is(err, why) {
			t.Errorf("a start that was given up: %v", err)
		}
	}
	for _, done := range running {
		done()
	}
	if n := s.turns.Running(); n != 0 {
		t.Errorf("%d starts are left", n)
	}
}
