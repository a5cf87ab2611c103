package overlay

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	self         = "/proc/self/exe"
	holderMarker = "gatehouse-overlay: holds the view of a task"
	socketFD     = 3
	mostMounts   = 200 // of one view; the kernel passes 253 files at once
	mostPlan     = 1 << 20
	answerWait   = 30 * time.Second
)

// What a host asks a holder.
const (
	askMounts = 'm' // clones of all mounts
	askRoots  = 'r' // the folders of all layers
)

// Holder holds a view until it is closed. It is safe for concurrent use.
type Holder struct {
	plan Plan
	cmd  *exec.Cmd
	done chan struct{}

	mu   sync.Mutex
	conn *os.File
}

// Hold makes a view. The error is ErrNone if this system or this user cannot.
func Hold(p Plan) (*Holder, error) {
	if len(p.Layers)+len(p.Binds) > mostMounts {
		return nil, fmt.Errorf("a view has at most %d folders", mostMounts)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	unix.SetNonblock(fds[0], true) // deadlines work
	ours, theirs := os.NewFile(uintptr(fds[0]), "holder"), os.NewFile(uintptr(fds[1]), "host")
	defer theirs.Close()
	var said strings.Builder
	cmd := &exec.Cmd{
		Path: self, Args: []string{"gatehouse", holderMarker}, Env: []string{"GOMAXPROCS=1"}, Dir: "/",
		ExtraFiles: []*os.File{theirs}, Stderr: &said,
	}
	if cmd.SysProcAttr, err = attributes(unix.CLONE_NEWUSER | unix.CLONE_NEWNS); err != nil {
		ours.Close()
		return nil, err
	}
	// The kernel uses the rights of the holder for the upper folder, and has a folder without permissions in Work.
	cmd.SysProcAttr.AmbientCaps = append(cmd.SysProcAttr.AmbientCaps, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER,
		unix.CAP_CHOWN, unix.CAP_FSETID)
	cmd.SysProcAttr.Setsid = true // no signal to the host's terminal is for it
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	h := &Holder{plan: p, cmd: cmd, conn: ours, done: make(chan struct{})}
	go func() {
		cmd.Wait()
		close(h.done)
	}()
	b, err := json.Marshal(p)
	if err == nil {
		var answer []byte
		if answer, _, err = h.exchange(append(binary.LittleEndian.AppendUint32(nil,
			uint32(len(b))), b...), 0); err == nil &&
			string(answer) != "ok" {
			err = fmt.Errorf("%w: %s", ErrNone, answer)
		}
	}
	if err != nil {
		h.Close()
		return nil, errors.Join(err, sentence(said.String()))
	}
	return h, nil
}

func sentence(s string) error {
	if s = strings.TrimSpace(s); s == "" {
		return nil
	}
	return errors.New(s[:min(len(s), 500)])
}

// exchange sends a request and reads its answer with files.
func (h *Holder) exchange(ask []byte, files int) (answer []byte, got []*os.File, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conn.SetDeadline(time.Now().Add(answerWait))
	if _, err := h.conn.Write(ask); err != nil {
		return nil, nil, fmt.Errorf("the process that holds the view is gone: %w", err)
	}
	raw, err := h.conn.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	b, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*max(files, 1)))
	var n, m int
	if rerr := raw.Read(func(fd uintptr) bool {
		n, m, _, _, err = unix.Recvmsg(int(fd), b, oob, unix.MSG_CMSG_CLOEXEC)
		return err != unix.EAGAIN
	}); rerr != nil {
		err = rerr
	}
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, nil, fmt.Errorf("the process that holds the view does not answer: %w", err)
	}
	all, err := unix.ParseSocketControlMessage(oob[:m])
	if err != nil {
		return nil, nil, err
	}
	for _, one := range all {
		fds, _ := unix.ParseUnixRights(&one)
		for _, fd := range fds {
			got = append(got, os.NewFile(uintptr(fd), "view"))
		}
	}
	if len(got) != files {
		for _, f := range got {
			f.Close()
		}
		return nil, nil, fmt.Errorf("view: %s", b[:n])
	}
	return b[:n], got, nil
}

// Root opens the view of a folder. The caller closes it. Files in it have the paths that they have in the real one.
func (h *Holder) Root(lower string) (*os.Root, error) {
	_, files, err := h.exchange([]byte{askRoots}, len(h.plan.Layers))
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for i, l := range h.plan.Layers {
		if l.Lower == lower {
			return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", files[i].Fd()))
		}
	}
	return nil, fmt.Errorf("%s is no folder of the view", lower)
}

// Space returns what one child needs.
func (h *Holder) Space() (*Space, error) {
	s := &Space{Covers: h.plan.Covers, Net: h.plan.Network}
	for _, b := range h.plan.Binds {
		s.Paths = append(s.Paths, b.To)
	}
	for _, l := range h.plan.Layers {
		s.Paths = append(s.Paths, l.Lower)
	}
	var err error
	_, s.Mounts, err = h.exchange([]byte{askMounts}, len(s.Paths))
	return s, err
}

// Done is closed when the holder has ended, also if it was killed.
func (h *Holder) Done() <-chan struct{} { return h.done }

