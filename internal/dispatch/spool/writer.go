package spool

// Writer writes one item. It is safe for concurrent use.
type Writer struct {
	s  *Spool
	it *item
}

// Handle returns the handle by which Read finds the item, even while it is written.
func (w *Writer) Handle() string { return w.it.handle }

// Write never fails and always reports that it wrote all of p, so that a limit or a full disk does not end the
// program that writes; see Dropped.
func (w *Writer) Write(p []byte) (int, error) {
	if started, err := w.writeBytes(p); started {
		// This runs without the lock, because a log handler may itself write to the spool.
		w.s.o.Log.Warn("output is being dropped", "owner", w.it.owner, "kept", w.Size(), "error", err)
	}
	return len(p), nil
}

// writeBytes reports whether this was the first write that lost bytes.
func (w *Writer) writeBytes(p []byte) (started bool, err error) {
	it := w.it
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.file == nil || it.full {
		it.dropped += int64(len(p))
		return false, nil
	}
	n := w.s.charge(it, min(int64(len(p)), w.s.o.MaxItem-it.size))
	if n < int64(len(p)) {
		it.full = true
		it.dropped += int64(len(p)) - n
	}
	return it.full, it.appendBytes(p[:n])
}

// appendBytes adds bytes for which space is reserved. The lock must be held.
func (it *item) appendBytes(p []byte) error {
	if len(it.buf)+len(p) > bufferSize {
		if err := it.flush(); err != nil {
			it.dropped += int64(len(p))
			return err
		}
	}
	it.size += int64(len(p))
	if len(p) >= bufferSize {
		return it.store(p, it.size-int64(len(p)))
	}
	if it.buf == nil {
		it.buf = make([]byte, 0, bufferSize)
	}
	it.buf = append(it.buf, p...)
	return nil
}

// Size returns how many bytes the item has.
func (w *Writer) Size() int64 {
	w.it.mu.Lock()
	defer w.it.mu.Unlock()
	return w.it.size
}

// Dropped returns how many bytes were lost to a limit, a full disk, or because they came after Close or Remove.
func (w *Writer) Dropped() int64 {
	w.it.mu.Lock()
	defer w.it.mu.Unlock()
	return w.it.dropped
}

// Close ends writing; from now on the item expires. A second Close does nothing. The error is the disk's; bytes
// that it lost count as dropped.
func (w *Writer) Close() error { return w.it.closeItem(w.s.o.Keep) }
