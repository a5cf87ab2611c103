package image

import (
	"context"
	"errors"

	"gatehouse/internal/files/filelock"
)

// tryLock locks an image, or returns nil if another holder is in the way.
func (c *cache) tryLock(hex string, mode filelock.Mode) (*filelock.Lock, error) {
	l, err := filelock.Try(c.path("locks", hex), mode)
	if errors.Is(err, filelock.ErrHeld) {
		return nil, nil
	}
	return l, err
}

// lock waits for the lock of an image.
func (c *cache) lock(ctx context.Context, hex string, mode filelock.Mode) (*filelock.Lock, error) {
	return filelock.Wait(ctx, c.path("locks", hex), mode)
}

// unlock ends a lock. An exclusive holder that leaves no image removes the
// lock's file too.
func (c *cache) unlock(l *filelock.Lock, nothingLeft bool) {
	if !nothingLeft {
		l.Release()
		return
	}
	if err := l.Remove(); err != nil {
		c.log.Warn("cannot remove the lock of an image", "err", err)
	}
}
