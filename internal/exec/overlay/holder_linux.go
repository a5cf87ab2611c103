package overlay

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
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
	mostAnswer   = 4096
	answerWait   = 30 * time.Second
)

// What a host asks a holder.
const (
	askTree  = 't' // the root of a child
	askRoots = 'r' // the folders of all layers
	askMount = 'm' // one folder or file of a layer, as a mount; its description follows
	askLayer = 'l' // one more layer, whose description follows
)

const said = "ok" // begins an answer

// Holder holds a view until it is closed. It is safe for concurrent use.
type Holder struct {
	plan Plan
	cmd  *exec.Cmd
	done chan struct{}
	left []string

	mu   sync.Mutex
	conn *os.File
}

// Hold makes a view. The error is ErrNone if this system or this user cannot.
func Hold(p Plan) (*Holder, error) {
	if len(p.Layers)+len(p.Binds) > mostMounts {
		return nil, fmt.Errorf("a view has at most %d folders", mostMounts)
	}
	if p.Network && landlockVersion() < scoped {
		return nil, fmt.Errorf("%w: programs with the network would reach abstract sockets, because the kernel has no "+
			"Landlock or one below version %d", ErrNone, scoped)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	unix.SetNonblock(fds[0], true) // deadlines work
	ours, theirs := os.NewFile(uintptr(fds[0]), "holder"), os.NewFile(uintptr(fds[1]), "host")
	defer theirs.Close()
	var failed strings.Builder
	cmd := &exec.Cmd{
		Path: self, Args: []string{"gatehouse", holderMarker}, Env: []string{"GOMAXPROCS=1"}, Dir: "/",
		ExtraFiles: []*os.File{theirs}, Stderr: &failed,
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
		if answer, _, err = h.exchange(described(nil, b), 0); err == nil && !strings.HasPrefix(string(answer), said) {
			err = fmt.Errorf("%w: %s", ErrNone, answer)
		}
		for left := range strings.SplitSeq(strings.TrimPrefix(string(answer), said), "\x00") {
			if left != "" {
				h.left = append(h.left, left)
			}
		}
	}
	if err != nil {
		h.Close()
		return nil, errors.Join(err, sentence(failed.String()))
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
	b, oob := make([]byte, mostAnswer), make([]byte, unix.CmsgSpace(4*max(files, 1)))
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

// described appends a description, as the holder reads it.
func described(ask, b []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(ask, uint32(len(b))), b...)
}

// Mount returns a folder or a file in a layer as a mount that is nowhere yet, for a process in namespaces of its own.
// path leads through no link. The caller closes it.
func (h *Holder) Mount(path string, write bool) (*os.File, error) {
	b, err := json.Marshal(wantedMount{path, write})
	if err != nil {
		return nil, err
	}
	_, files, err := h.exchange(described([]byte{askMount}, b), 1)
	if err != nil {
		return nil, err
	}
	return files[0], nil
}

// wantedMount is what askMount describes.
type wantedMount struct {
	Path  string
	Write bool
}

// Add adds a layer that is in no other. It may contain others, which stay as they are. Children that run already do not
// see it.
func (h *Holder) Add(l Layer) error {
	if len(h.plan.Layers)+len(h.plan.Binds) >= mostMounts {
		return fmt.Errorf("a view has at most %d folders", mostMounts)
	}
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	answer, _, err := h.exchange(described([]byte{askLayer}, b), 0)
	if err == nil && string(answer) != said {
		err = fmt.Errorf("%s: %s", l.Lower, answer)
	}
	if err == nil {
		h.mu.Lock()
		h.plan.Layers = append(h.plan.Layers, l)
		h.mu.Unlock()
	}
	return err
}

// Root opens the view of a folder. The caller closes it. Files in it have the paths that they have in the real one.
func (h *Holder) Root(lower string) (*os.Root, error) {
	h.mu.Lock()
	layers := slices.Clone(h.plan.Layers)
	h.mu.Unlock()
	_, files, err := h.exchange([]byte{askRoots}, len(layers))
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for i, l := range layers {
		if l.Lower == lower {
			return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", files[i].Fd()))
		}
	}
	return nil, fmt.Errorf("%s is no folder of the view", lower)
}

// Space returns what one child needs.
func (h *Holder) Space() (*Space, error) {
	_, mounts, err := h.exchange([]byte{askTree}, 1)
	return &Space{Mounts: mounts, Net: h.plan.Network}, err
}

// Left returns the folders outside of the view of which children see nothing, because no overlay can be made of them.
func (h *Holder) Left() []string { return h.left }

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
	case probeMarker:
		os.Exit(0)
	case enterMarker:
		runtime.LockOSThread()
		enter()
		os.Exit(enterFailed)
	}
}

