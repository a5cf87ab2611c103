//go:build linux && (amd64 || arm64)

package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"time"

	"gatehouse/internal/sandbox/agentprotocol"

	"golang.org/x/sys/unix"
)

const maxEntries = 1000 // of one answer

var errProc = fmt.Errorf("files of /proc can be read by programs only: %w", unix.EACCES)

// runFileRequest performs a file operation on a thread that has the permissions of the code and no others. The thread
// exits with the goroutine.
func (r *request) runFileRequest(work agentprotocol.FileRequest) error {
	r.setHandlers(func(uint8) { // any signal cancels the operation
		r.stdin.Discard()
		r.stdout.Close()
	}, nil)
	defer r.setHandlers(nil, nil)
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := assumeCode(r.server.currentPlan())
		if err == nil {
			err = r.dispatchFile(work)
		}
		done <- err
	}()
	return <-done
}

// assumeCode gives the calling thread the code's permissions for file access, unless the sandbox has users of its own.
func assumeCode(p agentprotocol.Plan) error {
	if p.Range { // files of all its users are the host's matter
		return nil
	}
	if !p.SingleUser {
		if err := setFileUser(p); err != nil {
			return err
		}
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	return sysErr("capset", "none", unix.Capset(&head, &caps[0]))
}

func (r *request) dispatchFile(work agentprotocol.FileRequest) (err error) {
	var end agentprotocol.ExitStatus
	switch work.Op {
	case agentprotocol.ReadFile:
		err = r.readFile(work)
	case agentprotocol.StoreFile:
		err = r.storeFile(work)
	case agentprotocol.ListFolder:
		end.Code, err = r.listFolder(work)
	case agentprotocol.StatPath:
		err = r.statPath(work.Path)
	case agentprotocol.MakeFolder:
		err = makeFolders(work.Path)
	case agentprotocol.RemovePath:
		err = removePath(work.Path, work.All)
	case agentprotocol.RenamePath:
		err = renamePath(work.Path, work.Other)
	case agentprotocol.PackFolder:
		err = r.packFolder(work.Path)
	case agentprotocol.UnpackFolder:
		err = r.unpackFolder(work.Path)
	case agentprotocol.GroupUsage:
		err = r.groupUsage()
	case agentprotocol.DiskUsage:
		err = r.diskUsage()
	case agentprotocol.ChownTree:
		err = r.chownTree(work.Path, int(work.Offset), int(work.Length), work.All)
	case agentprotocol.TreeSize:
		err = r.treeSize(work.Path)
	}
	if err != nil {
		return err
	}
	return ended{end}
}

// absolute returns the absolute path of a name relative to the home folder.
func absolute(name string) string {
	if !path.IsAbs(name) {
		name = home + "/" + name
	}
	return name
}

// openPath opens a path. It refuses files of /proc and links through it.
func openPath(name string, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC | unix.O_NOCTTY | unix.O_NONBLOCK),
		Mode:    uint64(mode),
		Resolve: unix.RESOLVE_NO_MAGICLINKS,
	}
	if flags&unix.O_PATH != 0 {
		how.Flags &^= unix.O_NOCTTY | unix.O_NONBLOCK
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, absolute(name), &how)
	if err != nil {
		return -1, err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type == unix.PROC_SUPER_MAGIC {
		unix.Close(fd)
		return -1, errors.Join(errProc, err)
	}
	return fd, nil
}

// openParent opens the parent folder of a path.
func openParent(name string) (fd int, base string, err error) {
	name = path.Clean(absolute(name))
	base = path.Base(name)
	if base == "/" {
		base = "."
	}
	fd, err = openPath(path.Dir(name), unix.O_PATH|unix.O_DIRECTORY, 0)
	return fd, base, err
}

func openRegular(name string, flags int, mode uint32) (*os.File, agentprotocol.Info, error) {
	fd, err := openPath(name, flags, mode)
	if err != nil {
		return nil, agentprotocol.Info{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, agentprotocol.Info{}, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return os.NewFile(uintptr(fd), name), fileInfo(path.Base(name), "", &st), nil
	case unix.S_IFDIR:
		err = unix.EISDIR
	default:
		err = fmt.Errorf("not a regular file: %w", unix.EINVAL)
	}
	unix.Close(fd)
	return nil, agentprotocol.Info{}, err
}

func fileInfo(name, link string, st *unix.Stat_t) agentprotocol.Info {
	return agentprotocol.Info{
		Name:     name,
		Link:     link,
		Size:     max(st.Size, 0),
		Mode:     st.Mode,
		Modified: time.Unix(st.Mtim.Unix()),
	}
}

func (r *request) readFile(work agentprotocol.FileRequest) error {
	f, about, err := openRegular(work.Path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := r.sendReply(agentprotocol.Entry, about.Body()); err != nil {
		return err
	}
	length := work.Length
	if length <= 0 {
		length = max(about.Size-work.Offset, 0)
	}
	if err := r.sendAll(agentprotocol.Stdout, io.NewSectionReader(f, work.Offset, length), r.stdout); err != nil {
		return err
	}
	if r.isKilled() {
		return unix.ECANCELED
	}
	return nil
}

func (r *request) storeFile(work agentprotocol.FileRequest) error {
	if work.Parents {
		if err := makeFolders(path.Dir(path.Clean(absolute(work.Path)))); err != nil {
			return err
		}
	}
	if work.Append {
		f, _, err := openRegular(work.Path, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT, uint32(work.Mode))
		if err != nil {
			return err
		}
		return r.writeContent(f, path.Base(work.Path))
	}
	dir, base, err := openParent(work.Path)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	// An existing file keeps its permissions. A folder is not replaced.
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			work.Mode = int64(st.Mode & 0o777)
		case unix.S_IFDIR:
			return unix.EISDIR
		}
	}
	return r.replace(dir, base, uint32(work.Mode))
}

