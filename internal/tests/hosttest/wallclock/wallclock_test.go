package wallclock

import (
	"testing"
	"time"
)

func TestTheTimeOfDayJumpsAndSpansDoNot(t *testing.T) {
	var c Clock
	for _, off := range []time.Duration{0, time.Hour, -1000 * time.Hour} {
		c.Set(0)
		before := c.Now()
		c.Set(off)
		after := c.Now()
		if span := after.Sub(before); span < 0 || span > time.Minute {
			t.Errorf("set by %v: the span is %v", off, span)
		}
		if got := after.Round(0).Sub(before.Round(0)); got < off || got > off+time.Minute {
			t.Errorf("set by %v: the time of day went on by %v", off, got)
		}
	}
}
