// Package sqllog makes a SQLite file the same on all nodes of a cluster.
//
// A transaction runs on the node's own file first. Before it is committed there, the rows that it changes are written
// as the next record of a log, which only one node can create. If another node was first, the transaction is rolled
// back, the other's is applied, and it runs again: transactions take effect in one order on all nodes, and what a
// transaction has read is what it was decided by. The position in the log is in the file itself, so that a crash
// neither loses nor repeats a change. Reads are those of the file, which may be behind the log; a node that is behind
// what others have applied stops being fresh (see cluster.Node.Fresh). The package imports cluster and sqlfile.
package sqllog

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/files/sqlfile"
)

// ErrOther means that a file has rows that do not come from the cluster, which has others.
var ErrOther = errors.New("it has data of its own, and the cluster has others: move the file away, then join again")

// Log is the log of one file. It implements sqlfile.Replica, and is safe for concurrent use.
type Log struct {
	node    *cluster.Node
	name    string
	bucket  *cluster.Bucket // of entries, by position, and of nothing else
	copies  *cluster.Bucket // of a copy, and of the parts of long entries
	file    *sqlfile.File
	log     *slog.Logger
	applied func() error // after each change, before the other nodes are told that this one has it

	mu     sync.Mutex // of transactions
	tables []table
	told   uint64 // the position that this node has confirmed to the others
	last   lastEntry
	after  uint64 // shortenAfter; kept is keptEntries, part is partSize, most is MaxChange; tests set them
	kept   uint64
	part   int
	most   int
	grown  int // bytes of entries since this node has looked whether the log is to be shortened
}

// entry is one transaction.
type entry struct {
	ID         string   `json:"id"`
	Node       string   `json:"node"`
	Statements []string `json:"statements,omitempty"`
	Parts      int      `json:"parts,omitempty"`  // in which the statements are stored, if they do not fit into a record
	Format     int      `json:"format,omitempty"` // see cluster.Format
}

// openTime is how long a node that starts waits for the log.
const openTime = 2 * time.Minute

// Open makes the file what the log has. The first node with rows gives them to an empty log. applied is called after
// each change, before this node confirms that it has it. If applied is nil nodes confirm nothing, and a node that is
// behind stays fresh: that suits a file of which only the changes decide anything.
func Open(
	ctx context.Context, n *cluster.Node, name string, file *sqlfile.File, log *slog.Logger, applied func() error,
) (*Log, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, openTime, fmt.Errorf("no answer within %v", openTime))
	defer cancel()
	b, err := n.Bucket(ctx, name, cluster.BucketOptions{})
	if err != nil {
		return nil, err
	}
	copies, err := n.Bucket(ctx, name+"-copy", cluster.BucketOptions{})
	if err != nil {
		return nil, err
	}
	l := &Log{node: n, name: name, bucket: b, copies: copies, file: file, log: log, applied: applied, after: shortenAfter,
		kept: keptEntries, part: partSize, most: MaxChange}
	db, err := file.DB()
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, positionTable); err != nil {
		return nil, err
	}
	if l.tables, err = tablesOf(ctx, db); err != nil {
		return nil, err
	}
	l.mu.Lock()
	err = l.begin(ctx, db)
	if err == nil {
		_, err = l.catchUpWithCopy(ctx, db)
	}
	l.mu.Unlock()
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("wait for the changes of %s in the cluster: %w: %w", name, context.Cause(ctx), err)
		}
		return nil, fmt.Errorf("%s: %w", file.Path, err)
	}
	file.Replicate(l)
	return l, nil
}

