// Package statelog stores the durable mounts of the state tree in a cluster, so that all its nodes have the same.
//
// A mount is one record with its whole value and its revision. A change replaces the record by compare-and-set, so
// that of two nodes that change the same revision one succeeds, and the other catches up. Nothing is decided by what
// a node has read: an old value only means that its change is refused. The package imports cluster, state
// and atomicfile.
package statelog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/files/atomicfile"
	"gatehouse/internal/state"
)

// behind is how long a writer waits to hear who has written before it.
const behind = 10 * time.Second

// Log is a state.Log in a bucket of the cluster. It is safe for concurrent use.
type Log struct {
	bucket *cluster.Bucket
	log    *slog.Logger
	mark   string // path of the file of revisions; "" without one
	end    context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	mounts map[string]*mount
	marked map[string]uint64 // the revisions in the file
}

// mount is what this node knows of a mount.
type mount struct {
	value    any
	revision uint64
	record   uint64        // the revision of the record in its bucket; 0 if there is none
	changed  chan struct{} // closed with the next change
}

// stored is a mount in its record.
type stored struct {
	Revision uint64 `json:"revision"`
	Value    any    `json:"value"`
	Format   int    `json:"format,omitempty"` // see cluster.Format
}

// Open opens the log in a bucket, which it makes if it is missing. The code that opened it closes it after the trees.
// mark is the path of a file in which this node stores which revisions it has seen, so that it says with
// cluster.ErrLost if the cluster has lost some; "" means none.
func Open(ctx context.Context, n *cluster.Node, bucket, mark string, log *slog.Logger) (*Log, error) {
	b, err := n.Bucket(ctx, bucket, cluster.BucketOptions{})
	if err != nil {
		return nil, err
	}
	all, err := b.List(ctx)
	if err != nil {
		return nil, err
	}
	l := &Log{bucket: b, log: log, mark: mark, mounts: map[string]*mount{}, marked: map[string]uint64{}}
	for _, r := range all {
		if err := l.applyRecord(r); err != nil {
			return nil, err
		}
	}
	if err := l.checkMark(ctx); err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	l.end = end
	l.done.Go(func() { l.watchBucket(life) })
	l.done.Go(func() { l.keepMark(life) })
	return l, nil
}

// markPause is how long revisions are not stored after they have changed.
const markPause = time.Second

// checkMark returns an error that wraps cluster.ErrLost if this node has seen a later revision of a mount than the
// cluster has, by the word of most nodes.
func (l *Log) checkMark(ctx context.Context) error {
	if l.mark == "" {
		return nil
	}
	raw, err := os.ReadFile(l.mark)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &l.marked)
	}
	if err != nil {
		return fmt.Errorf("%s: %w; remove it if this node does not have to find that the cluster has lost changes", l.mark, err)
	}
	for name, revision := range l.marked {
		if l.known(name).revision >= revision {
			continue
		}
		r, err := l.bucket.Confirmed(ctx, name) // a leader that was cut off may have answered with an old record
		if err == nil {
			err = l.applyRecord(r)
		}
		if err != nil && !errors.Is(err, cluster.ErrNotFound) {
			return err
		}
		if has := l.known(name).revision; has < revision {
			return fmt.Errorf("revision %d of %s, of which the cluster has %d: %w", revision, name, has, cluster.ErrLost)
		}
	}
	return nil
}

// keepMark stores which revisions this node has seen, until ctx is done.
func (l *Log) keepMark(ctx context.Context) {
	if l.mark == "" {
		return
	}
	tick := time.NewTicker(markPause)
	defer tick.Stop()
	for ended := false; !ended; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			ended = true
		}
		if err := l.writeMark(); err != nil {
			l.log.Warn("the revisions of the mounts are not stored, so that a loss of changes may not be found", "err", err)
		}
	}
}

func (l *Log) writeMark() error {
	l.mu.Lock()
	changed := false
	for name, m := range l.mounts {
		if m.revision > l.marked[name] {
			l.marked[name], changed = m.revision, true
		}
	}
	raw, err := json.Marshal(l.marked)
	l.mu.Unlock()
	if err != nil || !changed {
		return err
	}
	return atomicfile.Write(l.mark, raw)
}

// Close stops following the bucket. Followers go on until their contexts end, and hear of nothing.
func (l *Log) Close() error {
	l.end()
	l.done.Wait()
	return nil
}

func (l *Log) watchBucket(ctx context.Context) {
	for r := range l.bucket.Watch(ctx) {
		if err := l.applyRecord(r); err != nil {
			l.log.Error("a mount of the cluster cannot be read", "mount", r.Key, "err", err)
		}
	}
}

// applyRecord makes a record what this node knows, unless it knows a later one.
func (l *Log) applyRecord(r cluster.Record) error {
	if r.Deleted {
		return nil // records of mounts are never deleted
	}
	var s stored
	d := json.NewDecoder(bytes.NewReader(r.Value))
	d.UseNumber()
	if err := d.Decode(&s); err != nil {
		return fmt.Errorf("read the mount %s: %w", r.Key, err)
	}
	if err := cluster.CheckFormat("the mount "+r.Key, s.Format); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.mount(r.Key)
	if r.Revision <= m.record {
		return nil
	}
	m.value, m.revision, m.record = s.Value, s.Revision, r.Revision
	close(m.changed)
	m.changed = make(chan struct{})
	return nil
}

