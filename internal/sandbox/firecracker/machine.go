//go:build linux && (amd64 || arm64)

package firecracker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/cgroup"
	"gatehouse/internal/sandbox/firecracker/api"
)

const (
	apiWait  = 10 * time.Second // for the process to listen
	bootWait = time.Minute      // for the agent in the machine to listen
	guestCID = 3                // the first that a machine may have; each is alone
)

// errSilent is what a machine ends with that was started and does nothing.
var errSilent = errors.New("the agent in the machine does not answer")

// machine is one Firecracker with its jail. Whoever makes it calls end.
type machine struct {
	jail    *jail
	process *process
	api     *api.Client
	bare    bool   // it may be paused without a snapshot, see release
	stands  stance // how it stands still, if it does
}

// launch starts a process that waits to be told what machine to run.
func launch(ctx context.Context, p parts, j *jail, fileSize int64, group *cgroup.Group) (*machine, error) {
	arguments := []string{"--api-sock", apiSocket}
	command := append([]string{p.vmm.path, "--id", j.id}, arguments...)
	if p.jailer != nil {
		command = warden{
			jailer: p.jailer.path, binary: p.vmm.path, id: j.id, uid: j.uid, gid: j.gid, base: j.base,
			fileSize: fileSize, descriptors: descriptors, arguments: arguments,
		}.command()
	}
	process, err := startProcess(command, j.path(""), p.jailer != nil, group)
	if err != nil {
		return nil, err
	}
	m := &machine{jail: j, process: process, bare: !p.vmm.version.before(bare)}
	m.api = api.New(func(ctx context.Context) (net.Conn, error) { return j.dial(ctx, apiSocket) })
	if err := m.listens(ctx); err != nil {
		m.end()
		return nil, err
	}
	return m, nil
}

// descriptors are files a process may have open.
const descriptors = 1024

// listens waits for the process to be reached.
func (m *machine) listens(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, apiWait, fmt.Errorf("firecracker does not listen at its socket after %v", apiWait))
	defer cancel()
	return m.until(ctx, func() error {
		conn, err := m.jail.dial(ctx, apiSocket)
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// until tries again and again. An error that is final ends it, and so does the
// end of the process, which says why.
func (m *machine) until(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-m.process.ended:
			return m.process.why(errors.New("the machine is gone"))
		case <-ctx.Done():
			return m.process.why(fmt.Errorf("%w (%w)", context.Cause(ctx), err))
		case <-time.After(retryAfter):
		}
	}
}

// plan is what a machine is to be like. Paths are those in the jail.
type plan struct {
	vcpus, memoryMiB int
	arguments        string
	disks            int
}

// disk is the name of a disk in the jail and in the interface.
func disk(i int) string { return fmt.Sprintf("vd%c", 'a'+i) }

// boot says what the machine is like, in the order in which it has to be said,
// and starts it.
func (m *machine) boot(ctx context.Context, p plan) error {
	steps := []func() error{
		func() error {
			return m.api.PutMachine(ctx, api.Machine{VCPUs: p.vcpus, MemoryMiB: p.memoryMiB})
		},
		func() error {
			return m.api.PutBootSource(ctx, api.BootSource{Kernel: kernelFile, Initrd: initrdFile, Args: p.arguments})
		},
	}
	for i := range p.disks { // the machine names them in this order
		steps = append(steps, func() error {
			return m.api.PutDrive(ctx, api.Drive{ID: disk(i), Path: disk(i), ReadOnly: true})
		})
	}
	steps = append(steps,
		func() error { return m.api.PutVsock(ctx, api.Vsock{CID: guestCID, Path: agentSocket}) },
		func() error { return m.api.PutEntropy(ctx, api.Entropy{}) },
		func() error { return m.api.Start(ctx) },
	)
	return m.inTurn(steps...)
}

// load makes the machine one that was kept, and lets it go on.
func (m *machine) load(ctx context.Context) error {
	return m.inTurn(func() error {
		return m.api.LoadSnapshot(ctx, api.SnapshotLoad{
			State: wasState, Memory: api.MemoryBackend{Type: "File", Path: wasMemory}, Resume: true,
		})
	})
}

func (m *machine) inTurn(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return m.process.why(err)
		}
	}
	return nil
}

// agent connects to the agent in the machine, which may still boot.
func (m *machine) agent(ctx context.Context) (conn net.Conn, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bootWait, fmt.Errorf("%w after %v", errSilent, bootWait))
	defer cancel()
	err = m.until(ctx, func() error {
		conn, err = m.jail.dial(ctx, agentSocket)
		if err == nil {
			err = connect(ctx, conn, agentprotocol.VsockPort)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// stance is how a machine stands still.
type stance int

const (
	running stance = iota
	frozen         // its process stands, and does not answer
	paused         // its processors do, or may
)

// pause stops the machine. One that is not to be kept stands with its whole
// process where the socket device would not survive anything else.
func (m *machine) pause(ctx context.Context, toKeep bool) error {
	if m.bare || toKeep {
		m.stands = paused
		return m.api.Pause(ctx)
	}
	if err := m.process.freeze(ctx); err != nil {
		return err
	}
	m.stands = frozen
	return nil
}

// keep writes a snapshot of a machine that was paused. It stays paused.
func (m *machine) keep(ctx context.Context) error {
	if m.stands == frozen { // it has to answer for that
		if err := m.process.thaw(); err != nil {
			return err
		}
		if err := m.pause(ctx, true); err != nil {
			return err
		}
	}
	return m.api.CreateSnapshot(ctx, api.SnapshotCreate{State: stateFile, Memory: memoryFile, Type: "Full"})
}

// resume lets the machine go on. One that goes on already is left alone, since
// it would have its socket device reset.
func (m *machine) resume(ctx context.Context) error {
	var err error
	switch m.stands {
	case frozen:
		err = m.process.thaw()
	case paused:
		err = m.api.Resume(ctx)
	}
	if err == nil {
		m.stands = running
	}
	return err
}

// end ends the machine. Its jail stays.
func (m *machine) end() {
	m.process.kill()
	m.api.Close()
}
