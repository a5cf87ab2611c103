package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// membersBucket holds the nodes.
const membersBucket = "members"

// Record is one record of a bucket. Its revision is that of the bucket when it was written.
type Record struct {
	Key      string
	Value    []byte
	Revision uint64
	Deleted  bool      // only in Watch
	At       time.Time // by the clock of the bucket's leader
}

// BucketOptions configures a bucket when it is made.
type BucketOptions struct {
	History int           // versions of each record that are kept; 0 means 1
	MaxSize int64         // of all records; 0 means no limit
	TTL     time.Duration // after which a record is removed; 0 means never
}

// Bucket is a set of records that is replicated to most nodes before a change of it is confirmed. Get reads what
// the bucket's leader has, which may be old for as long as a deposed leader does not know it: whatever must not
// be decided twice is decided by Create, Update and Delete.
type Bucket struct {
	n      *Node
	name   string
	kv     jetstream.KeyValue
	stream jetstream.Stream

	mu     sync.Mutex
	trails map[string]trail // of some records, by key
}

func (n *Node) stream(bucket string) string { return "gatehouse-" + n.opts.Name + "-" + bucket }

// Bucket opens a bucket, which it makes if it is missing. While the cluster elects a leader it waits.
func (n *Node) Bucket(ctx context.Context, name string, o BucketOptions) (b *Bucket, err error) {
	err = n.await(ctx, "bucket "+name, func(ctx context.Context) error {
		b, err = n.makeBucket(ctx, name, o)
		return err
	})
	return b, err
}

// attempt is how long one attempt of await takes at most. A request that was sent while there was no leader is
// answered by none, so that a new one must be sent.
const attempt = 5 * time.Second

// await calls f until it succeeds, because a node that starts while its cluster elects a leader, or while too few nodes
// are there, must wait for it. It gives up when ctx is done, or after the time that Start has, and then says what it
// has waited for.
func (n *Node) await(ctx context.Context, what string, f func(context.Context) error) error {
	limit := cmp.Or(n.opts.Start, startTime)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %v", limit))
	defer cancel()
	tell, try := time.Now().Add(time.Second), time.Second // the first is short, so that the log says soon what it waits for
	for {
		once, cancel := context.WithTimeout(ctx, try)
		err := f(once)
		cancel()
		if err == nil || !retryable(err) {
			return err
		}
		n.waits.Store(new(fmt.Sprintf("waiting for %s of cluster %s: %v", what, n.opts.Name, err)))
		if time.Now().After(tell) {
			n.log.Info("waiting for the cluster", "cluster", n.opts.Name, "for", what, "err", err)
			tell = time.Now().Add(attempt)
		}
		try = attempt
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("wait for %s of cluster %s: %w: %w", what, n.opts.Name, context.Cause(ctx), err)
		}
	}
}

func (n *Node) makeBucket(ctx context.Context, name string, o BucketOptions) (*Bucket, error) {
	b, err := n.openBucket(ctx, name)
	if !errors.Is(err, ErrNotFound) {
		return b, err
	}
	s := n.stream(name)
	_, err = n.js.CreateStream(ctx, jetstream.StreamConfig{
		Name:              "KV_" + s,
		Subjects:          []string{"$KV." + s + ".>"},
		MaxMsgsPerSubject: int64(max(o.History, 1)),
		MaxBytes:          cmpMinus(o.MaxSize),
		MaxAge:            o.TTL,
		MaxMsgSize:        MaxMessage,
		Discard:           jetstream.DiscardNew,
		Storage:           jetstream.FileStorage,
		Replicas:          n.copies(),
		AllowRollup:       true,
		DenyDelete:        true,
		AllowDirect:       false, // a replica may be behind
	})
	if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return nil, fmt.Errorf("make bucket %s: %w", name, err)
	}
	return n.openBucket(ctx, name)
}

