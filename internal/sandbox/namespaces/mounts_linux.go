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
	plan *agentprotocol.Plan, files []*os.File, mounts []sandbox.Mount, b *instance,
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
		if m.File != nil || m.From != "" && !d.users.Single {
			f, err := d.openMount(m, b, owners)
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

// openBase opens the folder of an image that becomes the root of a sandbox. users is the translation of a sandbox with
// users of its own, or -1. The code of another one owns the files, because a layer over files of an owner whom the
// sandbox does not have could not copy them.
func (d *Driver) openBase(from string, users int, b *instance) (t agentprotocol.Tree, files []*os.File, err error) {
	t = agentprotocol.Tree{From: from, To: "/"}
	if d.users.Single {
		return t, nil, nil
	}
	if users < 0 {
		var st unix.Stat_t
		if err := unix.Lstat(from, &st); err != nil {
			return t, nil, fmt.Errorf("lstat(%s): %w", from, err)
		}
		f, err := d.translate(owner{st.Uid, st.Gid}, b)
		if err != nil {
			return t, nil, err
		}
		defer f.Close()
		users = int(f.Fd())
	}
	fd, err := agent.OpenTree(from, users)
	if errors.Is(err, unix.EINVAL) { // the file system cannot translate owners; without a layer it need not
		err = fmt.Errorf("mount %s: %w", agentprotocol.RootLayer, err)
	}
	if err != nil {
		return t, nil, err
	}
	t.FD, t.From = firstTree, ""
	return t, []*os.File{os.NewFile(uintptr(fd), from)}, nil
}

// owner is who owns a folder of the host.
type owner struct{ uid, gid uint32 }

// anyOwner stands for the owners of a mount that is Owned.
var anyOwner = owner{^uint32(0), ^uint32(0)}

func (d *Driver) openMount(m sandbox.Mount, b *instance, owners map[owner]*os.File) (*os.File, error) {
	if m.File != nil {
		fd, err := unix.FcntlInt(m.File.Fd(), unix.F_DUPFD_CLOEXEC, firstTree)
		if err != nil {
			return nil, fmt.Errorf("fcntl(F_DUPFD_CLOEXEC): %w", err)
		}
		return os.NewFile(uintptr(fd), m.To), nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(m.From, &st); err != nil {
		return nil, fmt.Errorf("lstat(%s): %w", m.From, err)
	}
	if m.Device {
		fd, err := agent.OpenMount(m.From, m.Write, true, -1)
		return os.NewFile(uintptr(fd), m.From), err
	}
	of := owner{st.Uid, st.Gid}
	if m.Owned && b.ranged {
		of = anyOwner
	}
	if owners[of] == nil {
		f, err := d.translate(of, b)
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

func (d *Driver) translate(of owner, b *instance) (*os.File, error) {
	if of == anyOwner {
		return d.keptTranslation(b)
	}
	uid, gid, _ := d.users.Range(b.slot)
	uid, gid = uid+rootfs.CodeID, gid+rootfs.CodeID
	if b.code != nil {
		uid, gid = int(b.code.uid), int(b.code.gid)
	}
	return d.translation(
		[]syscall.SysProcIDMap{{ContainerID: int(of.uid), HostID: uid, Size: 1}},
		[]syscall.SysProcIDMap{{ContainerID: int(of.gid), HostID: gid, Size: 1}})
}

// keptTranslation is translation for files that may belong to any user of a sandbox.
func (d *Driver) keptTranslation(b *instance) (*os.File, error) {
	uid, gid, size := d.users.Range(b.slot)
	return d.translation(
		[]syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: uid, Size: 1},
			{ContainerID: b.kept.UID, HostID: uid + 1, Size: size - 1}},
		[]syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: gid, Size: 1},
			{ContainerID: b.kept.GID, HostID: gid + 1, Size: size - 1}})
}

// translation returns a user namespace that translates ids of files to those of a sandbox. The kernel takes such maps
// from user namespaces only, so that a process is started in one, and killed before it runs anything.
func (d *Driver) translation(uids, gids []syscall.SysProcIDMap) (*os.File, error) {
	runtime.LockOSThread() // that traces the process
	defer runtime.UnlockOSThread()
	p, err := os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", d.image.Fd()), []string{"agent"}, &os.ProcAttr{
		Sys: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: uids,
			GidMappings: gids,
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
