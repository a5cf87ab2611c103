//go:build linux && (amd64 || arm64)

package agent

import (
	"crypto/rand"
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

const mostEntries = 1000 // of one answer

var errProc = fmt.Errorf("files of /proc are for programs: %w", unix.EACCES)

// onFiles does work on files on a thread that has the rights of the code and
// no others. The thread goes when the work is done.
func (r *request) onFiles(work agentprotocol.FileWork) error {
	r.command(func(uint8) { // whatever the number, the work is to stop
		r.stdin.Drop()
		r.stdout.End()
	}, nil)
	defer r.command(nil, nil)
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := asCode(r.desk.current())
		if err == nil {
			err = r.files(work)
		}
		done <- err
	}()
	return <-done
}

// asCode makes the calling thread's file accesses those of the code.
func asCode(p agentprotocol.Plan) error {
	if !p.OneUser {
		if err := filesAs(p); err != nil {
			return err
		}
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	return call("capset", "none", unix.Capset(&head, &caps[0]))
}

func (r *request) files(work agentprotocol.FileWork) (err error) {
	var end agentprotocol.Ended
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
	case agentprotocol.UsedGroup:
		err = r.usedGroup()
	case agentprotocol.UsedDisk:
		err = r.usedDisk()
	}
	if err != nil {
		return err
	}
	return ended{end}
}

// full is the path of what is named, seen from the home folder.
func full(name string) string {
	if !path.IsAbs(name) {
		name = home + "/" + name
	}
	return name
}

// open opens what a path leads to, but nothing by way of proc.
func open(name string, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC | unix.O_NOCTTY | unix.O_NONBLOCK),
		Mode:    uint64(mode),
		Resolve: unix.RESOLVE_NO_MAGICLINKS,
	}
	if flags&unix.O_PATH != 0 {
		how.Flags &^= unix.O_NOCTTY | unix.O_NONBLOCK
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, full(name), &how)
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

// above opens the folder a name is in.
func above(name string) (fd int, base string, err error) {
	name = path.Clean(full(name))
	base = path.Base(name)
	if base == "/" {
		base = "."
	}
	fd, err = open(path.Dir(name), unix.O_PATH|unix.O_DIRECTORY, 0)
	return fd, base, err
}

func regular(name string, flags int, mode uint32) (*os.File, agentprotocol.Info, error) {
	fd, err := open(name, flags, mode)
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
		return os.NewFile(uintptr(fd), name), info(path.Base(name), "", &st), nil
	case unix.S_IFDIR:
		err = unix.EISDIR
	default:
		err = fmt.Errorf("it is no regular file: %w", unix.EINVAL)
	}
	unix.Close(fd)
	return nil, agentprotocol.Info{}, err
}

func info(name, link string, st *unix.Stat_t) agentprotocol.Info {
	return agentprotocol.Info{Name: name, Link: link, Size: max(st.Size, 0), Mode: st.Mode, Modified: time.Unix(st.Mtim.Unix())}
}

func (r *request) readFile(work agentprotocol.FileWork) error {
	f, about, err := regular(work.Path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := r.send(agentprotocol.Entry, about.Body()); err != nil {
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

func (r *request) storeFile(work agentprotocol.FileWork) error {
	if work.Parents {
		if err := makeFolders(path.Dir(path.Clean(full(work.Path)))); err != nil {
			return err
		}
	}
	if work.Append {
		f, _, err := regular(work.Path, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT, uint32(work.Mode))
		if err != nil {
			return err
		}
		return r.fill(f, path.Base(work.Path))
	}
	dir, base, err := above(work.Path)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	// What is there keeps its permissions; what is no file is not replaced.
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

// replace writes beside the file and then takes its place.
func (r *request) replace(dir int, base string, mode uint32) error {
	temporary := ".writing-" + rand.Text()
	fd, err := unix.Openat(dir, temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return err
	}
	err = errors.Join(unix.Fchmod(fd, mode), r.fill(os.NewFile(uintptr(fd), base), base))
	if err == nil {
		err = unix.Renameat(dir, temporary, dir, base)
	}
	if err != nil {
		unix.Unlinkat(dir, temporary, 0)
	}
	return err
}

// fill writes what the host sends, closes the file and describes it.
func (r *request) fill(f *os.File, name string) error {
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
	return errors.Join(f.Close(), r.send(agentprotocol.Entry, info(name, "", &st).Body()))
}

func (r *request) isKilled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.killed
}

// listFolder sends an entry for each name in order; 1 means there are more.
func (r *request) listFolder(work agentprotocol.FileWork) (more uint8, err error) {
	fd, err := open(work.Path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return 0, err
	}
	dir := os.NewFile(uintptr(fd), work.Path)
	defer dir.Close()
	most := mostEntries
	if work.Length > 0 {
		most = int(min(work.Length, mostEntries))
	}
	names, more, err := firstNames(dir, work.Other, most)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		i, err := entry(fd, name)
		if errors.Is(err, unix.ENOENT) {
			continue // it went meanwhile
		}
		if err != nil {
			return 0, err
		}
		if err := r.send(agentprotocol.Entry, i.Body()); err != nil {
			return 0, err
		}
	}
	return more, nil
}

// firstNames are the first names after one, sorted. However many there are in
// the folder, few are held.
func firstNames(dir *os.File, after string, most int) (names []string, more uint8, err error) {
	for {
		some, err := dir.Readdirnames(mostEntries)
		for _, n := range some {
			if n > after {
				names = append(names, n)
			}
		}
		if len(names) > most+mostEntries || err != nil {
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
	return info(name, link, &st), nil
}

func (r *request) statPath(name string) error {
	dir, base, err := above(name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	i, err := entry(dir, base)
	if err != nil {
		return err
	}
	return r.send(agentprotocol.Entry, i.Body())
}

// makeFolders makes a folder and those above it.
func makeFolders(name string) error {
	name = path.Clean(full(name))
	fd, err := open(name, unix.O_PATH|unix.O_DIRECTORY, 0)
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
	dir, base, err := above(name)
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
	dir, base, err := above(name)
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
	// A Root removes what is below without being led astray, whatever is
	// moved about meanwhile.
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", dir))
	if err != nil {
		return err
	}
	defer root.Close()
	return root.RemoveAll(base)
}

func renamePath(from, to string) error {
	dir, base, err := above(from)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	toDir, toBase, err := above(to)
	if err != nil {
		return err
	}
	defer unix.Close(toDir)
	return unix.Renameat(dir, base, toDir, toBase)
}
