package session

import (
	"testing"
	"time"

	"gatehouse/internal/tests/hosttest/wallclock"
)

// Sessions end after their idle time, whatever the time of day is set to.
//
//redteam:attack No principal takes the host from the others: the clock is set forward, so that all sessions are idle
func TestAClockThatJumpsEndsNoSession(t *testing.T) {
	var c wallclock.Clock
	was := clock
	clock = c.Now
	defer func() { clock = was }()
	for _, off := range []time.Duration{48 * time.Hour, -48 * time.Hour} {
		for idle, want := range map[time.Duration]bool{time.Hour: false, time.Millisecond: true} {
			c.Set(0)
			table := NewTable(Options{IdleTTL: idle})
			s, err := table.Open(anonymous())
			if err != nil {
				t.Fatal(err)
			}
			c.Set(off)
			time.Sleep(10 * time.Millisecond)
			table.endIdle(clock())
			if s.Ended() != want {
				t.Errorf(
					"the clock %v off, a limit of %v, idle for 10 ms: ended %v, want %v",
					off,
					idle,
					s.Ended(),
					want,
				)
			}
		}
	}
}
