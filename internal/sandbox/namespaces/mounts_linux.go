//go:build amd64 || arm64

package namespaces

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agent"
	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/egress"
	"gatehouse/internal/sandbox/rootfs"

	"golang.org/x/sys/unix"
)

// addMounts adds the mounts of a sandbox to its plan. If it has users of its own, its code is the owner of the files:
// the kernel translates the ids of each mount. files are those that the agent inherits.
func (d *Driver) addMounts(
	plan *agentprotocol.Plan, files []*os.File, mounts []sandbox.Mount, slot int,
) ([]*os.File, error) {
	owners := map[owner]*os.File{}
	defer func() {
		for _, f := range owners {
			f.Close()
		}
	}()
	for _, m := range mounts {
		shown := agentprotocol.Mount{From: m.From, To: m.To, Write: m.Write, Device: m.Device}
		if shown.To == "" {
			shown.To = m.From
		}
		if m.From != "" && !d.users.Single {
			f, err := d.openMount(m, slot, owners)
			if err != nil {
				return files, err
			}
			shown.FD, shown.From = int64(firstTree+len(files)), ""
			files = append(files, f)
		}
		plan.Mounts = append(plan.Mounts, shown)
	}
	return files, nil
}

// owner is who owns a folder of the host.
type owner struct{ uid, gid uint32 }

func (d *Driver) openMount(m sandbox.Mount, slot int, owners map[owner]*os.File) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Lstat(m.From, &st); err != nil {
		return nil, fmt.Errorf("lstat(%s): %w", m.From, err)
	}
	if m.Device {
		fd, err := agent.OpenMount(m.From, m.Write, true, -1)
		return os.NewFile(uintptr(fd), m.From), err
	}
	of := owner{st.Uid, st.Gid}
	if owners[of] == nil {
		f, err := d.translation(of, slot)
		if err != nil {
			return nil, err
		}
		owners[of] = f
	}
	fd, err := agent.OpenMount(m.From, m.Write, false, int(owners[of].Fd()))
	if errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("the file system of %s cannot translate the owners of files, which a host that runs as root "+
			"needs: %w; run the host as an ordinary user", m.From, err)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), m.From), nil
}

// translation returns a user namespace that translates the ids of one owner to those of the code in a slot. The kernel
// takes such maps from user namespaces only, so that a process is started in one, and killed before it runs anything.
func (d *Driver) translation(of owner, slot int) (*os.File, error) {
	uid, gid, _ := d.users.Range(slot)
	runtime.LockOSThread() // that traces the process
	defer runtime.UnlockOSThread()
	p, err := os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", d.image.Fd()), []string{"agent"}, &os.ProcAttr{
		Sys: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: int(of.uid), HostID: uid + rootfs.CodeID, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: int(of.gid), HostID: gid + rootfs.CodeID, Size: 1}},
			Ptrace:      true,
			Pdeathsig:   syscall.SIGKILL,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("clone(CLONE_NEWUSER): %w", err)
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", p.Pid))
	err = errors.Join(err, p.Kill())
	p.Wait()
	if err != nil && f != nil {
		f.Close()
	}
	return f, err
}

// routePlan has the agent route every address to the host.
func routePlan(plan *agentprotocol.Plan, r *sandbox.Route) {
	plan.Route = true
	for _, port := range r.Ports {
		plan.Ports = append(plan.Ports, int64(port))
	}
	for i, f := range plan.Files {
		if f.Path == "/etc/resolv.conf" {
			plan.Files[i].Content = strings.Join([]string{"nameserver " + egress.Resolver, ""}, "\n")
		}
	}
}
