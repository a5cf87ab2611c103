package identity

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"
)

// ErrPassword means that a password is wrong, or that the user does not exist or has no password.
var ErrPassword = errors.New("the password is wrong")

// lastWords is how long connections opened with a login stay open after the password was changed with
// it, so that the answer arrives.
const lastWords = 5 * time.Second

// ChangePassword replaces a user's password for a caller who knows the present one, and ends the user's
// logins: new requests with them are refused at once. Connections opened with the login here, "" for
// none, end a moment later than the rest. Tokens, and logins with the new password, stay valid. Besides
// ErrPassword the error is a *Denied after too many tries, or states what is wrong with the new
// password.
func (s *Service) ChangePassword(ctx context.Context, name, present, next, here string) error {
	if wait := s.countTry(triesHeld, clip(name)+"\n"+here); wait > 0 {
		s.publishEvent("login_limited", clip(name), "", "")
		return &Denied{Status: 429, Code: "too_many_tries", Message: "too many tries: wait " + seconds(wait) + " s"}
	}
	s.refreshCaches(false)
	a, there, err := s.findAccount(ctx, "name = ?", name)
	if err != nil {
		return err
	}
	ok, _, err := s.pass.verify(ctx, a.kept, present)
	switch {
	case err != nil:
		return err
	case !ok || !there:
		s.publishEvent("login_failed", clip(name), "", "")
		return ErrPassword
	}
	kept, err := s.pass.hash(ctx, next)
	if err != nil {
		return err
	}
	s.keepForNow(here) // before the change is noticed
	var lasting []string
	if err := s.store.changeInTx(ctx, func(tx *sql.Tx) error {
		// The condition on the epoch detects another call that changed the password after it was
		// compared.
		if err := touched(tx.Exec("UPDATE user SET password = ?, epoch = epoch + 1 WHERE number = ? AND epoch = ?",
			kept, a.number, a.epoch)); err != nil {
			return err
		}
		lasting, err = endLogins(tx, name, here)
		return err
	}); err != nil {
		s.keepNoLonger(here)
		if errors.Is(err, ErrNoUser) {
			err = ErrPassword
		}
		return err
	}
	s.refreshCaches(true) // ends the logins, except the one here
	removed := s.brief.removeLogins(func(l *temporaryLogin) bool { return l.ID == here })
	if len(removed) > 0 || slices.Contains(lasting, here) {
		s.endLater(name, here)
	} else {
		s.keepNoLonger(here) // a token, a certificate or a socket: they stay valid
	}
	s.publishEvent("password_changed", name, "", "")
	return nil
}

// endLogins ends the lasting logins of a user, and what was opened with them except with keep, which
// may be "". It returns the IDs of all of them. Logins that are not lasting end with the user's epoch,
// in each process separately.
func endLogins(tx *sql.Tx, name, keep string) (ids []string, err error) {
	rows, err := tx.Query("DELETE FROM login WHERE user = (SELECT number FROM user WHERE name = ?) RETURNING id", name)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var others []Revocation
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
		if id != keep {
			others = append(others, Revocation{name, id})
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	rows.Close()
	return ids, recordRevocations(tx, time.Now(), others...)
}

// endOutdated ends the logins kept in memory whose user was removed or has another password by now,
// also if another process changed it. It ends nothing else: a login with the new password, and what
// tokens opened, stays.
func (s *Service) endOutdated(ctx context.Context, db *sql.DB) ([]Revocation, error) {
	if len(s.brief.listLogins()) == 0 {
		return nil, nil
	}
	rows, err := db.QueryContext(ctx, "SELECT number, epoch FROM user")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	epochs := map[int64]int64{}
	for rows.Next() {
		var number, epoch int64
		if err := rows.Scan(&number, &epoch); err != nil {
			return nil, err
		}
		epochs[number] = epoch
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	var ended []Revocation
	for _, l := range s.brief.removeLogins(func(l *temporaryLogin) bool {
		epoch, there := epochs[l.number]
		return l.number != 0 && (!there || l.epoch < epoch) && !s.isLeaving(l.ID)
	}) {
		ended = append(ended, Revocation{l.User, l.ID})
	}
	return ended, nil
}

// A login in which the password is changed is leaving: requests with it are refused at once, and what
// was opened with it ends when its timer fires. The timer is nil until the password was changed.

func (s *Service) keepForNow(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving == nil {
		s.leaving = map[string]*leavingLogin{}
	}
	if s.leaving[id] == nil {
		s.leaving[id] = &leavingLogin{}
	}
}

func (s *Service) keepNoLonger(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.leaving[id]; l != nil && l.timer == nil {
		delete(s.leaving, id)
	}
}

func (s *Service) isLeaving(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaving[id] != nil
}

type leavingLogin struct {
	user  string
	timer *time.Timer
}

// endLater ends, in this and in other processes, what a user has opened with a login, after the answer
// has been sent.
func (s *Service) endLater(name, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.leaving[id]
	if l == nil {
		l = &leavingLogin{}
		s.leaving[id] = l
	}
	if l.user = name; l.timer == nil {
		l.timer = time.AfterFunc(lastWords, func() { s.endNow(id) })
	}
}

func (s *Service) endNow(id string) {
	s.mu.Lock()
	l := s.leaving[id]
	delete(s.leaving, id)
	s.mu.Unlock()
	if l == nil || l.timer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.createRows(ctx, func(tx *sql.Tx) error {
		return recordRevocations(tx, time.Now(),
			Revocation{l.user, id})
	}); err != nil {
		s.log.Error("connections opened before a password was changed are still open", "user", l.user, "err", err)
	}
}

// endAllNow ends all leaving logins when the service closes.
func (s *Service) endAllNow() {
	s.mu.Lock()
	var ids []string
	for id, l := range s.leaving {
		if l.timer != nil {
			l.timer.Stop()
		}
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		s.endNow(id)
	}
}
