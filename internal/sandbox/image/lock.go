package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"
)

// tryLock takes the lock of an image, alone or together with others, or gives
// nil when somebody is in the way.
func (c *cache) tryLock(hex string, alone bool) (*os.File, error) {
	for {
		f, err := os.OpenFile(c.path("locks", hex), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if ok, err := flock(f, alone); !ok || err != nil {
			f.Close()
			return nil, err
		}
		if c.current(f, hex) {
			return f, nil
		}
		f.Close() // its file was removed in between; the next one counts
	}
}

// current reports whether an open lock is the one that others will find.
func (c *cache) current(f *os.File, hex string) bool {
	mine, err1 := f.Stat()
	theirs, err2 := os.Stat(c.path("locks", hex))
	return err1 == nil && err2 == nil && os.SameFile(mine, theirs)
}

// lock waits for a lock.
func (c *cache) lock(ctx context.Context, hex string, alone bool) (*os.File, error) {
	pause := 2 * time.Millisecond
	for {
		if l, err := c.tryLock(hex, alone); l != nil || err != nil {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(pause):
			pause = min(2*pause, 200*time.Millisecond)
		}
	}
}

// unlock gives a lock back. Whoever holds it alone and leaves nothing to lock
// removes its file too.
func (c *cache) unlock(l *os.File, nothingLeft bool) {
	if nothingLeft {
		if err := os.Remove(l.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.log.Warn("cannot remove the lock of an image", "file", l.Name(), "err", err)
		}
	}
	l.Close()
}
