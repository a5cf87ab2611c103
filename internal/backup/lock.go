package backup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// lockAlone locks a file in a folder for one holder; free is false when others
// hold it, and then there is nothing to unlock. A lock ends with its process.
func lockAlone(folder, name string) (unlock func() error, free bool, err error) {
	f, err := openLock(folder, name)
	if err != nil {
		return nil, false, err
	}
	if free, err = flock(f, true); !free || err != nil {
		return nil, false, errors.Join(err, f.Close())
	}
	return f.Close, true, nil
}

// sharedWait is how long a host waits for another that puts a restore in
// place.
const sharedWait = 30 * time.Second

// lockShared locks a file for one of many holders. One holder alone keeps it
// for as long as moving files takes, which is waited for.
func lockShared(folder, name string) (unlock func() error, err error) {
	f, err := openLock(folder, name)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(sharedWait); ; time.Sleep(10 * time.Millisecond) {
		got, err := flock(f, false)
		if got {
			return f.Close, nil
		}
		if err == nil && time.Now().Before(end) {
			continue
		}
		if err == nil {
			err = fmt.Errorf("%s is held by a restore that does not end", f.Name())
		}
		return nil, errors.Join(err, f.Close())
	}
}

func openLock(folder, name string) (*os.File, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(folder, name), os.O_CREATE|os.O_RDWR, 0o600)
}
