//go:build amd64 || arm64

package namespaces

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agent"
	"gatehouse/internal/sandbox/agentclient"
	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/cgroup"
	"gatehouse/internal/sandbox/egress"
	"gatehouse/internal/sandbox/proxy"
	"gatehouse/internal/sandbox/rootfs"

	"golang.org/x/sys/unix"
)

// box is one sandbox. What it can do is the link's.
type box struct {
	*agentclient.Link
	*rootfs.Still
	driver *Driver
	slot   int
	group  *cgroup.Group
	agent  *os.Process
	closed func() error
	gone   chan struct{}
	door   *egress.Door
	asked  rootfs.Asked
}

// make makes a sandbox. What it had made before it failed is undone.
func (d *Driver) make(ctx context.Context, spec sandbox.Spec, limits sandbox.Limits) (_ *box, err error) {
	b := &box{driver: d, gone: make(chan struct{})}
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
	if b.group, err = d.groups.New(limits); err != nil {
		return nil, err
	}
	undo = append(undo, func() { b.group.Remove() })
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { ours.Close() })
	side, theirSide, err := egress.Sockets()
	if err == nil {
		if b.door, err = egress.New(side, proxy.Options{}); err != nil {
			theirSide.Close()
		}
	}
	if err != nil {
		theirs.Close()
		return nil, err
	}
	undo = append(undo, func() { b.door.Close() })
	look, err := rootfs.Of(spec)
	if err != nil {
		theirs.Close()
		theirSide.Close()
		return nil, err
	}
	b.asked.Limits, b.asked.Look, b.asked.Env, b.asked.Bounds = limits, look.Env, spec.Env, d.bounds
	plan, files, err := d.plan(b.asked.Plan(), spec, look)
	plan.Side = int64(firstTree + len(files))
	files = append(files, theirSide)
	if err == nil {
		err = d.starter.Do(func() error { return b.start(theirs, files) })
	}
	theirs.Close()
	for _, f := range files {
		f.Close()
	}
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { b.kill() })
	b.Link = agentclient.New(ours, limits, b.group.OOMKills)
	undo = append(undo, func() { b.Link.Close() })
	b.Still = rootfs.NewStill(b.Link, b.group)
	if err := b.Setup(ctx, plan); err != nil {
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

func socketPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair(AF_UNIX): %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, fmt.Errorf("fcntl(O_NONBLOCK): %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "sandbox"), os.NewFile(uintptr(fds[1]), "sandbox"), nil
}

// start runs on a thread of the starter.
func (b *box) start(channel *os.File, files []*os.File) error {
	attr := attributes(b.driver.users, b.slot)
	born, err := b.group.Born()
	if err != nil {
		return err
	}
	if born != nil {
		defer born.Close()
		attr.UseCgroupFD, attr.CgroupFD = true, int(born.Fd())
	}
	if err := b.group.Enter(); err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return errors.Join(err, b.group.Leave())
	}
	defer null.Close()
	b.agent, err = os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", imageFD), []string{"agent", strconv.Itoa(firstTree + len(files))}, &os.ProcAttr{
		Env:   []string{"GOMAXPROCS=1"}, // it waits for most of what it does, and one more thread would only be woken for nothing
		Files: append([]*os.File{null, null, null, channel, b.driver.image}, files...),
		Sys:   attr,
	})
	return errors.Join(named(err), b.group.Leave())
}

// named tells which calls a failed start of an agent was made of.
func named(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return fmt.Errorf("clone(CLONE_NEWUSER|CLONE_NEWNS|CLONE_NEWPID|CLONE_NEWNET|CLONE_NEWIPC|CLONE_NEWUTS|CLONE_NEWCGROUP), execve(the agent): %w", e.Err)
	}
	return err
}

// kill ends everything in it and takes the groups away.
func (b *box) kill() error {
	b.agent.Kill()
	_, err := b.agent.Wait()
	return err
}

// Done is closed when it is gone.
func (b *box) Done() <-chan struct{} { return b.gone }

// Close ends everything in it.
func (b *box) Close() error { return b.closed() }

func (b *box) end() error {
	defer close(b.gone)
	b.agent.Kill() // before anything of it could tell of the others' end
	b.Still.End()
	b.group.KillAtOnce()
	err := b.kill()
	b.Link.Close()
	b.door.Close()
	err = errors.Join(err, b.group.Remove())
	b.driver.users.Give(b.slot)
	b.driver.boxes.Remove(b)
	if err != nil {
		b.driver.log.Warn("a sandbox left something behind", "error", err)
	}
	return err
}

// Numbers of files in the agent, after the standard ones and the channel: its
// own program, which has to have a number that nothing else gets while it is
// being started, and the first tree.
const (
	imageFD   = 4
	firstTree = 5
)

// plan says what the place is to be like within bounds. files are trees that the
// agent could not open itself.
func (d *Driver) plan(plan agentprotocol.Plan, spec sandbox.Spec, look rootfs.Look) (_ agentprotocol.Plan, files []*os.File, err error) {
	plan.Hostname, plan.OneUser, plan.Texts, plan.Links = "sandbox", d.users.One, look.Texts, look.Links
	plan.Strict = spec.Strict
	if !d.users.One {
		plan.UID, plan.GID = rootfs.CodeID, rootfs.CodeID
	}
	for _, t := range look.Trees {
		shown := agentprotocol.Tree{From: t.From, To: t.To}
		if !d.users.One {
			fd, err := agent.OpenTree(t.From)
			if err != nil {
				return plan, files, err
			}
			shown.FD, shown.From = int64(firstTree+len(files)), ""
			files = append(files, os.NewFile(uintptr(fd), t.From))
		}
		plan.Trees = append(plan.Trees, shown)
	}
	return plan, files, nil
}

// bounds is the part of a plan that can be changed later.
func (d *Driver) bounds(env []string, limits sandbox.Limits, port int64) agentprotocol.Plan {
	return rootfs.Bounds(env, limits, port, d.groups.Held("memory") != sandbox.NotHeld)
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
