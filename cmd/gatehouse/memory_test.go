package main

import (
	"math"
	"runtime/debug"
	"testing"
)

// tuned applies the settings under an environment and returns them, leaving
// the process as it was.
func tuned(env map[string]string) (percent int, limit int64) {
	oldPercent, oldLimit := debug.SetGCPercent(100), debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetGCPercent(oldPercent)
	defer debug.SetMemoryLimit(oldLimit)
	tuneMemory(func(name string) string { return env[name] })
	return debug.SetGCPercent(100), debug.SetMemoryLimit(-1)
}

func TestMemoryIsTunedUnlessThePersonHas(t *testing.T) {
	percent, limit := tuned(nil)
	if percent != gcPercent {
		t.Errorf("GC percent is %d, want %d", percent, gcPercent)
	}
	if there := memory(); there > 0 && (limit < leastLimit || limit > max(there, leastLimit)) {
		t.Errorf("the limit is %d bytes of %d", limit, there)
	}
	percent, limit = tuned(map[string]string{"GOGC": "50", "GOMEMLIMIT": "1GiB"})
	if percent != 100 || limit != math.MaxInt64 {
		t.Errorf("GC percent %d and limit %d were set over the person's", percent, limit)
	}
}
