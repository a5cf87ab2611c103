package proc

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/exec/procid"
)

// ways returns the available means of containing a child's descendants on this machine.
func ways() map[string]cgroups {
	w := map[string]cgroups{"mark": {noKeeper: true}, "keeper": {}}
	if g := hostGroups(); g.v2 != "" {
		w["version 2"] = cgroups{v2: g.v2, counts: g.counts}
	}
	if g := hostGroups(); g.pids != "" {
		w["version 1"] = cgroups{pids: g.pids}
	}
	return w
}

// escapes are scripts that print the number of a process that leaves the script's group, and then wait.
var escapes = map[string]string{
	"background":     "sleep 1000 & echo $!; wait",
	"setsid":         "setsid sh -c 'echo $$; exec sleep 1000' & wait",
	"double fork":    "(setsid sh -c 'sh -c \"echo \\$\\$; exec sleep 1000\" & exec sleep 0.01' &) ; sleep 1000",
	"deaf":           "setsid sh -c \"trap '' TERM HUP; echo \\$\\$; while :; do sleep 1; done\" & wait",
	"own process":    "setsid sh -c 'setsid sh -c \"echo \\$\\$; exec sleep 1000\" & exec sleep 1000' & wait",
	"without an end": "(setsid sh -c 'echo $$; exec sleep 1000' &) ; exit 0",
}

