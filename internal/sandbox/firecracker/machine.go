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
	guestCID = 3                // the first allowed; machines do not share a vsock
)

// errSilent is the error of a machine that was started but does not answer.
var errSilent = errors.New("the agent in the machine does not answer")

// machine is one Firecracker with its jail. The caller of launch must call end.
type machine struct {
	jail        *jail
	process     *process
	api         *api.Client
	pausesAlone bool      // it may be paused without a snapshot, see release.go
	pauseState  pauseMode // how it is paused, if it is
}

// launch starts a process that waits for the configuration of its machine.
func launch(ctx context.Context, p parts, j *jail, fileSize int64, group *cgroup.Group) (*machine, error) {
	arguments := []string{"--api-sock", apiSocket}
	command := append([]string{p.vmm.path, "--id", j.id}, arguments...)
	if p.jailer != nil {
		command = jailerCommand{
			jailer: p.jailer.path, binary: p.vmm.path, id: j.id, uid: j.uid, gid: j.gid, base: j.base,
			fileSize: fileSize, descriptors: descriptors, arguments: arguments,
		}.command()
	}
	process, err := startProcess(command, j.path(""), p.jailer != nil, group)
	if err != nil {
		return nil, err
	}
	m := &machine{jail: j, process: process, pausesAlone: !p.vmm.version.before(pauseWorks)}
	m.api = api.New(func(ctx context.Context) (net.Conn, error) { return j.dial(ctx, apiSocket) })
	if err := m.listens(ctx); err != nil {
		m.endMachine()
		return nil, err
	}
	return m, nil
}

// descriptors is how many files a process may have open.
const descriptors = 1024

// listens waits until the process accepts connections.
func (m *machine) listens(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, apiWait,
		fmt.Errorf("firecracker does not listen on its socket after %v", apiWait))
	defer cancel()
	return m.until(ctx, func() error {
		conn, err := m.jail.dial(ctx, apiSocket)
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// until retries try until it succeeds, ctx ends or the process ends.
func (m *machine) until(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-m.process.ended:
			return m.process.withOutput(errors.New("the machine ended"))
		case <-ctx.Done():
			return m.process.withOutput(fmt.Errorf("%w (%w)", context.Cause(ctx), err))
		case <-time.After(retryAfter):
		}
	}
}

// plan is the configuration of a machine. Paths are relative to the jail.
type plan struct {
	vcpus, memoryMiB int
	arguments        string
	disks            int
}

// disk returns the name of a disk in the jail and in the API.
func disk(i int) string { return fmt.Sprintf("vd%c", 'a'+i) }

// boot configures the machine, in the order that Firecracker requires, and starts it.
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
	return m.runSteps(steps...)
}

// load restores the machine from a snapshot and resumes it.
func (m *machine) load(ctx context.Context) error {
	return m.runSteps(func() error {
		return m.api.LoadSnapshot(ctx, api.SnapshotLoad{
			State: wasState, Memory: api.MemoryBackend{Type: "File", Path: wasMemory}, Resume: true,
		})
	})
}

func (m *machine) runSteps(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return m.process.withOutput(err)
		}
	}
	return nil
}

// agent connects to the agent in the machine, which may still be booting.
func (m *machine) agent(ctx context.Context) (conn net.Conn, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bootWait, fmt.Errorf("%w after %v", errSilent, bootWait))
	defer cancel()
	err = m.until(ctx, func() error {
		conn, err = m.jail.dial(ctx, agentSocket)
		if err == nil {
			err = connectVsock(ctx, conn, agentprotocol.VsockPort)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// pauseMode is how a machine is paused.
type pauseMode int

const (
	running pauseMode = iota
	frozen            // its process is stopped and does not answer
	paused            // its processors are paused, or may be
)

// pause pauses the machine. Releases whose vsock device does not survive a pause without a snapshot have their
// whole process stopped instead, unless a snapshot follows.
func (m *machine) pause(ctx context.Context, toKeep bool) error {
	if m.pausesAlone || toKeep {
		m.pauseState = paused
		return m.api.Pause(ctx)
	}
	if err := m.process.freeze(ctx); err != nil {
		return err
	}
	m.pauseState = frozen
	return nil
}

// saveSnapshot writes a snapshot of a paused machine. It stays paused.
func (m *machine) saveSnapshot(ctx context.Context) error {
	if m.pauseState == frozen { // the process must run to answer
		if err := m.process.thaw(); err != nil {
			return err
		}
		if err := m.pause(ctx, true); err != nil {
			return err
		}
	}
	return m.api.CreateSnapshot(ctx, api.SnapshotCreate{State: stateFile, Memory: memoryFile, Type: "Full"})
}

// resume resumes the machine. It does nothing if the machine runs, because Resume would reset its vsock
// device.
func (m *machine) resume(ctx context.Context) error {
	var err error
	switch m.pauseState {
	case frozen:
		err = m.process.thaw()
	case paused:
		err = m.api.Resume(ctx)
	}
	if err == nil {
		m.pauseState = running
	}
	return err
}

// endMachine ends the machine. Its jail stays.
func (m *machine) endMachine() {
	m.process.killVMM()
	m.api.Close()
}
