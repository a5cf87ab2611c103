//go:build linux && (amd64 || arm64)

package seccomp

import (
	"slices"
	"testing"
)

// The filter of a container closes what the other one does, by name.
func TestEveryClosedCallHasItsName(t *testing.T) {
	var byName []uint32
	for _, c := range append(slices.Clone(closedByName), closedByNameHere()...) {
		byName = append(byName, c.nr)
	}
	want := append(closedHere(), closed()...)
	slices.Sort(byName)
	slices.Sort(want)
	if !slices.Equal(byName, want) {
		t.Errorf("%d calls have names, %d are closed", len(byName), len(want))
	}
}

func TestAContainersFilterRefuses(t *testing.T) {
	p := ForAgent()
	for name, args := range map[string][]uint64{
		"bpf": nil, "keyctl": nil, "io_uring_setup": nil, "ptrace": nil, "setns": nil, "clone3": nil, "pivot_root": nil,
	} {
		if !p.refuses(name, args) {
			t.Errorf("%s is open", name)
		}
	}
	for _, c := range []struct {
		what string
		name string
		args []uint64
		want bool
	}{
		{"reading", "read", nil, false},
		{"mounting, which the agent does", "mount", nil, false},
		{"a thread", "clone", []uint64{0x3d0f00}, false},
		{"a stage", "clone", []uint64{0x20020000 | 17}, false},
		{"a user namespace", "clone", []uint64{0x10000000 | 17}, true},
		{"a user namespace beside another", "clone", []uint64{0x30000000 | 17}, true},
		{"a network of its own", "unshare", []uint64{0x40000000}, true},
		{"typing into a terminal", "ioctl", []uint64{0, 0x5412}, true},
		{"typing into a terminal, with high bits", "ioctl", []uint64{0, 0x5412 | 1<<40}, true},
		{"the size of a window", "ioctl", []uint64{0, 0x5413}, false},
		{"a Unix socket", "socket", []uint64{1, 1, 0}, false},
		{"an IPv6 socket", "socket", []uint64{10, 1, 0}, false},
		{"netlink route", "socket", []uint64{16, 3, 0}, false},
		{"netlink audit", "socket", []uint64{16, 3, 9}, true},
		{"packets", "socket", []uint64{17, 3, 0}, true},
		{"vsock", "socket", []uint64{40, 1, 0}, true},
		{"vsock with high bits", "socket", []uint64{40 | 1<<40, 1, 0}, true},
		{"a family between", "socket", []uint64{4, 1, 0}, true},
		{"a family between with high bits", "socket", []uint64{4 | 1<<40, 1, 0}, true},
	} {
		if got := p.refuses(c.name, c.args); got != c.want {
			t.Errorf("%s: refused is %v, want %v", c.what, got, c.want)
		}
	}
}

// refuses reads a profile as a runtime does.
func (p Profile) refuses(name string, args []uint64) bool {
	return slices.ContainsFunc(p.Syscalls, func(r Rule) bool {
		if !slices.Contains(r.Names, name) {
			return false
		}
		for _, a := range r.Args {
			v := args[a.Index]
			ok := map[string]bool{
				"SCMP_CMP_MASKED_EQ": v&a.Value == a.ValueTwo, "SCMP_CMP_GT": v > a.Value, "SCMP_CMP_NE": v != a.Value,
			}[a.Op]
			if !ok {
				return false
			}
		}
		return true
	})
}
