//go:build linux && (amd64 || arm64)

package agent

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"gatehouse/internal/sandbox/agentprotocol"

	"golang.org/x/sys/unix"
)

// maxDepth is the deepest nesting of folders that is packed. Each level holds an open file and a thousand
// names.
const maxDepth = 256

// openBelow opens a path below dir without following any symbolic link.
func openBelow(dir int, name string, flags int) (int, error) {
	return unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// packFolder sends a tar of the contents of a folder.
func (r *request) packFolder(folder string) error {
	fd, err := openPath(folder, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(stdoutWriter{r}, chunk)
	p := packer{request: r, to: tar.NewWriter(out)}
	if err := p.packContents(fd, "", 0); err != nil {
		return err
	}
	if err := errors.Join(p.to.Close(), out.Flush()); err != nil {
		return err
	}
	return r.sendReply(agentprotocol.Stdout, nil)
}

// stdoutWriter sends what is written as Stdout.
type stdoutWriter struct{ r *request }

func (g stdoutWriter) Write(b []byte) (sent int, err error) {
	for sent < len(b) {
		n := g.r.stdout.Acquire(min(len(b)-sent, chunk))
		if n == 0 {
			return sent, unix.ECANCELED
		}
		if err := g.r.sendReply(agentprotocol.Stdout, b[sent:sent+n]); err != nil {
			return sent, err
		}
		sent += n
	}
	return sent, nil
}

type packer struct {
	*request
	to *tar.Writer
}

// packContents packs the contents of an open folder, which it closes. name is the name of the folder in the tar.
func (p packer) packContents(fd int, name string, depth int) error {
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	if depth > maxDepth {
		return fmt.Errorf("%s: folders are nested deeper than %d: %w", name, maxDepth, unix.ELOOP)
	}
	for {
		names, err := dir.Readdirnames(maxEntries)
		for _, n := range names {
			if p.isKilled() {
				return unix.ECANCELED
			}
			// Removed meanwhile.
			if err := p.packEntry(fd, n, path.Join(name, n), depth); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("%s: %w", path.Join(name, n), err)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (p packer) packEntry(dir int, base, name string, depth int) error {
	i, err := entry(dir, base)
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, Mode: int64(i.Mode & 0o777), ModTime: i.Modified}
	if p.server.currentPlan().Range {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		h.Uid, h.Gid, h.Mode = int(st.Uid), int(st.Gid), int64(i.Mode&ownedMode)
	}
	switch i.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		h.Typeflag, h.Linkname = tar.TypeSymlink, i.Link
		return p.to.WriteHeader(h)
	case unix.S_IFDIR:
		fd, err := openBelow(dir, base, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		if err := p.to.WriteHeader(h); err != nil {
			unix.Close(fd)
			return err
		}
		return p.packContents(fd, name, depth+1)
	case unix.S_IFREG:
		return p.packFile(dir, base, h)
	}
	return nil
}

// ownedMode are the permissions of files whose owners are packed as well. None of them changes the user of a program.
const ownedMode = 0o1777

// packFile packs as many bytes as the file has when it is opened. If the file shrinks meanwhile, the rest is
// zeros, because the header with the size has been sent.
func (p packer) packFile(dir int, base string, h *tar.Header) error {
	fd, err := openBelow(dir, base, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return err // replaced meanwhile by something that is not a file
	}
	h.Typeflag, h.Size = tar.TypeReg, max(st.Size, 0)
	if err := p.to.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(p.to, io.LimitReader(f, h.Size))
	if err == nil && n < h.Size {
		_, err = io.CopyN(p.to, zeros{}, h.Size-n)
	}
	return err
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// unpackFolder unpacks a tar below a folder.
func (r *request) unpackFolder(folder string) error {
	if err := makeFolders(folder); err != nil {
		return err
	}
	fd, err := openPath(folder, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	u := unpacker{request: r, root: fd, owners: r.server.currentPlan().Range}
	from := tar.NewReader(&stdinReader{r: r})
	for {
		h, err := from.Next()
		if r.isKilled() {
			return unix.ECANCELED
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the data is not a valid tar: %w", err)
		}
		if err := u.unpackEntry(h, from); err != nil {
			return fmt.Errorf("%.200q: %w", h.Name, err)
		}
	}
}

// stdinReader reads what arrives as Stdin.
type stdinReader struct {
	r    *request
	left []byte
	debt agentprotocol.Consumed
}

func (s *stdinReader) Read(b []byte) (int, error) {
	if len(s.left) == 0 {
		next, ok := s.r.stdin.Receive()
		if !ok {
			return 0, io.EOF
		}
		s.left = next
		if n := s.debt.Add(len(next)); n > 0 {
			if err := s.r.sendReply(agentprotocol.Credit,
				agentprotocol.Grant{Stream: agentprotocol.Stdin, Bytes: n}.Body()); err != nil {
				return 0, err
			}
		}
	}
	n := copy(b, s.left)
	s.left = s.left[n:]
	return n, nil
}

type unpacker struct {
	*request
	root   int
	owners bool // what is unpacked gets the owners in the tar
}

// unpackEntry creates what a header describes. It never follows symbolic links, so that nothing is created
// through one.
func (u unpacker) unpackEntry(h *tar.Header, from io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil // it describes other entries
	}
	if path.IsAbs(h.Name) {
		return fmt.Errorf("the name is absolute; expected a name relative to the folder: %w", unix.EINVAL)
	}
	for part := range strings.SplitSeq(h.Name, "/") {
		if part == ".." {
			return fmt.Errorf(`the name contains "..", which leads out of the folder: %w`, unix.EINVAL)
		}
	}
	name := path.Clean(h.Name)
	if name == "." {
		if h.Typeflag == tar.TypeDir {
			return nil // the folder itself
		}
		return fmt.Errorf("the entry has no name: %w", unix.EINVAL)
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeSymlink, tar.TypeDir:
	default:
		return fmt.Errorf("entries of type %q cannot be unpacked, only files, folders and symbolic links: %w",
			h.Typeflag, unix.EINVAL)
	}
	dir, err := u.openFolder(path.Dir(name))
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	base := path.Base(name)
	if err := u.makeEntry(dir, base, h, from); err != nil || !u.owners {
		return err
	}
	if err := unix.Fchownat(dir, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil ||
		h.Typeflag == tar.TypeSymlink {
		return err
	}
	return unix.Fchmodat(dir, base, uint32(h.Mode)&ownedMode, 0)
}

// makeEntry creates an entry in its folder.
func (u unpacker) makeEntry(dir int, base string, h *tar.Header, from io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		return makeFolder(dir, base, uint32(h.Mode))
	case tar.TypeSymlink:
		if err := removeExisting(dir, base); err != nil {
			return err
		}
		return unix.Symlinkat(h.Linkname, dir, base)
	}
	return u.unpackFile(dir, base, h, from)
}

// openFolder opens a folder below the root and creates missing ones.
func (u unpacker) openFolder(name string) (int, error) {
	fd, err := openBelow(u.root, name, unix.O_PATH|unix.O_DIRECTORY)
	if !errors.Is(err, unix.ENOENT) {
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
			err = fmt.Errorf("%.200q is a link or a file, and nothing is unpacked through one: %w", name, err)
		}
		return fd, err
	}
	above, err := u.openFolder(path.Dir(name))
	if err != nil {
		return -1, err
	}
	defer unix.Close(above)
	if err := unix.Mkdirat(above, path.Base(name), 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	return openBelow(u.root, name, unix.O_PATH|unix.O_DIRECTORY)
}

// makeFolder creates a folder or reuses an existing one. Its owner can always create files in it, as the rest
// of the tar may require.
func makeFolder(dir int, base string, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil ||
		st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if err := removeExisting(dir, base); err != nil {
			return err
		}
		if err := unix.Mkdirat(dir, base, 0o700); err != nil {
			return err
		}
	}
	fd, err := openBelow(dir, base, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fchmod(fd, mode&0o777|0o700)
}

// removeExisting removes a file, a link, or an empty folder.
func removeExisting(dir int, base string) error {
	err := unix.Unlinkat(dir, base, 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(dir, base, unix.AT_REMOVEDIR)
	}
	return ignore(err, unix.ENOENT)
}

func (u unpacker) unpackFile(dir int, base string, h *tar.Header, from io.Reader) error {
	if err := removeExisting(dir, base); err != nil {
		return err
	}
	fd, err := unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	if _, err := io.Copy(cancelWriter{u.request, f}, from); err != nil {
		if e, ok := errors.AsType[unix.Errno](err); ok {
			return e
		}
		return err
	}
	when := unix.Timespec{Sec: h.ModTime.Unix()}
	return errors.Join(unix.Fchmod(fd, uint32(h.Mode)&0o777),
		unix.UtimesNanoAt(dir, base, []unix.Timespec{when, when}, unix.AT_SYMLINK_NOFOLLOW))
}

// cancelWriter writes until the host cancels the request. The sizes in a tar may be far larger than the tar
// itself, so the end of the input alone does not stop the work soon.
type cancelWriter struct {
	r  *request
	to *os.File
}

func (w cancelWriter) Write(b []byte) (int, error) {
	if w.r.isKilled() {
		return 0, unix.ECANCELED
	}
	return w.to.Write(b)
}

// diskUsage sends how many bytes are in use on the writable file systems.
func (r *request) diskUsage() error {
	var used int64
	seen := map[uint64]bool{}
	for _, at := range []string{home, "/tmp", "/var/tmp", "/dev/shm"} {
		var st unix.Stat_t
		var fs unix.Statfs_t
		if err := unix.Stat(at, &st); errors.Is(err, unix.ENOENT) {
			continue
		} else if err != nil {
			return sysErr("stat", at, err)
		}
		if seen[st.Dev] {
			continue
		}
		seen[st.Dev] = true
		if err := unix.Statfs(at, &fs); err != nil {
			return sysErr("statfs", at, err)
		}
		used += int64(fs.Blocks-fs.Bfree) * fs.Bsize
	}
	return r.sendReply(agentprotocol.Entry, agentprotocol.Info{Size: used}.Body())
}
