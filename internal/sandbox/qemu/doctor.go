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
	trial  = 4 * time.Minute // for the sandbox a Doctor makes, with what has to be made first
	asking = 10 * time.Second
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
	tried := sandbox.Try(ctx, d, trial, remedy)
	return []sandbox.Finding{found, d.processor(ctx), d.user(), tried}
}

func (d *Driver) version(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	out, err := exec.CommandContext(ctx, d.program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", d.program, err)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line, nil
}

// processor tells how machines get one.
func (d *Driver) processor(ctx context.Context) sandbox.Finding {
	f := sandbox.Finding{Name: "a machine boots with the processor's own help (KVM)"}
	chosen, err := d.accelerator(ctx)
	switch {
	case err != nil:
		f.Detail = err.Error()
	case chosen == kvmName:
		f.OK, f.Detail = true, "it does"
	default:
		f.Detail = "processors are emulated, which takes about 16 times as long"
		if d.kvm.why != nil {
			f.Detail += ": " + d.kvm.why.Error()
		}
		f.Remedy = "use a host whose KVM works; without it this driver is for code that is hostile and short, and gvisor for the rest"
	}
	return f
}

// user tells whose QEMU's processes are.
func (d *Driver) user() sandbox.Finding {
	f := sandbox.Finding{Name: "each QEMU runs as a user of its own, without a network", OK: !d.users.One}
	if d.users.One {
		f.Detail, f.Remedy = "QEMU runs as the user that gatehouse runs as, held by its own filter of system calls alone", "run gatehouse as root, which gives each machine a user that is nobody else's"
	}
	return f
}

func remedy(err error) string {
	if strings.Contains(err.Error(), "mke2fs") {
		return guest.RemedyTools
	}
	return "see the machine's last words above; another kernel can be named in the settings"
}
