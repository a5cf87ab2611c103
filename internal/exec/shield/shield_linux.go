package shield

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Source is the name of the mounts that cover closed folders. A process that sees them was started by a host.
const Source = "gatehouse-closed"

// prepared is the state of the kernel's rules.
type prepared struct {
	how    How
	space  *os.File // the mount namespace that children enter
	mounts *os.File // this process's mounts; a poll of it says that they changed
	rules  *os.File // a ruleset of Landlock
	seen   map[string]identity
}

// identity distinguishes a file from another one of the same name.
type identity struct{ dev, ino, changed uint64 }

func identityOf(st *unix.Stat_t) identity { return identity{dev: st.Dev, ino: st.Ino} }

// possible is determined once, because the rights of a process do not grow.
var possible = sync.OnceValue(func() How {
	v := landlockVersion()
	if v == 0 {
		return None
	}
	if v < 2 { // its domains can move no file to another folder
		return None
	}
	done := make(chan error)
	Thread(func() (spoilt bool) {
		done <- unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		return true
	})
	if <-done == nil && sameTop() {
		return Namespace
	}
	return Landlock
})

// Thread runs f on a new goroutine and thread. If f reports that the thread is spoilt, the thread ends with f. It
// is never the main thread, which cannot end and which represents the whole process in /proc: children that share
// what it gave up could trace it.
func Thread(f func() (spoilt bool)) {
	locked := func() {
		if !f() {
			runtime.UnlockOSThread()
		}
	}
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != os.Getpid() {
			locked()
			return
		}
		elsewhere := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(elsewhere)
			locked()
		}()
		<-elsewhere
		runtime.UnlockOSThread()
	}()
}

// sameTop reports whether the root of this process is that of its namespace. A process in a chroot would see more
// after entering a new namespace.
func sameTop() bool {
	mine, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(mine)) {
		if f := strings.Fields(line); len(f) > 4 && f[4] == "/" {
			return true
		}
	}
	return false
}

// Enter moves the calling thread, permanently, to where it cannot access the closed files. entered means that the
// goroutine must end without unlocking its thread, which Thread does. own are folders below closed ones that stay
// accessible to this child. dir is the child's working directory; in is the one to use afterwards, "" for the
// thread's own.
func Enter(dir string, own Own) (in string, entered bool, err error) {
	t, done, err := current(own)
	if err != nil || t.how == None {
		return dir, false, err
	}
	defer done()
	if t.how == Namespace {
		if dir, err = t.move(dir); err != nil {
			return dir, true, err
		}
	} else if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return dir, true, fmt.Errorf("no_new_privs: %w", err)
	}
	// The child is in the same domain as this thread, so Landlock would allow it to trace the thread. A process
	// that lacks a capability of the thread cannot, and cannot regain it.
	for _, c := range []uintptr{unix.CAP_SYS_PTRACE, unix.CAP_PERFMON, unix.CAP_SETPCAP} {
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0) // an ordinary user has none
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, t.rules.Fd(), 0, 0); errno != 0 {
		return dir, true, fmt.Errorf("landlock_restrict_self: %w", errno)
	}
	return dir, true, nil
}

// move moves the thread into the namespace, and to the folder there that corresponds to dir. A name is not enough:
// dir may be that of a file descriptor in /proc, which leads out of the namespace.
func (t *prepared) move(dir string) (string, error) {
	if dir == "" {
		dir = "."
	}
	here, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "chdir", Path: dir, Err: err}
	}
	defer unix.Close(here)
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(here))
	if err != nil {
		return "", err
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return "", fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Setns(int(t.space.Fd()), unix.CLONE_NEWNS); err != nil {
		return "", fmt.Errorf("setns: %w", err)
	}
	if err := unix.Chdir(name); err != nil {
		return "", &os.PathError{Op: "chdir", Path: name, Err: err}
	}
	var was, is unix.Stat_t
	if err := errors.Join(unix.Fstat(here, &was), unix.Stat(".", &is)); err != nil {
		return "", err
	}
	if identityOf(&was) != identityOf(&is) {
		return "", fmt.Errorf("chdir %s: the folder is closed to programs, or was replaced", name)
	}
	return "", nil
}

