package sandbox

import (
	"errors"
	"testing"
)

type closing struct {
	of    *LiveSet[*closing]
	times int
}

func (c *closing) Close() error {
	c.times++
	c.of.Remove(c)
	return errors.New("it left something")
}

func TestWhatLivesIsClosedOnceAndNothingNewComesIn(t *testing.T) {
	var all LiveSet[*closing]
	one, gone := &closing{of: &all}, &closing{of: &all}
	if err := errors.Join(all.Add(one), all.Add(gone)); err != nil {
		t.Fatal(err)
	}
	all.Remove(gone)
	if err := all.CloseAll(); err == nil {
		t.Error("what a sandbox said at its end is not told")
	}
	if one.times != 1 || gone.times != 0 {
		t.Errorf("closed %d and %d times, want 1 and 0", one.times, gone.times)
	}
	if err := all.Add(&closing{of: &all}); !errors.Is(err, ErrDriverClosed) {
		t.Errorf("added after the end: %v", err)
	}
}
