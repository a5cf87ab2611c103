package overlay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	enterMarker = "gatehouse-overlay: enters the view of a task"
	probeMarker = "gatehouse-overlay: ends at once"
	enterFailed = 127
	planVar     = "GATEHOUSE_ENTER"
	treeMark    = "GATEHOUSE_TREE=" // package proc finds the program by it
)

// entering is what a child does before its program begins.
type entering struct {
	Path  string
	Args  []string
	Env   []string
	Dir   string
	Files int // that the program gets after standard error
	Net   bool
}

// Prepare makes cmd enter the view before its program begins. cmd.Dir is a path of the view. The program gets the
// extra files of cmd, which must not be changed any more.
func (s *Space) Prepare(cmd *exec.Cmd) error {
	if cmd.Err != nil {
		return cmd.Err
	}
	body, err := json.Marshal(entering{
		Path: cmd.Path, Args: cmd.Args, Env: cmd.Environ(), Dir: cmd.Dir, Files: len(cmd.ExtraFiles), Net: s.Net,
	})
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("plan", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	plan := os.NewFile(uintptr(fd), "plan")
	if _, err := plan.WriteAt(body, 0); err != nil {
		plan.Close()
		return err
	}
	s.Mounts = append(s.Mounts, plan)
	flags := uintptr(unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWIPC)
	if !s.Net {
		flags |= unix.CLONE_NEWNET
	}
	a, err := attributes(flags)
	if err != nil {
		return err
	}
	if b := cmd.SysProcAttr; b != nil {
		b.Cloneflags, b.UidMappings, b.GidMappings = a.Cloneflags, a.UidMappings, a.GidMappings
		b.GidMappingsEnableSetgroups, b.AmbientCaps = a.GidMappingsEnableSetgroups, a.AmbientCaps
	} else {
		cmd.SysProcAttr = a
	}
	cmd.Path, cmd.Args, cmd.Dir = self, []string{"gatehouse", enterMarker}, "/"
	env := []string{"GOMAXPROCS=1", fmt.Sprintf("%s=%d", planVar, 3+len(cmd.ExtraFiles)+len(s.Mounts)-1)}
	for _, kv := range cmd.Env {
		if strings.HasPrefix(kv, treeMark) {
			env = append(env, kv)
		}
	}
	cmd.Env = env
	cmd.ExtraFiles = append(slices.Clip(cmd.ExtraFiles), s.Mounts...)
	return nil
}

// probe runs a program that does nothing in the view.
func (h *Holder) probe(dir string) error {
	s, err := h.Space()
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), answerWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, self)
	cmd.Args, cmd.Dir, cmd.Env = []string{"gatehouse", probeMarker}, dir, []string{}
	if err := s.Prepare(cmd); err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: a program cannot run in a view: %w: %s", ErrNone, err, out)
	}
	return nil
}

// enter attaches the mounts and becomes the program. It returns if that failed.
func enter() {
	err := enterView()
	fmt.Fprintln(os.Stderr, "gatehouse: the program could not be started in the view of its task:", err)
}

// enterView returns why the program was not started.
func enterView() error {
	var at int
	if _, err := fmt.Sscan(os.Getenv(planVar), &at); err != nil {
		return err
	}
	body, err := readAll(at)
	if err != nil {
		return err
	}
	var p entering
	if err := json.Unmarshal(body, &p); err != nil {
		return err
	}
	for fd := 3 + p.Files; fd <= at; fd++ {
		unix.CloseOnExec(fd)
	}
	if err := enterRoot(3 + p.Files); err != nil {
		return err
	}
	if !p.Net {
		if err := loopback(); err != nil {
			return fmt.Errorf("loopback: %w", err)
		}
	}
	if p.Dir != "" {
		if err := unix.Chdir(p.Dir); err != nil {
			return &os.PathError{Op: "chdir", Path: p.Dir, Err: err}
		}
	}
	if err := giveUp(); err != nil {
		return err
	}
	if mark := os.Getenv(strings.TrimSuffix(treeMark, "=")); mark != "" {
		p.Env = append(p.Env, treeMark+mark)
	}
	return &os.PathError{Op: "exec", Path: p.Path, Err: unix.Exec(p.Path, p.Args, p.Env)}
}

func readAll(fd int) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	b := make([]byte, st.Size)
	for n := 0; n < len(b); {
		m, err := unix.Pread(fd, b[n:], int64(n))
		if err != nil || m == 0 {
			return nil, errors.Join(err, errors.New("the plan is incomplete"))
		}
		n += m
	}
	return b, nil
}

// enterRoot makes the mount that the holder has made the root of this process, and takes the root of the host away.
func enterRoot(fd int) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount /: %w", err)
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	if err := unix.Fchdir(fd); err != nil {
		return fmt.Errorf("fchdir: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("umount: %w", err)
	}
	for _, shm := range []string{"/dev/shm", "/dev/mqueue"} {
		if err := unix.Mount("gatehouse", shm, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777,size=25%"); err != nil {
			return &os.PathError{Op: "mount", Path: shm, Err: err}
		}
	}
	return unix.Chdir("/")
}

// loopback starts the loopback interface.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var req struct {
		name  [unix.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	copy(req.name[:], "lo")
	req.flags = unix.IFF_UP | unix.IFF_RUNNING
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFFLAGS,
		uintptr(unsafe.Pointer(&req))); errno != 0 {
		return errno
	}
	return nil
}

// giveUp gives up the rights over the namespace, also for programs that run as root in it: what they start cannot take
// a mount away, and no program gets more rights by its file.
func giveUp() error {
	for _, c := range []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SYS_PTRACE, unix.CAP_SYS_MODULE} {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("capabilities: %w", err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	data[0].Inheritable, data[1].Inheritable = 0, 0
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	return scope()
}

// scoped is the version of Landlock that keeps a program from signals to other processes and from abstract sockets.
const scoped = 6

func landlockVersion() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// scope keeps the program from processes that it did not start: from signals to them and, if it has the network of the
// host, from their abstract sockets.
func scope() error {
	if landlockVersion() < scoped {
		return nil
	}
	rules := unix.LandlockRulesetAttr{Scoped: unix.LANDLOCK_SCOPE_SIGNAL | unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&rules)),
		unsafe.Sizeof(rules), 0)
	if errno == unix.EOPNOTSUPP {
		return nil // it is switched off
	}
	if errno != 0 {
		return fmt.Errorf("landlock_create_ruleset: %w", errno)
	}
	defer unix.Close(int(fd))
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return fmt.Errorf("landlock_restrict_self: %w", errno)
	}
	return nil
}
