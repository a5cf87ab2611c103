package atomicfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gatehouse/internal/files/filelock"
)

// lockWait is how long Lock waits. Holders work for milliseconds.
const lockWait = 15 * time.Second

// Lock lets one process at a time change files, and one caller within a process. It waits up to 15 s. path is the
// path of the lock file and ends in ".lock"; missing folders are created.
func Lock(path string) (unlock func(), err error) { return lock(path, lockWait) }

func lock(path string, wait time.Duration) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	held, err := filelock.Wait(ctx, strings.TrimSuffix(path, ".lock")+".write.lock", filelock.Exclusive)
	if err == nil {
		if err = sign(ctx, path); err == nil {
			return func() {
				os.Remove(path)
				held.Remove()
			}, nil
		}
		held.Remove()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("another process has held %s for %v; find and end it, then try again", path, wait)
	}
	return nil, err
}

// signStale is the age after which processes of the version before ignore a sign.
const signStale = 10 * time.Second

// sign makes the file at path. Processes of the version before this one know no
// other lock: the one that makes the file has it, and removes it afterwards, and
// a file that is 10 s old was left by one that was killed. The caller holds the
// lock of this version, so that no other process of this version is here at the
// same time. Remove sign one version later.
func sign(ctx context.Context, path string) error {
	const content = "held by a lock of the kernel's on the file beside it\n" // the version before writes none
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(content)
			return errors.Join(err, f.Close())
		}
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		info, err := os.Stat(path)
		// A sign with content was left by a killed process of this version: if that process were alive, this one
		// would not hold its lock.
		if err == nil && (info.Size() > 0 || time.Since(info.ModTime()) > signStale) {
			os.Remove(path)
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}
