//go:build linux && (amd64 || arm64)

package seccomp

import (
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write the filters as they are now")

var machines = map[string]machine{"amd64": amd64, "arm64": arm64}

// says runs a filter on one call. The machine of the bpf package reads
// big-endian, so every field is laid down as one.
func says(t *testing.T, vm *bpf.VM, arch, nr uint32, args ...uint64) uint32 {
	t.Helper()
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[nrAt:], nr)
	binary.BigEndian.PutUint32(data[archAt:], arch)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[arg0At+8*i:], uint32(a))
		binary.BigEndian.PutUint32(data[arg0At+8*i+4:], uint32(a>>32))
	}
	n, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}

// Every call there is gets the answer that the list says, on both machines.
func TestTheStrictFilterOpensItsListAlone(t *testing.T) {
	for name, m := range machines {
		vm, err := bpf.NewVM(m.strict())
		if err != nil {
			t.Fatal(err)
		}
		known := map[uint32]string{}
		for _, c := range calls {
			nr := c.at[m.column]
			if nr < 0 {
				continue
			}
			known[uint32(nr)] = c.name
			want := eperm
			switch {
			case c.name == "clone3", c.name == "io_setup":
				want = enosys
			case slices.Contains(open, c.name), c.name == "clone", c.name == "ioctl", c.name == "personality",
				c.name == "setsockopt":
				want = allow
			}
			if got := says(t, vm, m.arch, uint32(nr)); got != want {
				t.Errorf("%s: %s: %#x, want %#x", name, c.name, got, want)
			}
		}
		for nr := range m.last() {
			if known[nr] == "" && says(t, vm, m.arch, nr) != eperm {
				t.Errorf("%s: %d, which is no call, is open", name, nr)
			}
		}
		for _, nr := range []uint32{m.last() + 1, m.last() + 100, firstForeign - 1} {
			if got := says(t, vm, m.arch, nr); got != enosys {
				t.Errorf("%s: a later call, %d: %#x", name, nr, got)
			}
		}
		for _, arch := range []uint32{unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM} {
			if got := says(t, vm, arch, 3); got != kill {
				t.Errorf("%s: a call by another machine's table: %#x", name, got)
			}
		}
		if got := says(t, vm, m.arch, firstForeign|1); got != kill {
			t.Errorf("%s: an x32 number: %#x", name, got)
		}
	}
}

func TestTheStrictFilterJudgesArguments(t *testing.T) {
	const high = 1 << 40 // bits the kernel ignores
	for machineName, m := range machines {
		vm, err := bpf.NewVM(m.strict())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			name, call string
			want       uint32
			args       []uint64
		}{
			{"a thread", "clone", allow, []uint64{unix.CLONE_VM | unix.CLONE_THREAD}},
			{"a user namespace", "clone", eperm, []uint64{unix.CLONE_NEWUSER | 17}},
			{"the size of a window", "ioctl", allow, []uint64{0, unix.TIOCGWINSZ}},
			{"TIOCSTI with high bits", "ioctl", eperm, []uint64{0, unix.TIOCSTI | high}},
			{"TIOCLINUX", "ioctl", eperm, []uint64{0, tiocLinux}},
			{"a Unix socket", "socket", allow, []uint64{unix.AF_UNIX, 1, 0}},
			{"an IPv6 socket", "socket", allow, []uint64{unix.AF_INET6, 1, 0}},
			{"vsock with high bits", "socket", eperm, []uint64{unix.AF_VSOCK | high, 1, 0}},
			{"netlink audit", "socket", eperm, []uint64{unix.AF_NETLINK, 3, unix.NETLINK_AUDIT}},
			{"an option of a socket", "setsockopt", allow, []uint64{3, unix.SOL_SOCKET, unix.SO_REUSEADDR}},
			{"a filter of a socket with high bits", "setsockopt", enoprotoopt,
				[]uint64{3, unix.SOL_SOCKET | high, unix.SO_ATTACH_FILTER | high}},
			{"asking for the personality", "personality", allow, []uint64{0xffffffff}},
			{"that of Linux", "personality", allow, []uint64{0}},
			{"addresses that are not scattered", "personality", eperm, []uint64{0x40000}},
			{"pages that can be read are run", "personality", eperm, []uint64{0x400000 | high}},
		} {
			if got := says(t, vm, m.arch, m.syscallNumber(c.call), c.args...); got != c.want {
				t.Errorf("%s: %s: %#x, want %#x", machineName, c.name, got, c.want)
			}
		}
	}
}

// What Default closes whatever the arguments stays closed.
func TestStrictIsStricterThanDefault(t *testing.T) {
	for _, c := range append(slices.Clone(closedByName), closedByNameHere()...) {
		if slices.Contains(open, c.name) || slices.Contains(conditional, c.name) {
			t.Errorf("%s is open", c.name)
		}
	}
	for _, name := range append(slices.Clone(open), conditional...) {
		if !slices.ContainsFunc(calls, func(c numbered) bool { return c.name == name }) {
			t.Errorf("no machine has a call %s", name)
		}
	}
}

// The numbers are those this program was built with.
func TestNumbersAreTheKernels(t *testing.T) {
	for name, want := range map[string]uint32{
		"read":       unix.SYS_READ,
		"clone":      unix.SYS_CLONE,
		"clone3":     unix.SYS_CLONE3,
		"mseal":      unix.SYS_MSEAL,
		"newfstatat": unix.SYS_NEWFSTATAT,
	} {
		if got := here.syscallNumber(name); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
	for _, c := range append(slices.Clone(closedByName), closedByNameHere()...) {
		if got := here.syscallNumber(c.name); got != c.nr {
			t.Errorf("%s is %d, want %d", c.name, got, c.nr)
		}
	}
}

// The filters as they were last looked at are in testdata; -update writes them.
func TestTheStrictFilterIsAsItWasLookedAt(t *testing.T) {
	for name, m := range machines {
		var b strings.Builder
		for i, ins := range m.strict() {
			fmt.Fprintf(&b, "%3d %v\n", i, ins)
		}
		file := filepath.Join("testdata", "strict-"+name+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != string(want) {
			t.Errorf("the filter for %s has changed; look at it, then run this with -update:\n%s", name, b.String())
		}
	}
}

func TestAContainersStrictFilterRefusesMore(t *testing.T) {
	p, less := ForAgentStrict(), ForAgent()
	for _, name := range []string{"fanotify_init", "lookup_dcookie", "sysfs", "vhangup", "memfd_secret"} {
		if !p.refuses(name, nil) || less.refuses(name, nil) {
			t.Errorf("%s: %v, and %v without", name, p.refuses(name, nil), less.refuses(name, nil))
		}
	}
	for _, name := range slices.Concat(open, agentNeeds, agentAlsoNeeds) {
		if p.refuses(name, []uint64{0, 0, 0}) {
			t.Errorf("%s, which the agent may need, is refused", name)
		}
	}
}