// current returns the kernel's rules, renewed if something has changed. A child with folders of its own gets a
// namespace of its own. done must be called when the thread has entered it.
func current(own Own) (t prepared, done func(), err error) {
	closed.Lock()
	defer closed.Unlock()
	if len(closed.paths) == 0 || possible() == None {
		return prepared{}, func() {}, nil
	}
	how := possible()
	own = Own{closedOf(own.Write), closedOf(own.Read)}
	if len(own.Write)+len(own.Read) > 0 {
		if t, err = createRules(how, own); err != nil {
			return prepared{}, nil, fmt.Errorf("the host's own folders cannot be closed to a program: %w", err)
		}
		return t, t.closeRuleset, nil
	}
	if closed.dirty || !closed.told.valid() {
		fresh, err := createRules(how, Own{})
		if err != nil {
			return prepared{}, nil, fmt.Errorf("the host's own folders cannot be closed to programs: %w", err)
		}
		closed.told.closeRuleset()
		closed.told, closed.dirty = fresh, false
	}
	// The descriptors are copied, because another start may replace them.
	t = prepared{how: how}
	if t.rules, err = again(closed.told.rules); err == nil && how == Namespace {
		t.space, err = again(closed.told.space)
	}
	if err != nil {
		t.closeRuleset()
		return prepared{}, nil, err
	}
	return t, t.closeRuleset, nil
}

func again(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func (t *prepared) closeRuleset() {
	for _, f := range []*os.File{t.space, t.mounts, t.rules} {
		if f != nil {
			f.Close()
		}
	}
}

// valid reports whether the rules still cover the present files.
func (t *prepared) valid() bool {
	if t.rules == nil {
		return false
	}
	if t.mounts != nil {
		fds := []unix.PollFd{{Fd: int32(t.mounts.Fd()), Events: unix.POLLPRI}}
		if n, err := unix.Poll(fds, 0); n != 0 || err != nil {
			return false
		}
	}
	for path, was := range t.seen {
		if is, _ := identify(path, was.changed != 0); is != was {
			return false
		}
	}
	return true
}

// closedOf returns the folders that are in closed ones. The lock must be held.
func closedOf(own []string) []string {
	return slices.DeleteFunc(slices.Clone(own), func(o string) bool {
		for p := range closed.paths {
			if within(strings.TrimSuffix(p, "/"), resolved(o)) {
				return false
			}
		}
		return true
	})
}

// identify identifies a file; with withChange also by the time of its last change, which for a folder is when an
// entry was added or removed.
func identify(path string, withChange bool) (identity, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return identity{}, err
	}
	id := identityOf(&st)
	if withChange {
		id.changed = uint64(st.Mtim.Nano())
	}
	return id, nil
}

// createRules creates the rules for children. The lock must be held.
func createRules(how How, own Own) (t prepared, err error) {
	t = prepared{how: how, seen: map[string]identity{}}
	defer func() {
		if err != nil {
			t.closeRuleset()
			t = prepared{}
		}
	}()
	paths := slices.Sorted(maps.Keys(closed.paths))
	var all []string // those that are there
	for _, p := range paths {
		clean, folder := strings.CutSuffix(p, "/")
		if folder {
			os.MkdirAll(clean, 0o700) // who may not make it has it made by no child either
		}
		id, err := identify(clean, false)
		t.seen[clean] = id
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EACCES) {
			continue
		}
		if err != nil {
			return t, err
		}
		all = append(all, clean)
	}
	all = outermost(all)
	open := slices.Sorted(maps.Keys(closed.open))
	for _, o := range own.Write {
		open = append(open, resolved(o))
	}
	var readable []string
	for _, o := range own.Read {
		readable = append(readable, resolved(o))
	}
	outside := func(o string) bool {
		return !slices.ContainsFunc(all, func(p string) bool { return within(p, o) && p != o })
	}
	open, readable = slices.DeleteFunc(open, outside), slices.DeleteFunc(readable, outside)
	if how == Landlock {
		t.rules, err = t.allowBeside(all, open, readable)
		return t, err
	}
	hideEnvironment()
	if t.mounts, err = os.Open("/proc/self/mountinfo"); err != nil {
		return t, err
	}
	unix.Poll([]unix.PollFd{{Fd: int32(t.mounts.Fd()), Events: unix.POLLPRI}}, 0) // changes count from now
	if t.rules, err = moving(); err != nil {
		return t, err
	}
	made := make(chan error)
	Thread(func() (spoilt bool) {
		made <- t.cover(all, open, readable)
		return true
	})
	err = <-made
	return t, err
}