// Close ends the holder. Children in the view keep it.
func (h *Holder) Close() {
	h.conn.Close()
	select {
	case <-h.done:
	case <-time.After(answerWait):
		h.cmd.Process.Kill()
		<-h.done
	}
}

// attributes returns those of a process in namespaces of its own, in which each user has its own number.
func attributes(flags uintptr) (*syscall.SysProcAttr, error) {
	a := &syscall.SysProcAttr{
		Cloneflags:  flags,
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SETPCAP},
	}
	if os.Geteuid() != 0 {
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
		return a, nil
	}
	var err error
	if a.UidMappings, err = identities("/proc/self/uid_map"); err != nil {
		return nil, err
	}
	a.GidMappings, err = identities("/proc/self/gid_map")
	a.GidMappingsEnableSetgroups = true
	return a, err
}

// identities maps each number of this namespace to itself.
func identities(file string) (all []syscall.SysProcIDMap, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		first, err1 := strconv.Atoi(f[0])
		size, err2 := strconv.Atoi(f[2])
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		all = append(all, syscall.SysProcIDMap{ContainerID: first, HostID: first, Size: size})
	}
	return all, nil
}

func init() {
	if len(os.Args) != 2 {
		return
	}
	switch os.Args[1] {
	case holderMarker:
		runtime.LockOSThread()
		os.Exit(hold())
	case enterMarker:
		runtime.LockOSThread()
		enter()
		os.Exit(enterFailed)
	}
}

// hold is the holder. It ends when the host closes the socket or has ended.
func hold() int {
	unix.CloseOnExec(socketFD)
	var size [4]byte
	host := os.NewFile(socketFD, "host")
	if _, err := io.ReadFull(host, size[:]); err != nil {
		return 1
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > mostPlan {
		return 1
	}
	b := make([]byte, n)
	var p Plan
	if _, err := io.ReadFull(host, b); err != nil || json.Unmarshal(b, &p) != nil {
		return 1
	}
	if err := p.mount(); err != nil {
		io.WriteString(host, err.Error())
		return 1
	}
	io.WriteString(host, "ok")
	for {
		var ask [1]byte
		if _, err := io.ReadFull(host, ask[:]); err != nil {
			return 0
		}
		fds, err := p.answer(ask[0])
		said := "ok"
		if err != nil {
			said, fds = err.Error(), nil
		}
		var rights []byte
		if len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		err = unix.Sendmsg(socketFD, []byte(said), rights, nil, 0)
		for _, fd := range fds {
			unix.Close(fd)
		}
		if err != nil {
			return 1
		}
	}
}

// mount mounts the layers over their folders, each after those that contain it.
func (p *Plan) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount /: %w", err)
	}
	for _, l := range p.Layers {
		if err := l.mount(); err != nil {
			return fmt.Errorf("%s: %w", l.Lower, err)
		}
	}
	return nil
}

func (l *Layer) mount() error {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fs)
	for _, o := range []struct{ key, dir string }{{"lowerdir", l.Lower}, {"upperdir", l.Upper}, {"workdir", l.Work}} {
		fd, err := unix.Open(o.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: o.dir, Err: err}
		}
		defer unix.Close(fd)
		// By its number the folder needs no characters escaped.
		if err := unix.FsconfigSetString(fs, o.key, "/proc/self/fd/"+strconv.Itoa(fd)); err != nil {
			return fmt.Errorf("%s: %w: %s", o.key, err, kernelSays(fs))
		}
	}
	// With userxattr the kernel leaves out redirect_dir and metacopy, so the upper folder holds whole files.
	if err := unix.FsconfigSetFlag(fs, "userxattr"); err != nil {
		return fmt.Errorf("userxattr: %w: %s", err, kernelSays(fs))
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("overlay: %w: %s", err, kernelSays(fs))
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID)
	if err != nil {
		return fmt.Errorf("fsmount: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, l.Lower, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// kernelSays returns what the kernel says about a file system that it did not make.
func kernelSays(fs int) string {
	b := make([]byte, 1024)
	n, _ := unix.Read(fs, b)
	return strings.TrimSpace(string(b[:max(n, 0)]))
}

func (p *Plan) answer(ask byte) (fds []int, err error) {
	defer func() {
		if err != nil {
			for _, fd := range fds {
				unix.Close(fd)
			}
			fds = nil
		}
	}()
	if ask == askMounts {
		for _, b := range p.Binds {
			fd, err := unix.OpenTree(unix.AT_FDCWD, b.From, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
			if err != nil {
				return fds, &os.PathError{Op: "open_tree", Path: b.From, Err: err}
			}
			fds = append(fds, fd)
		}
	}
	for _, l := range p.Layers {
		fd := -1
		if ask == askMounts {
			fd, err = unix.OpenTree(unix.AT_FDCWD, l.Lower, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		} else {
			fd, err = unix.Open(l.Lower, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		if err != nil {
			return fds, &os.PathError{Op: "open", Path: l.Lower, Err: err}
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// Users returns the processes whose mounts have an upper folder below dir, other than holders.
func Users(dir string) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		mounts, err := os.ReadFile(filepath.Join("/proc", e.Name(), "mountinfo"))
		if err != nil || !strings.Contains(string(mounts), "upperdir=") || !strings.Contains(string(mounts), dir) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if !strings.Contains(string(line), holderMarker) {
			pids = append(pids, pid)
		}
	}
	return pids
}
