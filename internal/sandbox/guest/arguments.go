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

// Tree is a disk that is mounted read-only in a machine.
type Tree struct {
	Disk
	At string // absolute path in the machine
}

// Boot describes how a machine boots.
type Boot struct {
	// The agent listens on agentprotocol.VsockPort; otherwise its channel is the port agentprotocol.BootPort
	// of a virtio console.
	Vsock    bool
	Emulated int  // frequency of the counter in kHz if the processor is emulated; else 0
	Root     Disk // the first disk of the machine
	Trees    []Tree
}

const mostTrees = 24 // each disk is named by one letter

// Arguments returns the kernel's arguments.
func (b Boot) Arguments() (string, error) {
	if len(b.Trees) > mostTrees {
		return "", fmt.Errorf("a virtual machine can have %[2]d trees, not %[1]d", len(b.Trees), mostTrees)
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
			return "", fmt.Errorf("a tree cannot be mounted at %q in a virtual machine: expected an absolute "+
				"path without blanks and quotes", t.At)
		}
		all = append(all, fmt.Sprintf("%svd%c:%s:%s", agentprotocol.BootTree, 'b'+i, t.Type, t.At))
	}
	line := strings.Join(all, " ")
	if len(line) > longestLine {
		return "", errors.New("the paths of the trees are too long for the kernel's arguments")
	}
	return line, nil
}

const longestLine = 1900 // bytes; the kernels of both architectures accept 2,048

// quiet are arguments for a machine without other devices: it does not probe for missing hardware, exits on a
// panic, and trusts the processor's randomness.
var quiet = map[string][]string{
	"amd64": {
		"quiet", "panic=-1", "reboot=t", "console=ttyS0", "random.trust_cpu=on", "mitigations=off", "lsm=landlock",
		"i8042.noaux", "i8042.nomux", "i8042.nopnp", "i8042.dumbkbd", "cryptomgr.notests",
	},
	"arm64": {"quiet", "panic=-1", "console=ttyAMA0", "random.trust_cpu=on", "mitigations=off", "lsm=landlock",
		"cryptomgr.notests"},
}

// emulated are arguments that make a kernel use the processor's counter as its only clock: on an emulated
// processor other clocks are late, and calibrating with them hangs at random.
var emulated = map[string][]string{"amd64": {"no_timer_check", "lpj=4000000", "tsc=reliable"}}
