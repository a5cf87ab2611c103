package agentprotocol

import (
	"errors"
	"testing"
	"testing/synctest"
)

func TestAnInboxTakesNoMoreThanAWindow(t *testing.T) {
	i := NewInbox()
	if err := i.Put(make([]byte, Window)); err != nil {
		t.Fatal(err)
	}
	if err := i.Put([]byte{1}); !errors.Is(err, ErrBroken) {
		t.Errorf("one byte above the window: %v, want ErrBroken", err)
	}
	if b, ok := i.Receive(); !ok || len(b) != Window {
		t.Errorf("took %d bytes, %v", len(b), ok)
	}
	if err := i.Put([]byte{1}); err != nil {
		t.Errorf("after taking: %v", err)
	}
	i.Close()
	if b, ok := i.Receive(); !ok || len(b) != 1 {
		t.Errorf("what came before the end: %v, %v", b, ok)
	}
	if _, ok := i.Receive(); ok {
		t.Error("there was something after the end")
	}
}

func TestWhoSendsWaitsForTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewAllowance()
		if n := a.Acquire(2 * Window); n != Window {
			t.Fatalf("took %d, want the window", n)
		}
		got := make(chan int)
		go func() { got <- a.Acquire(10) }()
		synctest.Wait()
		select {
		case n := <-got:
			t.Fatalf("took %d that nobody granted", n)
		default:
		}
		if err := a.Add(3); err != nil || <-got != 3 {
			t.Errorf("after a grant of 3: %v", err)
		}
		if err := a.Add(Window + 1); !errors.Is(err, ErrBroken) {
			t.Errorf("a grant of more than was sent: %v", err)
		}
		a.Close()
		if n := a.Acquire(10); n != 0 {
			t.Errorf("took %d after the end", n)
		}
	})
}

func TestSmallFramesAreGathered(t *testing.T) {
	i := NewInbox()
	for range 10 * coalesceBelow {
		if err := i.Put([]byte{7}); err != nil {
			t.Fatal(err)
		}
	}
	if len(i.chunks) != 10 {
		t.Errorf("they are %d chunks, want 10", len(i.chunks))
	}
	for n := range 10 {
		if b, ok := i.Receive(); !ok || len(b) != coalesceBelow {
			t.Errorf("chunk %d has %d bytes", n, len(b))
		}
	}
}

func TestGrantsAreMadeForManyBytes(t *testing.T) {
	var d Consumed
	if n := d.Add(Window/4 - 1); n != 0 {
		t.Errorf("%d bytes were granted already", n)
	}
	if n := d.Add(1); n != Window/4 {
		t.Errorf("%d bytes were granted, want all", n)
	}
	if n := d.Add(1); n != 0 {
		t.Errorf("%d bytes were granted twice", n)
	}
}

func TestWhatGoesNowhereNeedsNoGrant(t *testing.T) {
	a := NewAllowance()
	a.Acquire(Window)
	a.Unlimit()
	if n := a.Acquire(3 * Window); n != 3*Window {
		t.Errorf("took %d", n)
	}
	if err := a.Add(Window); err != nil {
		t.Error(err)
	}
	a.Close()
	if n := a.Acquire(1); n != 0 {
		t.Errorf("took %d after the end", n)
	}
}
