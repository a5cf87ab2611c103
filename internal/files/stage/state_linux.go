//go:build !portable

package stage

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gatehouse/internal/exec/overlay"
	"gatehouse/internal/files/merged"
)

// owned is the prefix of the attributes that the overlay itself sets in an upper folder.
const owned = "user.overlay."

// fileClock returns the time by the clock with which the kernel dates files, which is up to a tick behind time.Now. A
// change that begins after it returned is dated at it or later.
func fileClock() time.Time {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil {
		return time.Now().Add(-10 * time.Millisecond) // the longest tick
	}
	return time.Unix(now.Unix())
}

// syncFileSystem makes durable what was written to the file system of a folder.
func syncFileSystem(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("syncfs(%s): %w", dir, err)
	}
	return nil
}

// mostReads limits how often a file is read that changes while it is read.
const mostReads = 5

// stateOf returns the state of a name. It reads small files, to compare their content.
func stateOf(root *os.Root, name string) (s State, err error) {
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return State{Type: None}, nil
	}
	if err != nil {
		return State{}, err
	}
	if s, err = stateIn(info); err != nil {
		return State{}, err
	}
	if s.Type == Link {
		s.Target, err = root.Readlink(name)
	}
	if err != nil || s.Type != File && s.Type != Folder {
		return s, err
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return s, err
	}
	defer f.Close()
	for range mostReads {
		if s, err = readState(f); err != nil {
			return s, err
		}
		if info, err = f.Stat(); err != nil {
			return s, err
		}
		if again, err := stateIn(info); err != nil || again.CTime == s.CTime && again.Size == s.Size {
			return s, err
		}
	}
	s.Hash = "it changes " + rand.Text() // equals none
	return s, nil
}

// readState returns the state of an open file or folder.
func readState(f *os.File) (s State, err error) {
	if s, err = openState(f); err != nil || s.Type != File {
		return s, err
	}
	if s.Size > hashMost {
		// Its time stands for its content, so a later change must get another one.
		nextTick(time.Unix(0, s.CTime))
		return s, nil
	}
	h := sha256.New()
	b := make([]byte, min(s.Size+1, 1<<16)) // io.Copy would allocate more for each of many small files
	if _, err = io.CopyBuffer(h, io.NewSectionReader(f, 0, hashMost+1), b); err == nil {
		s.Hash = hex.EncodeToString(h.Sum(nil))
	}
	return s, err
}

// openState returns the state of an open file without its content.
func openState(f *os.File) (s State, err error) {
	info, err := f.Stat()
	if err == nil {
		s, err = stateIn(info)
	}
	if err == nil {
		s.Attributes, s.marks, err = attributesOf(f)
	}
	return s, err
}

// stateIn returns what is known of a name without opening it.
func stateIn(info fs.FileInfo) (State, error) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return State{}, errors.ErrUnsupported
	}
	s := State{
		Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid), Size: st.Size, MTime: st.Mtim.Nano(),
		Dev: st.Dev, Ino: st.Ino, CTime: st.Ctim.Nano(), Links: uint64(st.Nlink),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		s.Type = File
	case unix.S_IFDIR:
		s.Type, s.Size = Folder, 0
	case unix.S_IFLNK:
		s.Type = Link
	case unix.S_IFIFO:
		s.Type = Pipe
	case unix.S_IFSOCK:
		s.Type = Socket
	case unix.S_IFCHR:
		if s.Type = Device; st.Rdev == 0 {
			s.Type = whiteout
		}
	default:
		s.Type = Device
	}
	return s, nil
}

