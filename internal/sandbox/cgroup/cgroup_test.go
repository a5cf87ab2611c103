//go:build linux

package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/exec/cpushare"
	"gatehouse/internal/exec/procid"
	"gatehouse/internal/sandbox"
)

func always(string) error { return nil }

// tree makes folders with what their subtree_control says.
func tree(t *testing.T, handsOn map[string]string) string {
	t.Helper()
	top := t.TempDir()
	for dir, controllers := range handsOn {
		at := filepath.Join(top, dir)
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "cgroup.subtree_control"), []byte(controllers+"\n"),
			0o644); err != nil {
			t.Fatal(err)
		}
	}
	return top
}

func TestTheLayoutIsRead(t *testing.T) {
	top := tree(t, map[string]string{
		".": "cpuset cpu memory pids", "user.slice": "cpu memory pids", "user.slice/one.scope": "", "unified": "",
	})
	v2 := "30 20 0:26 / " + top + " rw - cgroup2 cgroup2 rw\n"
	hybrid := "30 20 0:26 / " + top + "/unified rw - cgroup2 cgroup2 rw\n" +
		"31 20 0:27 / /v1/memory rw - cgroup cgroup rw,memory\n" +
		"32 20 0:28 / /v1/cpu rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"33 20 0:29 /docker/x /v1/pids rw - cgroup cgroup rw,pids\n"
	nearOnly := func(dir string) error {
		if strings.HasSuffix(dir, "one.scope") {
			return nil
		}
		return errors.New("mkdir: permission denied")
	}
	for _, c := range []struct {
		name, mounts, own string
		usable            func(string) error
		memory, pids, cpu sandbox.Enforcement
		v2                string
	}{
		{"version 2", v2, "0::/user.slice/one.scope\n", always, sandbox.ByCgroup2, sandbox.ByCgroup2,
			sandbox.ByCgroup2, top + "/user.slice"},
		{"version 2 without rights above", v2, "0::/user.slice/one.scope\n", nearOnly, sandbox.NotEnforced,
			sandbox.NotEnforced, sandbox.NotEnforced, top + "/user.slice/one.scope"},
		{"both", hybrid, "4:memory:/a\n3:cpu,cpuacct:/\n2:pids:/docker/x/y\n0::/\n", always, sandbox.ByCgroup1,
			sandbox.ByCgroup1, sandbox.ByCgroup1, top + "/unified"},
		{"a group out of sight", hybrid, "4:memory:/a\n2:pids:/elsewhere\n0::/..\n", always, sandbox.ByCgroup1,
			sandbox.NotEnforced, sandbox.NotEnforced, ""},
		{"none", "", "", always, sandbox.NotEnforced, sandbox.NotEnforced, sandbox.NotEnforced, ""},
		{"no rights", hybrid, "4:memory:/a\n0::/\n", func(string) error {
			return os.ErrPermission
		}, sandbox.NotEnforced, sandbox.NotEnforced, sandbox.NotEnforced, ""},
	} {
		p := parseHierarchy(c.mounts, c.own, c.usable)
		if m, n, u := p.Enforcement("memory"), p.Enforcement("pids"), p.Enforcement("cpu"); m != c.memory ||
			n != c.pids || u != c.cpu || p.v2 != c.v2 {
			t.Errorf("%s: memory %s, pids %s, cpu %s, version 2 at %q: %v", c.name, m, n, u, p.v2, p.Notes)
		}
		if (p.Enforcement("memory") == sandbox.NotEnforced) != (len(p.Notes) > 0 &&
			strings.Contains(strings.Join(p.Notes, " "), "memory")) {
			t.Errorf("%s: the notes are %q", c.name, p.Notes)
		}
	}
}

