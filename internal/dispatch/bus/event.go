package bus

import (
	"context"
	"encoding/json"
	"iter"
	"time"
)

// Event is something that has happened, for instance session.created or call.finished. Data is JSON, so that an
// event can be sent to another process.
type Event struct {
	Subject string `json:"subject"`
	Owner   string `json:"owner,omitempty"`
	// the session in which it happened; "" for none. Never sent to a client: the id is a credential.
	Session string          `json:"-"`
	Kept    bool            `json:"-"`              // another process published it and has written it to the ledger
	Node    string          `json:"node,omitempty"` // of the cluster, on which it happened; "" for this one
	At      time.Time       `json:"at"`
	Data    json.RawMessage `json:"data,omitempty"`
	Lost    int             `json:"lost,omitempty"` // how many events the reader lost just before this one

	value any // what Data encodes, if the event was made in this process
}

// NewEvent returns an event of now with value as its data. It returns an error
// if value cannot be encoded as JSON. The value must not change afterwards,
// because readers in this process receive it without a copy.
func NewEvent(subject string, value any) (Event, error) {
	data, err := json.Marshal(value)
	return Event{Subject: subject, At: time.Now(), Data: data, value: value}, err
}

// Decode returns the data of an event as a T: the published value itself if
// it has that type, otherwise what Data decodes to. It returns false if Data
// is not JSON of a T.
func Decode[T any](e Event) (T, bool) {
	if v, ok := e.value.(T); ok {
		return v, true
	}
	var v T
	err := json.Unmarshal(e.Data, &v)
	return v, err == nil
}

// Topic is a subject whose events all carry a T.
type Topic[T any] string

// Event returns an event of this topic.
func (t Topic[T]) Event(data T) (Event, error) { return NewEvent(string(t), data) }

// Decode returns the data of e, and false if e belongs to another topic or its
// data is malformed.
func (t Topic[T]) Decode(e Event) (T, bool) {
	if e.Subject != string(t) {
		var zero T
		return zero, false
	}
	return Decode[T](e)
}

// Follow is Bus.Follow for one topic. Events with malformed data are skipped.
func (t Topic[T]) Follow(ctx context.Context, b Bus, keep int) iter.Seq2[Event, T] {
	return t.decodeAll(b.Follow(ctx, string(t), keep))
}

// FollowAll is Bus.FollowAll for one topic.
func (t Topic[T]) FollowAll(ctx context.Context, b Bus, keep int) iter.Seq2[Event, T] {
	return t.decodeAll(b.FollowAll(ctx, string(t), keep))
}

func (t Topic[T]) decodeAll(events iter.Seq[Event]) iter.Seq2[Event, T] {
	return func(yield func(Event, T) bool) {
		for e := range events {
			if data, ok := t.Decode(e); ok && !yield(e, data) {
				return
			}
		}
	}
}
