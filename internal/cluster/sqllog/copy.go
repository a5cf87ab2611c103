package sqllog

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/cluster"
)

// A log is shortened: a node writes a copy of its whole file to the copies, then removes the entries before it. A node
// that lacks removed entries makes its file that copy first.
const (
	// shortenAfter is how many entries a log has after its copy before it is shortened.
	shortenAfter = 1000
	// shortenBytes is the same in bytes; a node counts those that it has seen since its start.
	shortenBytes = 64 << 20
	// keptEntries is how many entries before the copy stay, for nodes that are a little behind.
	keptEntries = 100

	// partSize is the length of a part of a long entry or of a copy; a record has at most cluster.MaxMessage.
	partSize = 4 << 20
	// MaxChange bounds one change, as JSON. The rows of the first node are one, too.
	MaxChange = 256 << 20
)

// headKey is the key of the record that describes the copy; the other records of the bucket are parts.
const headKey = "head"

// copyHead describes a copy of the file.
type copyHead struct {
	ID       string `json:"id"`
	Origin   string `json:"origin"`
	Position uint64 `json:"position"`
	Revision uint64 `json:"revision"` // of the entry at that position
	Parts    int    `json:"parts"`

	record uint64 // the revision of this record; 0 if there is none
}

// lastEntry is the position and the revision of the newest entry that this node knows.
type lastEntry struct{ at, revision uint64 }

func partsOf(at uint64, id string) string { return fmt.Sprintf("%d/%s", at, id) }

func (l *Log) readCopy(ctx context.Context) (c copyHead, err error) {
	r, err := l.copies.Get(ctx, headKey)
	if err != nil {
		return c, err
	}
	c.record = r.Revision
	return c, json.Unmarshal(r.Value, &c)
}

// origin returns the ID of the first entry of the log.
func (l *Log) origin(ctx context.Context) (string, error) {
	r, err := l.bucket.Get(ctx, entryKey(1))
	if errors.Is(err, cluster.ErrNotFound) {
		c, err := l.readCopy(ctx)
		return c.Origin, err
	}
	if err != nil {
		return "", err
	}
	var first entry
	err = json.Unmarshal(r.Value, &first)
	return first.ID, err
}

// revisionOf returns the revision of an entry; ErrNotFound means that it was removed. l.mu must be held.
func (l *Log) revisionOf(ctx context.Context, at uint64) (uint64, error) {
	if at == 0 || l.last.at == at {
		return l.last.revision * min(at, 1), nil
	}
	r, err := l.bucket.Get(ctx, entryKey(at))
	if err == nil || !errors.Is(err, cluster.ErrNotFound) {
		return r.Revision, err
	}
	c, cerr := l.readCopy(ctx)
	if cerr == nil && c.Position == at {
		return c.Revision, nil
	}
	return 0, cmp.Or(cerr, err)
}

// encode returns an entry as its record has it. Statements that are too long are stored in parts first.
func (l *Log) encode(ctx context.Context, at uint64, e entry) ([]byte, error) {
	e.Format = cluster.Format
	raw, err := json.Marshal(e)
	if err != nil || len(raw) <= l.part {
		return raw, err
	}
	if e.Parts, err = l.writeParts(ctx, partsOf(at, e.ID), e.Statements); err != nil {
		return nil, err
	}
	e.Statements = nil
	return json.Marshal(e)
}

func (l *Log) writeParts(ctx context.Context, name string, statements []string) (parts int, err error) {
	raw, err := json.Marshal(statements)
	if err != nil {
		return 0, err
	}
	if len(raw) > l.most {
		return 0, fmt.Errorf("%s would change by %d bytes at once; a cluster takes at most %d: change fewer rows at once",
			l.name, len(raw), l.most)
	}
	for ; len(raw) > 0; parts++ {
		n := min(l.part, len(raw))
		if _, err := l.copies.Put(ctx, name+"/"+strconv.Itoa(parts), raw[:n]); err != nil {
			return 0, err
		}
		raw = raw[n:]
	}
	return parts, nil
}

func (l *Log) readParts(ctx context.Context, name string, parts int) (statements []string, err error) {
	var raw []byte
	for i := range parts {
		r, err := l.copies.Get(ctx, name+"/"+strconv.Itoa(i))
		if err != nil {
			return nil, err
		}
		raw = append(raw, r.Value...)
	}
	return statements, json.Unmarshal(raw, &statements)
}

