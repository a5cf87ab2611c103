package identity

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// ErrPassword means that a password is not that of the user, who may not exist
// or have none.
var ErrPassword = errors.New("the password is wrong")

// lastWords is how long what was opened with a login goes on after the password
// was changed there, so that the answer arrives.
const lastWords = 5 * time.Second

// ChangePassword replaces a user's password for somebody who knows the present
// one, and ends the user's logins: new requests with them are refused at once.
// What was opened with the login here, "" for none, ends a moment later than
// the rest. Tokens stay. Besides ErrPassword the error is a *Denied after too
// many tries, or says what is wrong with the new password.
func (s *Service) ChangePassword(ctx context.Context, name, present, next, here string) error {
	if wait := s.perAcc.take(clip(name)); wait > 0 {
		s.tell("login_limited", clip(name), "", "")
		return &Denied{Status: 429, Code: "too_many_tries", Message: "too many tries; wait " + seconds(wait) + " s"}
	}
	s.look(false)
	a, there, err := s.find(ctx, "name = ?", name)
	if err != nil {
		return err
	}
	ok, _, err := s.pass.check(ctx, a.kept, present)
	switch {
	case err != nil:
		return err
	case !ok || !there:
		s.tell("login_failed", clip(name), "", "")
		return ErrPassword
	}
	kept, err := s.pass.hash(ctx, next)
	if err != nil {
		return err
	}
	if err := s.store.change(ctx, func(tx *sql.Tx) error {
		// Somebody else may have changed it since it was compared.
		if err := touched(tx.Exec("UPDATE user SET password = ?, epoch = epoch + 1 WHERE number = ? AND epoch = ?", kept, a.number, a.epoch)); err != nil {
			return err
		}
		return endOthers(tx, a.number, name, here)
	}); err != nil {
		if errors.Is(err, ErrNoUser) {
			err = ErrPassword
		}
		return err
	}
	s.look(true) // tells what was revoked
	var others []Revocation
	for _, l := range s.brief.remove(func(l *briefLogin) bool { return l.User == name }) {
		if l.ID != here {
			others = append(others, Revocation{name, l.ID})
		}
	}
	s.revoke(others)
	s.endLater(name)
	s.tell("password_changed", name, "", "")
	return nil
}

// endOthers ends the lasting logins of a user, and what was opened with them
// but for one.
func endOthers(tx *sql.Tx, number int64, name, here string) error {
	rows, err := tx.Query("DELETE FROM login WHERE user = ? RETURNING id", number)
	if err != nil {
		return err
	}
	defer rows.Close()
	var others []Revocation
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return err
		}
		if id != here {
			others = append(others, Revocation{name, id})
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	rows.Close()
	return end(tx, time.Now(), others...)
}

// endLater ends, here and in other processes, whatever a user has opened with
// a login, when the answer has been sent.
func (s *Service) endLater(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving == nil {
		s.leaving = map[string]*time.Timer{}
	}
	if was := s.leaving[name]; was != nil {
		was.Stop()
	}
	s.leaving[name] = time.AfterFunc(lastWords, func() { s.endNow(name) })
}

func (s *Service) endNow(name string) {
	s.mu.Lock()
	_, due := s.leaving[name]
	delete(s.leaving, name)
	s.mu.Unlock()
	if !due {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.create(ctx, func(tx *sql.Tx) error { return end(tx, time.Now(), Revocation{Principal: name}) }); err != nil {
		s.log.Error("what was opened before a password was changed is still open", "user", name, "err", err)
	}
}

// endAllNow is for the end of the service.
func (s *Service) endAllNow() {
	s.mu.Lock()
	var names []string
	for name, t := range s.leaving {
		t.Stop()
		names = append(names, name)
	}
	s.mu.Unlock()
	for _, name := range names {
		s.endNow(name)
	}
}

// endLogins ends the logins of a user and what was opened with them.
func endLogins(tx *sql.Tx, name string) error {
	if _, err := tx.Exec("DELETE FROM login WHERE user = (SELECT number FROM user WHERE name = ?)", name); err != nil {
		return err
	}
	return end(tx, time.Now(), Revocation{Principal: name})
}