// What a thread starts while it is in a group is in the group, and ends with it.
func TestWhatIsBornInAGroupIsHeldByIt(t *testing.T) {
	p := Discover()
	if p.Enforcement("pids") != sandbox.ByCgroup1 || p.Enforcement("memory") != sandbox.ByCgroup1 {
		t.Skipf("it is about version 1, which is not here: %q", p.Notes)
	}
	g, err := p.New(sandbox.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
		for _, dir := range g.dirs {
			if _, err := os.Stat(dir); err == nil {
				t.Errorf("%s is still there", dir)
			}
		}
	}()
	cmd := exec.Command("sleep", "1000")
	runtime.LockOSThread()
	err = errors.Join(g.Enter(), cmd.Start(), g.Leave())
	runtime.UnlockOSThread()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range controllers {
		b, err := os.ReadFile(filepath.Join(g.v1[c], "cgroup.procs"))
		if strings.TrimSpace(string(b)) != strconv.Itoa(cmd.Process.Pid) {
			t.Errorf("in the group of %s are %q, %v, want %d alone", c, b, err, cmd.Process.Pid)
		}
	}
	more := sandbox.Defaults()
	for _, mib := range []int{64, 512, 32} {
		more.MemoryMiB = mib
		if err := g.Set(more); err != nil {
			t.Error(err)
		}
		b, _ := os.ReadFile(filepath.Join(g.v1["memory"], "memory.limit_in_bytes"))
		if strings.TrimSpace(string(b)) != strconv.Itoa(mib<<20) {
			t.Errorf("the limit is %q, want %d MiB", b, mib)
		}
	}
	g.Kill()
	if err := cmd.Wait(); err == nil {
		t.Error("it was not killed")
	}
}

// The sandboxes of one principal are in one group of the processors, beside those of another.
func TestGroupsOfAPrincipalAreTogether(t *testing.T) {
	p := Discover()
	if p.Enforcement("cpu") != sandbox.ByCgroup1 {
		t.Skipf("it is about version 1, which is not here: %q", p.Notes)
	}
	parents := map[string]string{}
	for _, owner := range []string{"ann", "ann", "bob"} {
		g, err := p.New(sandbox.Defaults())
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sleep", "1000")
		runtime.LockOSThread()
		err = errors.Join(g.Enter(), cmd.Start(), g.Leave())
		runtime.UnlockOSThread()
		if err != nil {
			t.Fatal(err)
		}
		first := g.v1["cpu"]
		quota, _ := os.ReadFile(filepath.Join(first, "cpu.cfs_quota_us"))
		began := time.Now()
		if err := errors.Join(g.Assign(owner), g.Assign("a second time")); err != nil {
			t.Fatal(err)
		}
		t.Logf("assigned in %v", time.Since(began))
		dir := g.v1["cpu"]
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if strings.TrimSpace(string(b)) != strconv.Itoa(cmd.Process.Pid) {
			t.Errorf("in the group are %q, %v, want %d alone", b, err, cmd.Process.Pid)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "cpu.cfs_quota_us")); string(b) != string(quota) {
			t.Errorf("the limit is %q, %v, want %q", b, err, quota)
		}
		if _, err := os.Stat(first); !os.IsNotExist(err) {
			t.Errorf("the first group is still there: %v", err)
		}
		if had := parents[owner]; had != "" && had != filepath.Dir(dir) {
			t.Errorf("%s has groups in %s and in %s", owner, had, filepath.Dir(dir))
		}
		parents[owner] = filepath.Dir(dir)
		t.Cleanup(func() {
			g.Kill()
			cmd.Wait()
			if err := g.Remove(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Dir(dir)); !os.IsNotExist(err) && owner == "bob" {
				t.Errorf("the group of %s is still there: %v", owner, err)
			}
		})
	}
	if parents["ann"] == parents["bob"] {
		t.Errorf("both principals have the group %s", parents["ann"])
	}
}

