package sandbox

import (
	"strings"
	"testing"
	"time"
)

func TestWhatIsNotAskedForIsDefaulted(t *testing.T) {
	got, err := Limits{MemoryMiB: 64}.Within(Defaults())
	want := Defaults()
	want.MemoryMiB = 64
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	small := Defaults()
	small.DiskMiB, small.Call = 100, time.Second
	if got, err := (Limits{}).Within(small); err != nil || got != small {
		t.Errorf("a default above the most allowed: %+v, %v", got, err)
	}
}

func TestTooMuchIsRefusedByName(t *testing.T) {
	for name, l := range map[string]Limits{
		"memory_mib":                           {MemoryMiB: 1 << 20},
		"memory_mib is 1; it may be 16 to 256": {MemoryMiB: 1},
		"vcpu_count":                           {VCPUs: -1},
		"time":                                 {Call: time.Hour},
		"time of":                              {Call: -1},
	} {
		if _, err := l.Within(Defaults()); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v, want an error that names %s", l, err, name)
		}
	}
}

func TestEndsAreJudged(t *testing.T) {
	for _, c := range []struct {
		want Outcome
		seen Evidence
	}{
		{OK, Evidence{Reaped: true}},
		{OK, Evidence{Reaped: true, OOMKills: 1}}, // a child died, the program coped
		{Failed, Evidence{Reaped: true, Code: 1}},
		{Signalled, Evidence{Reaped: true, Signal: 11}},
		{TimedOut, Evidence{Reaped: true, Signal: 9, TimeUp: true}},
		{TimedOut, Evidence{TimeUp: true}},
		{OutputLimit, Evidence{Reaped: true, Signal: 13, OutputFull: true}},
		{OutOfMemory, Evidence{Reaped: true, Signal: 9, OOMKills: 1}},
		{OutOfMemory, Evidence{Reaped: true, Code: 137, OOMKills: 2}},
		{Lost, Evidence{}},
	} {
		if got := c.seen.Outcome(); got != c.want {
			t.Errorf("%+v is called %s, want %s", c.seen, got, c.want)
		}
	}
}
