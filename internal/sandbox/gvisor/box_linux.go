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

// ending is how long a kernel may take to end by itself when its agent's
// channel is closed.
const ending = 5 * time.Second

// box is one sandbox. What it can do is the link's.
type box struct {
	*agentclient.Link
	driver *Driver
	id     string
	bundle string
	root   *root
	group  *group
	door   *egress.Door
	still  standing
	strict bool          // the code may make few system calls
	runsc  *os.Process   // which waits for the first process
	ended  chan struct{} // runsc has

	closed func() error
	gone   chan struct{}
	asked  rootfs.Asked
}

// group is what holds a sandbox from outside. The kernel in user space and all
// of the sandbox end together when memory runs out, which is told afterwards.
type group struct {
	*cgroup.Group
	mu    sync.Mutex
	ooms  int
	taken bool // away; ooms is what was counted last
}

const (
	kernelMiB     = 64 // memory of the kernel in user space and of what serves it, which is not the code's
	kernelThreads = 64 // beside those that a group allows anyway
	perThread     = 3  // threads of the host for one process or thread of the code
)

// around are the limits of everything on the host that makes up a sandbox.
func around(l sandbox.Limits) sandbox.Limits {
	l.MemoryMiB += kernelMiB
	l.Processes = kernelThreads + perThread*l.Processes
	return l
}

// OOMKills counts also after the end, so that calls that ended with the sandbox
// are told why.
func (g *group) OOMKills() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.taken {
		g.ooms = max(g.ooms, g.Group.OOMKills())
	}
	return g.ooms
}

// Remove takes it away.
func (g *group) Remove() error {
	g.OOMKills()
	g.mu.Lock()
	g.taken = true
	g.mu.Unlock()
	return g.Group.Remove()
}

// make makes a sandbox.
func (d *Driver) make(ctx context.Context, spec sandbox.Spec, limits sandbox.Limits) (*box, error) {
	look, err := rootfs.Of(spec)
	if err != nil {
		return nil, err
	}
	r, err := d.newRoot(look)
	if err != nil {
		return nil, err
	}
	b := d.newBox(r, limits, spec.Env)
	b.strict = spec.Strict
	return b, b.begin(d.runsc.run(b.id, b.bundle), func() error { return b.Setup(ctx, b.plan()) })
}

// newBox is a box whose root has it as a user already.
func (d *Driver) newBox(r *root, limits sandbox.Limits, env []string) *box {
	b := &box{driver: d, id: prefix + strings.ToLower(rand.Text()), root: r, gone: make(chan struct{}), ended: make(chan struct{})}
	b.asked.Limits, b.asked.Look, b.asked.Env, b.asked.Bounds = limits, r.look.Env, env, d.bounds
	b.bundle = filepath.Join(d.folder, b.id)
	b.still.over, b.still.end = context.WithCancel(context.Background())
	return b
}

// begin makes what the box is about: its bundle, a kernel by runsc with these
// arguments, and an agent that answers greet. What it had made before it failed
// is undone, and the root is left.
func (b *box) begin(args []string, greet func() error) (err error) {
	undo := []func(){func() { b.root.leave() }}
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
	held, err := b.driver.groups.New(around(b.asked.Limits))
	if err != nil {
		return err
	}
	b.group = &group{Group: held}
	undo = append(undo, func() { b.group.Kill(); b.group.Remove() })
	channel, err := b.start(args)
	if err != nil {
		return err
	}
	undo = append(undo, func() { b.stop(false) })
	b.Link = agentclient.New(channel, b.asked.Limits, b.group.OOMKills)
	b.door = egress.Over(b.Listen, proxy.Options{})
	undo = append(undo, func() { b.Link.Close(); b.door.Close() })
	if err := greet(); err != nil {
		return b.explain(err)
	}
	b.closed = sync.OnceValue(b.end)
	if err := b.driver.boxes.Add(b); err != nil {
		return err
	}
	go func() {
		<-b.Link.Done()
		b.Close()
	}()
	return nil
}

