package wire

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
	if b, ok := i.Take(); !ok || len(b) != Window {
		t.Errorf("took %d bytes, %v", len(b), ok)
	}
	if err := i.Put([]byte{1}); err != nil {
		t.Errorf("after taking: %v", err)
	}
	i.End()
	if b, ok := i.Take(); !ok || len(b) != 1 {
		t.Errorf("what came before the end: %v, %v", b, ok)
	}
	if _, ok := i.Take(); ok {
		t.Error("there was something after the end")
	}
}

func TestWhoSendsWaitsForTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewAllowance()
		if n := a.Take(2 * Window); n != Window {
			t.Fatalf("took %d, want the window", n)
		}
		got := make(chan int)
		go func() { got <- a.Take(10) }()
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
		a.End()
		if n := a.Take(10); n != 0 {
			t.Errorf("took %d after the end", n)
		}
	})
}
