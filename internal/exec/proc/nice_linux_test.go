package proc

import (
	"bytes"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A program that uses all processors leaves them to the host: it and what came of it have a lower priority, and the
// host keeps its own.
func TestChildrenHaveALowerPriority(t *testing.T) {
	raw, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	own := 20 - raw
	for _, whole := range []bool{false, true} {
		var out bytes.Buffer
		p, err := Start(t.Context(), Spec{Path: "/bin/sh", Args: []string{"-c", "nice; sh -c nice"}, Stdout: &out, Whole: whole})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Wait(); err != nil {
			t.Fatal(err)
		}
		want := strconv.Itoa(min(own+niceness, 19))
		if got := strings.Fields(out.String()); len(got) != 2 || got[0] != want || got[1] != want {
			t.Errorf("whole %v: the priorities are %v, not %s twice", whole, got, want)
		}
	}
	if raw, err = syscall.Getpriority(syscall.PRIO_PROCESS, 0); err != nil || 20-raw != own {
		t.Errorf("a thread of the host has %d, not %d (%v)", 20-raw, own, err)
	}
}