// mount returns what is known of a mount. l.mu must be held.
func (l *Log) mount(name string) *mount {
	m := l.mounts[name]
	if m == nil {
		m = &mount{changed: make(chan struct{})}
		l.mounts[name] = m
	}
	return m
}

func (l *Log) known(name string) mount {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *l.mount(name)
}

// refresh reads a record of which a later version than the known one may exist.
func (l *Log) refresh(ctx context.Context, name string) error {
	r, err := l.bucket.Get(ctx, name)
	if errors.Is(err, cluster.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return l.applyRecord(r)
}

// Append implements state.Log. A value that is larger than a message of the cluster is an ErrPatch. If most nodes
// cannot be reached the error wraps cluster.ErrNotRun or cluster.ErrMayHaveRun.
func (l *Log) Append(ctx context.Context, name string, expected uint64, p state.Patch) (uint64, error) {
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	raw, err := p.MarshalJSON()
	switch {
	case len(p) == 0:
		return 0, fmt.Errorf("%w: it is empty", state.ErrPatch)
	case err != nil:
		return 0, err
	case len(raw) > state.MaxPatch:
		return 0, fmt.Errorf("%w: %d bytes, at most %d", state.ErrPatch, len(raw), state.MaxPatch)
	}
	m := l.known(name)
	if m.revision != expected { // this node may be behind
		if err := l.refresh(ctx, name); err != nil {
			return 0, err
		}
		if m = l.known(name); m.revision != expected {
			return 0, &state.Conflict{Mount: name, Revision: m.revision}
		}
	}
	value, err := state.Apply(m.value, p)
	if err != nil {
		return 0, err
	}
	record, err := json.Marshal(stored{expected + 1, value, cluster.Format})
	if err != nil {
		return 0, err
	}
	if len(record) > cluster.MaxMessage {
		return 0, fmt.Errorf("%w: the value of %s would have %d bytes, at most %d in a cluster", state.ErrPatch, name,
			len(record), cluster.MaxMessage)
	}
	at, err := l.write(ctx, name, record, m.record)
	if err != nil {
		return 0, err
	}
	return expected + 1, l.applyRecord(cluster.Record{Key: name, Value: record, Revision: at})
}

// write replaces a record. The error is a *state.Conflict if another node has replaced it, which the leader that
// answers may not know yet: then it is asked again.
func (l *Log) write(ctx context.Context, name string, value []byte, record uint64) (at uint64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, behind, errors.New("its record is being written by another node"))
	defer cancel()
	for {
		if record == 0 {
			at, err = l.bucket.Create(ctx, name, value)
		} else {
			at, err = l.bucket.Update(ctx, name, value, record)
		}
		if !errors.Is(err, cluster.ErrConflict) {
			return at, err
		}
		if err := l.refresh(ctx, name); err != nil {
			return 0, err
		}
		m := l.known(name)
		if m.record > record {
			return 0, &state.Conflict{Mount: name, Revision: m.revision}
		}
		select {
		case <-m.changed:
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return 0, fmt.Errorf("%s: %w", name, context.Cause(ctx))
		}
	}
}

// Follow implements state.Log. Each change has the whole value.
func (l *Log) Follow(ctx context.Context, name string, from uint64) iter.Seq2[state.Change, error] {
	return func(yield func(state.Change, error) bool) {
		for {
			m := l.known(name)
			c := state.Change{Revision: m.revision}
			if from != m.revision {
				c.Patch = state.Patch{{Kind: state.Replace, Value: m.value}}
			}
			if !yield(c, nil) {
				return
			}
			from = m.revision
			select {
			case <-m.changed:
			case <-ctx.Done():
				return
			}
		}
	}
}

// Split is a log that has some mounts in one log, and all others in another.
type Split struct {
	Shared, Own state.Log
	Names       []string // of the mounts in Shared
}

func (s *Split) of(name string) state.Log {
	if slices.Contains(s.Names, name) {
		return s.Shared
	}
	return s.Own
}

// Append implements state.Log.
func (s *Split) Append(ctx context.Context, name string, expected uint64, p state.Patch) (uint64, error) {
	return s.of(name).Append(ctx, name, expected, p)
}

// Follow implements state.Log.
func (s *Split) Follow(ctx context.Context, name string, from uint64) iter.Seq2[state.Change, error] {
	return s.of(name).Follow(ctx, name, from)
}

// After returns the record of a mount with the value of one record, as a later revision than another one.
func After(value, other []byte) ([]byte, error) {
	var v, o stored
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	if err := errors.Join(d.Decode(&v), json.Unmarshal(other, &o)); err != nil {
		return nil, fmt.Errorf("read a mount: %w", err)
	}
	v.Revision = max(v.Revision, o.Revision) + 1
	return json.Marshal(v)
}
