package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A socket is found by the inode of its path, and a read-only mount does not prevent a connection. Through an overlay,
// also a read-only one, a path has another inode, so nothing that listens is found there, now or later. The same holds
// for named pipes and locks. So children see overlays of the folders outside of the view, in a root of their own.
//
// The kernel makes no overlay of a folder in which something is mounted that this namespace cannot unmount, such as /.
// Of such a folder children see a copy of the names, with an overlay for each folder in it.

const (
	mostNames  = 1000 // of a folder in which something is mounted
	mostInTree = 4000 // mounts
)

// harmless are the types of file systems that cannot hold a socket or a pipe by which a process could be reached. They
// are mounted as they are, read-only.
var harmless = map[string]bool{
	"proc": true, "sysfs": true, "cgroup": true, "cgroup2": true, "securityfs": true, "debugfs": true, "tracefs": true,
	"configfs": true, "pstore": true, "bpf": true, "binfmt_misc": true, "efivarfs": true, "fusectl": true,
	"selinuxfs": true, "resctrl": true,
	"squashfs": true, "erofs": true, "iso9660": true, "cramfs": true, "romfs": true, "vfat": true, "msdos": true,
	"exfat": true,
}

// treeAge is how long a tree is given to new children. An overlay may keep showing what had a path before it was
// replaced outside of it.
const treeAge = 5 * time.Second

// tree is the root of children, which the holder keeps mounted.
type tree struct {
	plan   *Plan
	made   time.Time
	kinds  map[string]string // types of file systems by mount point, without those of the holder
	points []string          // the mount points, sorted
	at     string            // where it is mounted
	root   int               // its root, open
	empty  int               // a folder, open
	names  []int             // mounts with copies of names, which are made read-only at the end
	count  int
	left   []string // paths that children do not see
}

// newTree mounts the root of children. kinds are the types of what was mounted before the view. The caller closes the
// tree.
func (p *Plan) newTree(kinds map[string]string) (t *tree, err error) {
	t = &tree{plan: p, made: time.Now(), kinds: kinds, root: -1, empty: -1}
	defer func() {
		for _, fd := range t.names {
			unix.Close(fd)
		}
		if t.names = nil; err != nil {
			t.close()
		}
	}()
	t.points = slices.Sorted(maps.Keys(t.kinds))
	base, err := temporary("mode=0755,size=4m")
	if err != nil {
		return nil, err
	}
	defer unix.Close(base)
	at := p.Layers[0].Work // no child sees it
	if err := unix.MoveMount(base, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return nil, &os.PathError{Op: "move_mount", Path: at, Err: err}
	}
	t.at = at
	for name, into := range map[string]*int{"root": &t.root, "empty": &t.empty} {
		if err := unix.Mkdirat(base, name, 0o755); err != nil {
			return nil, err
		}
		if *into, err = unix.Openat(base, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return nil, err
		}
	}
	return t, t.fill()
}

