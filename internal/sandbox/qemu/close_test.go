//go:build linux && amd64

package qemu

import (
	"context"
	"errors"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// A snapshot delays a change of the network rules; neither holds up the end.
func TestAMachineThatIsBusyIsClosed(t *testing.T) {
	s, err := driver(t, Options{}).Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	b := s.(*instance)
	b.settings.Lock()
	kept, set := make(chan struct{}), make(chan error, 1)
	go func() { // as one does that waits for QEMU
		defer close(kept)
		defer b.settings.Unlock()
		b.machine.monitor.awaitEvent(t.Context(), "WHAT NEVER COMES")
	}()
	told := make(chan struct{})
	go func() {
		set <- b.egress.Set(sandbox.Network{Allow: []string{"example.com"}}, func(int64) error {
			close(told)
			b.settings.Lock()
			defer b.settings.Unlock()
			return sandbox.ErrClosed
		})
	}()
	select {
	case <-told:
	case err := <-set:
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- b.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
	<-kept
	if err := <-set; err == nil {
		t.Error("what a closed sandbox may reach was set")
	}
}

// No caller could pause or resume it.
func TestAMachineThatTakesNoOrdersIsEnded(t *testing.T) {
	s, err := driver(t, Options{}).Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b := s.(*instance)
	ctx, giveUp := context.WithCancel(t.Context())
	giveUp()
	if _, err := b.machine.monitor.readAnswer(ctx); err == nil {
		t.Fatal("there was an answer to no order")
	}
	select {
	case <-b.Done():
	case <-time.After(time.Minute):
		t.Fatal("it is still there")
	}
	if err := b.Pause(t.Context()); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("pausing it: %v", err)
	}
}
