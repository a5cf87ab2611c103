//go:build amd64 || arm64

package namespaces

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"gatehouse/internal/exec/cpushare"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agent"
	"gatehouse/internal/sandbox/agentclient"
	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/cgroup"
	"gatehouse/internal/sandbox/egress"
	"gatehouse/internal/sandbox/rootfs"

	"golang.org/x/sys/unix"
)

// instance is one sandbox. Most of its methods are the client's.
type instance struct {
	*agentclient.Client
	*rootfs.Freezer
	driver   *Driver
	slot     int
	ranged   bool         // it has users of its own
	apart    bool         // see sandbox.Spec
	code     *owner       // the ids of the host that its code has; nil means those of its slot
	kept     rootfs.Range // their ids on the host
	group    *cgroup.Group
	agent    *os.Process
	closed   func() error
	gone     chan struct{}
	egress   *egress.Server
	settings rootfs.Settings
}

// make makes a sandbox. On an error it undoes what it has done.
func (d *Driver) make(ctx context.Context, spec sandbox.Spec, limits sandbox.Limits) (_ *instance, err error) {
	b := &instance{driver: d, apart: spec.Apart, gone: make(chan struct{})}
	var undo []func()
	defer func() {
		if err != nil {
			for _, u := range slices.Backward(undo) {
				u()
			}
		}
	}()
	if spec.Users != nil {
		if b.kept, err = d.users.KeptRange(); err != nil {
			return nil, fmt.Errorf("a sandbox cannot have users of its own: %w", err)
		}
		b.ranged = true
	}
	if o := spec.Owner; o != nil && !d.users.Single {
		if b.ranged {
			return nil, errors.New("a sandbox with users of its own cannot run as a user of the host")
		}
		b.code = &owner{o.UID, o.GID}
	}
	if b.slot, err = d.users.Acquire(); err != nil {
		return nil, err
	}
	undo = append(undo, func() { d.users.Release(b.slot) })
	group := d.groups.New
	if spec.Apart {
		group = d.groups.NewApart
	}
	if b.group, err = group(limits); err != nil {
		return nil, err
	}
	undo = append(undo, func() { b.group.Remove() })
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { ours.Close() })
	theirSide, err := b.openEgress()
	if err != nil {
		theirs.Close()
		return nil, err
	}
	undo = append(undo, func() { b.egress.Close() })
	bare := spec
	bare.Mounts, bare.Route = nil, nil // they are no part of the layout
	layout, err := rootfs.Of(bare)
	if err != nil {
		theirs.Close()
		theirSide.Close()
		return nil, err
	}
	b.settings.Limits, b.settings.ImageEnv, b.settings.Env, b.settings.Bounds = limits, layout.Env, spec.Env, d.bounds
	plan, files, err := d.plan(b.settings.Plan(), spec, layout, b)
	if err == nil {
		files, err = d.addMounts(&plan, files, spec.Mounts, b)
	}
	if spec.Route != nil {
		routePlan(&plan, spec.Route)
	}
	plan.ListenerSocket = int64(firstTree + len(files))
	files = append(files, theirSide)
	if err == nil {
		err = d.starter.Do(func() error { return b.startInit(theirs, files) })
	}
	theirs.Close()
	for _, f := range files {
		f.Close()
	}
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { b.killInit() })
	if b.waitsForMap() {
		if err = b.kept.Write(b.agent.Pid); err != nil {
			return nil, err
		}
		if _, err = ours.Write([]byte{0}); err != nil {
			return nil, fmt.Errorf("write(the agent): %w", err)
		}
	}
	b.Client = agentclient.New(ours, limits, b.group.OOMKills)
	undo = append(undo, func() { b.Client.Close() })
	b.Freezer = rootfs.NewFreezer(b.Client, b.group)
	if err := b.Setup(ctx, plan); err != nil {
		return nil, err
	}
	if spec.Route != nil {
		if err := b.egress.Route(*spec.Route); err != nil {
			return nil, err
		}
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

// openEgress opens the way to the network, and returns the socket of the sandbox's side.
func (b *instance) openEgress() (theirs *os.File, err error) {
	side, theirs, err := egress.Sockets()
	if err != nil {
		return nil, err
	}
	if b.egress, err = egress.New(side, b.driver.proxy); err != nil {
		theirs.Close()
		return nil, err
	}
	return theirs, nil
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

// startInit starts the agent. It runs on a thread of the starter, because the kernel kills the agent when that
// thread exits.
func (b *instance) startInit(channel *os.File, files []*os.File) error {
	attr := attributes(b.driver.users, b.slot, b.code)
	argv := []string{"agent", strconv.Itoa(firstTree + len(files))}
	if b.waitsForMap() {
		attr.UidMappings, attr.GidMappings, attr.GidMappingsEnableSetgroups, attr.Credential = nil, nil, false, nil
		argv = append(argv, agent.WaitForMap)
	}
	born, err := b.group.OpenV2()
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
	start := func() (err error) {
		b.agent, err = os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", imageFD),
			argv, &os.ProcAttr{
				Env:   []string{"GOMAXPROCS=1"}, // it mostly waits, so a second processor would only cost wake-ups
				Files: append([]*os.File{null, null, null, channel, b.driver.image}, files...),
				Sys:   attr,
			})
		return startError(err)
	}
	asOwner := func() error { return b.driver.users.AsOwner(b.slot, start) }
	if b.apart {
		err = cpushare.StartApart(asOwner)
	} else {
		err = asOwner()
	}
	return errors.Join(err, b.group.Leave())
}

// waitsForMap reports whether the map of the agent's users is written when it has been started, because this process
// may not write it itself.
func (b *instance) waitsForMap() bool { return b.ranged && b.driver.users.Single }

// startError adds to a failed start of an agent which system calls it consists of.
func startError(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return fmt.Errorf(
			"clone(CLONE_NEWUSER|CLONE_NEWNS|CLONE_NEWPID|CLONE_NEWNET|CLONE_NEWIPC|CLONE_NEWUTS|CLONE_NEWCGROUP), "+
				"execve(the agent): %w",
			e.Err,
		)
	}
	return err
}

