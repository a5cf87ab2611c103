//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"gatehouse/internal/sandbox/agentprotocol"
)

// Tree is a disk that is shown in a guest, read-only.
type Tree struct {
	Disk
	At string // an absolute path in the guest
}

// Boot is how a guest begins.
type Boot struct {
	Vsock    bool // the agent listens at wire.VsockPort; else its channel is the port wire.BootPort of a virtio console
	Emulated int  // where the processor is emulated by a program, how fast its counter goes, in kHz; else 0
	Root     Disk // the first disk of the machine
	Trees    []Tree
}

const mostTrees = 24 // disks have one letter each

// Arguments are those to start the kernel with.
func (b Boot) Arguments() (string, error) {
	if len(b.Trees) > mostTrees {
		return "", fmt.Errorf("%d trees are more than a virtual machine has disks for, which is %d", len(b.Trees), mostTrees)
	}
	all := slices.Clone(quiet[runtime.GOARCH])
	if b.Emulated != 0 {
		all = append(all, emulated[runtime.GOARCH]...)
		if runtime.GOARCH == "amd64" {
			all = append(all, fmt.Sprintf("tsc_early_khz=%d", b.Emulated))
		}
	}
	channel := agentprotocol.BootSerial
	if b.Vsock {
		channel = agentprotocol.BootVsock
	}
	all = append(all, agentprotocol.BootChannel+channel, agentprotocol.BootRoot+"vda:"+b.Root.Type)
	for i, t := range b.Trees {
		if strings.ContainsAny(t.At, " \t\n\"\\") || !strings.HasPrefix(t.At, "/") {
			return "", fmt.Errorf("a tree in a virtual machine cannot be at %q", t.At)
		}
		all = append(all, fmt.Sprintf("%svd%c:%s:%s", agentprotocol.BootTree, 'b'+i, t.Type, t.At))
	}
	line := strings.Join(all, " ")
	if len(line) > longestLine {
		return "", errors.New("the trees have names too long for a kernel's arguments")
	}
	return line, nil
}

const longestLine = 1900 // bytes; the kernels of both machines take 2,048

// quiet are arguments for a machine that is alone: it does not wait for
// hardware that is not there, ends when it fails, and trusts the randomness it
// is given.
var quiet = map[string][]string{
	"amd64": {
		"quiet", "panic=-1", "reboot=t", "console=ttyS0", "random.trust_cpu=on", "mitigations=off", "lsm=landlock",
		"i8042.noaux", "i8042.nomux", "i8042.nopnp", "i8042.dumbkbd", "cryptomgr.notests",
	},
	"arm64": {"quiet", "panic=-1", "console=ttyAMA0", "random.trust_cpu=on", "mitigations=off", "lsm=landlock", "cryptomgr.notests"},
}

// emulated are arguments for a kernel that shall go by the counter of the
// processor and by nothing else: where that is emulated other clocks are late,
// and to measure by them hangs at random.
var emulated = map[string][]string{"amd64": {"no_timer_check", "lpj=4000000", "tsc=reliable"}}
