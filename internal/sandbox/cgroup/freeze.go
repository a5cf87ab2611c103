//go:build linux

package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// freezeWait is how long the kernel may take to stop all processes. A process that waits for a disk in the
// kernel stops only when the disk answers.
const freezeWait = 10 * time.Second

// freezer is the controller of version 1. It is used only if there is no version 2, which can always freeze.
const freezer = "freezer"

// errNoFreezer says why groups cannot be frozen.
var errNoFreezer = errors.New("sandboxes cannot be paused: this process can create groups neither in control " +
	"groups version 2 with cgroup.freeze (Linux 5.2) nor in the freezer of version 1")

// CanFreeze returns nil if groups can be frozen, else an error that says what is missing.
func (p *Hierarchy) CanFreeze() error {
	switch {
	case p.v2 != "":
		// The root group has no such file, so try it in a new group.
		leaf := filepath.Join(p.v2, newName())
		if err := unix.Mkdir(leaf, 0o755); err != nil {
			return fmt.Errorf("mkdir(%s): %w", leaf, err)
		}
		defer unix.Rmdir(leaf)
		if unix.Access(filepath.Join(leaf, "cgroup.freeze"), unix.W_OK) == nil {
			return nil
		}
	case p.v1[freezer] != "":
		return nil
	}
	return errNoFreezer
}

// Freeze stops all processes of the group and returns when none runs. If ctx ends before, it thaws the group.
// It may be called again.
func (g *Group) Freeze(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, freezeWait,
		fmt.Errorf("some processes of the group did not stop within %v", freezeWait))
	defer cancel()
	if err := g.setState(ctx, true); err != nil {
		return errors.Join(err, g.writeState(false))
	}
	return nil
}

// Thaw continues all processes of the group and returns when they run. It may be called again.
func (g *Group) Thaw(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, freezeWait,
		fmt.Errorf("some processes of the group did not continue within %v", freezeWait))
	defer cancel()
	return g.setState(ctx, false)
}

// setState sets the state of the group and waits until it is reached.
func (g *Group) setState(ctx context.Context, want bool) error {
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		// Version 1 may require the write again.
		if err := g.writeState(want); err != nil {
			return err
		}
		if is, err := g.isFrozen(); err != nil || is == want {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

func (g *Group) writeState(frozen bool) error {
	switch {
	case g.v2 != "":
		value := "0"
		if frozen {
			value = "1"
		}
		err := writeFile(g.v2, "cgroup.freeze", value)
		if errors.Is(err, unix.ENOENT) {
			return errNoFreezer
		}
		return err
	case g.v1[freezer] != "":
		value := "THAWED"
		if frozen {
			value = "FROZEN"
		}
		return writeFile(g.v1[freezer], "freezer.state", value)
	}
	return errNoFreezer
}

func (g *Group) isFrozen() (bool, error) {
	if g.v2 == "" {
		b, err := os.ReadFile(filepath.Join(g.v1[freezer], "freezer.state"))
		return strings.TrimSpace(string(b)) == "FROZEN", err // while it is FREEZING it is not yet frozen
	}
	b, err := os.ReadFile(filepath.Join(g.v2, "cgroup.events"))
	return bytes.Contains(b, []byte("frozen 1")), err
}
