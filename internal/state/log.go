package state

import (
	"context"
	"errors"
	"fmt"
	"iter"
)

// Log keeps what has become of durable mounts, in order. Several trees may
// stand on one log: of two that append to the same revision one wins, and the
// other catches up. The suite in statelogtest holds an implementation to what
// is said here. Safe for concurrent use.
type Log interface {
	// Append adds a change to a mount whose revision is expected; a mount
	// that was never written to is at 0. When it returns without an error
	// the change is where it survives whatever the log is made to survive,
	// and the mount is at the revision it returns, expected+1. The error is a
	// *Conflict when the mount is at another revision, ErrPatch for a patch
	// that is empty or too large. After any other error it is unknown whether
	// the change is there: Follow tells.
	Append(ctx context.Context, mount string, expected uint64, p Patch) (revision uint64, err error)
	// Follow yields the changes that bring a reader of a mount at a revision up to
	// date, and then every further change, until ctx is done; then it ends
	// without an error. The first Change comes at once, with an empty patch
	// when there is nothing new. Further ones may cover several revisions.
	// An error ends it.
	Follow(ctx context.Context, mount string, from uint64) iter.Seq2[Change, error]
}

// Change leads from the revision before it to Revision. Where the way is not
// known any more, or never was, the patch replaces the whole value.
type Change struct {
	Revision uint64
	Patch    Patch
}

// Conflict is the answer to a change that was made for another revision than
// the mount is at.
type Conflict struct {
	Mount    string
	Revision uint64 // what the mount is at
}

func (e *Conflict) Error() string {
	return fmt.Sprintf("%s was changed meanwhile and is at revision %d", e.Mount, e.Revision)
}

// ErrClosed is the answer of what was closed.
var ErrClosed = errors.New("the state tree was closed")

// replaceAll is the patch that makes any value v.
func replaceAll(v any) Patch { return Patch{{Replace, nil, v}} }

// encodePatch writes a patch for a log.
func encodePatch(p Patch) ([]byte, error) {
	if len(p) == 0 {
		return nil, fmt.Errorf("%w: it is empty", ErrPatch)
	}
	b, err := p.MarshalJSON()
	if err != nil {
		return nil, err
	}
	if len(b) > MaxPatch {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrPatch, len(b), MaxPatch)
	}
	return b, nil
}

// concat joins patches that follow each other.
func concat(patches []Patch) (all Patch) {
	for _, p := range patches {
		all = append(all, p...)
	}
	return all
}
