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

	// kvmTrial is how long a machine may take to boot with KVM. It takes a
	// second where it works; where it does not it may never end.
	kvmTrial = 8 * time.Second
)

// kvm is what is known about this machine's processor.
type kvm struct {
	mu     sync.Mutex
	asked  string // what the options want
	barred error  // why it is not even tried
	groups []uint32

	settled chan struct{} // nil before somebody wants to know
	chosen  string        // set before settled is closed
	why     error         // why it is not KVM
}

func (k *kvm) init(asked string, ownUser bool) {
	k.asked = asked
	k.groups, k.barred = reachKVM(kvmFile, ownUser)
}

// reachKVM tells by which groups another user gets at the device, and why that
// cannot be.
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
	return nil, fmt.Errorf("%s is for root alone (mode %v), and QEMU runs as a user of its own: chgrp kvm %s && chmod 660 %s", path, info.Mode().Perm(), path, path)
}

// kvmGroups are those QEMU needs beside its own.
func (d *Driver) kvmGroups() []uint32 { return d.kvm.groups }

// accelerator finds out once, by booting a machine, whether KVM works here. To
// open the device says little: there are hosts where it opens, makes a machine,
// and runs nothing in it.
func (d *Driver) accelerator(ctx context.Context) (string, error) {
	k := &d.kvm
	k.mu.Lock()
	if k.settled == nil {
		k.settled = make(chan struct{})
		switch {
		case k.asked == tcg || k.asked == kvmName:
			k.chosen = k.asked
			close(k.settled)
		case k.asked != "":
			k.mu.Unlock()
			return "", fmt.Errorf("there is no accelerator %q; it may be kvm, tcg or empty", k.asked)
		case k.barred != nil:
			k.chosen, k.why = tcg, k.barred
			close(k.settled)
		case d.alive.Err() != nil:
			k.chosen = tcg
			close(k.settled)
		default:
			d.works.Go(func() {
				defer close(k.settled)
				k.chosen, k.why = d.tryKVM()
			})
		}
	}
	settled := k.settled
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
		d.log.Warn("KVM is there and does not work; processors are emulated", "error", err)
		return tcg, err
	}
	l.Close()
	return kvmName, m.end()
}
