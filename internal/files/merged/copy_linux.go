package merged

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// CopyContent copies a file, sharing its blocks where the file system can, and keeping its holes.
func CopyContent(to, from *os.File) error {
	if unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil {
		return nil
	}
	size, err := from.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	for at := int64(0); at < size; {
		data, err := from.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // nothing but a hole is left
		}
		end := size
		if err == nil {
			end, err = from.Seek(data, unix.SEEK_HOLE)
		}
		if err != nil {
			data, end = at, size // this file system does not tell
		}
		n, err := io.Copy(io.NewOffsetWriter(to, data), io.NewSectionReader(from, data, end-data))
		if err != nil {
			return err
		}
		if at = data + n; n < end-data {
			return to.Truncate(at) // it became shorter meanwhile
		}
	}
	return to.Truncate(size)
}

// describe gives a file or folder the owner, if permitted, the mode and the attributes of another.
func describe(to, from *os.File, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.ErrUnsupported
	}
	_ = unix.Fchown(int(to.Fd()), int(st.Uid), int(st.Gid)) // an ordinary user keeps its own
	if err := unix.Fchmod(int(to.Fd()), st.Mode&0o7777); err != nil {
		return err
	}
	names := make([]byte, 64<<10)
	n, err := unix.Flistxattr(int(from.Fd()), names)
	if err != nil {
		return nil // this file system has none
	}
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if !strings.HasPrefix(name, "user.") {
			continue
		}
		value := make([]byte, 64<<10)
		if n, err := unix.Fgetxattr(int(from.Fd()), name, value); err == nil {
			if err := unix.Fsetxattr(int(to.Fd()), name, value[:n], 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
				return err
			}
		}
	}
	return nil
}