func cmpMinus(size int64) int64 {
	if size == 0 {
		return -1
	}
	return size
}

// openBucket opens a bucket; ErrNotFound means that it is missing.
func (n *Node) openBucket(ctx context.Context, name string) (*Bucket, error) {
	n.mu.Lock()
	b := n.buckets[name]
	n.mu.Unlock()
	if b != nil {
		return b, nil
	}
	kv, err := n.js.KeyValue(ctx, n.stream(name))
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, fmt.Errorf("bucket %s: %w", name, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", name, err)
	}
	stream, err := n.js.Stream(ctx, "KV_"+n.stream(name))
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", name, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.buckets[name] == nil {
		n.buckets[name] = &Bucket{n: n, name: name, kv: kv, stream: stream}
	}
	return n.buckets[name], nil
}

// readAgain is how long a read waits for the leader of its bucket before it asks again: a leader that died answers no
// request that was sent to it, and the next one none that was sent before it was elected.
const readAgain = time.Second

// Get returns a record. It waits for the election of a leader until ctx is done.
func (b *Bucket) Get(ctx context.Context, key string) (Record, error) {
	m, err := b.lastAgain(ctx, key)
	if err == nil && (m == nil || m.Header.Get(operationHeader) != "") {
		err = ErrNotFound
	}
	if err != nil {
		return Record{}, b.readError(key, err)
	}
	return Record{Key: key, Value: m.Data, Revision: m.Sequence, At: m.Time}, nil
}

// lastAgain is last, asked again until a leader answers or ctx is done.
func (b *Bucket) lastAgain(ctx context.Context, key string) (*jetstream.RawStreamMsg, error) {
	for {
		once, cancel := context.WithTimeout(ctx, readAgain)
		m, err := b.last(once, key)
		cancel()
		if err == nil || ctx.Err() != nil {
			return m, err
		}
	}
}

// CreateNext writes a record that does not exist, if the newest record of the bucket has the revision last, and returns
// its revision. It is refused to a writer that does not know the newest record, even if records were removed since.
func (b *Bucket) CreateNext(ctx context.Context, key string, value []byte, last uint64) (uint64, error) {
	subject := "$KV." + b.n.stream(b.name) + "."
	ack, err := b.n.js.Publish(ctx, subject+encodeKey(key), value,
		jetstream.WithExpectLastSequenceForSubject(last, subject+"*"))
	if err != nil {
		return 0, b.writeError(key, err)
	}
	return ack.Sequence, nil
}

// Remove removes a record without a mark of it, so that the bucket becomes smaller. It is for records that are written
// once: an Update of another writer may come before or after it.
func (b *Bucket) Remove(ctx context.Context, key string) error {
	return b.writeError(key, b.stream.Purge(ctx, jetstream.WithPurgeSubject(b.subject(key))))
}

// RemoveBefore removes the records with a lower revision, without marks of them.
func (b *Bucket) RemoveBefore(ctx context.Context, revision uint64) error {
	return b.writeError("*", b.stream.Purge(ctx, jetstream.WithPurgeSequence(revision)))
}

// Size returns the bytes of all records on a disk.
func (b *Bucket) Size(ctx context.Context) (uint64, error) {
	status, err := b.kv.Status(ctx)
	if err != nil {
		return 0, b.readError("*", err)
	}
	return status.Bytes(), nil
}

// Keys returns the keys of all records, in no order. The newest may be missing, because a replica is asked.
func (b *Bucket) Keys(ctx context.Context) (all []string, err error) {
	keys, err := b.kv.ListKeys(ctx)
	if err != nil {
		return nil, b.readError("*", err)
	}
	for key := range keys.Keys() {
		all = append(all, decodeKey(key))
	}
	return all, context.Cause(ctx)
}

