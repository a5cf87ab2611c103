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
	lookEvery  = 500 * time.Millisecond // so that changes by others are effective within a second
	flushEvery = time.Minute
	keepEnded  = 24 * time.Hour // how long revocations stay, for processes that were suspended
	mostKnown  = 100_000        // credentials in memory
)

// watch detects changes of the file by any process.
type watch struct {
	last atomic.Int64 // the last check, in nanoseconds of uptime; 0 means never
	// claimed is set once a user was created. It stays set after the last one is removed, so that
	// removing users never admits anonymous callers.
	claimed atomic.Bool
	// lost is set if this host had users but their file has none: it was removed, emptied, or its disk
	// is not mounted.
	lost atomic.Bool

	mu      sync.Mutex
	version int64
	seq     int64 // the last revocation that was passed on
	met     bool  // the file has been read once
}

// clock is replaced by tests, and start is the moment from which intervals are measured. The monotonic
// clock decides when to check, because a check by the time of day would be skipped, after that was set
// back, until the old time is reached again, and revoked credentials would stay valid for so long.
var (
	clock = time.Now
	start = clock()
)

// UseClock replaces the clock of all services of this process, before the first one is opened.
func UseClock(now func() time.Time) { clock = now }

func uptime() time.Duration { return clock().Sub(start) }

// refreshCaches brings the caches up to date, at most every half second unless it is forced. If nothing
// is due, it costs one atomic load.
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
	revoked, err := s.compare(force)
	changed := force || w.version != version
	w.mu.Unlock()
	if err != nil {
		// If the file cannot be read, credentials are refused, not served from the cache.
		s.known.dropCredentials()
		s.log.Error("cannot read the file of users; logins and tokens are refused", "err", err)
	}
	s.revoke(revoked)
	if changed { // after the connections of the removed users have ended
		if err := s.followRemovals(); err != nil {
			s.log.Error("cannot read which users were removed; what belongs to them stays", "err", err)
		}
	}
	return err
}

// compare reads the changes; the caller holds watch.mu.
func (s *Service) compare(force bool) (revoked []Revocation, err error) {
	db, err := s.store.reader()
	if err != nil {
		return nil, err
	}
	if db == nil {
		s.watch.met = true // the file was empty: everything that is in it later is new
		s.remember(s.watch.claimed.Load())
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	changed, err := s.changed(ctx)
	if err != nil || !changed && !force {
		return nil, err
	}
	s.known.dropCredentials()
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
		// anonymous callers need credentials from now on
		revoked = append(revoked, Revocation{Principal: AnonymousName})
	}
	outdated, err := s.endOutdated(ctx, db)
	if err != nil {
		return revoked, err
	}
	revoked = append(revoked, outdated...)
	if w.met && seq > w.seq {
		ended, err := endedAfter(ctx, db, w.seq)
		if err != nil {
			return revoked, err
		}
		revoked = append(revoked, ended...)
	}
	w.met, w.seq = true, max(seq, w.seq)
	return revoked, nil
}

// applyChanges makes a change of the file effective here before another node is told so: what it revokes is refused,
// and its connections are ended.
func (s *Service) applyChanges() error {
	s.watch.mu.Lock()
	revoked, err := s.compare(true)
	s.watch.mu.Unlock()
	if err != nil {
		s.known.dropCredentials()
	}
	s.revoke(revoked)
	return err
}

// changed reports whether a process has committed a change. A file in memory is only changed by this
// process, which forces the check.
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

// recordRevocations records revocations for all processes, in the transaction that causes them.
func recordRevocations(tx *sql.Tx, now time.Time, all ...Revocation) error {
	for _, r := range all {
		if _, err := tx.Exec("INSERT INTO ended (user, credential, at) VALUES (?, ?, ?)", r.Principal, r.Credential,
			stamp(now)); err != nil {
			return err
		}
	}
	_, err := tx.Exec("DELETE FROM ended WHERE at < ?", stamp(now.Add(-keepEnded)))
	return err
}

// changeRows changes the file. It does not create the file: if there is none, it returns the error
// missing. When it returns, the revocations of f have been passed on.
func (s *Service) changeRows(ctx context.Context, missing error, f func(*sql.Tx) error) error {
	if db, err := s.store.reader(); err != nil {
		return err
	} else if db == nil {
		return missing
	}
	return s.createRows(ctx, f)
}

// createRows is changeRows for a change that may create the file.
func (s *Service) createRows(ctx context.Context, f func(*sql.Tx) error) error {
	if err := s.store.changeInTx(ctx, f); err != nil {
		return err
	}
	return s.refreshCaches(true)
}

type digest = [sha256.Size]byte

// credentialCache holds the credentials that were looked up since the file last changed, by the hash of
// their secret.
type credentialCache struct {
	mu    sync.RWMutex
	epoch uint64 // counts the calls of forget
	all   map[digest]Principal
}

func (c *credentialCache) lookup(h digest) (Principal, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	p, ok := c.all[h]
	return p, ok
}

// currentEpoch must be called before the file is read; put discards the result if the file may have
// changed since.
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

func (c *credentialCache) dropCredentials() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	c.all = nil
}

// uses holds the last uses of tokens and logins that are not yet in the file.
type uses struct {
	mu  sync.Mutex
	all map[string]int64 // by public ID, in milliseconds
}

func (u *uses) noteUse(id string, now time.Time) {
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

// flush writes the last uses in one transaction.
func (s *Service) flush() error {
	all := s.uses.drain()
	if len(all) == 0 {
		return nil
	}
	err := s.store.changeHere(context.Background(), func(tx *sql.Tx) error {
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
