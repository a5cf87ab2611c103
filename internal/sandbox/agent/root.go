//go:build linux && (amd64 || arm64)

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"unsafe"

	"gatehouse/internal/sandbox/agentprotocol"

	"golang.org/x/sys/unix"
)

const (
	home      = "/home/user" // home folder of the code
	rootBytes = 1 << 20      // of the tmpfs that is the root; it is read-only later
	rootFiles = 4096
)

// mountPoints are folders of the host, the first existing of which serves as the mount point of the new root.
var mountPoints = []string{"/tmp", "/run", "/mnt", "/dev"}

// devices are the devices of the host that are harmless.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// setUpRoot turns the agent's copy of the host's mounts into the file system that the plan describes. The
// host's trees and devices are opened first, because their paths are covered afterwards.
func setUpRoot(p agentprotocol.Plan) error {
	unix.Umask(0o022)
	if p.Prebuilt {
		return setUpPrebuilt(p)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return sysErr("mount", "make / private", err)
	}
	trees, err := openTrees(p.Trees)
	if err != nil {
		return err
	}
	mounts, err := openMounts(p.Mounts)
	if err != nil {
		return err
	}
	devs, err := openDevices(p.DataBytes == 0)
	if err != nil {
		return err
	}
	bases, err := openTrees(baseTrees(p))
	if err != nil {
		return err
	}
	if err := newRoot(); err != nil {
		return err
	}
	root := []func() error{
		func() error { return attachTrees(trees, p.Trees) },
		func() error { return writeFiles(p) },
	}
	if len(bases) > 0 {
		root = []func() error{
			func() error { return layBase(bases[0], p) },
			func() error { return attachTrees(trees, p.Trees) },
		}
	}
	for _, step := range append(root,
		func() error { return makeDev(devs) },
		func() error { return mountWritable(p) },
		makeProc,
		func() error { return attachMounts(mounts, p.Mounts) },
		func() error { return pivotRoot(len(bases) == 0) },
	) {
		if err := step(); err != nil {
			return err
		}
	}
	return finishSetup(p)
}

// setUpPrebuilt adds the writable folders to a root file system that a container runtime set up.
func setUpPrebuilt(p agentprotocol.Plan) error {
	if err := unix.Chdir("/"); err != nil {
		return sysErr("chdir", "/", err)
	}
	if p.DieWithParent { // this runs on the first thread, whose setting counts
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
			return sysErr("prctl", "PR_SET_PDEATHSIG", err)
		}
	}
	if err := overwriteFiles(p.Files); err != nil {
		return err
	}
	if p.DataBytes > 0 && !underGVisor() {
		if err := unix.Mount("/dev/"+readsZeros, "/dev/zero", "", unix.MS_BIND, ""); err != nil {
			return sysErr("mount", "/dev/zero", err)
		}
	}
	if err := mountWritable(p); err != nil {
		return err
	}
	if underGVisor() {
		if err := makePidsGroup(p); err != nil {
			return err
		}
	}
	if err := setMountAttr("/", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err != nil {
		return err
	}
	return finishSetup(p)
}

// openTrees opens the trees before the new root covers any of them.
func openTrees(trees []agentprotocol.Tree) ([]int, error) {
	fds := make([]int, len(trees))
	for i, t := range trees {
		fds[i] = int(t.FD)
		if t.FD == 0 {
			fd, err := OpenTree(t.From, -1)
			if err != nil {
				return nil, err
			}
			fds[i] = fd
		}
	}
	return fds, nil
}

// OpenTree opens a detached, read-only copy of a mount of the host with everything mounted below it. The agent
// uses it, and a host that has the permission to mount. users is as in OpenMount.
func OpenTree(from string, users int) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, sysErr("open_tree", from, err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if users >= 0 {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(users)
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		unix.Close(fd)
		return -1, sysErr("mount_setattr", from, err)
	}
	return fd, nil
}

// readsZeros is the device that is mounted as /dev/zero if memory is limited for each process. It reads like zero
// but cannot be mapped; a shared mapping of /dev/zero uses memory that counts for no process. Writing to it fails.
const readsZeros = "full"

func openDevices(mappable bool) (map[string]int, error) {
	fds := map[string]int{}
	for _, d := range devices {
		from := d
		if d == "zero" && !mappable {
			from = readsZeros
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, "/dev/"+from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if errors.Is(err, unix.ENOENT) && d != "null" {
			continue
		}
		if err != nil {
			return nil, sysErr("open_tree", "/dev/"+from, err)
		}
		fds[d] = fd
	}
	return fds, nil
}

// newRoot mounts an empty root and enters it. From then on paths of the sandbox are relative to the working
// directory.
func newRoot() error {
	for _, s := range mountPoints {
		options := fmt.Sprintf("mode=755,size=%d,nr_inodes=%d", rootBytes, rootFiles)
		err := unix.Mount("tmpfs", s, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return sysErr("mount", "tmpfs", err)
		}
		return sysErr("chdir", s, unix.Chdir(s))
	}
	return fmt.Errorf("none of the folders %s exists; one of them is required as a mount point",
		strings.Join(mountPoints, " "))
}

// inside returns the relative path of a path of the sandbox while the new root is being set up.
func inside(p string) string { return strings.TrimPrefix(path.Clean("/"+p), "/") }

// attachTrees mounts the trees at their paths.
func attachTrees(fds []int, trees []agentprotocol.Tree) error {
	for i, t := range trees {
		if err := attachTree(fds[i], t.To); err != nil {
			return err
		}
	}
	return nil
}

func attachTree(fd int, to string) error {
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return sysErr("fstat", to, err)
	}
	at := inside(to)
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
	} else if err := writeTextFile(at, ""); err != nil {
		return err
	}
	return sysErr("move_mount", to, unix.MoveMount(fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH))
}

