package spool

import (
	"os"
	"sync"
	"time"
)

const bufferSize = 32 << 10 // bytes that an open item buffers; readers flush it

// An item is one file: a header line, then the data.
type item struct {
	handle, owner, mime string
	created             time.Time
	head                int64 // bytes of the header line
	cost                int64 // guarded by the Spool's lock

	mu      sync.Mutex
	file    *os.File // nil once closed
	buf     []byte   // the last bytes of the data, not yet in the file
	size    int64    // bytes of data, those in buf included
	dropped int64
	full    bool // a byte was dropped, so all later ones are dropped: an item has no gaps
	removed bool
	expires time.Time // counts once the item is closed
}

// openFile creates the file.
func (it *item) openFile(root *os.Root) error {
	f, err := root.OpenFile(it.handle+suffix, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	line := it.header(false).encodeFirst()
	if _, err := f.Write(line); err != nil {
		f.Close()
		root.Remove(it.handle + suffix)
		return err
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	it.file, it.head = f, int64(len(line))
	return nil
}

func (it *item) header(closed bool) header {
	return header{it.owner, it.mime, it.created.UnixMilli(), it.expires.UnixMilli(), it.dropped, closed}
}

// flush writes the buffer to the file. The lock must be held. If the file accepts no more, for instance because
// the disk is full, the item is full.
func (it *item) flush() (err error) {
	if len(it.buf) > 0 {
		b := it.buf
		it.buf = it.buf[:0]
		err = it.store(b, it.size-int64(len(b)))
	}
	return err
}

// store writes b, which size already counts, at an offset of the data.
func (it *item) store(b []byte, at int64) error {
	n, err := it.file.WriteAt(b, it.head+at)
	if lost := int64(len(b) - n); lost > 0 {
		it.size -= lost
		it.dropped += lost
		it.full = true
	}
	return err
}

// closeItem ends writing and starts the time for which the item is kept.
func (it *item) closeItem(keep time.Duration) error {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.file == nil {
		return nil
	}
	err := it.flush()
	it.expires = time.Now().Add(keep)
	if _, e := it.file.WriteAt(it.header(true).again(it.head), 0); err == nil {
		err = e
	}
	if e := it.file.Close(); err == nil {
		err = e
	}
	it.file, it.buf = nil, nil
	return err
}

// closeFile closes the file of an item that is about to be removed.
func (it *item) closeFile() {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.removed = true
	if it.file != nil {
		it.file.Close()
		it.file, it.buf = nil, nil
	}
}

func (it *item) expired(now time.Time) bool {
	it.mu.Lock()
	defer it.mu.Unlock()
	return it.removed || it.file == nil && it.head > 0 && !now.Before(it.expires)
}

// extent flushes and returns the size of the data, and whether more may follow.
func (it *item) extent() (size, dropped int64, open bool) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.file != nil {
		it.flush() // bytes that cannot be written count as dropped
	}
	return it.size, it.dropped, it.file != nil
}
