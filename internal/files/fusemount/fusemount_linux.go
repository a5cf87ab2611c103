package fusemount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	device    = "/dev/fuse"
	source    = "gatehouse"
	maxRead   = 128 << 10 // bytes of one request
	cacheFor  = time.Second
	helpWait  = 10 * time.Second // for fusermount3
	endWait   = 5 * time.Second  // for the requests that run when a mount is removed
	sysAdmin  = 21               // number of the capability
	remedy    = "install it: apt-get install fuse3 (Debian, Ubuntu), dnf install fuse3 (Fedora), apk add fuse3 (Alpine)"
	remedyDev = "load it with modprobe fuse, or give the container --device /dev/fuse"
)

func supported() error {
	if _, err := os.Stat(device); err != nil {
		return &Unsupported{"the kernel offers no FUSE, there is no " + device, remedyDev}
	}
	if err := unix.Access(device, unix.R_OK|unix.W_OK); err != nil {
		return &Unsupported{fmt.Sprintf("%s cannot be opened (%v)", device, err), "let this user read and write it"}
	}
	if mayMount() {
		return nil
	}
	if helper() == "" {
		return &Unsupported{"this user cannot mount without the program fusermount3", remedy}
	}
	return nil
}

// mayMount reports whether the kernel lets this process mount.
func mayMount() bool {
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if mask, ok := strings.CutPrefix(line, "CapEff:"); ok {
			bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			return err == nil && bits&(1<<sysAdmin) != 0
		}
	}
	return false
}

// helper returns the path of fusermount3 or fusermount, or "".
func helper() string {
	for _, name := range []string{"fusermount3", "fusermount", "/bin/fusermount3", "/bin/fusermount"} {
		if p, err := exec.LookPath(name); err == nil {
			return p
		}
	}
	return ""
}

// serve mounts the tree and starts to answer the kernel.
func (m *Mount) serve(root *entry) error {
	fd, err := attach(m.o.Folder)
	if err != nil {
		return fmt.Errorf("mount %s: %w", m.o.Folder, err)
	}
	keep := cacheFor
	raw := gofuse.NewNodeFS(&node{m: m, e: root}, &gofuse.Options{EntryTimeout: &keep, AttrTimeout: &keep})
	// The descriptor is opened by attach, since go-fuse would let children inherit it.
	server, err := fuse.NewServer(raw, "/dev/fd/"+strconv.Itoa(fd), &fuse.MountOptions{
		MaxWrite: maxRead, SyncRead: true, DisableXAttrs: true,
		Logger: slog.NewLogLogger(m.o.Log.Handler(), slog.LevelDebug),
	})
	if err != nil {
		return errors.Join(fmt.Errorf("mount %s: %w", m.o.Folder, err), unmount(m.o.Folder, true))
	}
	go func() {
		defer close(m.done)
		server.Serve()
	}()
	m.refusePoll()
	return nil
}

// refusePoll makes the kernel ask once whether files of the mount can be polled, so
// that it does not ask again. The runtime of Go polls each file that it opens,
// without giving up its thread: if this process opened a file of its own mount, no
// thread might be left to answer.
func (m *Mount) refusePoll() {
	fd, err := unix.Open(filepath.Join(m.o.Folder, ".go-fuse-epoll-hack"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	unix.Close(fd)
}

// attach mounts on a folder and returns the descriptor to serve it with.
func attach(folder string) (fd int, err error) {
	fd, err = unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", device, err)
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,max_read=%d", fd, os.Geteuid(), os.Getegid(),
		maxRead)
	const flags = unix.MS_RDONLY | unix.MS_NODEV | unix.MS_NOSUID | unix.MS_NOEXEC
	err = unix.Mount(source, folder, "fuse."+source, flags, data)
	if err == nil {
		return fd, nil
	}
	unix.Close(fd)
	if program := helper(); program != "" && errors.Is(err, unix.EPERM) {
		return attachByHelper(program, folder)
	}
	return -1, err
}

// attachByHelper lets fusermount3 mount, which sends the descriptor over a socket.
func attachByHelper(program, folder string) (fd int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	mine, theirs := os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket")
	defer mine.Close()
	defer theirs.Close()
	options := fmt.Sprintf("ro,nodev,nosuid,noexec,fsname=%s,subtype=%s,max_read=%d", source, source, maxRead)
	if err := runHelper(program, theirs, "-o", options, "--", folder); err != nil {
		return -1, err
	}
	wait := unix.NsecToTimeval(helpWait.Nanoseconds())
	if err := unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return -1, err
	}
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 4), control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("%s sent no descriptor: %w", program, err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return -1, fmt.Errorf("%s sent no descriptor: %w", program, errors.Join(err, unix.EBADMSG))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, fmt.Errorf("%s sent no descriptor: %w", program, errors.Join(err, unix.EBADMSG))
	}
	return fds[0], nil
}

