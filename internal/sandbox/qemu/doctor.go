//go:build linux && amd64

package qemu

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/guest"
)

const (
	tryWait     = 4 * time.Minute // for the sandbox that Doctor makes, including what must be built first
	versionWait = 10 * time.Second
)

// Doctor looks for QEMU and a kernel, boots a machine and runs a program in it.
func (d *Driver) Doctor(ctx context.Context) []sandbox.Finding {
	found := sandbox.Finding{Name: "QEMU and a kernel for machines", Needed: true}
	if d.missing != nil {
		found.Detail, found.Remedy = d.missing.Error(), d.remedy
		return []sandbox.Finding{found}
	}
	version, err := d.version(ctx)
	if err != nil {
		found.Detail, found.Remedy = err.Error(), remedyProgram
		return []sandbox.Finding{found}
	}
	found.OK, found.Detail = true, fmt.Sprintf("%s; the kernel %s", version, d.guests.Kernel().Version)
	tried := sandbox.Try(ctx, d, tryWait, remedy)
	return []sandbox.Finding{found, d.processor(ctx), d.user(), tried}
}

func (d *Driver) version(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionWait)
	defer cancel()
	out, err := exec.CommandContext(ctx, d.program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", d.program, err)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line, nil
}

// processor reports whether machines use KVM.
func (d *Driver) processor(ctx context.Context) sandbox.Finding {
	f := sandbox.Finding{Name: "a machine boots with the processor's own help (KVM)"}
	chosen, err := d.accelerator(ctx)
	switch {
	case err != nil:
		f.Detail = err.Error()
	case chosen == kvmName:
		f.OK, f.Detail = true, "it does"
	default:
		f.Detail = "processors are emulated, which is about 16 times slower"
		if d.kvm.why != nil {
			f.Detail += ": " + d.kvm.why.Error()
		}
		f.Remedy = "use a host whose KVM works; without KVM use this driver for short runs of hostile code and " +
			"the driver gvisor otherwise"
	}
	return f
}

// user reports the user of QEMU's processes.
func (d *Driver) user() sandbox.Finding {
	f := sandbox.Finding{Name: "each QEMU runs as a user of its own, without a network", OK: !d.users.Single}
	if d.users.Single {
		f.Detail = "QEMU runs as the user of gatehouse, restricted only by its own filter of system calls"
		f.Remedy = "run gatehouse as root, which gives each machine a user id of its own"
	}
	return f
}

func remedy(err error) string {
	if strings.Contains(err.Error(), "mke2fs") {
		return guest.RemedyTools
	}
	return "see the end of the machine's console above; the settings can name another kernel"
}
