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

// ending is how long a container may take to end by itself when its agent's
// channel is closed, and how long a runtime may take that was told to end it.
const ending = 10 * time.Second

// Numbers of files in the agent, after the standard ones.
const (
	sideFD    = 5 // after the channel, and what stands for the agent's own program
	afterFDs  = 6
	preserved = 3
)

// box is one sandbox. What it can do is the link's.
type box struct {
	*agentclient.Link
	*rootfs.Still
	driver  *Driver
	id      string
	bundle  string
	slot    int
	group   *cgroup.Group
	door    *egress.Door
	runtime *os.Process   // which waits for the container
	ended   chan struct{} // the runtime has

	closed func() error
	gone   chan struct{}

	asked  rootfs.Asked
	strict bool
}

// make makes a sandbox. What it had made before it failed is undone.
func (d *Driver) make(ctx context.Context, spec sandbox.Spec, limits sandbox.Limits) (_ *box, err error) {
	b := &box{driver: d, id: prefix + strings.ToLower(rand.Text()), strict: spec.Strict, gone: make(chan struct{}), ended: make(chan struct{})}
	var undo []func()
	defer func() {
		if err != nil {
			for _, u := range slices.Backward(undo) {
				u()
			}
		}
	}()
	if b.slot, err = d.users.Take(); err != nil {
		return nil, err
	}
	undo = append(undo, func() { d.users.Give(b.slot) })
	look, err := rootfs.Of(spec)
	if err != nil {
		return nil, err
	}
	b.asked.Limits, b.asked.Look, b.asked.Env, b.asked.Bounds = limits, look.Env, spec.Env, d.bounds
	b.bundle = filepath.Join(d.folder, b.id)
	if err := os.Mkdir(b.bundle, 0o711); err != nil {
		return nil, err
	}
	undo = append(undo, func() { os.RemoveAll(b.bundle) })
	if err := b.write(look, afterFDs); err != nil {
		return nil, err
	}
	if b.group, err = d.groups.New(limits); err != nil {
		return nil, err
	}
	undo = append(undo, func() { b.group.Kill(); b.group.Remove() })
	ours, err := b.start()
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { b.door.Close(); b.stop() })
	b.Link = agentclient.New(ours, limits, b.group.OOMKills)
	undo = append(undo, func() { b.Link.Close() })
	b.Still = rootfs.NewStill(b.Link, b.group)
	if err := b.Setup(ctx, b.plan()); err != nil {
		return nil, b.explain(ctx, err)
	}
	if err := b.enter(ctx); err != nil {
		return nil, err
	}
	b.closed = sync.OnceValue(b.end)
	if err := d.boxes.Add(b); err != nil {
		return nil, err
	}
	go func() {
		<-b.Link.Done()
		b.Close()
	}()
	return b, nil
}

// explain says what the runtime wrote, when it ended before the agent began.
func (b *box) explain(ctx context.Context, err error) error {
	select {
	case <-b.ended:
	case <-ctx.Done():
		return err
	case <-time.After(time.Second):
		return err
	}
	if why := said(filepath.Join(b.bundle, "log")); why != "" {
		return fmt.Errorf("%s: %s", filepath.Base(b.driver.runtime.path), why)
	}
	return err
}

// start starts the runtime, which starts the agent, and gives our end of the
// channel to it.
func (b *box) start() (channel *os.File, err error) {
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
	if b.door, err = egress.New(side, proxy.Options{}); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err == nil {
		defer null.Close()
		err = b.launch([]*os.File{null, null, null, theirs, null, theirSide})
	}
	if err != nil {
		return nil, errors.Join(err, ours.Close(), b.door.Close())
	}
	return ours, nil
}

func (b *box) launch(files []*os.File) error {
	born, err := b.group.Born()
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
			b.runtime, err = r.start(r.run(b.id, b.bundle, preserved), files, born)
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

// enter takes the agent into our group, if the runtime put it into another one.
// Nothing but the agent runs yet.
func (b *box) enter(ctx context.Context) error {
	if b.driver.runtime.noGroup {
		return nil
	}
	pid, err := b.pid(ctx)
	if err != nil {
		return err
	}
	return b.group.Take(pid)
}

// pid is the number of the container's first process, which the runtime tells
// soon after it began.
func (b *box) pid(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, bundle.Patience)
	defer cancel()
	for {
		text, err := os.ReadFile(filepath.Join(b.bundle, pidFile))
		if pid, e := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && e == nil && pid > 1 {
			return pid, nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("%s does not tell the number of the container's process: %w", b.driver.runtime.path, errors.Join(context.Cause(ctx), err))
		case <-b.ended:
			return 0, fmt.Errorf("%s ended: %s", b.driver.runtime.path, said(filepath.Join(b.bundle, "log")))
		case <-time.After(time.Millisecond):
		}
	}
}

// plan is what is left to say to the agent of a place that is made.
func (b *box) plan() agentprotocol.Plan {
	p := b.asked.Plan()
	p.Hostname, p.Made, p.Bound, p.Strict, p.OneUser, p.Side = "sandbox", true, true, b.strict, b.driver.users.One, sideFD
	if !p.OneUser {
		p.UID, p.GID = rootfs.CodeID, rootfs.CodeID
	}
	return p
}

func (d *Driver) bounds(env []string, limits sandbox.Limits, port int64) agentprotocol.Plan {
	return rootfs.Bounds(env, limits, port, d.groups.Held("memory") != sandbox.NotHeld)
}

// stop ends the container: by itself, since its agent has nobody to serve any
// more, or by force.
func (b *box) stop() {
	select {
	case <-b.ended:
		return
	case <-time.After(ending):
	}
	ctx, cancel := context.WithTimeout(context.Background(), bundle.Patience)
	defer cancel()
	args := b.driver.runtime.remove(b.id, filepath.Join(b.bundle, "log"))
	exec.CommandContext(ctx, args[0], args[1:]...).Run()
	b.group.Kill()
	b.runtime.Kill()
	<-b.ended
}

// Done is closed when it is gone.
func (b *box) Done() <-chan struct{} { return b.gone }

// Close ends everything in it.
func (b *box) Close() error { return b.closed() }

func (b *box) end() error {
	defer close(b.gone)
	b.Link.Close()
	b.Still.End() // so that the agent finds that out
	b.door.Close()
	b.stop()
	err := errors.Join(b.group.Remove(), os.RemoveAll(b.bundle))
	b.driver.users.Give(b.slot)
	b.driver.boxes.Remove(b)
	if err != nil {
		b.driver.log.Warn("a sandbox left something behind", "error", err)
	}
	return err
}

// Adjust is that of sandbox.Adjustable. Every limit can be changed.
func (b *box) Adjust(ctx context.Context, limits sandbox.Limits, env []string) error {
	return b.asked.Adjust(ctx, b.Link, limits, env, func(l sandbox.Limits) (sandbox.Limits, error) {
		if err := b.Paused(); err != nil {
			return l, err
		}
		return l, b.group.Set(l)
	})
}

// SetNetwork is that of sandbox.Networked.
func (b *box) SetNetwork(ctx context.Context, n sandbox.Network) error {
	return b.asked.SetNetwork(ctx, b.Link, b.door, n)
}

var (
	_ sandbox.Files      = (*box)(nil)
	_ sandbox.Archive    = (*box)(nil)
	_ sandbox.Ported     = (*box)(nil)
	_ sandbox.Adjustable = (*box)(nil)
	_ sandbox.Networked  = (*box)(nil)
	_ sandbox.Pausable   = (*box)(nil)
	_ sandbox.Measured   = (*box)(nil)
)
