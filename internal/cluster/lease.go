package cluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
)

// leasesBucket holds the leases.
const leasesBucket = "leases"

// ErrHeld means that another holder has the lease.
var ErrHeld = errors.New("held by another node")

// errLost is the cause with which the context of a lease ends.
var errLost = errors.New("the lease was lost")

// Lease is the right of one holder in the cluster to do something. It ends by itself unless it is renewed, which it
// is until Release. Its times are measured by each node's own monotonic clock, so that clocks may differ and jump.
//
// A holder that was stopped and goes on does not know that its lease has ended: what it does must be refused where
// it takes effect, by the token, which is greater for each later holder.
type Lease struct {
	Token uint64
	Name  string

	bucket *Bucket
	ttl    time.Duration
	record leaseRecord
	ctx    context.Context // a field, because it is the lease's own life and not that of a call
	end    context.CancelCauseFunc
	done   chan struct{}

	mu       sync.Mutex
	revision uint64
	until    time.Time
}

// leaseRecord is a lease in its bucket. An empty holder means that it is free.
type leaseRecord struct {
	Holder string        `json:"holder,omitempty"` // node
	Run    string        `json:"run,omitempty"`    // differs for each time that it is acquired
	Token  uint64        `json:"token,omitempty"`  // 0 in the first record: then the record's revision
	TTL    time.Duration `json:"ttl,omitempty"`
	Format int           `json:"format,omitempty"`
}

// Holder returns the node that has, or had last, a lease; "" if it is free.
func (n *Node) Holder(ctx context.Context, name string) (node string, token uint64, err error) {
	b, err := n.Bucket(ctx, leasesBucket, BucketOptions{})
	if err != nil {
		return "", 0, err
	}
	record, revision, err := readLease(ctx, b, name)
	return record.Holder, record.token(revision), err
}

func (r leaseRecord) token(revision uint64) uint64 {
	if r.Token != 0 {
		return r.Token
	}
	return revision
}

// readLease returns the record of a lease and its revision, 0 if there is none.
func readLease(ctx context.Context, b *Bucket, name string) (record leaseRecord, revision uint64, err error) {
	r, err := b.Get(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return record, 0, nil
	}
	if err == nil {
		err = json.Unmarshal(r.Value, &record)
	}
	if err == nil {
		err = CheckFormat("lease "+name, record.Format)
	}
	return record, r.Revision, err
}

// Acquire waits until this node has the lease. ttl is how long it is held without being renewed, at least a second.
func (n *Node) Acquire(ctx context.Context, name string, ttl time.Duration) (*Lease, error) {
	var seen uint64
	var since time.Time
	for {
		l, err := n.try(ctx, name, ttl, func(r leaseRecord, revision uint64) bool {
			if seen != revision {
				seen, since = revision, time.Now()
			}
			return time.Since(since) > r.TTL+r.TTL/4 // clocks run at different rates
		})
		if l != nil {
			return l, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("lease %s: %w", name, context.Cause(ctx))
		}
		if err != nil && !errors.Is(err, ErrHeld) && !errors.Is(err, ErrConflict) {
			n.log.Debug("a lease is not acquired yet", "lease", name, "err", err)
		}
		select {
		case <-time.After(max(ttl/8, 50*time.Millisecond)):
		case <-ctx.Done():
			return nil, fmt.Errorf("lease %s: %w", name, context.Cause(ctx))
		}
	}
}

// TryAcquire returns the lease if it is free, and otherwise an error that wraps ErrHeld.
func (n *Node) TryAcquire(ctx context.Context, name string, ttl time.Duration) (*Lease, error) {
	return n.try(ctx, name, ttl, func(leaseRecord, uint64) bool { return false })
}

func (n *Node) try(
	ctx context.Context, name string, ttl time.Duration, over func(leaseRecord, uint64) bool,
) (*Lease, error) {
	ttl = max(ttl, time.Second)
	b, err := n.Bucket(ctx, leasesBucket, BucketOptions{})
	if err != nil {
		return nil, err
	}
	was, revision, err := readLease(ctx, b, name)
	if err != nil {
		return nil, err
	}
	if was.Holder != "" && !over(was, revision) {
		return nil, fmt.Errorf("lease %s: %w: %s", name, ErrHeld, was.Holder)
	}
	l := &Lease{
		Name: name, bucket: b, ttl: ttl, done: make(chan struct{}),
		record: leaseRecord{Holder: n.id, Run: rand.Text(), TTL: ttl},
	}
	sent := time.Now()
	if l.revision, err = l.write(ctx, l.record, revision); err != nil {
		return nil, err
	}
	l.Token = l.revision
	l.record.Token = l.Token
	l.until = sent.Add(ttl)
	l.ctx, l.end = context.WithCancelCause(context.Background())
	n.running.Go(func() { l.renewUntil(n.life) })
	return l, nil
}

func (l *Lease) write(ctx context.Context, r leaseRecord, revision uint64) (uint64, error) {
	r.Format = Format
	raw, err := json.Marshal(r)
	if err != nil {
		return 0, err
	}
	if revision == 0 {
		return l.bucket.Create(ctx, l.Name, raw)
	}
	return l.bucket.Update(ctx, l.Name, raw, revision)
}

// Context ends when the lease has been lost or released. It ends in time, unless the process is stopped.
func (l *Lease) Context() context.Context { return l.ctx }

// Held reports whether the lease is still held.
func (l *Lease) Held() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ctx.Err() == nil && time.Now().Before(l.until)
}

// renewUntil renews the lease until it is lost or released.
func (l *Lease) renewUntil(run context.Context) {
	defer close(l.done)
	defer l.end(errLost)
	var oldest time.Time // when the oldest renewal was sent whose end is not known
	for {
		l.mu.Lock()
		until, revision := l.until, l.revision
		l.mu.Unlock()
		left := time.Until(until)
		if left <= 0 {
			return
		}
		select {
		case <-time.After(min(l.ttl/3, left)):
		case <-l.ctx.Done():
			return
		case <-run.Done():
			return
		}
		ctx, cancel := context.WithDeadline(l.ctx, until)
		sent := time.Now()
		if oldest.IsZero() {
			oldest = sent
		}
		next, err := l.write(ctx, l.record, revision)
		if err != nil { // a conflict may be with an earlier renewal of its own
			sent = oldest
			next, err = l.reread(ctx, revision)
		}
		cancel()
		if errors.Is(err, ErrConflict) {
			return
		}
		if err == nil {
			l.mu.Lock()
			if next != revision {
				l.until, oldest = sent.Add(l.ttl), time.Time{}
			}
			l.revision = next
			l.mu.Unlock()
		}
	}
}

// reread returns the revision of the lease's record after a write whose end is not known.
func (l *Lease) reread(ctx context.Context, was uint64) (uint64, error) {
	r, revision, err := readLease(ctx, l.bucket, l.Name)
	if err != nil {
		return was, err
	}
	if r.Run != l.record.Run {
		return 0, ErrConflict
	}
	return revision, nil
}

// Release gives the lease back. It does nothing if the lease was lost.
func (l *Lease) Release(ctx context.Context) error {
	l.end(errors.New("the lease was released"))
	<-l.done
	l.mu.Lock()
	revision := l.revision
	l.mu.Unlock()
	_, err := l.write(ctx, leaseRecord{Token: l.Token}, revision)
	if errors.Is(err, ErrConflict) {
		return nil
	}
	return err
}