// readDir returns what is in a folder that is open. Of a file that was opened in an os.Root, os.File.ReadDir examines each
// name, which costs most of a walk.
func readDir(d *os.File) ([]fs.DirEntry, error) {
	fd, err := unix.FcntlInt(d.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	plain := os.NewFile(uintptr(fd), d.Name())
	defer plain.Close()
	return plain.ReadDir(-1)
}

// attributesOf returns the extended attributes of a user, and the marks of the overlay.
func attributesOf(f *os.File) (all map[string][]byte, has marks, err error) {
	fd := int(f.Fd())
	n, err := unix.Flistxattr(fd, nil)
	if err != nil || n == 0 {
		return nil, has, nil // this file system, or the file, has none
	}
	b := make([]byte, 64<<10)
	if n, err = unix.Flistxattr(fd, b); err != nil {
		return nil, has, nil
	}
	for name := range strings.SplitSeq(string(b[:n]), "\x00") {
		if !strings.HasPrefix(name, "user.") {
			continue
		}
		value := make([]byte, 64<<10)
		m, err := unix.Fgetxattr(fd, name, value)
		if err != nil {
			continue
		}
		if strings.HasPrefix(name, owned) {
			has.opaque = has.opaque || name == owned+"opaque" && string(value[:m]) == "y"
			has.copied = has.copied || name == owned+"origin"
			continue
		}
		if all == nil {
			all = map[string][]byte{}
		}
		all[name] = slices.Clone(value[:m])
	}
	return all, has, nil
}

// keepsAll means that pipes and the times of links are accepted too.
const keepsAll = true

// manyMost is that of manyOps.
const manyMost = 64

// syncFolder makes the names in an open folder durable.
func syncFolder(d *os.File) error { return d.Sync() }

// dress gives a name, which is open, the owner, if permitted, the mode, the attributes and the time of a state.
func dress(_ *os.Root, _ string, f *os.File, s State) error { return dressOpen(f, s) }

func dressOpen(f *os.File, s State) error {
	fd := int(f.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if int(st.Uid) != s.UID || int(st.Gid) != s.GID {
		_ = unix.Fchown(fd, s.UID, s.GID) // an ordinary user keeps its own
	}
	if err := unix.Fchmod(fd, s.Mode); err != nil {
		return err
	}
	now, _, err := attributesOf(f)
	if err != nil {
		return err
	}
	for name := range now {
		if _, ok := s.Attributes[name]; !ok {
			_ = unix.Fremovexattr(fd, name)
		}
	}
	for name, value := range s.Attributes {
		if err := unix.Fsetxattr(fd, name, value, 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return err
		}
	}
	t := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(s.MTime)}
	return unix.UtimesNanoAt(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), t, 0)
}

func makePipe(root *os.Root, name string, mode uint32) error {
	dir, base, err := openParent(root, name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Mkfifoat(int(dir.Fd()), base, mode)
}

// exchange swaps two names in one step.
func exchange(root *os.Root, a, b string) error { return renameWith(root, a, b, unix.RENAME_EXCHANGE) }

// moveNew renames a name to one that does not exist.
func moveNew(root *os.Root, from, to string) error {
	return renameWith(root, from, to, unix.RENAME_NOREPLACE)
}

// renameWith renames a name within its folder. The error is errors.ErrUnsupported if the file system cannot.
func renameWith(root *os.Root, from, to string, flags uint) error {
	dir, base, err := openParent(root, from)
	if err != nil {
		return err
	}
	defer dir.Close()
	err = unix.Renameat2(int(dir.Fd()), base, int(dir.Fd()), path.Base(to), flags)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return errors.ErrUnsupported
	}
	return err
}

// linkTime sets the time of a link or a pipe, without opening it.
func linkTime(root *os.Root, name string, nanos int64) error {
	dir, base, err := openParent(root, name)
	if err != nil {
		return err
	}
	defer dir.Close()
	t := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(nanos)}
	return unix.UtimesNanoAt(int(dir.Fd()), base, t, unix.AT_SYMLINK_NOFOLLOW)
}

// clone copies a file, sharing its blocks where the file system can, and keeping its holes.
func clone(to, from *os.File) error { return merged.CopyContent(to, from) }

// mountsWithin returns a mount below a folder, which an overlay would hide.
func mountsWithin(folder string) string {
	mounted, _ := overlay.Mounted()
	for at := range mounted {
		if at != folder && inside(folder, at) {
			return at
		}
	}
	return ""
}

// giveTo gives a folder the owner of another, which an ordinary user is already.
func giveTo(dir string, like fs.FileInfo) {
	if st, ok := like.Sys().(*syscall.Stat_t); ok {
		os.Lchown(dir, int(st.Uid), int(st.Gid))
	}
}

// sizeOf returns the bytes that a folder uses on its disk.
func sizeOf(dir string) (total int64) {
	filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				if st, ok := info.Sys().(*syscall.Stat_t); ok {
					total += st.Blocks * 512
				}
			}
		}
		return nil
	})
	return total
}