// Confirmed returns the record after it was replicated once more, unchanged: unlike Get it cannot be old. It costs
// a write.
func (b *Bucket) Confirmed(ctx context.Context, key string) (Record, error) {
	for {
		r, err := b.Get(ctx, key)
		if err != nil {
			return r, err
		}
		revision, err := b.Update(ctx, key, r.Value, r.Revision)
		if err == nil {
			r.Revision = revision
			return r, nil
		}
		if !errors.Is(err, ErrConflict) {
			return r, err
		}
	}
}

// Unchanged returns nil if the newest record of a bucket has a revision, 0 if it has none, which most nodes have agreed
// to: unlike the answer of Get this cannot be old. It costs a write, of a message that is no record. ErrConflict means
// that there is a later record, or that one is being written.
func (b *Bucket) Unchanged(ctx context.Context, last uint64) error {
	subject := "$KV." + b.n.stream(b.name) + "."
	_, err := b.n.js.Publish(ctx, subject+unchangedSubject, nil,
		jetstream.WithExpectLastSequenceForSubject(last, subject+"*"))
	return b.writeError("*", err)
}

// Settled returns nil once most nodes have agreed to what the leader says of the bucket: a Get that follows is not
// older than this call. ErrConflict means that a record was being written.
func (b *Bucket) Settled(ctx context.Context) error {
	var newest uint64
	m, err := b.stream.GetLastMsgForSubject(ctx, "$KV."+b.n.stream(b.name)+".*")
	if err == nil {
		newest = m.Sequence
	} else if !errors.Is(err, jetstream.ErrMsgNotFound) {
		return b.readError("*", err)
	}
	return b.Unchanged(ctx, newest)
}

// unchangedSubject is the subject of the message that Unchanged writes. It has two parts, so that the subject of no
// record is like it.
const unchangedSubject = "un.changed"

// List returns all records, in no order. While the cluster elects a leader it waits.
func (b *Bucket) List(ctx context.Context) (all []Record, err error) {
	err = b.n.await(ctx, "the records of bucket "+b.name, func(ctx context.Context) error {
		all, err = b.list(ctx)
		return err
	})
	return all, err
}

