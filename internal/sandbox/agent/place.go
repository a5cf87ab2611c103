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
	home      = "/home/user" // of the code
	rootBytes = 1 << 20      // of the folder all others hang in, which nobody can write to later
	rootFiles = 4096
)

// scaffolds are folders of the host one of which is covered while the place is
// being made.
var scaffolds = []string{"/tmp", "/run", "/mnt", "/dev"}

// devices are those of the host that are harmless.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// makePlace turns the copy of the host's mounts that the agent was born with
// into the place the plan describes. Mounts come first, since afterwards the
// host's files are gone.
func makePlace(p agentprotocol.Plan) error {
	unix.Umask(0o022)
	if p.Made {
		return furnish(p)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return call("mount", "make / private", err)
	}
	trees, err := openTrees(p.Trees)
	if err != nil {
		return err
	}
	devs, err := openDevices(p.DataBytes == 0)
	if err != nil {
		return err
	}
	if err := newRoot(); err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return hang(trees, p.Trees) },
		func() error { return writeTexts(p) },
		func() error { return makeDev(devs) },
		func() error { return makeWork(p) },
		makeProc,
		leaveHost,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return settle(p)
}

// furnish adds what can be written to a place that a container's runtime made.
func furnish(p agentprotocol.Plan) error {
	if err := unix.Chdir("/"); err != nil {
		return call("chdir", "/", err)
	}
	if p.Bound { // this is the first thread, which keeps that in mind
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
			return call("prctl", "PR_SET_PDEATHSIG", err)
		}
	}
	if err := layTexts(p.Texts); err != nil {
		return err
	}
	if p.DataBytes > 0 && !ownKernel() {
		if err := unix.Mount("/dev/"+readsZeros, "/dev/zero", "", unix.MS_BIND, ""); err != nil {
			return call("mount", "/dev/zero", err)
		}
	}
	if err := makeWork(p); err != nil {
		return err
	}
	if ownKernel() {
		if err := makePids(p); err != nil {
			return err
		}
	}
	if err := attribute("/", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err != nil {
		return err
	}
	return settle(p)
}

// openTrees takes hold of what is to be shown, before the new root covers any
// of it.
func openTrees(trees []agentprotocol.Tree) ([]int, error) {
	fds := make([]int, len(trees))
	for i, t := range trees {
		fds[i] = int(t.FD)
		if t.FD == 0 {
			fd, err := OpenTree(t.From)
			if err != nil {
				return nil, err
			}
			fds[i] = fd
		}
	}
	return fds, nil
}

// OpenTree takes hold of a folder or file of the host, read-only, with what is
// mounted below it. It is for the agent, and for a host that may mount.
func OpenTree(from string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, call("open_tree", from, err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		unix.Close(fd)
		return -1, call("mount_setattr", from, err)
	}
	return fd, nil
}

// readsZeros is the device that is shown as zero where memory is held process by
// process. It reads like zero; it cannot be mapped, while a shared mapping of zero
// takes memory that is data of no process. Writing to it fails.
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
			return nil, call("open_tree", "/dev/"+from, err)
		}
		fds[d] = fd
	}
	return fds, nil
}

// newRoot mounts an empty root and goes there. From here on the new root is
// where the agent works, and paths of the place are relative.
func newRoot() error {
	for _, s := range scaffolds {
		options := fmt.Sprintf("mode=755,size=%d,nr_inodes=%d", rootBytes, rootFiles)
		err := unix.Mount("tmpfs", s, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return call("mount", "tmpfs", err)
		}
		return call("chdir", s, unix.Chdir(s))
	}
	return fmt.Errorf("none of the folders %s exists, over which the sandbox could be made", strings.Join(scaffolds, " "))
}

// inside is a path of the place while it is being made.
func inside(p string) string { return strings.TrimPrefix(path.Clean("/"+p), "/") }

