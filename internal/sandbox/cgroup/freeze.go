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

// freezing is how long the kernel may take to stop everything. What waits for
// a disk in the kernel stops only when that answers.
const freezing = 10 * time.Second

// freezer is version 1's name for stopping groups. It is used only where there
// is no version 2, which can always.
const freezer = "freezer"

// errNoFreezer is why nothing can be paused.
var errNoFreezer = errors.New("nothing can be paused: there is neither a control group of version 2 with cgroup.freeze (Linux 5.2) nor the freezer of version 1 in which this process may make groups")

// Freezes reports whether groups can be stopped; the error says what is
// missing.
func (p *Place) Freezes() error {
	switch {
	case p.v2 != "":
		// The root has no such file of its own, so a group has to tell.
		leaf := filepath.Join(p.v2, name())
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

// Freeze stops everything in it where it is and returns when nothing runs any
// more. When ctx ends before, everything runs again. It may be called again.
func (g *Group) Freeze(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, freezing, fmt.Errorf("not everything in the group stopped within %v", freezing))
	defer cancel()
	if err := g.frozen(ctx, true); err != nil {
		return errors.Join(err, g.write(false))
	}
	return nil
}

// Thaw lets everything in it go on, and returns when it does. It may be called
// again.
func (g *Group) Thaw(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, freezing, fmt.Errorf("not everything in the group went on within %v", freezing))
	defer cancel()
	return g.frozen(ctx, false)
}

// frozen brings the group to this state and waits until it is there.
func (g *Group) frozen(ctx context.Context, want bool) error {
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		// Version 1 may need to be told again.
		if err := g.write(want); err != nil {
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

func (g *Group) write(frozen bool) error {
	switch {
	case g.v2 != "":
		value := "0"
		if frozen {
			value = "1"
		}
		err := put(g.v2, "cgroup.freeze", value)
		if errors.Is(err, unix.ENOENT) {
			return errNoFreezer
		}
		return err
	case g.v1[freezer] != "":
		value := "THAWED"
		if frozen {
			value = "FROZEN"
		}
		return put(g.v1[freezer], "freezer.state", value)
	}
	return errNoFreezer
}

func (g *Group) isFrozen() (bool, error) {
	if g.v2 == "" {
		b, err := os.ReadFile(filepath.Join(g.v1[freezer], "freezer.state"))
		return strings.TrimSpace(string(b)) == "FROZEN", err // not yet when it is FREEZING
	}
	b, err := os.ReadFile(filepath.Join(g.v2, "cgroup.events"))
	return bytes.Contains(b, []byte("frozen 1")), err
}