// list reads until it has seen the newest revision that the leader has, because the replica that is read may be behind.
func (b *Bucket) list(ctx context.Context) ([]Record, error) {
	newest, err := b.Newest(ctx)
	if err != nil {
		return nil, b.readError("*", err)
	}
	w, err := b.kv.WatchAll(ctx)
	if err != nil {
		return nil, b.readError("*", err)
	}
	defer w.Stop()
	all, seen, read := map[string]Record{}, uint64(0), false
	for !read || seen < newest {
		select {
		case e, ok := <-w.Updates():
			switch {
			case !ok:
				return nil, context.Cause(ctx)
			case e == nil: // it has yielded what the replica has
				read = true
				continue
			}
			seen = max(seen, e.Revision())
			all[e.Key()] = record(e)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	maps.DeleteFunc(all, func(_ string, r Record) bool { return r.Deleted })
	return slices.Collect(maps.Values(all)), nil
}

// Newest returns the newest revision that the leader has, 0 if it has none.
func (b *Bucket) Newest(ctx context.Context) (uint64, error) {
	status, err := b.kv.Status(ctx)
	if err != nil {
		return 0, err
	}
	s, ok := status.(*jetstream.KeyValueBucketStatus)
	if !ok || s.StreamInfo().State.Msgs == 0 {
		return 0, nil
	}
	return s.StreamInfo().State.LastSeq, nil
}

// Watch yields every record and then each change, until ctx is done. When this node was cut off, or the engine told
// it nothing of a change, it yields all records again, the newest version of each.
func (b *Bucket) Watch(ctx context.Context) iter.Seq[Record] {
	return func(yield func(Record) bool) {
		for ctx.Err() == nil {
			if !b.watchOnce(ctx, yield) {
				return
			}
			select { // the engine was away
			case <-time.After(200 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
}

// watchCheck is how often a watch asks the leader whether there is a change of which it was not told.
const watchCheck = 5 * time.Second

func (b *Bucket) watchOnce(ctx context.Context, yield func(Record) bool) (again bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := b.kv.WatchAll(ctx)
	if err != nil {
		return true
	}
	defer w.Stop()
	var seen atomic.Uint64
	missed := make(chan uint64)
	go b.compareNewest(ctx, &seen, missed)
	for {
		select {
		case e, ok := <-w.Updates():
			if !ok {
				return true
			}
			if e == nil { // it has yielded all that there was
				continue
			}
			seen.Store(max(seen.Load(), e.Revision()))
			if !yield(record(e)) {
				return false
			}
		case newest := <-missed:
			if newest > seen.Load() && len(w.Updates()) == 0 {
				b.n.log.Warn("a change was not heard of, and all records are read again", "bucket", b.name, "change",
					newest, "heard", seen.Load())
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

// compareNewest sends the newest revision of the bucket if it is not seen from one check to the next. The newest record
// is never the older version of another one, so that a watch that works has seen it.
func (b *Bucket) compareNewest(ctx context.Context, seen *atomic.Uint64, missed chan<- uint64) {
	tick := time.NewTicker(watchCheck)
	defer tick.Stop()
	var before uint64
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if before > seen.Load() {
			select {
			case missed <- before:
			case <-ctx.Done():
				return
			}
		}
		once, cancel := context.WithTimeout(ctx, watchCheck)
		if newest, err := b.Newest(once); err == nil {
			before = newest
		}
		cancel()
	}
}

func record(e jetstream.KeyValueEntry) Record {
	return Record{
		Key: decodeKey(e.Key()), Value: e.Value(), Revision: e.Revision(), At: e.Created(),
		Deleted: e.Operation() != jetstream.KeyValuePut,
	}
}

func (b *Bucket) readError(key string, err error) error {
	return fmt.Errorf("read %s of %s: %w", key, b.name, err)
}

// writeError tells three cases apart: nothing was written because of another writer, nothing was written for
// another reason, and a write whose end is not known.
func (b *Bucket) writeError(key string, err error) error {
	if err == nil {
		return nil
	}
	api, explicit := errors.AsType[jetstream.JetStreamError](err)
	switch {
	case errors.Is(err, ErrConflict):
	case explicit && api.APIError() != nil && conflict(api.APIError().ErrorCode):
		err = fmt.Errorf("%w: %w", ErrConflict, err)
	case explicit && api.APIError() != nil && api.APIError().ErrorCode != 0:
		// the leader refused it
	case errors.Is(err, jetstream.ErrNoStreamResponse), notSent(err), errors.Is(err, nats.ErrInvalidConnection):
		err = fmt.Errorf("%w: %w", ErrNotRun, err)
	default:
		err = fmt.Errorf("%w: %w", ErrMayHaveRun, err)
	}
	return fmt.Errorf("write %s of %s: %w", key, b.name, err)
}

func conflict(c jetstream.ErrorCode) bool {
	return c == jetstream.JSErrCodeStreamWrongLastSequence || c == jetstream.JSErrCodeStreamWrongLastSequenceConstant
}

// encodeKey writes a key with the characters that subjects may have: others as = and two hexadecimal digits.
func encodeKey(key string) string {
	out := make([]byte, 0, len(key))
	for _, c := range []byte(key) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '/' {
			out = append(out, c)
		} else {
			out = fmt.Appendf(out, "=%02x", c)
		}
	}
	return string(out)
}

func decodeKey(key string) string {
	out := make([]byte, 0, len(key))
	for i := 0; i < len(key); i++ {
		var c byte
		if key[i] == '=' && i+2 < len(key) {
			if _, err := fmt.Sscanf(key[i+1:i+3], "%02x", &c); err == nil {
				out, i = append(out, c), i+2
				continue
			}
		}
		out = append(out, key[i])
	}
	return string(out)
}