// begin finds out whether the file comes from this log. l.mu must be held.
func (l *Log) begin(ctx context.Context, db *sql.DB) error {
	for {
		origin, at, err := position(ctx, db)
		if err != nil {
			return err
		}
		log, err := l.origin(ctx)
		if errors.Is(err, cluster.ErrNotFound) {
			if at > 0 {
				return fmt.Errorf("it has %d changes of a cluster whose log is gone; %w", at, ErrOther)
			}
			if first, err := l.seed(ctx, db); err != nil || first.ID == "" {
				return err
			}
			continue
		}
		if err == nil && origin == log {
			return l.checkWhole(ctx, at)
		}
		if err != nil {
			return err
		}
		all, err := l.dump(ctx, db)
		if err != nil {
			return err
		}
		if own, err := l.untouched(ctx, all); err != nil || at > 0 || !own {
			return cmp.Or(err, ErrOther)
		}
		return nil // it is filled from the log
	}
}

// checkWhole returns an error that wraps cluster.ErrLost if the log does not reach the position of the file, by the
// word of most nodes. l.mu must be held.
func (l *Log) checkWhole(ctx context.Context, at uint64) error {
	for sure := false; at > 0; {
		_, err := l.bucket.Get(ctx, entryKey(at))
		if err == nil || !errors.Is(err, cluster.ErrNotFound) {
			return err
		}
		c, err := l.readCopy(ctx)
		if err == nil && c.Position >= at { // it was shortened
			return nil
		}
		if err != nil && !errors.Is(err, cluster.ErrNotFound) {
			return err
		}
		if sure {
			return fmt.Errorf("%w; of %s it has %d, and the log is shorter", cluster.ErrLost, l.name, at)
		}
		switch err := l.bucket.Settled(ctx); { // the leader that has answered may be a deposed one
		case err == nil:
			sure = true
		case !errors.Is(err, cluster.ErrConflict):
			return err
		}
	}
	return nil
}

// seed gives the rows of this node to an empty log. The entry has no ID if there are none.
func (l *Log) seed(ctx context.Context, db *sql.DB) (entry, error) {
	e := entry{ID: rand.Text(), Node: l.node.ID()}
	var err error
	if e.Statements, err = l.dump(ctx, db); err != nil {
		return entry{}, err
	}
	if none, err := l.untouched(ctx, e.Statements); err != nil || none {
		return entry{}, err
	}
	won, err := l.append(ctx, 1, e)
	if err != nil || !won {
		return e, err
	}
	_, err = db.ExecContext(ctx, setPosition, e.ID, 1)
	return e, err
}

func entryKey(at uint64) string { return strconv.FormatUint(at, 10) }

// read returns an entry.
func (l *Log) read(ctx context.Context, at uint64) (e entry, err error) {
	r, err := l.bucket.Get(ctx, entryKey(at))
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(r.Value, &e); err != nil {
		return e, fmt.Errorf("change %d of %s: %w", at, l.name, err)
	}
	if err := cluster.CheckFormat(fmt.Sprintf("change %d of %s", at, l.name), e.Format); err != nil {
		return e, err
	}
	if e.Parts > 0 {
		if e.Statements, err = l.readParts(ctx, partsOf(at, e.ID), e.Parts); err != nil {
			return e, fmt.Errorf("change %d of %s: %w", at, l.name, err)
		}
	}
	l.last = lastEntry{at, r.Revision}
	l.grown += len(r.Value)
	return e, nil
}

// append creates an entry, and reports whether it is this one: another node may have been first. A write whose end is
// not known is repeated with the same bytes until it is. l.mu must be held.
func (l *Log) append(ctx context.Context, at uint64, e entry) (won bool, err error) {
	raw, err := l.encode(ctx, at, e)
	if err != nil {
		return false, err
	}
	last, err := l.revisionOf(ctx, at-1)
	if errors.Is(err, cluster.ErrNotFound) {
		return false, nil // the log was shortened, because it is much longer
	}
	if err != nil {
		return false, err
	}
	unknown := false
	for {
		revision, err := l.bucket.CreateNext(ctx, entryKey(at), raw, last)
		if err == nil {
			l.last = lastEntry{at, revision}
			l.grown += len(raw)
			return true, nil
		}
		unknown = unknown || errors.Is(err, cluster.ErrMayHaveRun)
		if errors.Is(err, cluster.ErrConflict) {
			other, rerr := l.read(ctx, at)
			if rerr == nil {
				return other.ID == e.ID, nil
			}
			if errors.Is(rerr, cluster.ErrFormat) {
				return false, rerr
			}
			if err = rerr; errors.Is(err, cluster.ErrNotFound) { // a write that is not decided yet is a conflict, too
				if c, cerr := l.readCopy(ctx); cerr == nil && c.Position >= at {
					return false, nil
				}
			}
		} else if !unknown && !errors.Is(err, cluster.ErrNotRun) {
			return false, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			if unknown && !errors.Is(err, cluster.ErrMayHaveRun) {
				err = fmt.Errorf("%w: %w", cluster.ErrMayHaveRun, err)
			}
			return false, fmt.Errorf("change %s: %w", l.name, err)
		}
	}
}