// runHelper runs fusermount3, which gets a socket as descriptor 3 if it is not nil.
func runHelper(program string, socket *os.File, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), helpWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	if socket != nil {
		cmd.ExtraFiles = []*os.File{socket}
		cmd.Env = append(os.Environ(), "_FUSE_COMMFD=3")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %.300s", program, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func unmount(folder string, force bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if force {
		flags |= unix.MNT_FORCE | unix.MNT_DETACH // the first ends requests that wait
	}
	switch err := unix.Unmount(folder, flags); {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBUSY):
		return ErrInUse
	case errors.Is(err, unix.EINVAL), errors.Is(err, fs.ErrNotExist):
		return ErrNotMounted
	case !errors.Is(err, unix.EPERM):
		return fmt.Errorf("unmount %s: %w", folder, err)
	}
	program := helper()
	if program == "" {
		return &Unsupported{"this user cannot unmount without the program fusermount3", remedy}
	}
	args := []string{"-u", "--", folder}
	if force {
		args[0] = "-uz"
	}
	err := runHelper(program, nil, args...)
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "busy"):
		return ErrInUse
	case strings.Contains(err.Error(), "not mounted"), strings.Contains(err.Error(), "not found in"):
		return ErrNotMounted
	}
	return err
}

// Unmount unmounts as the function Unmount does, and waits until the requests that
// run have ended.
func (m *Mount) Unmount(force bool) error {
	if err := unmount(m.o.Folder, force); err != nil {
		return err
	}
	select {
	case <-m.done:
	case <-time.After(endWait): // a file is open, which the kernel still serves after a lazy unmount
	}
	return nil
}

// node is an entry that the kernel knows.
type node struct {
	gofuse.Inode
	m *Mount
	e *entry
}

var _ = (interface {
	gofuse.NodeLookuper
	gofuse.NodeReaddirer
	gofuse.NodeGetattrer
	gofuse.NodeOpener
	gofuse.NodeReader
})((*node)(nil))

func (e *entry) mode() uint32 {
	if e.file < 0 {
		return syscall.S_IFDIR | 0o500
	}
	return syscall.S_IFREG | 0o400
}

func (m *Mount) fill(e *entry, out *fuse.Attr) {
	out.Ino, out.Mode, out.Nlink = e.ino, e.mode(), 1
	out.Uid, out.Gid = uint32(os.Geteuid()), uint32(os.Getegid())
	if e.file >= 0 {
		f := m.o.Files[e.file]
		out.Size, out.Blocks = uint64(f.Size), uint64(f.Size+511)/512
		out.SetTimes(nil, &f.Modified, &f.Modified)
	}
}

func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*gofuse.Inode, syscall.Errno) {
	n.m.touch()
	child := n.e.byName[name]
	if child == nil {
		return nil, syscall.ENOENT
	}
	n.m.fill(child, &out.Attr)
	return n.NewInode(ctx, &node{m: n.m, e: child}, gofuse.StableAttr{Mode: child.mode(), Ino: child.ino}), 0
}

func (n *node) Readdir(context.Context) (gofuse.DirStream, syscall.Errno) {
	n.m.touch()
	list := make([]fuse.DirEntry, len(n.e.children))
	for i, child := range n.e.children {
		list[i] = fuse.DirEntry{Name: child.name, Mode: child.mode(), Ino: child.ino}
	}
	return gofuse.NewListDirStream(list), 0
}

func (n *node) Getattr(_ context.Context, _ gofuse.FileHandle, out *fuse.AttrOut) syscall.Errno {
	n.m.fill(n.e, &out.Attr)
	return 0
}

// Open lets the kernel keep what it has read, since nothing changes.
func (n *node) Open(context.Context, uint32) (gofuse.FileHandle, uint32, syscall.Errno) {
	n.m.touch()
	return nil, fuse.FOPEN_KEEP_CACHE, 0
}

func (n *node) Read(ctx context.Context, _ gofuse.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	n.m.touch()
	defer n.m.touch() // it may take long
	size := n.m.o.Files[n.e.file].Size
	if off < 0 || off >= size {
		return fuse.ReadResultData(nil), 0
	}
	dest = dest[:min(int64(len(dest)), size-off)]
	if err := n.m.o.Read(ctx, n.e.file, dest, off); err != nil {
		if ctx.Err() != nil {
			return nil, syscall.EINTR
		}
		n.m.o.Log.Warn("a file of a mount cannot be read", "file", n.m.o.Files[n.e.file].Path, "err", err)
		return nil, syscall.EIO
	}
	return fuse.ReadResultData(dest), 0
}