// In version 2 the sandboxes of a principal have together what one principal has. The controller is in version 1 where
// version 1 has it, so that folders stand for the groups.
func TestSandboxesOfAPrincipalDivideAWeight(t *testing.T) {
	at := t.TempDir()
	p := &Hierarchy{v2: at, in2: []string{"cpu"}}
	make := func(owner string) (*Group, string) {
		t.Helper()
		g := &Group{hierarchy: p, v2: filepath.Join(at, newName())}
		file := filepath.Join(g.v2, "cpu.weight")
		err := errors.Join(os.Mkdir(g.v2, 0o755), os.WriteFile(file, nil, 0o644))
		if err := errors.Join(err, g.Assign(owner), g.Assign("a second time")); err != nil {
			t.Fatal(err)
		}
		return g, file
	}
	first, file := make("ann")
	second, other := make("bob")
	var more []*Group
	for range 40 {
		g, _ := make("ann")
		more = append(more, g)
	}
	check := func(file, want string) {
		t.Helper()
		b, err := os.ReadFile(file)
		if got, _, _ := strings.Cut(string(b), "\n"); err != nil || got != want { // more is left of longer ones
			t.Errorf("the weight is %q, %v, want %s", b, err, want)
		}
	}
	check(file, "1") // the least there is
	check(other, strconv.Itoa(cpushare.WeightV2))
	for _, g := range more[1:] {
		if err := errors.Join(g.Remove(), g.Remove()); err != nil {
			t.Fatal(err)
		}
	}
	check(file, strconv.Itoa(cpushare.WeightV2/2))
	if err := errors.Join(first.Remove(), second.Remove(), more[0].Remove()); err != nil || len(owners.groups) != 0 {
		t.Errorf("left are %v (%v)", owners.groups, err)
	}
}

// A sandbox that is apart has a weight of its own, which falls when there are many and rises when they have gone.
func TestSandboxesApartHaveWeightsOfTheirOwn(t *testing.T) {
	for name, in2 := range map[string][]string{"version 1": nil, "version 2": {"cpu"}} {
		at := t.TempDir()
		h, file, most := &Hierarchy{v1: map[string]string{"cpu": at}}, "cpu.shares", cpushare.Weight
		if in2 != nil {
			h, file, most = &Hierarchy{v2: at, in2: in2}, "cpu.weight", cpushare.WeightV2
		}
		make := func() *Group {
			g := &Group{hierarchy: h, v1: map[string]string{}, apart: true}
			dir := filepath.Join(at, newName())
			if g.dirs = []string{dir}; in2 != nil {
				g.v2 = dir
			} else {
				g.v1["cpu"] = dir
			}
			if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, file), nil, 0o644),
				joinApart(g)); err != nil {
				t.Fatal(err)
			}
			return g
		}
		weight := func(g *Group) int {
			t.Helper()
			b, err := os.ReadFile(filepath.Join(g.dirs[0], file))
			text, _, _ := strings.Cut(string(b), "\n") // more is left of longer ones
			n, err2 := strconv.Atoi(text)
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			return n
		}
		first := make()
		if got := weight(first); got != most {
			t.Errorf("%s: one has the weight %d, want %d", name, got, most)
		}
		var more []*Group
		for range 8 * runtime.NumCPU() {
			more = append(more, make())
		}
		if got := weight(first); got >= most || got < most/leastApart || weight(more[0]) != got {
			t.Errorf("%s: one of many has the weight %d, another %d", name, got, weight(more[0]))
		}
		for _, g := range more {
			if err := errors.Join(os.Remove(filepath.Join(g.dirs[0], file)), g.Remove()); err != nil {
				t.Fatal(err)
			}
		}
		if got := weight(first); got != most {
			t.Errorf("%s: the one that is left has the weight %d, want %d", name, got, most)
		}
		if err := errors.Join(os.Remove(filepath.Join(first.dirs[0], file)), first.Remove()); err != nil ||
			len(apart.groups) != 0 {
			t.Errorf("%s: left are %v, %v", name, apart.groups, err)
		}
	}
}

func TestWhatAGoneHostLeftIsSwept(t *testing.T) {
	dir := t.TempDir()
	space, _, _ := strings.Cut(procid.Self(), "-")
	gone := prefix + space + "-4194305-1-AAAA" // above the largest number there can be
	kept := []string{newName(), prefix + "1-4194305-1-BBBB", prefix + "short", "gatehouse-other"}
	for _, n := range append(kept, gone) {
		if err := os.Mkdir(filepath.Join(dir, n), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sweepGroups(dir)
	if _, err := os.Stat(filepath.Join(dir, gone)); err == nil {
		t.Error("what a gone host left is still there")
	}
	for _, n := range kept {
		if _, err := os.Stat(filepath.Join(dir, n)); err != nil {
			t.Errorf("%s was swept: %v", n, err)
		}
	}
}
