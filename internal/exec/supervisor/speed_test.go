//go:build linux && (amd64 || arm64)

package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// taken is what a line took: time, and of the processor.
type taken struct{ wall, cpu time.Duration }

// measure returns the times of a line without and with a supervisor, taken in turns and sorted. Each line gets a number
// of its own.
func measure(t *testing.T, runs, least int, dir string, line func(n int) string) (a, s []taken) {
	for n := range runs {
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", line(2*n))
		cmd.Dir = dir
		began := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		a = append(a, taken{time.Since(began), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()})
		got := runLine(t, Spec{Deny: []string{"rm", "git push*"}, Env: os.Environ(), Dir: dir, Writable: []string{"/"}},
			line(2*n+1))
		if got.code != 0 || len(got.Refused) > 0 || len(got.Programs) < least {
			t.Fatalf("%d programs: %+v", len(got.Programs), got)
		}
		s = append(s, taken{got.took, got.cpu})
	}
	return a, s
}

// The bars are not asserted, because the times depend on what else the machine does.
func TestSpeed(t *testing.T) {
	needed(t)
	if os.Getenv("GATEHOUSE_MEASURE") == "" {
		t.Skip("set GATEHOUSE_MEASURE to measure")
	}
	for _, c := range []struct {
		name  string
		bar   float64
		least int // programs that it starts
		line  func(n int) string
	}{
		{"1,000 x /bin/true", 1.5, 1000, func(int) string {
			return "i=0; while [ $i -lt 1000 ]; do /bin/true; i=$((i+1)); done"
		}},
		// A flag that changes nothing is part of what is cached, so that each run compiles the package.
		{"go build of internal/exec/shellpolicy", 1.1, 2, func(n int) string {
			return fmt.Sprintf("go build -gcflags=-D=/run%d-%d ../shellpolicy", os.Getpid(), n)
		}},
	} {
		wd, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		const runs = 15
		alone, supervised := measure(t, runs, c.least, wd, c.line)
		for what, of := range map[string]func(x taken) time.Duration{
			"time":      func(x taken) time.Duration { return x.wall },
			"processor": func(x taken) time.Duration { return x.cpu },
		} {
			sorted := func(all []taken) (out []time.Duration) {
				for _, x := range all {
					out = append(out, of(x).Round(time.Millisecond))
				}
				slices.Sort(out)
				return out
			}
			a, s := sorted(alone), sorted(supervised)
			t.Logf(
				"%s, %s: least %v alone, %v supervised, %.2f times; median of %d: %v, %v, %.2f times; the bar is %.1f",
				c.name,
				what,
				a[0],
				s[0],
				float64(s[0])/float64(a[0]),
				runs,
				a[runs/2],
				s[runs/2],
				float64(s[runs/2])/float64(a[runs/2]),
				c.bar,
			)
		}
	}
}