// catchUpWithCopy is catchUp for a file that may lack entries that were removed. l.mu must be held.
func (l *Log) catchUpWithCopy(ctx context.Context, db *sql.DB) (found int, err error) {
	found, err = l.catchUp(ctx, db)
	if found > 0 || err != nil && !errors.Is(err, cluster.ErrNotFound) {
		return found, err
	}
	_, at, err := position(ctx, db)
	if err != nil {
		return 0, err
	}
	for {
		c, err := l.readCopy(ctx)
		if errors.Is(err, cluster.ErrNotFound) || err == nil && c.Position <= at {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		statements, err := l.readParts(ctx, partsOf(c.Position, c.ID), c.Parts)
		if errors.Is(err, cluster.ErrNotFound) && ctx.Err() == nil {
			continue // it has just been replaced by a later one
		}
		if err != nil {
			return 0, fmt.Errorf("the copy of %s: %w", l.name, err)
		}
		if err := l.replace(ctx, db, c, statements); err != nil {
			return 0, fmt.Errorf("the copy of %s: %w", l.name, err)
		}
		l.last = lastEntry{c.Position, c.Revision}
		found, err = l.catchUp(ctx, db)
		return found + 1, err
	}
}

// replace makes the rows of the file those of a copy.
func (l *Log) replace(ctx context.Context, db *sql.DB, c copyHead, statements []string) error {
	all := make([]string, 0, len(l.tables)+len(statements))
	for _, t := range l.tables {
		all = append(all, "DELETE FROM "+name(t.name))
	}
	return l.apply(ctx, db, entry{Statements: append(all, statements...)}, c.Origin, c.Position)
}

// shorten writes a copy and removes entries before it if the log has become long; one node does it.
func (l *Log) shorten(ctx context.Context, at uint64) error {
	l.mu.Lock()
	grown := l.grown
	l.mu.Unlock()
	if at%l.after != 0 && grown < shortenBytes {
		return nil
	}
	lease, err := l.node.TryAcquire(ctx, "shorten-"+l.name, 10*time.Second)
	if errors.Is(err, cluster.ErrHeld) || errors.Is(err, cluster.ErrConflict) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lease.Release(context.WithoutCancel(ctx))
	if was, err := l.readCopy(ctx); err == nil && was.Position+l.after/2 > at { // another node has done it
		l.mu.Lock()
		l.grown = 0
		l.mu.Unlock()
		return nil
	}
	return l.shortenNow(lease.Context())
}

// shortenNow writes a copy of the file and removes what is before it.
func (l *Log) shortenNow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	was, err := l.readCopy(ctx)
	if err != nil && !errors.Is(err, cluster.ErrNotFound) {
		return err
	}
	c, statements, err := l.copyFile(ctx)
	if err != nil || c.Position <= was.Position {
		return err
	}
	if c.Parts, err = l.writeParts(ctx, partsOf(c.Position, c.ID), statements); err != nil {
		return err
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if was.record == 0 {
		_, err = l.copies.Create(ctx, headKey, raw)
	} else {
		_, err = l.copies.Update(ctx, headKey, raw, was.record)
	}
	if err != nil {
		return err
	}
	l.log.Info("a log of the cluster was shortened", "log", l.name, "copy", c.Position)
	return l.removeBefore(ctx, c)
}

// copyFile returns the rows of this node's file and where in the log they are.
func (l *Log) copyFile(ctx context.Context) (c copyHead, statements []string, err error) {
	db, err := l.file.DB()
	if err != nil {
		return c, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grown = 0
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return c, nil, err
	}
	defer tx.Rollback()
	c.ID = rand.Text()
	if c.Origin, c.Position, err = position(ctx, tx); err != nil || c.Position == 0 {
		return c, nil, err
	}
	if c.Revision, err = l.revisionOf(ctx, c.Position); err != nil {
		return c, nil, err
	}
	statements, err = l.dump(ctx, tx)
	return c, statements, err
}

// removeBefore removes the entries before a copy, but for some, and the parts of what was removed.
func (l *Log) removeBefore(ctx context.Context, c copyHead) error {
	if c.Position <= l.kept {
		return nil
	}
	until := c.Position - l.kept
	first, err := l.bucket.Get(ctx, entryKey(until+1))
	if err == nil {
		err = l.bucket.RemoveBefore(ctx, first.Revision)
	}
	if err != nil {
		return err
	}
	parts, err := l.copies.Keys(ctx)
	if err != nil {
		return err
	}
	for _, key := range parts {
		of, _, _ := strings.Cut(key, "/")
		if at, err := strconv.ParseUint(of, 10, 64); err == nil && at <= until {
			if err := l.copies.Remove(ctx, key); err != nil {
				return err
			}
		}
	}
	return nil
}
