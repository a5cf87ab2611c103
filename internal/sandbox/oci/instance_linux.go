//go:build amd64 || arm64

package oci

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentclient"
	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/bundle"
	"gatehouse/internal/sandbox/cgroup"
	"gatehouse/internal/sandbox/egress"
	"gatehouse/internal/sandbox/proxy"
	"gatehouse/internal/sandbox/rootfs"

	"golang.org/x/sys/unix"
)

// endWait is how long a container may take to end on its own after its agent's channel is closed, and how long
// a runtime may take that was told to end it.
const endWait = 10 * time.Second

// File descriptors of the agent, after the standard ones.
const (
	sideFD    = 5 // after the channel, and a placeholder for the agent's executable
	afterFDs  = 6
	preserved = 3
)

// instance is one sandbox. Most of its methods are the client's.
type instance struct {
	*agentclient.Client
	*rootfs.Freezer
	driver  *Driver
	id      string
	bundle  string
	slot    int
	group   *cgroup.Group
	egress  *egress.Server
	runtime *os.Process   // the runtime, which waits for the container
	ended   chan struct{} // closed when the runtime has exited

	closed func() error
	gone   chan struct{}

	settings rootfs.Settings
	strict   bool
}

// make makes a sandbox. On an error it undoes what it has done.
func (d *Driver) make(ctx context.Context, spec sandbox.Spec, limits sandbox.Limits) (_ *instance, err error) {
	b := &instance{
		driver: d,
		id:     prefix + strings.ToLower(rand.Text()),
		strict: spec.Strict,
		gone:   make(chan struct{}),
		ended:  make(chan struct{}),
	}
	var undo []func()
	defer func() {
		if err != nil {
			for _, u := range slices.Backward(undo) {
				u()
			}
		}
	}()
	if b.slot, err = d.users.Acquire(); err != nil {
		return nil, err
	}
	undo = append(undo, func() { d.users.Release(b.slot) })
	layout, err := rootfs.Of(spec)
	if err != nil {
		return nil, err
	}
	b.settings.Limits, b.settings.ImageEnv, b.settings.Env, b.settings.Bounds = limits, layout.Env, spec.Env, d.bounds
	b.bundle = filepath.Join(d.folder, b.id)
	if err := os.Mkdir(b.bundle, 0o711); err != nil {
		return nil, err
	}
	undo = append(undo, func() { os.RemoveAll(b.bundle) })
	if err := b.writeBundle(layout, afterFDs); err != nil {
		return nil, err
	}
	if b.group, err = d.groups.New(limits); err != nil {
		return nil, err
	}
	undo = append(undo, func() { b.group.Kill(); b.group.Remove() })
	ours, err := b.startContainer()
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { b.egress.Close(); b.stopContainer() })
	b.Client = agentclient.New(ours, limits, b.group.OOMKills)
	undo = append(undo, func() { b.Client.Close() })
	b.Freezer = rootfs.NewFreezer(b.Client, b.group)
	if err := b.Setup(ctx, b.plan()); err != nil {
		return nil, b.startError(ctx, err)
	}
	if err := b.enter(ctx); err != nil {
		return nil, err
	}
	b.closed = sync.OnceValue(b.end)
	if err := d.instances.Add(b); err != nil {
		return nil, err
	}
	go func() {
		<-b.Client.Done()
		b.Close()
	}()
	return b, nil
}

// startError returns what the runtime logged, if it exited before the agent started.
func (b *instance) startError(ctx context.Context, err error) error {
	select {
	case <-b.ended:
	case <-ctx.Done():
		return err
	case <-time.After(time.Second):
		return err
	}
	if why := logged(filepath.Join(b.bundle, "log")); why != "" {
		return fmt.Errorf("%s: %s", filepath.Base(b.driver.runtime.path), why)
	}
	return err
}

// startContainer starts the runtime, which starts the agent, and returns the host's end of the channel.
func (b *instance) startContainer() (channel *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair(AF_UNIX): %w", err)
	}
	unix.SetNonblock(fds[0], true)
	ours, theirs := os.NewFile(uintptr(fds[0]), "sandbox"), os.NewFile(uintptr(fds[1]), "sandbox")
	defer theirs.Close()
	side, theirSide, err := egress.Sockets()
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	defer theirSide.Close()
	if b.egress, err = egress.New(side, proxy.Options{}); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err == nil {
		defer null.Close()
		err = b.launch([]*os.File{null, null, null, theirs, null, theirSide})
	}
	if err != nil {
		return nil, errors.Join(err, ours.Close(), b.egress.Close())
	}
	return ours, nil
}

