//go:build linux && amd64

package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"gatehouse/internal/sandbox"
)

const (
	kvmName = "kvm"
	tcg     = "tcg"
	kvmFile = "/dev/kvm"

	// kvmTrial is how long a machine may take to boot with KVM. It takes a second if KVM works; otherwise it
	// may never end.
	kvmTrial = 8 * time.Second
)

// kvm is whether KVM works on this host.
type kvm struct {
	mu          sync.Mutex
	requested   string // from the options
	unavailable error  // why KVM is not tried
	// groups are supplementary groups that give access to the device.
	groups []uint32

	decided chan struct{} // nil until the first caller of accelerator
	chosen  string        // set before settled is closed
	why     error         // why KVM is not used
}

func (k *kvm) init(asked string, ownUser bool) {
	k.requested = asked
	k.groups, k.unavailable = reachKVM(kvmFile, ownUser)
}

// reachKVM returns the groups that give another user access to the device, or an error that says why it has
// none.
func reachKVM(path string, ownUser bool) ([]uint32, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	f.Close()
	info, err := os.Stat(path)
	if err != nil || !ownUser {
		return nil, err
	}
	const all, group = 0o006, 0o060
	st, ok := info.Sys().(*syscall.Stat_t)
	switch mode := info.Mode().Perm(); {
	case mode&all == all:
		return nil, nil
	case ok && mode&group == group && st.Gid != 0:
		return []uint32{st.Gid}, nil
	}
	return nil, fmt.Errorf("%s is accessible to root only (mode %v), and QEMU runs as another user: chgrp kvm "+
		"%s && chmod 660 %s", path, info.Mode().Perm(), path, path)
}

// kvmGroups returns the supplementary groups that QEMU requires for KVM.
func (d *Driver) kvmGroups() []uint32 { return d.kvm.groups }

// accelerator finds out once, by booting a machine, whether KVM works. Opening the device is not sufficient:
// on some hosts it can be opened and a machine created, but the machine runs nothing.
func (d *Driver) accelerator(ctx context.Context) (string, error) {
	k := &d.kvm
	k.mu.Lock()
	if k.decided == nil {
		k.decided = make(chan struct{})
		switch {
		case k.requested == tcg || k.requested == kvmName:
			k.chosen = k.requested
			close(k.decided)
		case k.requested != "":
			k.mu.Unlock()
			return "", fmt.Errorf("unknown accelerator %q; expected kvm, tcg or empty", k.requested)
		case k.unavailable != nil:
			k.chosen, k.why = tcg, k.unavailable
			close(k.decided)
		case d.alive.Err() != nil:
			k.chosen = tcg
			close(k.decided)
		default:
			d.work.Go(func() {
				defer close(k.decided)
				k.chosen, k.why = d.tryKVM()
			})
		}
	}
	settled := k.decided
	k.mu.Unlock()
	select {
	case <-settled:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if d.alive.Err() != nil {
		return "", sandbox.ErrDriverClosed
	}
	return k.chosen, nil
}

func (d *Driver) tryKVM() (string, error) {
	b, err := d.build(d.alive, kind{memoryMiB: smallest, vcpus: 1, accelerator: kvmName}, nil)
	if err != nil {
		return tcg, err
	}
	ctx, cancel := context.WithTimeoutCause(d.alive, kvmTrial, errors.New("a machine did not boot in time"))
	defer cancel()
	m, l, err := d.boot(ctx, b, planOf(sandbox.Defaults(), nil, 0, false))
	if err != nil {
		d.log.Warn("KVM exists but does not work; processors are emulated", "error", err)
		return tcg, err
	}
	l.Close()
	return kvmName, m.endMachine()
}