// start starts runsc, and gives our end of the channel to the agent.
func (b *box) start(args []string) (pipes, error) {
	ours, theirs, err := openPipes()
	if err != nil {
		return pipes{}, err
	}
	defer closeAll(theirs)
	err = b.driver.starter.Do(func() (err error) {
		b.runsc, err = b.driver.runsc.start(args, theirs, b.group.Group)
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

// explain says what runsc wrote, when it ended before the agent began.
func (b *box) explain(err error) error {
	select {
	case <-b.ended:
	case <-time.After(time.Second):
		return err
	}
	if why := said(filepath.Join(b.bundle, logFile)); why != "" {
		return fmt.Errorf("runsc: %s", why)
	}
	if b.group.OOMKills() > 0 {
		return fmt.Errorf("%d MiB of memory were not enough to begin with: %w", b.asked.Limits.MemoryMiB, err)
	}
	return err
}

// plan is what is left to say to the agent of a place that is made.
func (b *box) plan() agentprotocol.Plan {
	p := b.asked.Plan()
	p.Hostname, p.Made, p.Strict = "sandbox", true, b.strict
	p.UID, p.GID = rootfs.CodeID, rootfs.CodeID
	return p
}

func (d *Driver) bounds(env []string, limits sandbox.Limits, port int64) agentprotocol.Plan {
	return rootfs.Bounds(env, limits, port, d.groups.Held("memory") != sandbox.NotHeld)
}

// stop ends the kernel: by itself, since its agent has nobody to serve any more,
// or by force, which is at once where it stands still and does not notice.
func (b *box) stop(still bool) {
	if !still {
		select {
		case <-b.ended:
			return
		case <-time.After(ending):
		}
	}
	b.group.Kill()
	b.runsc.Kill()
	<-b.ended
}

// forget removes what runsc keeps of a sandbox that it could not end itself.
func (b *box) forget() error {
	left, err := filepath.Glob(filepath.Join(b.driver.runsc.state, "*"+b.id+"*"))
	for _, l := range left {
		err = errors.Join(err, os.RemoveAll(l))
	}
	return err
}

// Done is closed when it is gone.
func (b *box) Done() <-chan struct{} { return b.gone }

// Close ends everything in it.
func (b *box) Close() error { return b.closed() }

func (b *box) end() error {
	defer close(b.gone)
	b.still.end()
	b.Link.Close()
	b.door.Close()
	b.stop(b.isPaused() != nil)
	err := errors.Join(b.group.Remove(), b.forget(), os.RemoveAll(b.bundle), b.root.leave())
	b.driver.boxes.Remove(b)
	if err != nil {
		b.driver.log.Warn("a sandbox left something behind", "error", err)
	}
	return err
}

// Adjust is that of sandbox.Adjustable. Every limit can be changed.
func (b *box) Adjust(ctx context.Context, limits sandbox.Limits, env []string) error {
	if err := b.isPaused(); err != nil {
		return err
	}
	return b.asked.Adjust(ctx, b.Link, limits, env, func(l sandbox.Limits) (sandbox.Limits, error) {
		return l, b.group.Set(around(l))
	})
}

// SetNetwork is that of sandbox.Networked.
func (b *box) SetNetwork(ctx context.Context, n sandbox.Network) error {
	if err := b.isPaused(); err != nil {
		return err
	}
	return b.asked.SetNetwork(ctx, b.Link, b.door, n)
}

var (
	_ sandbox.Files      = (*box)(nil)
	_ sandbox.Adjustable = (*box)(nil)
	_ sandbox.Networked  = (*box)(nil)
	_ sandbox.Pausable   = (*box)(nil)
	_ sandbox.Measured   = (*box)(nil)
	_ sandbox.Ported     = (*box)(nil)
)