func writeTextFile(at, says string) error {
	if err := os.MkdirAll(path.Dir(at), 0o755); err != nil {
		return err
	}
	return os.WriteFile(at, []byte(says), 0o644)
}

func writeFiles(p agentprotocol.Plan) error {
	for _, t := range p.Files {
		if err := writeTextFile(inside(t.Path), t.Content); err != nil {
			return err
		}
	}
	for _, l := range p.Links {
		at := inside(l.Path)
		if err := os.MkdirAll(path.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(l.Content, at); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

func makeDev(devs map[string]int) error {
	for _, dir := range []string{"dev/pts", "dev/shm", "proc", "sys", "tmp", "var/tmp", "run", "home/user"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for d, fd := range devs {
		if err := attachTree(fd, "/dev/"+d); err != nil {
			return err
		}
	}
	for at, to := range map[string]string{
		"dev/fd": "/proc/self/fd", "dev/stdin": "/proc/self/fd/0", "dev/stdout": "/proc/self/fd/1",
		"dev/stderr": "/proc/self/fd/2", "dev/ptmx": "pts/ptmx",
	} {
		if err := os.Symlink(to, at); err != nil {
			return err
		}
	}
	// A kernel without devpts still runs programs that need no terminal.
	err := unix.Mount("devpts", "dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC,
		"newinstance,ptmxmode=0666,mode=0620,"+agentprotocol.MaxTerminals)
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return sysErr("mount", "devpts", err)
	}
	return nil
}

// mountWritable mounts all writable folders from one file system, so that its size limits them together.
func mountWritable(p agentprotocol.Plan) error {
	if p.Base.To != "" {
		return bindWritable(p, baseWork, nil) // which is mounted already
	}
	return mountWritableFrom(p, nil)
}

// mountWritableFrom calls take to move existing contents into the new folders, unless take is nil.
func mountWritableFrom(p agentprotocol.Plan, take func(from, to string) error) error {
	const at = "run"
	if err := mountWork(at, p); err != nil {
		return err
	}
	return bindWritable(p, at, take)
}

func mountWork(at string, p agentprotocol.Plan) error {
	return sysErr("mount", "tmpfs of the work",
		unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,"+writableSize(p)))
}

// bindWritable makes the writable folders in the file system that is mounted at a path, mounts them, and detaches it.
func bindWritable(p agentprotocol.Plan, at string, take func(from, to string) error) error {
	for _, f := range []struct {
		name, to string
		mode     uint32
		attr     uint64
	}{
		{"home", inside(home), 0o750, 0},
		{"tmp", "tmp", 0o1777, 0},
		{"vartmp", "var/tmp", 0o1777, 0},
		{"shm", "dev/shm", 0o1777, unix.MOUNT_ATTR_NOEXEC},
	} {
		dir := at + "/" + f.name
		if err := errors.Join(unix.Mkdir(dir, 0o700), unix.Chmod(dir, f.mode)); err != nil {
			return sysErr("mkdir", f.to, err)
		}
		if f.name == "home" {
			if err := unix.Chown(dir, int(p.UID), int(p.GID)); err != nil {
				return sysErr("chown", f.to, err)
			}
		}
		if take != nil {
			if err := take(f.to, dir); err != nil {
				return err
			}
		}
		if err := rebind(dir, f.to, f.attr); err != nil {
			return err
		}
	}
	return sysErr("umount2", at, unix.Unmount(at, unix.MNT_DETACH))
}

func writableSize(p agentprotocol.Plan) string {
	return fmt.Sprintf("size=%d,nr_inodes=%d", p.DiskBytes, p.DiskFiles)
}

// remountWritable changes the size of the file system of the writable folders.
func remountWritable(p agentprotocol.Plan) error {
	return sysErr("mount", "again, the tmpfs of the work",
		unix.Mount("", home, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, writableSize(p)))
}

// rebind mounts the folder dir on to as well.
func rebind(dir, to string, attr uint64) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return sysErr("open_tree", dir, err)
	}
	defer unix.Close(fd)
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil || attr == 0 {
		return sysErr("move_mount", to, err)
	}
	return setMountAttr(to, attr|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
}

const procFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

func makeProc() error {
	return sysErr("mount", "proc", unix.Mount("proc", "proc", "proc", procFlags, "hidepid=invisible"))
}

// pivotRoot makes the new root the root of the process and detaches the host's. seal has the new one be read-only.
func pivotRoot(seal bool) error {
	if err := unix.PivotRoot(".", "."); err != nil {
		return sysErr("pivot_root", ".", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return sysErr("umount2", "the host's root", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return sysErr("chdir", "/", err)
	}
	if !seal {
		return nil
	}
	a := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	return sysErr("mount_setattr", "/", unix.MountSetattr(unix.AT_FDCWD, "/", 0, &a))
}

// finishSetup does the setup that remains after the file system.
func finishSetup(p agentprotocol.Plan) error {
	if err := limitGroup(p); err != nil {
		return err
	}
	if err := limitCounts(p); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
		return sysErr("sethostname", p.Hostname, err)
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	if p.Route {
		if err := routeToHost(p); err != nil {
			return err
		}
	}
	return sysErr("prctl", "PR_SET_DUMPABLE", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return nil // a kernel without a network has no loopback interface
	}
	if err != nil {
		return sysErr("socket", "AF_INET", err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	err = ioctl(fd, unix.SIOCSIFFLAGS, unsafe.Pointer(ifr))
	if errors.Is(err, unix.ENOTTY) {
		return nil // gVisor's loopback interface is always up
	}
	return sysErr("ioctl", "SIOCSIFFLAGS lo", err)
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