// hold is the holder. It ends when the host closes the socket or has ended.
func hold() int {
	unix.CloseOnExec(socketFD)
	host := os.NewFile(socketFD, "host")
	var p Plan
	if readDescribed(host, &p) != nil {
		return 1
	}
	var t *tree
	kinds, err := Mounted()
	if err == nil {
		err = p.mount()
	}
	if err == nil {
		t, err = p.newTree(kinds)
	}
	if err != nil {
		io.WriteString(host, err.Error())
		return 1
	}
	left := strings.Join(t.left, "\x00")
	io.WriteString(host, said+left[:min(len(left), mostAnswer-len(said))])
	for {
		var ask [1]byte
		if _, err := io.ReadFull(host, ask[:]); err != nil {
			return 0
		}
		fds, err := p.answer(ask[0], host, &t)
		says := said
		if err != nil {
			says, fds = err.Error(), nil
		}
		var rights []byte
		if len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		err = unix.Sendmsg(socketFD, []byte(says), rights, nil, 0)
		for _, fd := range fds {
			unix.Close(fd)
		}
		if err != nil {
			return 1
		}
	}
}

// readDescribed reads what described has appended.
func readDescribed(host io.Reader, into any) error {
	var size [4]byte
	if _, err := io.ReadFull(host, size[:]); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > mostPlan {
		return fmt.Errorf("a description of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(host, b); err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// mount mounts the layers over their folders.
func (p *Plan) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount /: %w", err)
	}
	for i := range p.Layers {
		if err := p.mountLayer(i); err != nil {
			return fmt.Errorf("%s: %w", p.Layers[i].Lower, err)
		}
	}
	return nil
}

// mountLayer mounts a layer over its folder, and those before it that it contains again at their places in it.
func (p *Plan) mountLayer(i int) error {
	l, contained := &p.Layers[i], map[string]int{}
	for _, one := range p.Layers[:i] {
		if !within(l.Lower, one.Lower) {
			continue
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, one.Lower, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return &os.PathError{Op: "open_tree", Path: one.Lower, Err: err}
		}
		defer unix.Close(fd)
		contained[one.Lower] = fd
	}
	if err := l.mount(); err != nil {
		return err
	}
	for _, at := range slices.Sorted(maps.Keys(contained)) { // a folder is before those in it
		if err := os.MkdirAll(at, 0o755); err != nil { // a file tool of the task may have removed it from l
			return err
		}
		if err := unix.MoveMount(contained[at], "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return &os.PathError{Op: "move_mount", Path: at, Err: err}
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

// answer returns what the host asks for. It replaces the tree if that is too old.
func (p *Plan) answer(ask byte, host io.Reader, t **tree) (fds []int, err error) {
	switch ask {
	case askMount:
		var w wantedMount
		if err := readDescribed(host, &w); err != nil {
			return nil, err
		}
		fd, err := p.mountOf(w)
		return []int{fd}, err
	case askLayer:
		var l Layer
		if err := readDescribed(host, &l); err != nil {
			return nil, err
		}
		p.Layers = append(p.Layers, l)
		if err := p.mountLayer(len(p.Layers) - 1); err != nil {
			p.Layers = p.Layers[:len(p.Layers)-1]
			return nil, err
		}
		(*t).made = time.Time{} // the next child gets one with the layer
		return nil, nil
	case askTree:
		if time.Since((*t).made) > treeAge {
			(*t).close()
			kinds := (*t).kinds
			if *t, err = p.newTree(kinds); err != nil {
				*t = &tree{kinds: kinds, root: -1, empty: -1} // the next ask tries again
				return nil, err
			}
		}
		fd, err := (*t).clone()
		return []int{fd}, err
	}
	for _, l := range p.Layers {
		fd, err := unix.Open(l.Lower, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			for _, fd := range fds {
				unix.Close(fd)
			}
			return nil, &os.PathError{Op: "open", Path: l.Lower, Err: err}
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// mountOf returns a mount of what is at a path in a layer, with the layers in it. A link on the way is an error,
// because programs of the view may have made it.
func (p *Plan) mountOf(w wantedMount) (int, error) {
	lower := ""
	for _, l := range p.Layers {
		if within(l.Lower, w.Path) && len(l.Lower) > len(lower) {
			lower = l.Lower
		}
	}
	if lower == "" {
		return -1, fmt.Errorf("%s is in no folder of the view", w.Path)
	}
	top, err := unix.Open(lower, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: lower, Err: err}
	}
	defer unix.Close(top)
	name, err := filepath.Rel(lower, w.Path)
	if err != nil {
		return -1, err
	}
	at, err := unix.Openat2(top, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: w.Path, Err: err}
	}
	defer unix.Close(at)
	fd, err := unix.OpenTree(at, "",
		unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, &os.PathError{Op: "open_tree", Path: w.Path, Err: err}
	}
	set := uint64(unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID)
	if !w.Write {
		set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := setAttributes(fd, set, 0, unix.AT_RECURSIVE); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
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