func (t *tree) close() {
	if t.at != "" {
		unix.Unmount(t.at, unix.MNT_DETACH)
	}
	for _, fd := range []int{t.root, t.empty} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// clone returns the root as one mount with all others in it.
func (t *tree) clone() (int, error) {
	fd, err := unix.OpenTree(t.root, "",
		unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("open_tree: %w", err)
	}
	if err := setAttributes(fd, unix.MOUNT_ATTR_RDONLY, 0, 0); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// fill mounts everything: what is outside of the view, the view, and what covers the rest.
func (t *tree) fill() error {
	dir, err := unix.Openat(t.root, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = t.copyNames("/", dir)
	unix.Close(dir)
	if err != nil {
		return err
	}
	var paths []string
	for _, b := range t.plan.Binds {
		paths = append(paths, b.To)
	}
	for _, l := range t.plan.Layers {
		paths = append(paths, l.Lower)
	}
	slices.Sort(paths[len(t.plan.Binds):]) // a folder is before those in it

	folders := slices.Clone(paths) // that must exist in what covers them
	for _, socket := range t.plan.Sockets {
		if real, err := filepath.EvalSymlinks(socket); err == nil {
			folders = append(folders, filepath.Dir(real))
		}
	}
	covers := slices.Clone(t.plan.Covers)
	for i, path := range paths {
		from := path
		if i < len(t.plan.Binds) {
			from = t.plan.Binds[i].From
		}
		if covers, err = t.cover(covers, path, folders); err != nil {
			return err
		}
		if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
			continue // a file tool of the task has removed it from a layer that contains it
		}
		if err := t.show(from, path); err != nil {
			return err
		}
	}
	if _, err = t.cover(covers, "", folders); err != nil {
		return err
	}
	for _, socket := range t.plan.Sockets {
		if err := t.grant(socket); err != nil {
			return err
		}
	}
	for _, fd := range t.names {
		if err := setAttributes(fd, unix.MOUNT_ATTR_RDONLY, 0, 0); err != nil {
			return err
		}
	}
	return nil
}

// add makes a folder visible at its path, which exists in the tree.
func (t *tree) add(path string) error {
	kind := t.kinds[path]
	switch {
	case path == "/dev":
		return t.devices()
	case harmless[kind]:
		return t.bind(path)
	case t.hasMounts(path):
		return t.split(path)
	}
	err := t.overlay(path)
	switch {
	case err == nil, errors.Is(err, unix.EACCES), errors.Is(err, fs.ErrNotExist):
		return nil // this user cannot open it either
	case t.mountOf(path) == "/":
		return fmt.Errorf("overlay of %s: %w", path, err)
	}
	t.left = append(t.left, path)
	return nil
}

// hasMounts reports whether something is mounted in a folder.
func (t *tree) hasMounts(path string) bool {
	return slices.ContainsFunc(t.points, func(p string) bool { return p != path && within(path, p) })
}

// mountOf returns the mount point of the file system that has a path.
func (t *tree) mountOf(path string) string {
	for ; path != "/"; path = filepath.Dir(path) {
		if _, ok := t.kinds[path]; ok {
			break
		}
	}
	return path
}

// overlay mounts a read-only overlay of a folder.
func (t *tree) overlay(path string) error {
	lower, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(lower)
	fsfd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fsfd)
	number := func(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
	// There must be two folders, of which the first hides nothing of the second.
	if err := unix.FsconfigSetString(fsfd, "lowerdir", number(t.empty)+":"+number(lower)); err != nil {
		return fmt.Errorf("lowerdir: %w: %s", err, kernelSays(fsfd))
	}
	if err := unix.FsconfigSetFlag(fsfd, "userxattr"); err != nil {
		return fmt.Errorf("userxattr: %w: %s", err, kernelSays(fsfd))
	}
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return fmt.Errorf("%w: %s", err, kernelSays(fsfd))
	}
	fd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC,
		unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID)
	if err != nil {
		return fmt.Errorf("fsmount: %w", err)
	}
	defer unix.Close(fd)
	return t.move(fd, path)
}

