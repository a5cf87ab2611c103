package jobs

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"math"
	"strings"
	"time"
)

const (
	maxText = 1 << 10  // bytes of a title or a note
	maxBody = 32 << 20 // bytes of a record
	linger  = time.Minute
)

// repeatKey is the member of the stored recorded values that says that the record is Repeatable. Neither answers nor
// values of handlers have such keys.
const repeatKey = "==repeat"

// row is a stored record.
type row struct {
	Record
	rev   int64  // number of changes
	host  string // that runs the round
	place int64  // in its owner's list: microseconds since 1970 at creation, or one more than the last one's

	fresh bool // Result is to be stored; this field and the next are not stored
	next  bool // this change begins a round in this process
}

// markEnded makes a record terminal and removes what only a further round would need.
func (r *row) markEnded(s Status) {
	r.Status = s
	r.Questions, r.Recorded, r.State, r.Repeatable = nil, nil, nil, false
}

// expired reports whether the record has expired. A job that ended late is kept longer, so that its owner can see
// how it ended.
func (r *row) expired(at time.Time) bool {
	return r.Status.Terminal() && !at.Before(r.Created.Add(r.TTL)) && !at.Before(r.Updated.Add(min(r.TTL, linger)))
}

// size returns the approximate size of a record in bytes, for the limit.
func (r *row) size() int {
	n := len(r.Request) + len(r.Result) + len(r.State)
	for k, v := range r.Recorded {
		n += len(k) + len(v)
	}
	for _, q := range r.Questions {
		n += len(q.Key) + len(q.Params)
	}
	if r.Error != nil {
		n += len(r.Error.Message) + len(r.Error.Data)
	}
	return n
}

// now has the precision that is stored, so that a record is the same before and after a restart.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
}

// cursorAfter returns a cursor for a place in a list, which stays valid after its record was removed.
func cursorAfter(r row) string {
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, uint64(r.place)))
}

// parseCursor returns the place before which a page begins.
func parseCursor(c string) (int64, error) {
	if c == "" {
		return math.MaxInt64, nil
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(c)
	if err != nil || len(b) != 8 {
		return 0, ErrCursor
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}
