//go:build amd64 || arm64

package gvisor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentclient"
	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/cgroup"
	"gatehouse/internal/sandbox/egress"
	"gatehouse/internal/sandbox/proxy"
	"gatehouse/internal/sandbox/rootfs"
)

// endWait is how long gVisor's kernel may take to exit after its agent's channel is closed.
const endWait = 5 * time.Second

// instance is one sandbox. Most of its methods are the client's.
type instance struct {
	*agentclient.Client
	driver *Driver
	id     string
	bundle string
	root   *root
	group  *group
	egress *egress.Server
	pauser pauseState
	strict bool          // the strict seccomp filter applies
	runsc  *os.Process   // it waits for the first process
	ended  chan struct{} // closed when runsc has exited

	closed   func() error
	gone     chan struct{}
	settings rootfs.Settings
}

// group is the control group that limits a sandbox from outside. When memory runs out, gVisor's kernel ends
// with the whole sandbox, so the count must be readable afterwards.
type group struct {
	*cgroup.Group
	mu      sync.Mutex
	ooms    int
	removed bool // the group is removed; ooms is the last count
}

const (
	kernelMiB     = 64 // memory of gVisor's kernel and its helpers, which does not count as the code's
	kernelThreads = 64 // in addition to those that every group allows
	perThread     = 3  // threads of the host for each process or thread of the code
)

// hostLimits returns the limits of everything on the host that belongs to a sandbox.
func hostLimits(l sandbox.Limits) sandbox.Limits {
	l.MemoryMiB += kernelMiB
	l.Processes = kernelThreads + perThread*l.Processes
	return l
}

// OOMKills can be called after the end, so that calls that ended with the sandbox get the reason.
func (g *group) OOMKills() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.removed {
		g.ooms = max(g.ooms, g.Group.OOMKills())
	}
	return g.ooms
}

// Remove removes the group after reading its count.
func (g *group) Remove() error {
	g.OOMKills()
	g.mu.Lock()
	g.removed = true
	g.mu.Unlock()
	return g.Group.Remove()
}

// make makes a sandbox.
func (d *Driver) make(ctx context.Context, spec sandbox.Spec, limits sandbox.Limits) (*instance, error) {
	layout, err := rootfs.Of(spec)
	if err != nil {
		return nil, err
	}
	r, err := d.newRoot(layout)
	if err != nil {
		return nil, err
	}
	b := d.newInstance(r, limits, spec.Env)
	b.strict = spec.Strict
	return b, b.startWith(d.runsc.runArgs(b.id, b.bundle), func() error { return b.Setup(ctx, b.plan()) })
}

// newInstance returns a box that is counted as a user of r already.
func (d *Driver) newInstance(r *root, limits sandbox.Limits, env []string) *instance {
	b := &instance{
		driver: d,
		id:     prefix + strings.ToLower(rand.Text()),
		root:   r,
		gone:   make(chan struct{}),
		ended:  make(chan struct{}),
	}
	b.settings.Limits, b.settings.ImageEnv, b.settings.Env, b.settings.Bounds = limits, r.layout.Env, env, d.bounds
	b.bundle = filepath.Join(d.folder, b.id)
	b.pauser.over, b.pauser.end = context.WithCancel(context.Background())
	return b
}

// startWith makes the bundle, starts runsc with args, and waits until greet succeeds with the agent. On an error
// it undoes what it has done and releases the root.
func (b *instance) startWith(args []string, greet func() error) (err error) {
	undo := []func(){func() { b.root.releaseRoot() }}
	defer func() {
		if err != nil {
			for _, u := range slices.Backward(undo) {
				u()
			}
		}
	}()
	if err := os.Mkdir(b.bundle, 0o700); err != nil {
		return err
	}
	undo = append(undo, func() { os.RemoveAll(b.bundle) })
	if err := b.root.config().Write(b.bundle); err != nil {
		return err
	}
	held, err := b.driver.groups.New(hostLimits(b.settings.Limits))
	if err != nil {
		return err
	}
	b.group = &group{Group: held}
	undo = append(undo, func() { b.group.Kill(); b.group.Remove() })
	channel, err := b.start(args)
	if err != nil {
		return err
	}
	undo = append(undo, func() { b.stopSandbox(false) })
	b.Client = agentclient.New(channel, b.settings.Limits, b.group.OOMKills)
	b.egress = egress.NewOver(b.Listen, proxy.Options{})
	undo = append(undo, func() { b.Client.Close(); b.egress.Close() })
	if err := greet(); err != nil {
		return b.startError(err)
	}
	b.closed = sync.OnceValue(b.end)
	if err := b.driver.instances.Add(b); err != nil {
		return err
	}
	go func() {
		<-b.Client.Done()
		b.Close()
	}()
	return nil
}

