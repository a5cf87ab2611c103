//go:build linux && (amd64 || arm64)

package supervisor

import (
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// median returns the median time of a line with and without a supervisor, taken in turns.
func median(t *testing.T, runs int, line string, env []string) (alone, supervised time.Duration) {
	var a, s []time.Duration
	dir := t.TempDir()
	for range runs {
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", line)
		cmd.Env, cmd.Dir = env, dir
		began := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		a = append(a, time.Since(began))
		got := runLine(t, Spec{Deny: []string{"rm", "git push*"}, Env: env, Dir: dir, Unconfined: true}, line)
		if got.code != 0 {
			t.Fatalf("%+v", got)
		}
		s = append(s, got.took)
	}
	slices.Sort(a)
	slices.Sort(s)
	return a[runs/2], s[runs/2]
}

// The bars are not asserted, because they depend on what else the machine does.
func TestSpeed(t *testing.T) {
	needed(t)
	if os.Getenv("GATEHOUSE_MEASURE") == "" {
		t.Skip("set GATEHOUSE_MEASURE to measure")
	}
	env := os.Environ()
	alone, supervised := median(t, 9, "i=0; while [ $i -lt 1000 ]; do /bin/true; i=$((i+1)); done", env)
	t.Logf("1,000 x /bin/true: alone %v, supervised %v, %.2f times", alone, supervised,
		float64(supervised)/float64(alone))
	wd, _ := os.Getwd()
	line := "cd " + wd + " && go build -o /dev/null -gcflags=-N=$(date +%N | sed 's/.*/false/') ."
	_ = line
}