func TestNothingThatComesOfAChildIsLeft(t *testing.T) {
	for way, groups := range ways() {
		for name, script := range escapes {
			t.Run(way+", "+name, func(t *testing.T) {
				out := newLineWriter()
				spec := shell(script)
				spec.Whole, spec.cgroups, spec.Stdout, spec.Grace = true, &groups, out, 200*time.Millisecond
				p := start(t, t.Context(), spec)
				escaped := out.pid(t)
				if name != "without an end" {
					if !alive(escaped) {
						t.Error("it was not there")
					}
					if err := p.Stop(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				wait(t, p)
				eventually(t, "it is gone", func() bool { return !alive(escaped) })
				eventually(t, "nothing is listed", func() bool { return len(p.whole.members()) == 0 })
				for _, path := range []string{p.whole.v1, p.whole.v2} {
					if _, err := os.Stat(path); path != "" && err == nil {
						t.Errorf("%s is still there", path)
					}
				}
			})
		}
	}
}

// A fork bomb is limited, and ended.
//
//redteam:attack A package's server is a stranger: a child of the host forks without limit, with a control group that counts and without
func TestAForkBombIsBounded(t *testing.T) {
	const most = 50
	counted := false
	for way, groups := range ways() {
		t.Run(way, func(t *testing.T) {
			var out bytes.Buffer
			// bash retries if it cannot fork. Each process ends by itself after a while, in case
			// nothing contains them.
			spec := Spec{
				Path: "bash",
				Args: []string{
					"-c",
					`bomb() { [ $1 -le 0 ] || { bomb $(($1-1)) & bomb $(($1-1)) & }; sleep 20; }; bomb 7 2>/dev/null; wait`,
				},
			}
			spec.Whole, spec.Processes, spec.cgroups, spec.Grace = true, most, &groups, 10*time.Millisecond
			spec.Stdout, spec.Stderr = &out, io.Discard
			p := start(t, t.Context(), spec)
			if _, limited := p.Contained(); !limited {
				if s := wait(t, p); s.Stopped != ErrTooMany {
					t.Errorf("where no cgroup counts them: %+v", s)
				}
				if left := p.whole.members(); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
				return
			}
			counted = true
			eventually(t, "it has reached its limit", func() bool {
				u, err := p.Usage()
				if err != nil || u.Processes > most+1 {
					t.Fatalf("%d processes, %v", u.Processes, err)
				}
				return u.Processes >= most-5
			})
			p.Stop(t.Context())
			wait(t, p)
			if left := p.whole.members(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
	t.Log("counted by a cgroup:", counted)
}

func TestUsageCountsTheWholeTree(t *testing.T) {
	out := newLineWriter()
	spec := shell("setsid sh -c 'echo $$; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exec sleep 1000' & wait")
	spec.Whole, spec.Stdout = true, out
	p := start(t, t.Context(), spec)
	out.pid(t)
	eventually(t, "two processes that use memory and time", func() bool {
		u, err := p.Usage()
		return err == nil && u.Processes == 2 && u.Memory > 100_000 && u.CPU > 0
	})
}

func TestFindsItsGroups(t *testing.T) {
	for _, c := range []struct{ mounts, own, v2, pids string }{
		{"1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/a/b\n", "/sys/fs/cgroup/a/b", ""},
		{"1 0 0:1 /a /sys/fs/cgroup rw shared:1 - cgroup2 cgroup2 rw\n", "0::/a/b\n", "/sys/fs/cgroup/b", ""},
		{"1 0 0:1 /c /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/a/b\n", "", ""},
		{"1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/../x\n", "", ""},
		{"1 0 0:1 / /cg/p rw - cgroup c rw,cpu,pids\n2 0 0:2 / /cg/u rw - cgroup2 c rw\n", "3:cpu,pids:/x\n0::/\n",
			"/cg/u", "/cg/p/x"},
		{"1 0 0:1 / /cg/m rw - cgroup c rw,memory\n", "3:memory:/x\n", "", ""},
		{"broken\n - \n1 - cgroup2\n", "1\n::\n", "", ""},
	} {
		if g := findGroups(c.mounts, c.own); g.v2 != c.v2 || g.pids != c.pids {
			t.Errorf("%q %q: got %+v", c.mounts, c.own, g)
		}
	}
}

func FuzzFindGroups(f *testing.F) {
	f.Add("1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/a/b\n")
	f.Fuzz(func(t *testing.T, mounts, own string) {
		if g := findGroups(mounts, own); strings.Contains(g.v2, "..") && !strings.Contains(mounts, "..") {
			t.Errorf("%+v", g)
		}
	})
}

// The next host ends what a killed host left in its groups.
func TestLeftGroupsAreSwept(t *testing.T) {
	g := hostGroups()
	path := g.v2
	if path == "" {
		path = g.pids
	}
	if path == "" {
		t.Skip("no cgroup can be made here")
	}
	space, _, _ := strings.Cut(procid.Self(), "-")
	left := filepath.Join(path, leafPrefix+space+"-2147483646-1-LEFT")
	mine := filepath.Join(path, leafName())
	for _, p := range []string{left, mine} {
		if err := os.Mkdir(p, 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(p)
	}
	out := newLineWriter()
	spec := shell("echo $$; exec sleep 1000")
	spec.Stdout = out
	p := start(t, t.Context(), spec)
	if err := put(left, "cgroup.procs", strconv.Itoa(out.pid(t))); err != nil {
		t.Fatal(err)
	}
	sweepLeft(path)
	if s := wait(t, p); s.Signal != "killed" {
		t.Errorf("%+v", s)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("the group that was left is still there")
	}
	if _, err := os.Stat(mine); err != nil {
		t.Error("a group in use was swept")
	}
}

func BenchmarkStartWhole(b *testing.B) {
	for way, groups := range ways() {
		for _, most := range []int{0, 512} {
			b.Run(way+"/"+strconv.Itoa(most), func(b *testing.B) {
				for b.Loop() {
					p, err := Start(
						b.Context(),
						Spec{Path: "/bin/true", Stdout: io.Discard, Whole: true, Processes: most, cgroups: &groups},
					)
					if err != nil {
						b.Fatal(err)
					}
					p.Wait()
				}
			})
		}
	}
	b.Run("host/512", func(b *testing.B) {
		for b.Loop() {
			p, err := Start(b.Context(), Spec{Path: "/bin/true", Stdout: io.Discard, Whole: true, Processes: 512})
			if err != nil {
				b.Fatal(err)
			}
			p.Wait()
		}
	})
}
