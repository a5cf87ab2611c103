package state

import (
	"context"
	"errors"
	"fmt"
	"iter"
)

// Log stores the changes of durable mounts, in order. Several trees may use one log: if two append to the same
// revision, one succeeds and the other catches up. The suite in statelogtest checks an implementation against this
// contract. It is safe for concurrent use.
type Log interface {
	// Append adds a change to a mount whose revision is expected; a mount that was never written to is at 0. If it
	// returns without an error, the change is stored as durably as the log stores anything, and the mount is at
	// the returned revision, expected+1. The error is a *Conflict if the mount is at another revision, and
	// ErrPatch for a patch that is empty or too large. After any other error it is unknown whether the change was
	// stored: Follow yields it if it was.
	Append(ctx context.Context, mount string, expected uint64, p Patch) (revision uint64, err error)
	// Follow yields the changes that bring a reader of a mount from a revision up to date, and then every further
	// change, until ctx is done; then it ends without an error. The first Change is yielded at once, with an empty
	// patch if there is nothing new. Further ones may cover several revisions. An error ends it.
	Follow(ctx context.Context, mount string, from uint64) iter.Seq2[Change, error]
}

// Change leads from the revision before it to Revision. If the changes between them are not known, the patch
// replaces the whole value.
type Change struct {
	Revision uint64
	Patch    Patch
}

// Conflict is the error of a change for another revision than that of the mount.
type Conflict struct {
	Mount    string
	Revision uint64 // the revision of the mount
}

func (e *Conflict) Error() string {
	return fmt.Sprintf("%s was changed meanwhile and is at revision %d", e.Mount, e.Revision)
}

// ErrClosed is the error of a tree or log that was closed.
var ErrClosed = errors.New("the state tree was closed")

// replaceAll returns the patch that replaces any value by v.
func replaceAll(v any) Patch { return Patch{{Replace, nil, v}} }

// encodePatch encodes a patch for a log.
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
