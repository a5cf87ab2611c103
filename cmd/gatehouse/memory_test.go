package main

import (
	"math"
	"os"
	"path/filepath"
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

// The limit of the group of this process counts, and those of the groups above, in
// both versions of the hierarchy.
func TestTheLeastLimitOfTheControlGroupsCounts(t *testing.T) {
	top := t.TempDir()
	for path, text := range map[string]string{
		"a/memory.max": "700\n", "a/b/memory.max": "max\n", "a/b/c/memory.max": "900\n", "memory.max": "max",
		"memory/x/memory.limit_in_bytes": "500\n", "memory/memory.limit_in_bytes": "9223372036854771712\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(top, path)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(top, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for own, want := range map[string]int64{
		"0::/a/b/c\n":                      700,
		"0::/\n":                           0,
		"0::/../../a\n":                    0,
		"4:memory:/x\n1:name=systemd:/\n":  500,
		"4:memory:/x\n0::/a\n2:cpu:/a/b\n": 500,
		"":                                 0,
	} {
		if got := groupLimit(top, own); got != want {
			t.Errorf("%q: %d bytes, want %d", own, got, want)
		}
	}
}