// changeTime is how long a change may take: longer than the election of a leader.
const changeTime = 20 * time.Second

// Change implements sqlfile.Replica. When it returns nil, every node that is fresh has the change. If too few nodes
// are there the error wraps cluster.ErrNotRun or cluster.ErrMayHaveRun.
func (l *Log) Change(ctx context.Context, run func(*sql.Tx) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, changeTime, fmt.Errorf("a change took longer than %v", changeTime))
	defer cancel()
	at, err := l.change(ctx, run)
	if errors.Is(err, sql.ErrTxDone) && ctx.Err() != nil { // it was rolled back because ctx is done
		return fmt.Errorf("change %s: %w: %w", l.name, cluster.ErrNotRun, context.Cause(ctx))
	}
	if err != nil || at == 0 || l.applied == nil {
		return err
	}
	if err := l.node.Confirm(ctx, l.name, at); err != nil {
		return fmt.Errorf("the change is made, but other nodes may not know it yet: %w", err)
	}
	return nil
}

// change returns the position of the change; 0 if nothing was changed.
func (l *Log) change(ctx context.Context, run func(*sql.Tx) error) (at uint64, err error) {
	db, err := l.file.DB()
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		at, won, err := l.try(ctx, db, run)
		if err != nil || won {
			return at, err
		}
		found, err := l.catchUpWithCopy(ctx, db)
		if err != nil {
			return 0, err
		}
		if found == 0 { // the leader that answers does not know of it yet
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				return 0, fmt.Errorf("change %s: %w: %w", l.name, cluster.ErrNotRun, context.Cause(ctx))
			}
		}
	}
}

// try runs a transaction once. won is false if another node has changed the file before.
func (l *Log) try(ctx context.Context, db *sql.DB, run func(*sql.Tx) error) (at uint64, won bool, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, false, err
	}
	defer tx.Rollback()
	if err := l.capture(tx); err != nil {
		return 0, false, fmt.Errorf("record changes: %w", err)
	}
	if err := run(tx); err != nil {
		if newest, behind := l.newest(ctx, tx); behind != nil || !newest {
			return 0, false, behind
		}
		return 0, false, err
	}
	e := entry{ID: rand.Text(), Node: l.node.ID()}
	if e.Statements, err = captured(tx); err != nil {
		return 0, false, err
	}
	if len(e.Statements) == 0 {
		if newest, err := l.newest(ctx, tx); err != nil || !newest {
			return 0, false, err
		}
		return 0, true, tx.Commit()
	}
	origin, at, err := position(ctx, tx)
	if err != nil {
		return 0, false, err
	}
	if at++; at == 1 {
		origin = e.ID
	}
	if _, err := tx.Exec(setPosition, origin, at); err != nil {
		return 0, false, err
	}
	if won, err := l.append(ctx, at, e); err != nil || !won {
		return 0, false, err
	}
	if err := tx.Commit(); err != nil {
		return 0, false, fmt.Errorf("%w: %v; it is in the log and follows", cluster.ErrMayHaveRun, err)
	}
	return at, true, l.tell(at)
}

