package overlay

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	enterMarker = "gatehouse-overlay: enters the view of a task"
	enterFailed = 127
	planVar     = "GATEHOUSE_ENTER"
	treeMark    = "GATEHOUSE_TREE=" // package proc finds the program by it
)

// entering is what a child does before its program begins.
type entering struct {
	Path   string
	Args   []string
	Env    []string
	Dir    string
	Files  int // that the program gets after standard error
	Paths  []string
	Covers []string
	Net    bool
}

// Prepare makes cmd enter the view before its program begins. cmd.Dir is a path of the view. The program gets the
// extra files of cmd, which must not be changed any more.
func (s *Space) Prepare(cmd *exec.Cmd) error {
	if cmd.Err != nil {
		return cmd.Err
	}
	body, err := json.Marshal(entering{
		Path: cmd.Path, Args: cmd.Args, Env: cmd.Environ(), Dir: cmd.Dir, Files: len(cmd.ExtraFiles), Paths: s.Paths,
		Covers: s.Covers, Net: s.Net,
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
	flags := uintptr(unix.CLONE_NEWUSER | unix.CLONE_NEWNS)
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
	if err := p.attach(3 + p.Files); err != nil {
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

// attach makes everything read-only but the view, whose mounts are the files from first on.
func (p *entering) attach(first int) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount /: %w", err)
	}
	if err := closeFiles(); err != nil {
		return err
	}
	if os.Geteuid() != 0 { // root could change settings of the kernel in it
		clear := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
		_ = unix.MountSetattr(unix.AT_FDCWD, "/proc", 0, &clear)
	}
	for _, shm := range []string{"/dev/shm", "/dev/mqueue"} {
		if info, err := os.Stat(shm); err == nil && info.IsDir() {
			if err := unix.Mount("gatehouse", shm, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV,
				"mode=1777,size=25%"); err != nil {
				return &os.PathError{Op: "mount", Path: shm, Err: err}
			}
		}
	}
	for i, path := range p.Paths {
		if err := p.cover(path); err != nil {
			return err
		}
		if err := unix.MoveMount(first+i, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return &os.PathError{Op: "move_mount", Path: path, Err: err}
		}
		noDevices := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV}
		if err := unix.MountSetattr(unix.AT_FDCWD, path, 0, &noDevices); err != nil {
			return &os.PathError{Op: "mount_setattr", Path: path, Err: err}
		}
	}
	return p.cover("")
}

// usable are the devices that a child may open, beside terminals.
var usable = map[string]bool{
	"/dev/null": true, "/dev/zero": true, "/dev/full": true, "/dev/random": true, "/dev/urandom": true,
	"/dev/tty": true, "/dev/ptmx": true,
}

// closeFiles makes everything read-only, and all devices but a few unusable: a disk could be written by its device, though
// everything is read-only, if the host is root.
func closeFiles() error {
	var dev, root unix.Stat_t
	if err := errors.Join(unix.Stat("/dev", &dev), unix.Stat("/", &root)); err != nil {
		return err
	}
	if dev.Dev == root.Dev { // it needs a mount of its own
		if err := unix.Mount("/dev", "/dev", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return &os.PathError{Op: "mount", Path: "/dev", Err: err}
		}
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	for _, at := range []string{"/dev", "/dev/pts"} {
		clear := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_NODEV}
		if err := unix.MountSetattr(unix.AT_FDCWD, at, 0, &clear); err != nil && at == "/dev" {
			return &os.PathError{Op: "mount_setattr", Path: at, Err: err}
		}
	}
	return filepath.WalkDir("/dev", func(at string, d fs.DirEntry, err error) error {
		switch {
		case err != nil, at == "/dev/pts":
			return fs.SkipDir
		case d.Type()&fs.ModeDevice == 0, usable[at]:
			return nil
		case unix.Access(at, unix.R_OK) != nil && unix.Access(at, unix.W_OK) != nil:
			return nil // this user cannot open it
		}
		if err := unix.Mount("/dev/null", at, "", unix.MS_BIND, ""); err != nil {
			return &os.PathError{Op: "mount", Path: at, Err: err}
		}
		return nil
	})
}

// cover covers what must not be seen, at the latest before a mount at a path inside it; with "" all that is left.
func (p *entering) cover(before string) error {
	var later []string
	for _, c := range p.Covers {
		if before != "" && !within(c, before) {
			later = append(later, c)
			continue
		}
		if err := coverOne(c, p.Paths); err != nil {
			return err
		}
	}
	p.Covers = later
	return nil
}

// coverOne puts an empty folder over a folder, with folders in it at which paths can be mounted, and an empty file over
// a file.
func coverOne(at string, paths []string) error {
	var st unix.Stat_t
	if err := unix.Lstat(at, &st); err != nil {
		return nil // it is not there, or in a folder that the view replaces
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return nil // its target is covered by the path of the target
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if err := unix.Mount("/dev/null", at, "", unix.MS_BIND, ""); err != nil {
			return &os.PathError{Op: "mount", Path: at, Err: err}
		}
		return nil
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("gatehouse-closed", at, "tmpfs", flags, "mode=0755,size=64k"); err != nil {
		return &os.PathError{Op: "mount", Path: at, Err: err}
	}
	for _, path := range paths {
		if within(at, path) {
			if err := os.MkdirAll(path, 0o755); err != nil {
				return err
			}
		}
	}
	if err := unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|flags, ""); err != nil {
		return &os.PathError{Op: "remount", Path: at, Err: err}
	}
	return nil
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
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}
