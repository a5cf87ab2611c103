package identity

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

const (
	lookEvery  = 500 * time.Millisecond // so that what others change holds within a second
	flushEvery = time.Minute
	keepEnded  = 24 * time.Hour // revocations, for processes that sleep
	mostKnown  = 100_000        // credentials in memory
)

// watch detects changes of the file by any process.
type watch struct {
	last atomic.Int64 // the last look, in nanoseconds of uptime; 0 means never
	// claimed is set once there has been a user. It stays set when the last
	// one is removed, so that removing users never lets anonymous callers in.
	claimed atomic.Bool
	// lost is set while there were users here once and their file does not know
	// of any: it was removed, emptied, or its disk is not mounted.
	lost atomic.Bool

	mu      sync.Mutex
	version int64
	seq     int64 // the last revocation that was told
	met     bool  // the file has been read once
}

// clock is replaced by tests, and start a moment that spans are counted from: the
// monotonic clock decides when to look, because a time of day that was set back
// would let what another process has revoked go on until it is reached again.
var (
	clock = time.Now
	start = clock()
)

func uptime() time.Duration { return clock().Sub(start) }

// refreshCaches brings the caches up to date, at most every half second unless it
// is forced. It costs an atomic load when nothing is due.
func (s *Service) refreshCaches(force bool) error {
	w := &s.watch
	now := int64(uptime())
	if last := w.last.Load(); !force && last != 0 && now-last < int64(lookEvery) {
		return nil
	}
	if force {
		w.mu.Lock()
	} else if !w.mu.TryLock() {
		return nil // another goroutine is checking
	}
	w.last.Store(now)
	version := w.version
	told, err := s.compare(force)
	changed := force || w.version != version
	w.mu.Unlock()
	if err != nil {
		// What cannot be looked up any more is refused, not remembered.
		s.known.forget()
		s.log.Error("cannot read the file of users; logins and tokens are refused", "err", err)
	}
	s.revoke(told)
	if changed { // after what it had open has ended
		if err := s.followRemovals(); err != nil {
			s.log.Error("cannot read which users were removed; what belongs to them goes on", "err", err)
		}
	}
	return err
}

// compare reads what has changed; the caller holds watch.mu.
func (s *Service) compare(force bool) (told []Revocation, err error) {
	db, err := s.store.reader()
	if err != nil {
		return nil, err
	}
	if db == nil {
		s.watch.met = true // and it was empty: whatever is in it later is news
		s.remember(s.watch.claimed.Load())
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	changed, err := s.changed(ctx)
	if err != nil || !changed && !force {
		return nil, err
	}
	s.known.forget()
	w := &s.watch
	var claimed bool
	var seq int64
	err = db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'user'),
		coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'ended'), 0)`).Scan(&claimed, &seq)
	if err != nil {
		return nil, err
	}
	claimed = claimed || w.claimed.Load()
	s.remember(claimed)
	if !w.claimed.Swap(claimed) && claimed && s.o.Mode == OpenLoopback && !s.o.Insecure && !s.o.Embedded {
		told = append(told, Revocation{Principal: Nobody}) // anonymous callers need credentials from now on
	}
	outdated, err := s.endOutdated(ctx, db)
	if err != nil {
		return told, err
	}
	told = append(told, outdated...)
	if w.met && seq > w.seq {
		ended, err := endedAfter(ctx, db, w.seq)
		if err != nil {
			return told, err
		}
		told = append(told, ended...)
	}
	w.met, w.seq = true, max(seq, w.seq)
	return told, nil
}

// changed reports whether a process has committed a change. In memory only
// this process does, and it looks by force.
func (s *Service) changed(ctx context.Context) (bool, error) {
	version, err := s.store.file.Changes(ctx)
	changed := version != s.watch.version
	if err == nil {
		s.watch.version = version
	}
	return changed, err
}

func endedAfter(ctx context.Context, db *sql.DB, seq int64) (all []Revocation, err error) {
	rows, err := db.QueryContext(ctx, "SELECT user, credential FROM ended WHERE seq > ? ORDER BY seq", seq)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r Revocation
		if err := rows.Scan(&r.Principal, &r.Credential); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// recordRevocations records revocations for all processes, in the transaction that makes them
// true.
func recordRevocations(tx *sql.Tx, now time.Time, all ...Revocation) error {
	for _, r := range all {
		if _, err := tx.Exec("INSERT INTO ended (user, credential, at) VALUES (?, ?, ?)", r.Principal, r.Credential, stamp(now)); err != nil {
			return err
		}
	}
	_, err := tx.Exec("DELETE FROM ended WHERE at < ?", stamp(now.Add(-keepEnded)))
	return err
}

// changeRows changes the file, which is not made for it: without one the answer
// is missing. What it revoked has been told when it returns.
func (s *Service) changeRows(ctx context.Context, missing error, f func(*sql.Tx) error) error {
	if db, err := s.store.reader(); err != nil {
		return err
	} else if db == nil {
		return missing
	}
	return s.create(ctx, f)
}

// create is change for what may be the first thing in the file.
func (s *Service) create(ctx context.Context, f func(*sql.Tx) error) error {
	if err := s.store.changeInTx(ctx, f); err != nil {
		return err
	}
	return s.refreshCaches(true)
}

type digest = [sha256.Size]byte

// credentialCache are the credentials looked up since the file last changed, by the
// hash of their secret.
type credentialCache struct {
	mu    sync.RWMutex
	epoch uint64 // counts the forgettings
	all   map[digest]Principal
}

func (c *credentialCache) lookup(h digest) (Principal, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	p, ok := c.all[h]
	return p, ok
}

// currentEpoch is called before the file is read; put forgets what was read if the
// file may have changed since.
func (c *credentialCache) currentEpoch() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.epoch
}

func (c *credentialCache) storePrincipal(epoch uint64, h digest, p Principal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if epoch != c.epoch {
		return
	}
	if c.all == nil || len(c.all) >= mostKnown {
		c.all = map[digest]Principal{}
	}
	c.all[h] = p
}

func (c *credentialCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	c.all = nil
}

// uses are the last uses of tokens and logins that are not yet in the file.
type uses struct {
	mu  sync.Mutex
	all map[string]int64 // by public id, in milliseconds
}

func (u *uses) note(id string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = map[string]int64{}
	}
	u.all[id] = now.UnixMilli()
}

func (u *uses) drain() map[string]int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := u.all
	u.all = nil
	return all
}

// flush writes the last uses, all in one transaction.
func (s *Service) flush() error {
	all := s.uses.drain()
	if len(all) == 0 {
		return nil
	}
	err := s.store.changeInTx(context.Background(), func(tx *sql.Tx) error {
		var errs []error
		for id, at := range all {
			for _, q := range []string{
				"UPDATE token SET used = max(used, ?) WHERE id = ?",
				"UPDATE login SET used = max(used, ?) WHERE id = ?",
			} {
				_, err := tx.Exec(q, at, id)
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
	if err != nil {
		s.log.Warn("cannot record when tokens were last used", "err", err)
	}
	return err
}
