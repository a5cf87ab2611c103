package identity

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"time"
)

const (
	// noticeTime is how long AwaitEndings waits for hosts to notice a removal:
	// they look at the file every lookEvery.
	noticeTime = 3 * lookEvery
	reportTime = 20 * time.Second // how long AwaitEndings waits for the reports of hosts that noticed
	mostListed = 1000             // entries of one report
)

// Removal is a user who was removed, for hosts that end what belongs to it.
type Removal struct {
	Number int64 // later removals have higher ones
	Name   string
	Owner  string // the principal half of the owner of the user's things; see Principal.ID
	At     time.Time
}

// removalHook is a follower of removals, and the last one that it was told.
type removalHook struct {
	f    func([]Removal)
	last int64
}

// OnRemoved tells f every removal that is in the file, at once, and later ones
// within a second. f must not block; it is never called twice at the same time.
func (s *Service) OnRemoved(f func([]Removal)) error {
	s.removals.Lock()
	s.removed = &removalHook{f: f}
	s.removals.Unlock()
	return s.followRemovals()
}

// followRemovals tells the hook of OnRemoved what is new in the file.
func (s *Service) followRemovals() error {
	s.removals.Lock()
	defer s.removals.Unlock()
	h := s.removed
	if h == nil {
		return nil
	}
	var all []Removal
	err := s.each(context.Background(), func(scan func(...any) error) error {
		var r Removal
		var at int64
		if err := scan(&r.Number, &r.Name, &r.Owner, &at); err != nil {
			return err
		}
		r.At = moment(at)
		all = append(all, r)
		return nil
	}, "SELECT number, name, owner, at FROM removal WHERE number > ? ORDER BY number", h.last)
	if err != nil || len(all) == 0 {
		return err
	}
	h.last = all[len(all)-1].Number
	h.f(all)
	return nil
}

// retire records a removal, in the transaction that removes the user.
func retire(tx *sql.Tx, name string) error {
	if _, err := tx.Exec("INSERT INTO retired SELECT number, name FROM user WHERE name = ?", name); err != nil {
		return err
	}
	_, err := tx.Exec(`INSERT INTO removal (name, owner, at)
		SELECT name, coalesce(nullif(`+ownerID+`, ''), name), ? FROM user WHERE name = ?`, stamp(time.Now()), name)
	return err
}

// Noticed tells those who wait in AwaitEndings that this host ends what
// belongs to a removed user, and that its report follows.
func (s *Service) Noticed(ctx context.Context, r Removal) error { return s.report(ctx, r, "") }

// Ended reports what this host has ended of a removed user, one text for each
// thing, at most 1000.
func (s *Service) Ended(ctx context.Context, r Removal, ended []string) error {
	return s.report(ctx, r, list(ended[:min(len(ended), mostListed)]))
}

func (s *Service) report(ctx context.Context, r Removal, ended string) error {
	host := hex.EncodeToString(s.salt[:8])
	return s.store.change(ctx, func(tx *sql.Tx) error {
		// Reports are read within seconds; the removals stay, for hosts that start later.
		_, err := tx.Exec("DELETE FROM ending WHERE removal IN (SELECT number FROM removal WHERE at < ?)",
			stamp(time.Now().Add(-keepEnded)))
		if err != nil {
			return err
		}
		_, err = tx.Exec("INSERT OR REPLACE INTO ending (removal, host, ended) VALUES (?, ?, ?)", r.Number, host, ended)
		return err
	})
}

// Endings are what running hosts have reported of one removal.
type Endings struct {
	Hosts  int      // that noticed the removal
	Silent int      // of these, hosts that did not report in time
	Ended  []string // what they ended
}

// AwaitEndings waits until the running hosts have reported what they ended of
// the user of that name who was removed last. Hosts that do not notice the
// removal within one and a half seconds are taken not to run.
func (s *Service) AwaitEndings(ctx context.Context, name string) (Endings, error) {
	begun := time.Now()
	tick := time.NewTicker(lookEvery / 5)
	defer tick.Stop()
	for {
		e, err := s.endings(ctx, name)
		past := time.Since(begun)
		if err != nil || past > noticeTime && e.Silent == 0 || past > reportTime {
			return e, err
		}
		select {
		case <-ctx.Done():
			return e, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func (s *Service) endings(ctx context.Context, name string) (e Endings, err error) {
	err = s.each(ctx, func(scan func(...any) error) error {
		var text string
		if err := scan(&text); err != nil {
			return err
		}
		e.Hosts++
		var ended []string
		if json.Unmarshal([]byte(cmp.Or(text, "[]")), &ended); text == "" {
			e.Silent++
		}
		e.Ended = append(e.Ended, ended...)
		return nil
	}, "SELECT ended FROM ending WHERE removal = (SELECT max(number) FROM removal WHERE name = ?) ORDER BY host", name)
	return e, err
}