// replace writes a temporary file and renames it to base.
func (r *request) replace(dir int, base string, mode uint32) error {
	random := make([]byte, 16)
	if _, err := unix.Getrandom(random, 0); err != nil {
		return sysErr("getrandom", "", err)
	}
	temporary := fmt.Sprintf(".writing-%x", random)
	fd, err := unix.Openat(dir, temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return err
	}
	err = errors.Join(unix.Fchmod(fd, mode), r.writeContent(os.NewFile(uintptr(fd), base), base))
	if err == nil {
		err = unix.Renameat(dir, temporary, dir, base)
	}
	if err != nil {
		unix.Unlinkat(dir, temporary, 0)
	}
	return err
}

// writeContent writes the data of Stdin to f, closes f, and sends an Entry for it.
func (r *request) writeContent(f *os.File, name string) error {
	defer f.Close()
	if err := r.receiveAll(f); err != nil {
		return err
	}
	if r.isKilled() {
		return unix.ECANCELED
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	return errors.Join(f.Close(), r.sendReply(agentprotocol.Entry, fileInfo(name, "", &st).Body()))
}

func (r *request) isKilled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.killed
}

// listFolder sends an Entry for each name in order. It returns 1 if there are more.
func (r *request) listFolder(work agentprotocol.FileRequest) (more uint8, err error) {
	fd, err := openPath(work.Path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return 0, err
	}
	dir := os.NewFile(uintptr(fd), work.Path)
	defer dir.Close()
	most := maxEntries
	if work.Length > 0 {
		most = int(min(work.Length, maxEntries))
	}
	names, more, err := firstNames(dir, work.Other, most)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		i, err := entry(fd, name)
		if errors.Is(err, unix.ENOENT) {
			continue // removed meanwhile
		}
		if err != nil {
			return 0, err
		}
		if err := r.sendReply(agentprotocol.Entry, i.Body()); err != nil {
			return 0, err
		}
	}
	return more, nil
}

// firstNames returns the first most names that sort after a name. It holds few names in memory at once,
// however many the folder has.
func firstNames(dir *os.File, after string, most int) (names []string, more uint8, err error) {
	for {
		some, err := dir.Readdirnames(maxEntries)
		for _, n := range some {
			if n > after {
				names = append(names, n)
			}
		}
		if len(names) > most+maxEntries || err != nil {
			slices.Sort(names)
			if len(names) > most {
				names, more = slices.Clone(names[:most]), 1
			}
		}
		if errors.Is(err, io.EOF) {
			return names, more, nil
		}
		if err != nil {
			return nil, 0, err
		}
	}
}

func entry(dir int, name string) (agentprotocol.Info, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return agentprotocol.Info{}, err
	}
	link := ""
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		b := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, name, b)
		if err != nil {
			return agentprotocol.Info{}, err
		}
		link = string(b[:n])
	}
	return fileInfo(name, link, &st), nil
}

func (r *request) statPath(name string) error {
	dir, base, err := openParent(name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	i, err := entry(dir, base)
	if err != nil {
		return err
	}
	return r.sendReply(agentprotocol.Entry, i.Body())
}

// makeFolders creates a folder and its missing parents.
func makeFolders(name string) error {
	name = path.Clean(absolute(name))
	fd, err := openPath(name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err == nil {
		unix.Close(fd)
		return nil
	}
	if !errors.Is(err, unix.ENOENT) || name == "/" {
		return err
	}
	if err := makeFolders(path.Dir(name)); err != nil {
		return err
	}
	dir, base, err := openParent(name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Mkdirat(dir, base, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

func removePath(name string, all bool) error {
	dir, base, err := openParent(name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	err = unix.Unlinkat(dir, base, 0)
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	err = unix.Unlinkat(dir, base, unix.AT_REMOVEDIR)
	if !all || !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	// An os.Root never leaves the folder, even if its contents are moved during the removal.
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", dir))
	if err != nil {
		return err
	}
	defer root.Close()
	return root.RemoveAll(base)
}

func renamePath(from, to string) error {
	dir, base, err := openParent(from)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	toDir, toBase, err := openParent(to)
	if err != nil {
		return err
	}
	defer unix.Close(toDir)
	return unix.Renameat(dir, base, toDir, toBase)
}
