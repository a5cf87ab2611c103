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

// lastWords is how long what a user has open goes on after the user has changed
// the password there, so that the answer arrives.
const lastWords = 300 * time.Millisecond

// ChangePassword replaces a user's password for somebody who knows the present
// one, and ends the user's logins. New requests are refused at once, what is
// open ends a moment later. Tokens stay. Besides ErrPassword the error is a
// *Denied after too many tries, or says what is wrong with the new password.
func (s *Service) ChangePassword(ctx context.Context, name, present, next string) error {
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
		return endLogins(tx, name)
	}); err != nil {
		if errors.Is(err, ErrNoUser) {
			err = ErrPassword
		}
		return err
	}
	s.known.forget()
	s.brief.remove(func(l *briefLogin) bool { return l.User == name })
	s.lookLater(lastWords)
	s.tell("password_changed", name, "", "")
	return nil
}

// lookLater has what was revoked told after a while; 0 leaves it to whoever
// looks next.
func (s *Service) lookLater(after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.later != nil {
		s.later.Stop()
	}
	if after > 0 {
		s.later = time.AfterFunc(after, func() { s.look(true) })
	}
}

// endLogins ends the logins of a user and what was opened with them.
func endLogins(tx *sql.Tx, name string) error {
	if _, err := tx.Exec("DELETE FROM login WHERE user = (SELECT number FROM user WHERE name = ?)", name); err != nil {
		return err
	}
	return end(tx, time.Now(), Revocation{Principal: name})
}
