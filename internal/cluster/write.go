package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// While a leader that was deposed does not know it, it refuses a write that the new one makes, and the writer may hear
// of the refusal first. So a refusal alone does not say that nothing was written. Each record names its newest writes
// in a header, each with the revision that it replaced: once the record has a later revision, one of them replaced the
// revision that a refused writer wanted to replace, and that is its own or it is not.
const (
	writesHeader = "Gatehouse-Writes"
	// mostWrites is how many writes a record names. Of more since the one in question nothing is known.
	mostWrites = 32
	// mostTrails is of how many records a node remembers the writes; those of others are read before they are replaced.
	mostTrails = 500
)

// The headers of key-value buckets of NATS that mark a record as deleted.
const (
	operationHeader = "KV-Operation"
	deleted         = "DEL"
	purged          = "PURGE"
)

// trail is the newest writes of a record of a revision, the last one first: "REPLACED:ID REPLACED:ID".
type trail struct {
	revision uint64
	writes   string
}

// wrote returns what the trail says of the write with an ID that was to replace a revision: known is whether the trail
// names the write that has replaced it, made whether that is this one, and at is the revision that it got.
func (t trail) wrote(replaced uint64, id string) (at uint64, made, known bool) {
	at = t.revision
	for write := range strings.FieldsSeq(t.writes) {
		number, name, _ := strings.Cut(write, ":")
		was, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return 0, false, false
		}
		if was == replaced {
			return at, name == id, true
		}
		at = was
	}
	return 0, false, false
}

// next returns the writes after one more.
func (t trail) next(replaced uint64, id string) string {
	before := strings.Fields(t.writes)
	all := append([]string{fmt.Sprintf("%d:%s", replaced, id)}, before[:min(len(before), mostWrites-1)]...)
	return strings.Join(all, " ")
}

func (b *Bucket) subject(key string) string {
	return "$KV." + b.n.stream(b.name) + "." + encodeKey(key)
}

// last returns the newest message of a record, also of a deleted one; nil if there is none.
func (b *Bucket) last(ctx context.Context, key string) (*jetstream.RawStreamMsg, error) {
	m, err := b.stream.GetLastMsgForSubject(ctx, b.subject(key))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err == nil {
		b.remember(key, trail{m.Sequence, m.Header.Get(writesHeader)})
	}
	return m, err
}

func (b *Bucket) remember(key string, t trail) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.trails == nil {
		b.trails = map[string]trail{}
	}
	if old, ok := b.trails[key]; ok && old.revision > t.revision {
		return
	}
	for k := range b.trails {
		if len(b.trails) < mostTrails {
			break
		}
		delete(b.trails, k)
	}
	b.trails[key] = t
}

// trailOf returns the newest writes of a record that has a revision. ErrConflict means that it has a later one. If the
// leader that answers does not know the revision the trail is empty.
func (b *Bucket) trailOf(ctx context.Context, key string, revision uint64) (trail, error) {
	if revision == 0 {
		return trail{}, nil
	}
	b.mu.Lock()
	t, ok := b.trails[key]
	b.mu.Unlock()
	if !ok || t.revision < revision {
		once, cancel := context.WithTimeout(ctx, readAgain)
		defer cancel()
		m, err := b.last(once, key)
		if err != nil || m == nil {
			return trail{revision: revision}, nil // the write finds out
		}
		t = trail{m.Sequence, m.Header.Get(writesHeader)}
	}
	switch {
	case t.revision > revision:
		return t, ErrConflict
	case t.revision < revision:
		return trail{revision: revision}, nil
	}
	return t, nil
}

// decideTime is how long a write that was refused waits until it is known whether it was made: longer than a deposed
// leader, or a write of another node, is undecided.
const decideTime = 10 * time.Second

