//go:build linux && (amd64 || arm64)

package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gatehouse/internal/sandbox/agentprotocol"

	"golang.org/x/sys/unix"
)

const (
	overlayBytes = 4 << 20 // of the files that the agent adds to the root file system, which is read-only later
	overlayFiles = 4096
)

// mountGuestRoot mounts the root file system of the machine on /newroot and enters it: the first disk, overlaid by
// a tmpfs for the agent's additions, with a small /dev and the trees. The result looks like one that a
// container runtime set up, so that the host's plan has Prebuilt set.
func mountGuestRoot(b boot) error {
	if err := mountDisk(b.root, "/lower"); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/upper", "tmpfs", 0,
		fmt.Sprintf("mode=755,size=%d,nr_inodes=%d", overlayBytes, overlayFiles)); err != nil {
		return sysErr("mount", "tmpfs of the root", err)
	}
	if err := errors.Join(os.Mkdir("/upper/new", 0o755), os.Mkdir("/upper/work", 0o755)); err != nil {
		return err
	}
	if err := unix.Mount("overlay", "/newroot", "overlay", 0,
		"lowerdir=/lower,upperdir=/upper/new,workdir=/upper/work"); err != nil {
		return sysErr("mount", "overlay of the root", err)
	}
	for _, t := range b.trees {
		at := "/newroot" + t.at
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := mountDisk(t, at); err != nil {
			return err
		}
	}
	if err := unix.Chdir("/newroot"); err != nil {
		return sysErr("chdir", "/newroot", err)
	}
	return populateGuest()
}

// populateGuest adds to the new root, which is the working directory, the folders and devices that every sandbox
// has.
func populateGuest() error {
	// In an image these names may be links, which must not be followed.
	for _, dir := range []string{"dev", "proc", "sys", "run", "tmp", "home/user", "var/tmp"} {
		if err := ensureFolder(dir); err != nil {
			return err
		}
	}
	devs, err := openDevices(true)
	if err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=65536"); err != nil {
		return sysErr("mount", "tmpfs of /dev", err)
	}
	if err := makeDev(devs); err != nil {
		return err
	}
	return makeProc()
}

// ensureFolder makes sure that a path of the sandbox is a folder and not a link.
func ensureFolder(name string) error {
	at := ""
	for part := range strings.SplitSeq(name, "/") {
		at = filepath.Join(at, part)
		info, err := os.Lstat(at)
		if err == nil && !info.IsDir() {
			if err = os.Remove(at); err == nil {
				err = os.ErrNotExist
			}
		}
		if errors.Is(err, os.ErrNotExist) {
			err = os.Mkdir(at, 0o755)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// overwriteFiles writes small files over those of an image. If the runtime wrote them already, the plan has none.
func overwriteFiles(texts []agentprotocol.TextFile) error {
	for _, t := range texts {
		at := inside(t.Path)
		if err := ensureFolder(filepath.Dir(at)); err != nil {
			return err
		}
		if err := os.RemoveAll(at); err != nil {
			return err
		}
		if err := os.WriteFile(at, []byte(t.Content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// mountDisk mounts a disk of the machine after waiting for its device.
func mountDisk(d disk, at string) error {
	return retryWhileMissing("the disk "+d.name, func() error {
		err := unix.Mount("/dev/"+d.name, at, d.kind, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, "")
		return sysErr("mount", "/dev/"+d.name+" as "+d.kind, err)
	}, unix.ENOENT, unix.ENXIO)
}

// retryWhileMissing repeats do while it fails with one of the errors missing, for up to diskWait.
func retryWhileMissing(what string, do func() error, missing ...error) error {
	for end := time.Now().Add(diskWait); ; time.Sleep(5 * time.Millisecond) {
		err := do()
		late := time.Now().After(end)
		if err == nil || late {
			return err
		}
		waits := false
		for _, m := range missing {
			waits = waits || errors.Is(err, m)
		}
		if !waits {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

// openSerial opens the machine's port that is named BootPort. The end of its input means that the host has
// disconnected for a while, not for good.
func openSerial() (io.ReadWriter, error) {
	var port *os.File
	err := retryWhileMissing("the port "+agentprotocol.BootPort, func() error {
		names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		if err != nil {
			return err
		}
		for _, n := range names {
			if b, err := os.ReadFile(n); err == nil && strings.TrimSpace(string(b)) == agentprotocol.BootPort {
				// Without O_NONBLOCK a read blocks in the kernel, and a write is always completed.
				fd, err := unix.Open("/dev/"+filepath.Base(filepath.Dir(n)), unix.O_RDWR|unix.O_CLOEXEC, 0)
				if err != nil {
					return sysErr("open", n, err)
				}
				port = os.NewFile(uintptr(fd), "port")
				return nil
			}
		}
		return os.ErrNotExist
	}, os.ErrNotExist, unix.ENOENT)
	if err != nil {
		return nil, err
	}
	return reopeningPort{port}, nil
}

// reopeningPort is a port without an end: while the host is disconnected, Read waits until it connects again.
type reopeningPort struct{ *os.File }

// Read waits for data.
func (s reopeningPort) Read(b []byte) (int, error) {
	for {
		n, err := s.File.Read(b)
		if n > 0 || !errors.Is(err, io.EOF) {
			return n, err
		}
		time.Sleep(time.Millisecond)
	}
}

// listenVsock listens on the port that the host connects to, and returns a function that accepts the next
// connection.
func listenVsock() (func() (io.ReadWriter, error), error) {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, sysErr("socket", "AF_VSOCK", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: agentprotocol.VsockPort}); err != nil {
		return nil, sysErr("bind", "vsock", err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		return nil, sysErr("listen", "vsock", err)
	}
	return func() (io.ReadWriter, error) {
		for {
			c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED) {
				continue
			}
			if err != nil {
				return nil, sysErr("accept", "vsock", err)
			}
			return os.NewFile(uintptr(c), "connection"), nil
		}
	}, nil
}

// switchRoot makes the new root the root of the process.
func switchRoot() error {
	for _, at := range []string{groups, "/dev", "/sys", "/proc"} {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			return sysErr("umount2", at, err)
		}
	}
	// The initramfs can neither be unmounted nor pivoted away from. It is covered, and it contains nothing but
	// the running agent, which the code may read.
	if err := unix.Chdir("/newroot"); err != nil {
		return sysErr("chdir", "/newroot", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return sysErr("mount", "move the root", err)
	}
	if err := unix.Chroot("."); err != nil {
		return sysErr("chroot", ".", err)
	}
	return sysErr("chdir", "/", unix.Chdir("/"))
}
