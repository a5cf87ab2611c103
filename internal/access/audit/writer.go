package audit

import (
	"context"
	"fmt"
	"time"
)

// batch holds the lines that become durable together. Ledger.mu guards it until the writer has taken
// it.
type batch struct {
	text   []byte // the members of all lines, concatenated
	ends   []int  // where each line ends in text
	urgent bool   // a caller waits
	tries  int
	done   chan struct{} // closed when the batch is durable, or has failed for the first time
	err    error         // set before done is closed
}

func newBatch() *batch { return &batch{done: make(chan struct{})} }

// emptyBatch returns a batch that reuses the memory of a written one. The caller holds mu.
func (l *Ledger) emptyBatch() *batch {
	b := newBatch()
	if l.spare != nil {
		b.text, b.ends, l.spare = l.spare.text, l.spare.ends, nil
	}
	return b
}

func (b *batch) lines() int { return len(b.ends) }

const (
	fullBatch = 1 << 20         // bytes after which a batch does not wait for more lines
	retry     = time.Second     // after a failed write
	spaceWait = time.Second     // how long a line waits for space
	slowWrite = 2 * time.Second // duration of a write from which it is logged
)

// addLine adds a line to the batch, or returns nil if it cannot. The caller holds mu.
func (l *Ledger) addLine(line []byte, urgent bool) *batch {
	if !l.awaitSpace(len(line)) {
		if l.lost++; l.lost == 1 {
			l.o.Log.Error("audit: lines are lost", "err", l.failing)
		}
		return nil
	}
	b := l.batch
	b.text = append(b.text, line...)
	b.ends = append(b.ends, len(b.text))
	b.urgent = b.urgent || urgent
	if urgent || len(b.ends) == 1 || len(b.text) >= fullBatch {
		l.nudge()
	}
	return b
}

// awaitSpace waits for the writer, if it is only slow, until n bytes fit.
func (l *Ledger) awaitSpace(n int) bool {
	if len(l.batch.text)+n <= l.o.Pending || l.closed {
		return !l.closed
	}
	deadline := time.Now().Add(spaceWait)
	wake := time.AfterFunc(spaceWait, l.space.Broadcast)
	defer wake.Stop()
	for len(l.batch.text)+n > l.o.Pending && l.failing == nil && !l.closed && time.Now().Before(deadline) {
		l.space.Wait()
	}
	return !l.closed && len(l.batch.text)+n <= l.o.Pending
}

// nudge wakes the writer, and starts it for the first line. The caller holds mu.
func (l *Ledger) nudge() {
	if !l.started && l.batch.lines() > 0 {
		l.started = true
		l.writer.Go(l.writeLoop)
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// writeLoop is the writer: it writes batch after batch until the ledger is closed.
func (l *Ledger) writeLoop() {
	for {
		b := l.nextBatch()
		if b == nil {
			return
		}
		began := time.Now()
		err := l.file.append(l, b)
		if took := time.Since(began); took > slowWrite {
			l.o.Log.Warn("audit: the disk is slow", "took", took, "lines", b.lines())
		}
		if l.finishBatch(b, err) {
			l.prune()
		}
	}
}

// nextBatch waits for a batch: a batch with a waiting caller is returned at once, any other after the
// time for which lines may gather. It returns nil if the ledger is closed and nothing is left, or
// nothing can be written.
func (l *Ledger) nextBatch() *batch {
	var first time.Time
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		l.mu.Lock()
		b := l.batch
		n, now := b.lines(), time.Now()
		if n > 0 && first.IsZero() {
			first = now
		}
		wait := l.o.Flush - now.Sub(first)
		if b.tries > 0 {
			wait = retry - now.Sub(first)
		}
		switch {
		case l.closed && (n == 0 || b.tries > 0):
			l.started = false
			l.mu.Unlock()
			return nil
		case n > 0 && (l.closed || wait <= 0 || b.tries == 0 && (b.urgent || len(b.text) >= fullBatch)):
			l.batch, l.writing = l.emptyBatch(), b
			l.mu.Unlock()
			return b
		}
		l.mu.Unlock()
		if n == 0 {
			wait = time.Hour
		}
		timer.Reset(wait)
		select {
		case <-l.wake:
		case <-timer.C:
		}
	}
}

// finishBatch reports the result of writing a batch to its waiters. The lines of a failed batch stay
// and are tried again.
func (l *Ledger) finishBatch(b *batch, err error) (written bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.space.Broadcast()
	l.writing = nil
	if err == nil {
		if l.failing != nil {
			l.o.Log.Info("audit: lines can be written again")
		}
		l.failing = nil
		l.noteLost()
		close(b.done)
		if cap(b.text) <= 4*fullBatch {
			l.spare = &batch{text: b.text[:0], ends: b.ends[:0]}
		}
		return true
	}
	if l.failing == nil {
		l.o.Log.Error(
			"audit: lines cannot be written; meanwhile calls with side effects are refused, "+
				"unless the settings are lenient",
			"err",
			err,
		)
	}
	l.failing = err
	b.err = fmt.Errorf("%w: %w", ErrFailing, err)
	close(b.done)
	l.putBack(b)
	return false
}

// putBack puts the lines of a failed batch before those that were added since.
func (l *Ledger) putBack(b *batch) {
	since := l.batch
	again := newBatch()
	again.tries = b.tries + 1
	again.text, again.ends = b.text, b.ends
	for i, end := range since.ends {
		from := 0
		if i > 0 {
			from = since.ends[i-1]
		}
		again.text = append(again.text, since.text[from:end]...)
		again.ends = append(again.ends, len(again.text))
	}
	if since.urgent { // their callers learn now that writing fails
		since.err = b.err
		close(since.done)
	}
	l.batch = again
}

// noteLost records in the ledger how many lines were dropped.
func (l *Ledger) noteLost() {
	if l.lost == 0 {
		return
	}
	e := Entry{
		Kind:   "audit.lost",
		Level:  Security,
		Reason: fmt.Sprintf("%d lines were dropped while nothing could be written", l.lost),
	}
	l.lost = 0
	buf := l.buildLine(&e)
	l.batch.text = append(l.batch.text, *buf...)
	l.batch.ends = append(l.batch.ends, len(l.batch.text))
	l.scratch.Put(buf)
}

// prune removes old lines if a pass is due.
func (l *Ledger) prune() {
	ctx, cancel := context.WithTimeout(context.Background(), l.o.Wait*2)
	defer cancel()
	if err := l.file.prune(ctx, l, time.Now()); err != nil {
		l.o.Log.Warn("audit: old lines cannot be removed", "err", err)
	}
}