// killInit kills the agent, and with it everything in its PID namespace, and waits for it.
func (b *instance) killInit() error {
	b.agent.Kill()
	_, err := b.agent.Wait()
	return err
}

// Pid returns the process of the host that is the first of the sandbox. With it everything in the sandbox ends.
func (b *instance) Pid() int { return b.agent.Pid }

// Done implements sandbox.Sandbox.
func (b *instance) Done() <-chan struct{} { return b.gone }

// Close implements sandbox.Sandbox.
func (b *instance) Close() error { return b.closed() }

func (b *instance) end() error {
	defer close(b.gone)
	b.agent.Kill() // before the agent can report the end of its programs
	b.Freezer.End()
	b.group.KillAtOnce()
	err := b.killInit()
	b.Client.Close()
	b.egress.Close()
	err = errors.Join(err, b.group.Remove())
	b.driver.users.Release(b.slot)
	b.driver.instances.Remove(b)
	if err != nil {
		b.driver.log.Warn("a sandbox left something behind", "error", err)
	}
	return err
}

var _ [sandbox.UserIDs]struct{} = [agent.UserIDs]struct{}{}

// File descriptors of the agent, after the standard ones and the channel: its own executable, whose number
// nothing else may get while it is being started, and the first tree.
const (
	imageFD   = 4
	firstTree = 5
)

// plan completes the plan of a sandbox. files are trees that the agent could not open itself.
func (d *Driver) plan(plan agentprotocol.Plan, spec sandbox.Spec,
	layout rootfs.Layout, b *instance) (_ agentprotocol.Plan, files []*os.File, err error) {
	plan.Hostname, plan.SingleUser, plan.Files, plan.Links = "sandbox", d.users.Single, layout.Files, layout.Links
	plan.Strict, plan.KeepOwners = spec.Strict, spec.KeepOwners
	if !d.users.Single {
		plan.UID, plan.GID = rootfs.CodeID, rootfs.CodeID
	}
	if u := spec.Users; u != nil {
		if spec.KeepOwners {
			return plan, nil, errors.New("a sandbox with users of its own cannot keep the owners of files")
		}
		plan.SingleUser, plan.Range, plan.UID, plan.GID = false, true, int64(u.UID), int64(u.GID)
		for _, g := range u.Groups {
			plan.Groups = append(plan.Groups, int64(g))
		}
	}
	images, system := -1, -1
	switch {
	case spec.Image != nil && b.ranged && !d.users.Single:
		translated, err := d.keptTranslation(b)
		if err != nil {
			return plan, nil, err
		}
		defer translated.Close()
		images = int(translated.Fd())
	case b.code != nil && b.code.uid == 0: // else the code would be the owner of the programs of the machine
		uid, gid, _ := d.users.Range(b.slot)
		translated, err := d.translation([]syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
			[]syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}})
		if err != nil {
			return plan, nil, err
		}
		defer translated.Close()
		system = int(translated.Fd())
	}
	if layout.Base != "" {
		if plan.Base, files, err = d.openBase(layout.Base, images, b); err != nil {
			return plan, files, err
		}
	}
	for _, t := range layout.Trees {
		shown := agentprotocol.Tree{From: t.From, To: t.To}
		if !d.users.Single {
			users := system
			if images >= 0 && strings.HasPrefix(t.From, spec.Image.Root+"/") {
				users = images
			}
			fd, err := agent.OpenTree(t.From, users)
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

// bounds returns the part of a plan that can be changed later.
func (d *Driver) bounds(env []string, limits sandbox.Limits, port int64) agentprotocol.Plan {
	return rootfs.Bounds(env, limits, port, d.groups.Enforcement("memory") != sandbox.NotEnforced)
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
	_ sandbox.OwnedFiles    = (*instance)(nil)
	_ sandbox.UserRanges    = (*Driver)(nil)
	_ sandbox.Archive       = (*instance)(nil)
	_ sandbox.Dialer        = (*instance)(nil)
	_ sandbox.Adjustable    = (*instance)(nil)
	_ sandbox.Networked     = (*instance)(nil)
	_ sandbox.Pausable      = (*instance)(nil)
	_ sandbox.UsageReporter = (*instance)(nil)
)