func (b *instance) launch(files []*os.File) error {
	born, err := b.group.OpenV2()
	if err != nil {
		return err
	}
	if born != nil {
		defer born.Close()
	}
	r := b.driver.runtime
	err = b.driver.starter.Do(func() error {
		err := b.group.Enter()
		if err == nil {
			b.runtime, err = r.startRuntime(r.runArgs(b.id, b.bundle, preserved), files, born)
			err = errors.Join(err, b.group.Leave())
		}
		return err
	})
	if err != nil {
		return err
	}
	go func() {
		defer close(b.ended)
		b.runtime.Wait()
	}()
	return nil
}

// enter moves the agent into the sandbox's control group, if the runtime put it into another one. Nothing but
// the agent runs yet.
func (b *instance) enter(ctx context.Context) error {
	if b.driver.runtime.noGroup {
		return nil
	}
	pid, err := b.pid(ctx)
	if err != nil {
		return err
	}
	return b.group.AddProcess(pid)
}

// pid returns the id of the container's first process, which the runtime writes to a file soon after the
// start.
func (b *instance) pid(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, bundle.Patience)
	defer cancel()
	for {
		text, err := os.ReadFile(filepath.Join(b.bundle, pidFile))
		if pid, e := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && e == nil && pid > 1 {
			return pid, nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("%s did not write the id of the container's process: %w", b.driver.runtime.path,
				errors.Join(context.Cause(ctx), err))
		case <-b.ended:
			return 0, fmt.Errorf("%s exited: %s", b.driver.runtime.path, logged(filepath.Join(b.bundle, "log")))
		case <-time.After(time.Millisecond):
		}
	}
}

// plan returns the plan for a root file system that the runtime has set up.
func (b *instance) plan() agentprotocol.Plan {
	p := b.settings.Plan()
	p.Hostname, p.Prebuilt, p.DieWithParent = "sandbox", true, true
	p.Strict, p.SingleUser, p.ListenerSocket = b.strict, b.driver.users.Single, sideFD
	if !p.SingleUser {
		p.UID, p.GID = rootfs.CodeID, rootfs.CodeID
	}
	return p
}

func (d *Driver) bounds(env []string, limits sandbox.Limits, port int64) agentprotocol.Plan {
	return rootfs.Bounds(env, limits, port, d.groups.Enforcement("memory") != sandbox.NotEnforced)
}

// stopContainer waits for the container to end, which it does on its own because its agent's channel is closed, or ends
// it by force.
func (b *instance) stopContainer() {
	select {
	case <-b.ended:
		return
	case <-time.After(endWait):
	}
	ctx, cancel := context.WithTimeout(context.Background(), bundle.Patience)
	defer cancel()
	args := b.driver.runtime.removeArgs(b.id, filepath.Join(b.bundle, "log"))
	exec.CommandContext(ctx, args[0], args[1:]...).Run()
	b.group.Kill()
	b.runtime.Kill()
	<-b.ended
}

// Done implements sandbox.Sandbox.
func (b *instance) Done() <-chan struct{} { return b.gone }

// Close implements sandbox.Sandbox.
func (b *instance) Close() error { return b.closed() }

func (b *instance) end() error {
	defer close(b.gone)
	b.Client.Close()
	b.Freezer.End() // so that a paused agent notices
	b.egress.Close()
	b.stopContainer()
	err := errors.Join(b.group.Remove(), os.RemoveAll(b.bundle))
	b.driver.users.Release(b.slot)
	b.driver.instances.Remove(b)
	if err != nil {
		b.driver.log.Warn("a sandbox left something behind", "error", err)
	}
	return err
}

// Adjust implements sandbox.Adjustable. Every limit can be changed.
func (b *instance) Adjust(ctx context.Context, limits sandbox.Limits, env []string) error {
	return b.settings.Adjust(ctx, b.Client, limits, env, func(l sandbox.Limits) (sandbox.Limits, error) {
		if err := b.Paused(); err != nil {
			return l, err
		}
		return l, b.group.Set(l)
	})
}

// SetNetwork implements sandbox.Networked.
func (b *instance) SetNetwork(ctx context.Context, n sandbox.Network) error {
	return b.settings.SetNetwork(ctx, b.Client, b.egress, n)
}

var (
	_ sandbox.Files         = (*instance)(nil)
	_ sandbox.Archive       = (*instance)(nil)
	_ sandbox.Dialer        = (*instance)(nil)
	_ sandbox.Adjustable    = (*instance)(nil)
	_ sandbox.Networked     = (*instance)(nil)
	_ sandbox.Pausable      = (*instance)(nil)
	_ sandbox.UsageReporter = (*instance)(nil)
)
