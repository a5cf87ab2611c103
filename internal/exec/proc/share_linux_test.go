package proc

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/exec/procid"
)

// shares returns the group of this host for the controller cpu and the file of a weight, or skips the test.
func shares(t *testing.T) (at, weight string) {
	t.Helper()
	switch g := hostGroups(); {
	case g.divides:
		return g.v2, "cpu.weight"
	case g.cpu != "":
		return g.cpu, "cpu.shares"
	}
	t.Skip("no group with the controller cpu can be made here")
	return "", ""
}

// shareOf returns the group of a process for the controller cpu. In version 2 that is the one above its own.
func shareOf(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	g := findGroups(string(mounts), string(b))
	if g.cpu == "" {
		return filepath.Dir(g.v2)
	}
	return g.cpu
}

// Programs of one principal share a group, those of another have one of the same weight, and both together weigh less
// than the host. Neither is left when its programs have ended.
func TestPrincipalsShareTheProcessors(t *testing.T) {
	at, weight := shares(t)
	start := func(owner string) *Process {
		p, err := Start(t.Context(), Spec{
			Path: "/bin/sh", Args: []string{"-c", "sleep 1000 & setsid sleep 1000 & wait"}, Whole: true, Owner: owner,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Kill() })
		return p
	}
	one, again, other := start("one"), start("one"), start("other")
	first, third := shareOf(t, one.Pid()), shareOf(t, other.Pid())
	if second := shareOf(t, again.Pid()); second != first || first == third || first == at {
		t.Fatalf("the groups are %s, %s and %s below %s", first, second, third, at)
	}
	all := filepath.Dir(first)
	if filepath.Dir(third) != all || filepath.Dir(all) != at || !strings.Contains(filepath.Base(all), procid.Self()) {
		t.Errorf("the groups %s and %s are not in one of this host's", first, third)
	}
	for _, pid := range one.whole.members() {
		if got := shareOf(t, pid); got != first {
			t.Errorf("process %d is in %s, not in %s", pid, got, first)
		}
	}
	weights := map[string]int{}
	for _, dir := range []string{first, third, all} {
		b, err := os.ReadFile(filepath.Join(dir, weight))
		if err != nil {
			t.Fatal(err)
		}
		weights[dir], _ = strconv.Atoi(string(bytes.TrimSpace(b)))
	}
	if weights[first] != weights[third] || weights[first] == 0 {
		t.Errorf("the weights of two principals are %d and %d", weights[first], weights[third])
	}
	if own := shareOf(t, os.Getpid()); own != at {
		t.Errorf("this host is in %s, not in %s", own, at)
	}
	for _, p := range []*Process{one, again, other} {
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(first); p == one && err != nil {
			t.Errorf("the group of a running program is gone: %v", err)
		}
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(all); os.IsNotExist(err) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s is left", all)
		}
	}
}

// A principal with many programs that calculate gets as much of a processor as one with a single program.
//
//redteam:attack No principal takes the host from the others: one principal runs sixteen programs that calculate on the processor where another has one
func TestManyProgramsGetNoMoreThanOne(t *testing.T) {
	shares(t)
	// All are bound to one processor.
	const line = "taskset -p 1 $$ >/dev/null 2>&1 || exit 7; while :; do :; done"
	start := func(owner string) *Process {
		p, err := Start(t.Context(), Spec{Path: "/bin/sh", Args: []string{"-c", line}, Whole: true, Owner: owner})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Kill() })
		return p
	}
	var many []*Process
	for range 16 {
		many = append(many, start("many"))
	}
	one := start("one")
	used := func(all ...*Process) (sum time.Duration) {
		for _, p := range all {
			u, err := p.Usage()
			if err != nil || u.Processes == 0 {
				t.Skipf("a program could not be bound to a processor: %v", err)
			}
			sum += u.CPU
		}
		return sum
	}
	beganMany, beganOne := used(many...), used(one)
	var ofMany, ofOne time.Duration
	for end := time.Now().Add(2 * time.Minute); ofOne+ofMany < 2*time.Second && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
		ofMany, ofOne = used(many...)-beganMany, used(one)-beganOne
	}
	t.Logf("sixteen programs of one principal %v, one of another %v", ofMany, ofOne)
	if ofMany > 2*ofOne {
		t.Errorf("sixteen programs of one principal got %v, one of another %v", ofMany, ofOne)
	}
}