// hideEnvironment clears the environment of this process in /proc, which any process with CAP_SYS_ADMIN or
// CAP_PERFMON may read. The process keeps its own copy. A process that its environment marks as started by a host
// keeps the mark.
var hideEnvironment = sync.OnceFunc(func() {
	const envStart, envEnd = 50 - 3, 51 - 3 // of proc(5), counted from the field after the name
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil || os.Getenv("GATEHOUSE_TREE") != "" {
		return
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) <= envEnd {
		return
	}
	from, err1 := strconv.ParseInt(f[envStart], 10, 64)
	to, err2 := strconv.ParseInt(f[envEnd], 10, 64)
	if err1 != nil || err2 != nil || from <= 0 || to <= from || to-from > 4<<20 {
		return
	}
	mem, err := os.OpenFile("/proc/self/mem", os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer mem.Close()
	mem.WriteAt(make([]byte, to-from), from) // what cannot be wiped is no worse than before
})

// outermost removes the elements of a sorted list that are inside another one.
func outermost(all []string) (out []string) {
	for _, p := range all {
		if len(out) == 0 || !slices.ContainsFunc(out, func(o string) bool { return within(o, p) }) {
			out = append(out, p)
		}
	}
	return out
}

// within reports whether p is dir or is inside it; both are clean.
func within(dir, p string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// cover creates the namespace: an empty folder over each closed folder, an empty file over each closed file. New
// mounts of the host still appear in it.
func (t *prepared) cover(all, open, readable []string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("mount /: %w", err)
	}
	kept := map[string]int{} // what stays open, opened before it is covered
	for _, o := range slices.Concat(open, readable) {
		fd, err := unix.Open(o, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "open", Path: o, Err: err}
		}
		defer unix.Close(fd)
		kept[o] = fd
	}
	var st unix.Stat_t
	for _, p := range all {
		if err := unix.Lstat(p, &st); err != nil {
			return &os.PathError{Op: "stat", Path: p, Err: err}
		}
		const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			// The file is on a file system of its own, because a mount over its folder would hide other files.
			if err := coverFile(p); err != nil {
				return err
			}
			continue
		}
		if err := unix.Mount(Source, p, "tmpfs", flags, "mode=0755,size=64k"); err != nil {
			return &os.PathError{Op: "mount", Path: p, Err: err}
		}
		for o, fd := range kept {
			if !within(p, o) {
				continue
			}
			if err := os.MkdirAll(o, 0o755); err != nil {
				return err
			}
			if err := unix.Mount("/proc/thread-self/fd/"+strconv.Itoa(fd), o, "",
				unix.MS_BIND|unix.MS_REC, ""); err != nil {
				return &os.PathError{Op: "mount", Path: o, Err: err}
			}
			if slices.Contains(readable, o) {
				if err := makeReadOnly(o); err != nil {
					return err
				}
			}
		}
		if err := unix.Mount("", p, "", unix.MS_REMOUNT|unix.MS_RDONLY|flags, "mode=0755,size=64k"); err != nil {
			return &os.PathError{Op: "remount", Path: p, Err: err}
		}
	}
	var err error
	t.space, err = os.Open("/proc/thread-self/ns/mnt")
	return err
}

