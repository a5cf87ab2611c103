//go:build unix

package idelink

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// openRegular opens a file that is not a link, without waiting for the other end of a pipe.
func openRegular(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
}

// private returns an error unless a file or folder belongs to this user and no other user can
// change it, or read a file.
func private(path string, dir bool) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return privateInfo(path, info, dir)
}

func privateInfo(path string, info fs.FileInfo, dir bool) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	loose := fs.FileMode(0o077)
	if dir {
		loose = 0o022 // the files themselves are private
	}
	switch {
	case dir != info.IsDir() || !dir && !info.Mode().IsRegular():
		return fmt.Errorf("%s has the wrong type: %s", path, info.Mode().Type())
	case !ok || int64(st.Uid) != int64(os.Geteuid()):
		return errors.New("it belongs to another user")
	case info.Mode().Perm()&loose != 0:
		return fmt.Errorf("other users may access it: its mode is %04o, expected %04o", info.Mode().Perm(),
			info.Mode().Perm()&^loose)
	}
	return nil
}

// alive reports whether a process exists and can be signalled by this user.
func alive(pid int) bool { return pid > 0 && syscall.Kill(pid, 0) == nil }