// hang puts the trees where they belong.
func hang(fds []int, trees []agentprotocol.Tree) error {
	for i, t := range trees {
		if err := hangOne(fds[i], t.To); err != nil {
			return err
		}
	}
	return nil
}

func hangOne(fd int, to string) error {
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return call("fstat", to, err)
	}
	at := inside(to)
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
	} else if err := write(at, ""); err != nil {
		return err
	}
	return call("move_mount", to, unix.MoveMount(fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH))
}

func write(at, says string) error {
	if err := os.MkdirAll(path.Dir(at), 0o755); err != nil {
		return err
	}
	return os.WriteFile(at, []byte(says), 0o644)
}

func writeTexts(p agentprotocol.Plan) error {
	for _, t := range p.Texts {
		if err := write(inside(t.At), t.Says); err != nil {
			return err
		}
	}
	for _, l := range p.Links {
		at := inside(l.At)
		if err := os.MkdirAll(path.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(l.Says, at); err != nil && !errors.Is(err, fs.ErrExist) {
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
		if err := hangOne(fd, "/dev/"+d); err != nil {
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
	// A kernel without terminals of its own still runs programs.
	if err := unix.Mount("devpts", "dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"); err != nil && !errors.Is(err, unix.ENODEV) {
		return call("mount", "devpts", err)
	}
	return nil
}

// makeWork makes everything that can be written to one file system, so that
// its size holds for all of it together.
func makeWork(p agentprotocol.Plan) error { return makeWorkOf(p, nil) }

// makeWorkOf takes what is there already along by a function, unless it is nil.
func makeWorkOf(p agentprotocol.Plan, take func(from, to string) error) error {
	const at = "run"
	if err := unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,"+workSize(p)); err != nil {
		return call("mount", "tmpfs of the work", err)
	}
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
			return call("mkdir", f.to, err)
		}
		if f.name == "home" {
			if err := unix.Chown(dir, int(p.UID), int(p.GID)); err != nil {
				return call("chown", f.to, err)
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
	return call("umount2", at, unix.Unmount(at, unix.MNT_DETACH))
}

func workSize(p agentprotocol.Plan) string {
	return fmt.Sprintf("size=%d,nr_inodes=%d", p.DiskBytes, p.DiskFiles)
}

// resizeWork changes how much all of it together may be.
func resizeWork(p agentprotocol.Plan) error {
	return call("mount", "again, the tmpfs of the work", unix.Mount("", home, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, workSize(p)))
}

// rebind shows the folder dir also at to.
func rebind(dir, to string, attr uint64) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return call("open_tree", dir, err)
	}
	defer unix.Close(fd)
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil || attr == 0 {
		return call("move_mount", to, err)
	}
	return attribute(to, attr|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
}

const procFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

func makeProc() error {
	return call("mount", "proc", unix.Mount("proc", "proc", "proc", procFlags, "hidepid=invisible"))
}

// leaveHost makes the new root the root of everything and lets go of the
// host's.
func leaveHost() error {
	if err := unix.PivotRoot(".", "."); err != nil {
		return call("pivot_root", ".", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return call("umount2", "the host's root", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return call("chdir", "/", err)
	}
	a := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	return call("mount_setattr", "/", unix.MountSetattr(unix.AT_FDCWD, "/", 0, &a))
}

// settle does what is left once the files are in place.
func settle(p agentprotocol.Plan) error {
	if err := limitGroup(p); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
		return call("sethostname", p.Hostname, err)
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	return call("prctl", "PR_SET_DUMPABLE", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return nil // a kernel without a network has no loopback
	}
	if err != nil {
		return call("socket", "AF_INET", err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	err = ioctl(fd, unix.SIOCSIFFLAGS, unsafe.Pointer(ifr))
	if errors.Is(err, unix.ENOTTY) {
		return nil // a kernel in user space, where it is up from the beginning
	}
	return call("ioctl", "SIOCSIFFLAGS lo", err)
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
