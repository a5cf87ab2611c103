//go:build linux && (amd64 || arm64)

package gvisor

import (
	"context"
	"errors"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// A caller that gives up pausing leaves a sandbox that goes on or can be resumed, or
// one that ended because its agent did not answer in time.
func TestAPauseThatIsGivenUpLeavesNothingStuck(t *testing.T) {
	d := driver(t)
	for i := range 20 {
		b, err := d.Create(t.Context(), sandbox.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Millisecond)
		b.(sandbox.Pausable).Pause(ctx)
		cancel()
		b.(sandbox.Pausable).Resume(t.Context())
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		if err := b.Ping(ctx); err != nil && !errors.Is(err, sandbox.ErrClosed) {
			t.Errorf("given up after %d ms: %v", i+1, err)
		}
		cancel()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}
