package image

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncTree writes a folder to disk by syncing its whole file system, which is much faster than file by file.
func syncTree(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(d.Fd())))
}