// bind mounts what is at a path, with all that is mounted in it, read-only. What is mounted there and could hold a
// socket is replaced.
func (t *tree) bind(path string) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return &os.PathError{Op: "open_tree", Path: path, Err: err}
	}
	defer unix.Close(fd)
	const closed = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID
	if err := setAttributes(fd, closed, 0, unix.AT_RECURSIVE); err != nil {
		return err
	}
	if path == "/proc" && os.Geteuid() != 0 { // root could change settings of the kernel in it
		if err := setAttributes(fd, 0, unix.MOUNT_ATTR_RDONLY, 0); err != nil {
			return err
		}
	}
	if err := t.move(fd, path); err != nil {
		return err
	}
	done := ""
	for _, p := range t.points {
		if p == path || !within(path, p) || harmless[t.kinds[p]] || done != "" && within(done, p) {
			continue
		}
		if done = p; t.add(p) != nil { // it is no folder, or cannot be reached
			if err := t.coverOne(p, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// split mounts a folder with copies of the names of another.
func (t *tree) split(path string) error {
	fd, err := temporary("mode=0755,size=4m")
	if err != nil {
		return err
	}
	t.names = append(t.names, fd)
	if err := t.move(fd, path); err != nil {
		return err
	}
	return t.copyNames(path, fd)
}

// copyNames makes each name of a folder in another, which is mounted at its path.
func (t *tree) copyNames(path string, to int) error {
	entries, err := os.ReadDir(path)
	if err != nil { // what is not mounted in it cannot be found
		return t.mountsOnly(path, to)
	}
	if len(entries) > mostNames {
		t.left = append(t.left, path)
		return t.mountsOnly(path, to)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue
		}
		at := filepath.Join(path, e.Name())
		switch info.Mode().Type() {
		case fs.ModeDir:
			if err := unix.Mkdirat(to, e.Name(), 0o755); err != nil {
				return &os.PathError{Op: "mkdir", Path: at, Err: err}
			}
			mode := uint32(info.Mode().Perm())
			if info.Mode()&fs.ModeSticky != 0 {
				mode |= unix.S_ISVTX
			}
			if err := unix.Fchmodat(to, e.Name(), mode, 0); err != nil {
				return err
			}
			if t.replaced(at) {
				continue
			}
			err = t.add(at)
		case fs.ModeSymlink:
			target, lerr := os.Readlink(at)
			if lerr != nil {
				continue
			}
			err = unix.Symlinkat(target, to, e.Name())
		case 0:
			err = t.bindFile(at, e.Name(), to)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mountsOnly makes those names of a folder in which something is mounted.
func (t *tree) mountsOnly(path string, to int) error {
	done := map[string]bool{}
	for _, p := range t.points {
		if p == path || !within(path, p) {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(p[len(path):], "/"), "/")
		var st unix.Stat_t
		at := filepath.Join(path, name)
		if done[name] || len(done) > mostNames || unix.Lstat(at, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		done[name] = true
		if err := unix.Mkdirat(to, name, 0o755); err != nil {
			return &os.PathError{Op: "mkdir", Path: at, Err: err}
		}
		if !t.replaced(at) {
			if err := t.add(at); err != nil {
				return err
			}
		}
	}
	return nil
}

// replaced reports whether all of a folder is replaced or covered anyway.
func (t *tree) replaced(path string) bool {
	return path == t.at || slices.Contains(t.plan.Covers, path) ||
		slices.ContainsFunc(t.plan.Binds, func(b Bind) bool { return b.To == path })
}

// bindFile mounts a file at its name in a folder with copies of names.
func (t *tree) bindFile(path, name string, to int) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil // this user cannot reach it either
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	if err := setAttributes(fd, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID, 0, 0); err != nil {
		return err
	}
	point, err := unix.Openat(to, name, unix.O_CREAT|unix.O_EXCL|unix.O_RDONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	unix.Close(point)
	return t.move(fd, path)
}

// devices mounts a /dev with the devices that a child may use: a disk could be written by its device, though everything
// is read-only, if the host is root. Terminals are the task's own, beside those that a child gets open.
func (t *tree) devices() error {
	fd, err := temporary("mode=0755,size=64k")
	if err != nil {
		return err
	}
	t.names = append(t.names, fd)
	for _, d := range []string{"pts", "shm", "mqueue"} {
		if err := unix.Mkdirat(fd, d, 0o755); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
		"ptmx": "pts/ptmx",
	} {
		if err := unix.Symlinkat(target, fd, name); err != nil {
			return err
		}
	}
	if err := t.move(fd, "/dev"); err != nil {
		return err
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		device, err := unix.OpenTree(unix.AT_FDCWD, "/dev/"+name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			continue
		}
		point, err := unix.Openat(fd, name, unix.O_CREAT|unix.O_RDONLY|unix.O_CLOEXEC, 0o644)
		if err == nil {
			unix.Close(point)
			err = t.move(device, "/dev/"+name)
		}
		unix.Close(device)
		if err != nil {
			return err
		}
	}
	terminals, err := mountNew("devpts", "newinstance=,ptmxmode=0666,mode=0620",
		unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(terminals)
	return t.move(terminals, "/dev/pts")
}

// show mounts a folder of the view at a path.
func (t *tree) show(from, path string) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return &os.PathError{Op: "open_tree", Path: from, Err: err}
	}
	defer unix.Close(fd)
	if err := setAttributes(fd, unix.MOUNT_ATTR_NODEV, 0, 0); err != nil {
		return err
	}
	if err = t.move(fd, path); errors.Is(err, fs.ErrNotExist) { // what it is in was left out
		if err = t.makeFolders(path); err == nil {
			err = t.move(fd, path)
		}
	}
	return err
}

func (t *tree) makeFolders(path string) error {
	at := ""
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		above, err := t.open(at)
		if err != nil {
			return err
		}
		err = unix.Mkdirat(above, name, 0o755)
		unix.Close(above)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return &os.PathError{Op: "mkdir", Path: path, Err: err}
		}
		at += "/" + name
	}
	return nil
}

// cover covers what must not be seen, at the latest before a mount at a path inside it; with "" all that is left. It
// returns what is left.
func (t *tree) cover(covers []string, before string, paths []string) (later []string, err error) {
	for _, c := range covers {
		if before != "" && !within(c, before) {
			later = append(later, c)
		} else if err := t.coverOne(c, paths); err != nil {
			return nil, err
		}
	}
	return later, nil
}

// coverOne puts an empty folder over a folder, with folders in it at which paths can be mounted, and an empty file over
// a file.
func (t *tree) coverOne(at string, paths []string) error {
	point, err := t.open(at)
	if err != nil {
		return nil // it is not there, or in a folder that the view replaces
	}
	var st unix.Stat_t
	err = unix.Fstat(point, &st)
	unix.Close(point)
	switch {
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return nil // its target is covered by the path of the target
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		fd, err := unix.OpenTree(unix.AT_FDCWD, "/dev/null", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return &os.PathError{Op: "open_tree", Path: "/dev/null", Err: err}
		}
		defer unix.Close(fd)
		return t.move(fd, at)
	}
	fd, err := temporary("mode=0755,size=64k")
	if err != nil {
		return err
	}
	t.names = append(t.names, fd)
	if err := setAttributes(fd, unix.MOUNT_ATTR_NOEXEC, 0, 0); err != nil {
		return err
	}
	if err := t.move(fd, at); err != nil {
		return err
	}
	for _, path := range paths {
		if path != at && within(at, path) {
			if err := t.makeFolders(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// grant mounts a socket at its path, so that what listens there is reached.
func (t *tree) grant(socket string) error {
	real, err := filepath.EvalSymlinks(socket)
	if err != nil {
		return nil // nothing listens there
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, real, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil // this user cannot reach it either
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return err
	}
	if err = t.move(fd, real); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir, err := t.open(filepath.Dir(real))
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Mknodat(dir, filepath.Base(real), unix.S_IFREG|0o600, 0); err != nil {
		return &os.PathError{Op: "mknod", Path: real, Err: err}
	}
	return t.move(fd, real)
}

// open opens a path of the tree, without following a link that has the path itself.
func (t *tree) open(path string) (int, error) {
	if path = strings.TrimLeft(path, "/"); path == "" {
		path = "."
	}
	fd, err := unix.Openat2(t.root, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: "/" + path, Err: err}
	}
	return fd, nil
}

// move attaches a mount at a path of the tree.
func (t *tree) move(fd int, path string) error {
	if t.count++; t.count > mostInTree {
		return fmt.Errorf("more than %d mounts", mostInTree)
	}
	to, err := t.open(path)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	if err := unix.MoveMount(fd, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "move_mount", Path: path, Err: err}
	}
	return nil
}

// temporary makes a file system in memory.
func temporary(options string) (int, error) {
	return mountNew("tmpfs", options, unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID)
}

func mountNew(kind, options string, attributes int) (int, error) {
	fsfd, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen %s: %w", kind, err)
	}
	defer unix.Close(fsfd)
	for one := range strings.SplitSeq(options, ",") {
		key, value, _ := strings.Cut(one, "=")
		if value == "" {
			err = unix.FsconfigSetFlag(fsfd, key)
		} else {
			err = unix.FsconfigSetString(fsfd, key, value)
		}
		if err != nil {
			return -1, fmt.Errorf("%s: %s: %w", kind, one, err)
		}
	}
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return -1, fmt.Errorf("%s: %w", kind, err)
	}
	fd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return -1, fmt.Errorf("fsmount %s: %w", kind, err)
	}
	return fd, nil
}

func setAttributes(fd int, set, clear uint64, flags uint) error {
	a := unix.MountAttr{Attr_set: set, Attr_clr: clear}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|flags, &a); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return nil
}

// Mounted returns the types of the file systems that this process sees, by mount point.
func Mounted() (map[string]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for line := range strings.Lines(string(b)) {
		before, after, _ := strings.Cut(line, " - ")
		f, kind := strings.Fields(before), strings.Fields(after)
		if len(f) > 4 && len(kind) > 0 {
			all[unescape(f[4])] = kind[0]
		}
	}
	return all, nil
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace
