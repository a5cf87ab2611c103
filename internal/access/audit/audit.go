// Package audit keeps a ledger of calls, logins, sessions, refusals, approvals and changes, from which
// no line can be removed without trace.
//
// A line is a JSON object that holds its number and the SHA-256 of the line before it. Lines that
// become durable together are stored in one row of a SQLite file; several processes of one machine may
// write to the same file and form one chain. The end of the chain is also kept in a second file, the
// head, so that lines missing at the end are noticed as well. Verify finds and names lines that were
// altered, removed, moved or cut off. It does not help against an attacker who can write both files and
// rebuilds the whole chain: export the lines that must be beyond the reach of such an attacker.
package audit

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"strconv"
	"sync"
	"time"
)

// Options configures a Ledger. The zero value is valid.
type Options struct {
	Log  *slog.Logger // nil means none
	Node string       // the name of this node; "" means the host name
	// Lenient lets calls with side effects run while nothing can be written. Lines that could not be
	// written are counted and logged.
	Lenient bool
	Flush   time.Duration // how long a noted line may wait for others; 0 means 250 ms, at most 1 s
	Wait    time.Duration // how long Keep waits for the disk; 0 means 5 s
	Pending int           // bytes of lines that may wait for the disk; 0 means 16 MiB

	Keep    time.Duration // lines older than this are removed; 0 means never
	MaxSize int64         // bytes of lines that are kept, the newest; 0 means 4 GiB
	Archive string        // folder that removed lines are first written to; "" means none
}

var (
	// ErrClosed is the error of a ledger that was closed.
	ErrClosed = errors.New("the audit ledger is closed")
	// ErrFailing is wrapped by the errors of Keep and Ready while nothing can be written.
	ErrFailing = errors.New("the audit ledger cannot be written")
)

// FileName is the name of the ledger in the state folder that must survive all other data.
const FileName = "audit.db"

// Ledger is the chain of one node. It is safe for concurrent use.
type Ledger struct {
	o    Options
	file *file
	who  []byte // the JSON members that name this process, the same in every line

	seen    seen
	scratch sync.Pool // of *[]byte, to build lines in

	mu      sync.Mutex
	space   *sync.Cond // signaled when the writer has accepted or dropped lines
	batch   *batch     // to which lines are added; never nil
	writing *batch     // which the writer writes; nil while it waits
	spare   *batch     // whose memory is used again; nil if there is none
	started bool       // the writer runs
	failing error      // of the last write; nil if it succeeded
	lost    int64      // lines dropped for lack of space since the last successful write
	closed  bool
	wake    chan struct{} // holds a token if the writer has work
	writer  sync.WaitGroup
}

// Open opens the ledger in the file at path, which need not exist: the first line creates it, and the
// head beside it. With path "" the lines are kept in memory.
func Open(path string, o Options) *Ledger {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Node == "" {
		o.Node, _ = os.Hostname()
	}
	o.Flush = min(cmp.Or(o.Flush, 250*time.Millisecond), time.Second)
	o.Wait = cmp.Or(o.Wait, 5*time.Second)
	o.Pending = cmp.Or(o.Pending, 16<<20)
	o.MaxSize = cmp.Or(o.MaxSize, 4<<30)
	l := &Ledger{o: o, file: newFile(path), who: whoWrites(o.Node), batch: newBatch(), wake: make(chan struct{}, 1)}
	l.scratch.New = func() any { b := make([]byte, 0, 1024); return &b }
	l.space = sync.NewCond(&l.mu)
	return l
}

// whoWrites returns the members of every line that name the process that wrote it.
func whoWrites(node string) []byte {
	name := strconv.Itoa(os.Getuid())
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	return appendMember(appendMember(nil, "node", node), "os_user", name)
}

// Note adds a line, which is on disk within a second. It waits only while the pending lines exceed
// their limit, and then for at most a second. If the limit is still exceeded, the line is lost, and a
// later line reports the loss.
func (l *Ledger) Note(e Entry) {
	buf := l.buildLine(&e)
	l.mu.Lock()
	l.addLine(*buf, false)
	l.mu.Unlock()
	l.scratch.Put(buf)
}

// buildLine writes a line into a buffer, which the caller returns to l.scratch.
func (l *Ledger) buildLine(e *Entry) *[]byte {
	buf := l.scratch.Get().(*[]byte)
	*buf = e.append((*buf)[:0], l.who, &l.seen)
	return buf
}

// Keep adds a line and returns when it is on disk. An error, which is
// ErrFailing, ErrClosed or the cause of ctx, means that it may not be there;
// a lenient ledger has no error but ErrClosed.
func (l *Ledger) Keep(ctx context.Context, e Entry) error {
	buf := l.buildLine(&e)
	l.mu.Lock()
	b := l.addLine(*buf, true)
	closed, failing := l.closed, l.failing
	l.mu.Unlock()
	l.scratch.Put(buf)
	switch {
	case closed:
		return ErrClosed
	case failing != nil: // the line stays pending until writing succeeds; no caller waits
		return l.tolerate(fmt.Errorf("%w: %w", ErrFailing, failing))
	case b == nil:
		return l.tolerate(fmt.Errorf("%w: %w", ErrFailing, errFull))
	}
	return l.awaitBatch(ctx, b)
}

var errFull = errors.New("too many lines wait for the disk")

// awaitBatch waits until a batch is on disk.
func (l *Ledger) awaitBatch(ctx context.Context, b *batch) error {
	late := time.NewTimer(l.o.Wait)
	defer late.Stop()
	select {
	case <-b.done:
		return l.tolerate(b.err)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-late.C:
		return l.tolerate(fmt.Errorf("%w: the disk did not answer within %v", ErrFailing, l.o.Wait))
	}
}

func (l *Ledger) tolerate(err error) error {
	if err != nil && l.o.Lenient {
		return nil
	}
	return err
}

// Ready returns the error because of which nothing can be kept now. It returns nil if lines can be
// kept, or if the ledger is lenient. It takes one lock and does no I/O.
func (l *Ledger) Ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return ErrClosed
	case l.failing != nil && !l.o.Lenient:
		return fmt.Errorf("%w: %w", ErrFailing, l.failing)
	}
	return nil
}

// Sync returns after all lines that were added before are on disk.
func (l *Ledger) Sync(ctx context.Context) error {
	l.mu.Lock()
	b := l.writing
	if l.batch.lines() > 0 {
		b = l.batch
		b.urgent = true
		l.nudge()
	}
	l.mu.Unlock()
	if b == nil {
		return nil
	}
	return l.awaitBatch(ctx, b)
}

// Close writes the pending lines and closes the file. It gives up when ctx is done. It is safe to call
// twice.
func (l *Ledger) Close(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	l.nudge()
	l.space.Broadcast()
	l.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		l.writer.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		return fmt.Errorf("close the audit ledger: %w", context.Cause(ctx))
	}
	l.mu.Lock()
	left := l.batch.lines()
	l.mu.Unlock()
	if err := l.file.close(); left == 0 || err != nil {
		return err
	}
	return fmt.Errorf("close the audit ledger: %d lines could not be written: %w", left, l.failing)
}

// hexOf returns a hash in the form in which lines hold it.
func hexOf(h hash) string { return hex.EncodeToString(h[:]) }
