package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrFenced means that a later holder of the lease has begun to write, and that nothing was written.
var ErrFenced = errors.New("a later holder of the lease writes there; nothing was written")

// Fence is the right to write to a bucket as the holder of a lease, until a later holder has one. The leader of the
// bucket checks it with each write, so that a holder that was paused and does not know that its lease has ended changes
// nothing.
type Fence struct {
	bucket   *Bucket
	key      string
	revision uint64
}

// Fence refuses the writes of all earlier holders of a lease from now on, by a record with the lease's token. The error
// wraps ErrFenced if the record has the token of a later holder.
func (b *Bucket) Fence(ctx context.Context, key string, l *Lease) (*Fence, error) {
	raw := strconv.AppendUint(nil, l.Token, 10) // a number, so that no older version takes it for a member
	for {
		var last uint64
		r, err := b.Get(ctx, key)
		if err == nil {
			last, err = strconv.ParseUint(string(r.Value), 10, 64)
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, fmt.Errorf("fence %s of %s: %w", key, b.name, err)
		}
		if last > l.Token {
			return nil, fmt.Errorf("fence %s of %s: %w", key, b.name, ErrFenced)
		}
		var revision uint64
		if r.Revision == 0 {
			revision, err = b.Create(ctx, key, raw)
		} else {
			revision, err = b.Update(ctx, key, raw, r.Revision)
		}
		if err == nil {
			return &Fence{b, key, revision}, nil
		}
		if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrMayHaveRun) || ctx.Err() != nil {
			return nil, err
		}
	}
}

// Put writes a record of the bucket whatever its revision is. The error wraps ErrFenced if a later holder has a fence.
func (f *Fence) Put(ctx context.Context, key string, value []byte) error {
	return f.write(ctx, &nats.Msg{Subject: f.bucket.subject(key), Data: value, Header: nats.Header{}}, key)
}

// Purge removes a record of the bucket whatever its revision is. The error wraps ErrFenced if a later holder has a
// fence.
func (f *Fence) Purge(ctx context.Context, key string) error {
	m := &nats.Msg{Subject: f.bucket.subject(key), Header: nats.Header{}}
	m.Header.Set(operationHeader, purged)
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	return f.write(ctx, m, key)
}

// write sends a message that the leader takes if the fence has not been replaced. It is refused as well while another
// write of the same fence, or its replacement, is not decided: then it is sent again.
func (f *Fence) write(ctx context.Context, m *nats.Msg, key string) error {
	b := f.bucket
	for begun := time.Now(); ; {
		_, err := b.n.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequenceForSubject(f.revision, b.subject(f.key)))
		if err = b.writeError(key, err); !errors.Is(err, ErrConflict) {
			return err
		}
		once, cancel := context.WithTimeout(ctx, readAgain)
		last, rerr := b.last(once, f.key)
		cancel()
		if rerr == nil && last != nil && last.Sequence > f.revision {
			return fmt.Errorf("write %s of %s: %w", key, b.name, ErrFenced)
		}
		if time.Since(begun) > decideTime || ctx.Err() != nil {
			return fmt.Errorf("%w: %w", ErrMayHaveRun, err)
		}
		select {
		case <-time.After(30 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}
