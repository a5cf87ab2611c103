package identity

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"
)

const (
	// noticeTime is how long AwaitEndings waits for hosts to notice a removal: they check the file
	// every lookEvery.
	noticeTime = 3 * lookEvery
	reportTime = 20 * time.Second // how long AwaitEndings waits for the reports of hosts that noticed the removal
	mostListed = 1000             // entries of one report
)

// Removal is the removal of a user, for hosts that end what belongs to the user.
type Removal struct {
	Number int64 // increases with each removal
	Name   string
	Owner  string // the principal half of the owner of the user's data; see Principal.ID
	At     time.Time
	Heir   string // the principal half of the owner that receives the data; "" means that it ends
}

// ErrNoHeir is the error of a removal in favour of a user that does not exist.
var ErrNoHeir = errors.New("the user who is to get what it owns does not exist, or is the one that is removed")

// removalHook is a subscriber of removals, and the last removal passed to it.
type removalHook struct {
	f    func([]Removal)
	last int64
}

// OnRemoved calls f with every removal in the file, at once, and with later ones within a second. f
// must not block; calls of f never overlap.
func (s *Service) OnRemoved(f func([]Removal)) error {
	s.removals.Lock()
	s.removed = &removalHook{f: f}
	s.removals.Unlock()
	return s.followRemovals()
}

// followRemovals passes new removals in the file to the hook of OnRemoved.
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
		if err := scan(&r.Number, &r.Name, &r.Owner, &at, &r.Heir); err != nil {
			return err
		}
		r.At = moment(at)
		all = append(all, r)
		return nil
	}, `SELECT number, name, removal.owner, at, coalesce(heir.owner, '')
		FROM removal LEFT JOIN heir ON heir.removal = number WHERE number > ? ORDER BY number`, h.last)
	if err != nil || len(all) == 0 {
		return err
	}
	h.last = all[len(all)-1].Number
	h.f(all)
	return nil
}

// retire records a removal, in the transaction that removes the user.
func retire(tx *sql.Tx, name, heir string) error {
	if _, err := tx.Exec("INSERT INTO retired SELECT number, name FROM user WHERE name = ?", name); err != nil {
		return err
	}
	_, err := tx.Exec(`INSERT INTO removal (name, owner, at)
		SELECT name, coalesce(nullif(`+ownerID+`, ''), name), ? FROM user WHERE name = ?`, stamp(time.Now()), name)
	if err != nil || heir == "" {
		return err
	}
	if heir == name {
		return ErrNoHeir
	}
	err = touched(tx.Exec(`INSERT INTO heir (removal, owner)
		SELECT (SELECT max(number) FROM removal WHERE name = ?), coalesce(nullif(`+ownerID+`, ''), name)
		FROM user WHERE name = ?`, name, heir))
	if errors.Is(err, ErrNoUser) {
		return ErrNoHeir
	}
	return err
}

// HeirOf returns the user that receives what a removed user had; ok is false if that user was removed
// since.
func (s *Service) HeirOf(ctx context.Context, r Removal) (p Principal, ok bool, err error) {
	err = s.each(ctx, func(scan func(...any) error) error {
		var roles string
		if err := scan(&p.Name, &p.ID, &roles); err != nil {
			return err
		}
		p.Roles, ok = unlist(roles), true
		return nil
	}, `SELECT name, `+ownerID+`, roles FROM user WHERE coalesce(nullif(`+ownerID+`, ''), name) = ?`, r.Heir)
	return p, ok, err
}

// Noticed records for the callers of AwaitEndings that this host ends what belongs to a removed user,
// and that its report follows.
func (s *Service) Noticed(ctx context.Context, r Removal) error { return s.reportRemoval(ctx, r, "") }

// Ended reports what this host has handed over and ended for a removed user, one text per item, at most
// 1000 of each.
func (s *Service) Ended(ctx context.Context, r Removal, handed, ended []string) error {
	ended = ended[:min(len(ended), mostListed)]
	if len(handed) == 0 {
		return s.reportRemoval(ctx, r, joinNames(ended))
	}
	b, err := json.Marshal(handedAndEnded{handed[:min(len(handed), mostListed)], ended})
	if err != nil {
		return err
	}
	return s.reportRemoval(ctx, r, string(b))
}

// handedAndEnded is the report of a host that handed something over.
type handedAndEnded struct {
	Handed []string `json:"handed"`
	Ended  []string `json:"ended"`
}

func (s *Service) reportRemoval(ctx context.Context, r Removal, ended string) error {
	host := hex.EncodeToString(s.salt[:8])
	return s.store.changeInTx(ctx, func(tx *sql.Tx) error {
		// Reports are read within seconds, so old ones are deleted; the removals stay, for hosts that
		// start later.
		_, err := tx.Exec("DELETE FROM ending WHERE removal IN (SELECT number FROM removal WHERE at < ?)",
			stamp(time.Now().Add(-keepEnded)))
		if err != nil {
			return err
		}
		_, err = tx.Exec("INSERT OR REPLACE INTO ending (removal, host, ended) VALUES (?, ?, ?)", r.Number, host, ended)
		return err
	})
}

// Endings collects the reports of running hosts about one removal.
type Endings struct {
	Hosts  int      // hosts that noticed the removal
	Silent int      // of these, hosts that did not report in time
	Handed []string // what they handed over
	Ended  []string // what they ended
}

// AwaitEndings waits until the running hosts have reported what they ended for the last removed user of
// that name. A host that does not notice the removal within one and a half seconds counts as not
// running.
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
		if text == "" {
			e.Silent++
			return nil
		}
		var all handedAndEnded
		into := any(&all.Ended)
		if text[0] == '{' {
			into = &all
		}
		if err := json.Unmarshal([]byte(text), into); err != nil {
			return err
		}
		e.Handed, e.Ended = append(e.Handed, all.Handed...), append(e.Ended, all.Ended...)
		return nil
	}, "SELECT ended FROM ending WHERE removal = (SELECT max(number) FROM removal WHERE name = ?) ORDER BY host", name)
	return e, err
}