// makeReadOnly makes a mount read-only. Other links to its files do not change what this path permits.
func makeReadOnly(at string) error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, at, unix.AT_RECURSIVE, &attr); err != nil {
		return &os.PathError{Op: "mount_setattr", Path: at, Err: err}
	}
	return nil
}

// coverFile mounts an empty file over a file or socket.
func coverFile(p string) error {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("fsconfig: %w", err)
	}
	top, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("fsmount: %w", err)
	}
	defer unix.Close(top)
	fd, err := unix.Openat(top, "closed", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	unix.Close(fd)
	file, err := unix.OpenTree(top, "closed", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(file)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOEXEC}
	if err := unix.MountSetattr(file, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	if err := unix.MoveMount(file, "", unix.AT_FDCWD, p, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "move_mount", Path: p, Err: err}
	}
	return nil
}

// allRights are the rights of the first three versions of Landlock. Programs may still use ioctl on devices.
const allRights = 1<<13 - 1 | unix.LANDLOCK_ACCESS_FS_REFER | unix.LANDLOCK_ACCESS_FS_TRUNCATE

// readRights are the rights to read and execute files in a folder.
const readRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR

func landlockVersion() int {
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(n)
}

func ruleset(rights uint64) (*os.File, error) {
	if landlockVersion() < 3 {
		rights &^= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: rights}
	fd, _, errno := unix.Syscall(
		unix.SYS_LANDLOCK_CREATE_RULESET,
		uintptr(unsafe.Pointer(&attr)),
		unsafe.Sizeof(attr.Handled_access_fs),
		0,
	)
	if errno != 0 {
		return nil, fmt.Errorf("landlock_create_ruleset: %w", errno)
	}
	return os.NewFile(fd, "landlock"), nil
}

func allow(rules *os.File, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // it is gone, or nothing that this user could reach
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return nil
	}
	const ofFiles = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return nil // where it leads is judged
	case unix.S_IFDIR:
	default:
		rights &= ofFiles
	}
	if landlockVersion() < 3 {
		rights &^= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, rules.Fd(), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("landlock_add_rule(%s): %w", path, errno)
	}
	return nil
}

// moving is a ruleset that forbids only what every domain forbids: changing mounts, and tracing processes outside.
func moving() (*os.File, error) {
	rules, err := ruleset(unix.LANDLOCK_ACCESS_FS_REFER)
	if err != nil {
		return nil, err
	}
	return rules, allow(rules, "/", unix.LANDLOCK_ACCESS_FS_REFER)
}

// allowBeside is a ruleset that allows what is beside the path to each closed folder, and listing everything. It is
// renewed when an entry on that path is added or removed.
func (t *prepared) allowBeside(all, open, readable []string) (rules *os.File, err error) {
	if rules, err = ruleset(allRights); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			rules.Close()
		}
	}()
	if err := allow(rules, "/", unix.LANDLOCK_ACCESS_FS_READ_DIR); err != nil {
		return nil, err
	}
	for _, o := range open {
		if err := allow(rules, o, allRights); err != nil {
			return nil, err
		}
	}
	for _, o := range readable {
		if err := allow(rules, o, readRights); err != nil {
			return nil, err
		}
	}
	way := map[string]bool{} // the folders above the closed ones
	for _, p := range all {
		for at := filepath.Dir(p); !way[at]; at = filepath.Dir(at) {
			way[at] = true
		}
	}
	for at := range way {
		t.seen[at], _ = identify(at, true)
		entries, err := os.ReadDir(at)
		if err != nil && len(entries) == 0 {
			continue // what this user cannot list stays closed
		}
		for _, e := range entries {
			p := filepath.Join(at, e.Name())
			if way[p] || slices.Contains(all, p) {
				continue
			}
			if err := allow(rules, p, allRights); err != nil {
				return nil, err
			}
		}
	}
	return rules, nil
}