// replace writes a record, or a mark that it is deleted, whose revision is still the given one; 0 means that there is
// none. After ErrConflict it was not written.
func (b *Bucket) replace(ctx context.Context, key string, value []byte, revision uint64, operation string) (
	uint64, error,
) {
	t, err := b.trailOf(ctx, key, revision)
	if err != nil {
		return 0, b.writeError(key, err)
	}
	id := rand.Text()[:8]
	m := &nats.Msg{Subject: b.subject(key), Data: value, Header: nats.Header{}}
	m.Header.Set(writesHeader, t.next(revision, id))
	if operation != "" {
		m.Header.Set(operationHeader, operation)
	}
	if operation == purged {
		m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	}
	refused := false // once, without it being known by what
	for begun := time.Now(); ; {
		ack, err := b.n.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(revision))
		if err == nil {
			b.remember(key, trail{ack.Sequence, m.Header.Get(writesHeader)})
			return ack.Sequence, nil
		}
		err = b.writeError(key, err)
		if !errors.Is(err, ErrConflict) {
			if refused && !errors.Is(err, ErrMayHaveRun) {
				err = fmt.Errorf("%w, after a leader refused it: %v", ErrMayHaveRun, err)
			}
			return 0, err
		}
		at, decided, derr := b.decide(ctx, key, revision, id)
		if decided {
			return at, derr
		}
		refused = true
		select {
		case <-time.After(30 * time.Millisecond): // another write is undecided, or a leader was deposed: it is sent again
		case <-ctx.Done():
		}
		if ctx.Err() != nil || time.Since(begun) > decideTime {
			return 0, fmt.Errorf("write %s of %s: %w: a leader refused it, and has not said since by what the record was "+
				"replaced", key, b.name, ErrMayHaveRun)
		}
	}
}

// decide finds out whether a write that was refused was made by another leader, and its revision. decided is false
// while no record is known that replaced the one which the write was to replace.
func (b *Bucket) decide(
	ctx context.Context, key string, revision uint64, id string,
) (at uint64, decided bool, err error) {
	once, cancel := context.WithTimeout(ctx, readAgain)
	defer cancel()
	m, err := b.last(once, key)
	if err != nil || m == nil || m.Sequence <= revision {
		return 0, false, nil // it is asked again
	}
	t := trail{m.Sequence, m.Header.Get(writesHeader)}
	at, made, known := t.wrote(revision, id)
	switch {
	case made:
		return at, true, nil
	case known, t.writes == "": // without a header it was written by a version that does not name writes
		return 0, true, fmt.Errorf("write %s of %s: %w: it is %d, not %d", key, b.name, ErrConflict, m.Sequence, revision)
	}
	return 0, true, fmt.Errorf("write %s of %s: %w: it was changed more than %d times meanwhile", key, b.name,
		ErrMayHaveRun, mostWrites)
}

// Create writes a record that does not exist, and returns its revision. After ErrConflict it was not written.
func (b *Bucket) Create(ctx context.Context, key string, value []byte) (uint64, error) {
	m, err := b.lastAgain(ctx, key)
	if err != nil {
		return 0, fmt.Errorf("write %s of %s: %w: %w", key, b.name, ErrNotRun, err)
	}
	switch {
	case m == nil:
		return b.replace(ctx, key, value, 0, "")
	case m.Header.Get(operationHeader) == "":
		return 0, b.writeError(key, ErrConflict)
	}
	return b.replace(ctx, key, value, m.Sequence, "")
}

// Update writes a record whose revision is still the given one, and returns its new revision. After ErrConflict it was
// not written.
func (b *Bucket) Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	return b.replace(ctx, key, value, revision, "")
}

// Delete removes a record whose revision is still the given one. A mark of it stays; see Purge. After ErrConflict it
// was not removed.
func (b *Bucket) Delete(ctx context.Context, key string, revision uint64) error {
	_, err := b.replace(ctx, key, nil, revision, deleted)
	return err
}

// Purge removes a record whose revision is still the given one, with its history. After ErrConflict it was not removed.
func (b *Bucket) Purge(ctx context.Context, key string, revision uint64) error {
	_, err := b.replace(ctx, key, nil, revision, purged)
	return err
}

// Put writes a record whatever its revision is.
func (b *Bucket) Put(ctx context.Context, key string, value []byte) (uint64, error) {
	revision, err := b.kv.Put(ctx, encodeKey(key), value)
	return revision, b.writeError(key, err)
}