// start starts runsc and returns the host's end of the agent's channel.
func (b *instance) start(args []string) (pipes, error) {
	ours, theirs, err := openPipes()
	if err != nil {
		return pipes{}, err
	}
	defer closeAll(theirs)
	err = b.driver.starter.Do(func() (err error) {
		b.runsc, err = b.driver.runsc.startRunsc(args, theirs, b.group.Group)
		return err
	})
	if err != nil {
		return pipes{}, errors.Join(err, ours.Close())
	}
	go func() {
		defer close(b.ended)
		b.runsc.Wait()
	}()
	return ours, nil
}

// startError returns what runsc logged, if it exited before the agent started.
func (b *instance) startError(err error) error {
	select {
	case <-b.ended:
	case <-time.After(time.Second):
		return err
	}
	if why := logged(filepath.Join(b.bundle, logFile)); why != "" {
		return fmt.Errorf("runsc: %s", why)
	}
	if b.group.OOMKills() > 0 {
		return fmt.Errorf("%d MiB of memory are not enough to start: %w", b.settings.Limits.MemoryMiB, err)
	}
	return err
}

// plan returns the plan for a root file system that runsc has set up.
func (b *instance) plan() agentprotocol.Plan {
	p := b.settings.Plan()
	p.Hostname, p.Prebuilt, p.Strict = "sandbox", true, b.strict
	p.UID, p.GID = rootfs.CodeID, rootfs.CodeID
	return p
}

func (d *Driver) bounds(env []string, limits sandbox.Limits, port int64) agentprotocol.Plan {
	return rootfs.Bounds(env, limits, port, d.groups.Enforcement("memory") != sandbox.NotEnforced)
}

// stopSandbox waits for gVisor's kernel to exit, which it does on its own because its agent's channel is closed, or
// kills it: at once if it is paused and cannot notice.
func (b *instance) stopSandbox(still bool) {
	if !still {
		select {
		case <-b.ended:
			return
		case <-time.After(endWait):
		}
	}
	b.group.Kill()
	b.runsc.Kill()
	<-b.ended
}

// removeState removes the state that runsc keeps of a sandbox that was killed.
func (b *instance) removeState() error {
	left, err := filepath.Glob(filepath.Join(b.driver.runsc.state, "*"+b.id+"*"))
	for _, l := range left {
		err = errors.Join(err, os.RemoveAll(l))
	}
	return err
}

// Done implements sandbox.Sandbox.
func (b *instance) Done() <-chan struct{} { return b.gone }

// Close implements sandbox.Sandbox.
func (b *instance) Close() error { return b.closed() }

func (b *instance) end() error {
	defer close(b.gone)
	b.pauser.end()
	b.Client.Close()
	b.egress.Close()
	b.stopSandbox(b.isPaused() != nil)
	err := errors.Join(b.group.Remove(), b.removeState(), os.RemoveAll(b.bundle), b.root.releaseRoot())
	b.driver.instances.Remove(b)
	if err != nil {
		b.driver.log.Warn("a sandbox left something behind", "error", err)
	}
	return err
}

// Assign gives the processes the part of the processors that a principal has.
func (b *instance) Assign(principal string) error { return b.group.Assign(principal) }

// Adjust implements sandbox.Adjustable. Every limit can be changed.
func (b *instance) Adjust(ctx context.Context, limits sandbox.Limits, env []string) error {
	if err := b.isPaused(); err != nil {
		return err
	}
	return b.settings.Adjust(ctx, b.Client, limits, env, func(l sandbox.Limits) (sandbox.Limits, error) {
		return l, b.group.Set(hostLimits(l))
	})
}

// SetNetwork implements sandbox.Networked.
func (b *instance) SetNetwork(ctx context.Context, n sandbox.Network) error {
	if err := b.isPaused(); err != nil {
		return err
	}
	return b.settings.SetNetwork(ctx, b.Client, b.egress, n)
}

var (
	_ sandbox.Files         = (*instance)(nil)
	_ sandbox.Adjustable    = (*instance)(nil)
	_ sandbox.Networked     = (*instance)(nil)
	_ sandbox.Pausable      = (*instance)(nil)
	_ sandbox.UsageReporter = (*instance)(nil)
	_ sandbox.Dialer        = (*instance)(nil)
)
