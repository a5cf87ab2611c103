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
	overlayBytes = 4 << 20 // of what the agent itself adds to the root; nobody can write there later
	overlayFiles = 4096
)

// guestRoot makes the root of the guest: what the first disk has, under a file
// system in memory for what the place adds, with a small /dev and the trees.
// Then it goes there. It is made as if by a container's runtime, so that the
// host's plan finds a place that is made.
func guestRoot(b boot) error {
	if err := mountDisk(b.root, "/lower"); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/upper", "tmpfs", 0, fmt.Sprintf("mode=755,size=%d,nr_inodes=%d", overlayBytes, overlayFiles)); err != nil {
		return call("mount", "tmpfs of the root", err)
	}
	if err := errors.Join(os.Mkdir("/upper/new", 0o755), os.Mkdir("/upper/work", 0o755)); err != nil {
		return err
	}
	if err := unix.Mount("overlay", "/place", "overlay", 0, "lowerdir=/lower,upperdir=/upper/new,workdir=/upper/work"); err != nil {
		return call("mount", "overlay of the root", err)
	}
	for _, t := range b.trees {
		at := "/place" + t.at
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := mountDisk(t, at); err != nil {
			return err
		}
	}
	if err := unix.Chdir("/place"); err != nil {
		return call("chdir", "/place", err)
	}
	return fillGuest()
}

// fillGuest puts into the new root, which is the working folder, what every
// place has.
func fillGuest() error {
	// What is at these names in an image, perhaps a link, is not gone after.
	for _, dir := range []string{"dev", "proc", "sys", "run", "tmp", "home/user", "var/tmp"} {
		if err := plainFolder(dir); err != nil {
			return err
		}
	}
	devs, err := openDevices(true)
	if err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=65536"); err != nil {
		return call("mount", "tmpfs of /dev", err)
	}
	if err := makeDev(devs); err != nil {
		return err
	}
	return makeProc()
}

// plainFolder sees to it that there is a folder and no link at a path of the
// place.
func plainFolder(name string) error {
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

// layTexts writes small files over what an image has at their paths. Where the
// place was made with them there are none.
func layTexts(texts []agentprotocol.Text) error {
	for _, t := range texts {
		at := inside(t.At)
		if err := plainFolder(filepath.Dir(at)); err != nil {
			return err
		}
		if err := os.RemoveAll(at); err != nil {
			return err
		}
		if err := os.WriteFile(at, []byte(t.Says), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// mountDisk shows a disk of the machine, when it has appeared.
func mountDisk(d disk, at string) error {
	return untilThere("the disk "+d.name, func() error {
		err := unix.Mount("/dev/"+d.name, at, d.kind, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, "")
		return call("mount", "/dev/"+d.name+" as "+d.kind, err)
	}, unix.ENOENT, unix.ENXIO)
}

// untilThere does it again as long as what it needs has not appeared.
func untilThere(what string, do func() error, missing ...error) error {
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

// openSerial opens the port of the machine that has our name. The end of what
// it brings means that the host is away for a while, not for good.
func openSerial() (io.ReadWriter, error) {
	var port *os.File
	err := untilThere("the port "+agentprotocol.BootPort, func() error {
		names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		if err != nil {
			return err
		}
		for _, n := range names {
			if b, err := os.ReadFile(n); err == nil && strings.TrimSpace(string(b)) == agentprotocol.BootPort {
				// Without O_NONBLOCK: a thread waits in the kernel, and a
				// write that has begun is finished.
				fd, err := unix.Open("/dev/"+filepath.Base(filepath.Dir(n)), unix.O_RDWR|unix.O_CLOEXEC, 0)
				if err != nil {
					return call("open", n, err)
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
	return steady{port}, nil
}

// steady is a port that has no end: while nobody is at its other end there is
// nothing to read, and when somebody is again it goes on.
type steady struct{ *os.File }

// Read waits for bytes.
func (s steady) Read(b []byte) (int, error) {
	for {
		n, err := s.File.Read(b)
		if n > 0 || !errors.Is(err, io.EOF) {
			return n, err
		}
		time.Sleep(time.Millisecond)
	}
}

// listenVsock listens where the host connects, and gives what takes the next
// connection.
func listenVsock() (func() (io.ReadWriter, error), error) {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, call("socket", "AF_VSOCK", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: agentprotocol.VsockPort}); err != nil {
		return nil, call("bind", "vsock", err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		return nil, call("listen", "vsock", err)
	}
	return func() (io.ReadWriter, error) {
		for {
			c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED) {
				continue
			}
			if err != nil {
				return nil, call("accept", "vsock", err)
			}
			return os.NewFile(uintptr(c), "connection"), nil
		}
	}, nil
}

// leaveBoot makes the new root the root of everything.
func leaveBoot() error {
	for _, at := range []string{groups, "/dev", "/sys", "/proc"} {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			return call("umount2", at, err)
		}
	}
	// The kernel's first root cannot be unmounted nor pivoted away from. It
	// is covered, and what is in it, but for the running agent, is nothing
	// that the code may not know.
	if err := unix.Chdir("/place"); err != nil {
		return call("chdir", "/place", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return call("mount", "move the root", err)
	}
	if err := unix.Chroot("."); err != nil {
		return call("chroot", ".", err)
	}
	return call("chdir", "/", unix.Chdir("/"))
}