// newest reports whether a transaction that changes nothing has read the newest state, so that what it found holds on
// all nodes: a token that it did not find exists on none. Most nodes agree that there is no later change.
func (l *Log) newest(ctx context.Context, tx *sql.Tx) (bool, error) {
	_, at, err := position(ctx, tx)
	if err != nil {
		return false, err
	}
	revision, err := l.revisionOf(ctx, at)
	if errors.Is(err, cluster.ErrNotFound) {
		return false, nil // the log was shortened, because it is much longer
	}
	if err == nil {
		err = l.bucket.Unchanged(ctx, revision)
	}
	switch {
	case errors.Is(err, cluster.ErrConflict):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("whether another node has changed %s is not known, and nothing was changed: %w: %v",
			l.name, cluster.ErrNotRun, err)
	}
	return true, nil
}

// tell tells the other nodes that this one has a change. l.mu must be held.
func (l *Log) tell(at uint64) error {
	if l.applied == nil {
		return nil
	}
	if err := l.applied(); err != nil {
		return err
	}
	l.node.SetApplied(l.name, at)
	l.told = at
	return nil
}

// catchUp applies the changes that the file does not have, and returns their number. l.mu must be held.
func (l *Log) catchUp(ctx context.Context, db *sql.DB) (found int, err error) {
	for ; ; found++ {
		origin, at, err := position(ctx, db)
		if err != nil {
			return found, err
		}
		e, err := l.read(ctx, at+1)
		if errors.Is(err, cluster.ErrNotFound) {
			if at > 0 {
				err = l.tell(at)
			} else {
				err = nil
			}
			return found, err
		}
		if err != nil {
			return found, err
		}
		if at == 0 {
			origin = e.ID
		}
		if err := l.apply(ctx, db, e, origin, at+1); err != nil {
			return found, fmt.Errorf("change %d of %s: %w", at+1, l.name, err)
		}
	}
}

func (l *Log) apply(ctx context.Context, db *sql.DB, e entry, origin string, at uint64) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, here, err := position(ctx, tx); err != nil || here >= at {
		return err // a command on this machine has applied it meanwhile
	}
	if _, err := tx.Exec("PRAGMA defer_foreign_keys = ON"); err != nil {
		return err
	}
	for _, s := range e.Statements {
		if _, err := tx.Exec(s); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(setPosition, origin, at); err != nil {
		return err
	}
	return tx.Commit()
}

// Run applies the changes of other nodes until ctx is done.
func (l *Log) Run(ctx context.Context) error {
	for r := range l.bucket.Watch(ctx) {
		at, err := strconv.ParseUint(r.Key, 10, 64)
		if err != nil {
			continue
		}
		l.followUntil(ctx, at)
		if err := l.shorten(ctx, at); err != nil && ctx.Err() == nil {
			l.log.Warn("a log of the cluster was not shortened, and is later", "log", l.name, "err", err)
		}
	}
	return nil
}

// followUntil tries to apply a change until it succeeds, because no other event may follow that would do it.
func (l *Log) followUntil(ctx context.Context, at uint64) {
	var logged time.Time
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := l.follow(ctx, at)
		if err == nil || ctx.Err() != nil || errors.Is(err, sqlfile.ErrClosed) {
			return
		}
		if !errors.Is(err, errNotReadable) && time.Since(logged) > time.Minute {
			// This node does not confirm it, so it stops being fresh, and refuses callers.
			l.log.Error("a change of another node was not applied and is tried again", "log", l.name, "change", at,
				"err", err)
			logged = time.Now()
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// errNotReadable means that the leader that answers does not know a change yet of which this node has heard.
var errNotReadable = errors.New("it cannot be read yet")

func (l *Log) follow(ctx context.Context, at uint64) error {
	db, err := l.file.DB()
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, here, err := position(ctx, db)
	if err == nil && here < at {
		if _, err = l.catchUpWithCopy(ctx, db); err == nil {
			_, here, err = position(ctx, db)
		}
	}
	switch {
	case err != nil:
		return err
	case here < at:
		return errNotReadable
	case here > l.told: // a command on this machine has changed the file, or brought it up to date
		return l.tell(here)
	}
	return nil
}
