package identity

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/files/sqlfile"
)

// User is an account of this host.
type User struct {
	Name     string    `json:"name"`
	Roles    []string  `json:"roles"`
	Password bool      `json:"password"` // a user without one can only use tokens and certificates
	Tokens   int       `json:"tokens"`
	Passkeys int       `json:"passkeys"`
	Created  time.Time `json:"created"`
}

var (
	// ErrNoUser means that no user has that name.
	ErrNoUser = errors.New("there is no such user")
	// ErrTaken means that the name is in use.
	ErrTaken = errors.New("that name is taken")
	// ErrNone means that no credential has that ID.
	ErrNone = errors.New("no credential has that id")
)

const (
	mostName  = 64 // bytes
	mostRoles = 32
)

// checkName returns an error unless a name of a user or a role consists of lower-case letters, digits
// and, inside, the characters . _ -.
func checkName(what, name string) error {
	ok := name != "" && len(name) <= mostName
	for i, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			ok = false
		}
	}
	if !ok {
		return fmt.Errorf(
			"%s %q: expected up to %d lower-case letters, digits, and . _ - inside",
			what,
			clip(name),
			mostName,
		)
	}
	return nil
}

func checkUser(name string) error {
	if name == AnonymousName {
		return fmt.Errorf("user %q: that is the name of callers without credentials: choose another", name)
	}
	return checkName("user", name)
}

// tidyRoles sorts roles and removes duplicates, so that equal sets have equal representations.
func tidyRoles(roles []string) ([]string, error) {
	roles = slices.Compact(slices.Sorted(slices.Values(roles)))
	if len(roles) > mostRoles {
		return nil, fmt.Errorf("a user has at most %d roles", mostRoles)
	}
	for _, r := range roles {
		if err := checkName("role", r); err != nil {
			return nil, err
		}
	}
	return roles, nil
}

func clip(s string) string { return displaytext.Cut(s, mostName, "") }

// AddUser adds a user. A user without a password is admitted by tokens, certificates and the OAuth
// provider.
func (s *Service) AddUser(ctx context.Context, name string, roles []string, password string) error {
	return s.addUser(ctx, name, roles, password, false)
}

// addUser adds a user; with first, only if no user exists.
func (s *Service) addUser(ctx context.Context, name string, roles []string, password string, first bool) error {
	roles, err := tidyRoles(roles)
	if err = errors.Join(checkUser(name), err); err != nil {
		return err
	}
	kept := ""
	if password != "" {
		if kept, err = s.pass.hash(ctx, password); err != nil {
			return err
		}
	}
	err = s.createRows(ctx, func(tx *sql.Tx) error {
		var some bool
		if err := tx.QueryRow("SELECT EXISTS (SELECT 1 FROM user)").Scan(&some); err != nil {
			return err
		}
		if first && some {
			return ErrTaken
		}
		made, err := tx.Exec("INSERT INTO user (name, roles, password, created) VALUES (?, ?, ?, ?)",
			name, joinNames(roles), kept, stamp(time.Now()))
		if sqlfile.IsTaken(err) {
			return fmt.Errorf("user %s: %w", name, ErrTaken)
		}
		if err != nil {
			return err
		}
		number, err := made.LastInsertId()
		if err != nil {
			return err
		}
		// Numbers are never reused. If the known users are fewer than the numbers given out, an earlier
		// version removed some, perhaps one of this name, so the new user gets an ID of its own.
		_, err = tx.Exec(`INSERT INTO owner SELECT number, name || '~' || number FROM user WHERE number = ? AND (
			EXISTS (SELECT 1 FROM retired WHERE retired.name = user.name)
			OR number > (SELECT count(*) FROM user) + (SELECT count(*) FROM retired))`, number)
		return err
	})
	if err == nil {
		s.publishEvent("user_added", name, "", "")
	}
	return err
}

// joinNames encodes names for the file.
func joinNames(names []string) string {
	if len(names) == 0 {
		return "[]"
	}
	b, _ := json.Marshal(names) // strings only
	return string(b)
}

func unlist(text string) (names []string) {
	json.Unmarshal([]byte(text), &names) // written by joinNames; any other content gives no names
	return names
}

// Users lists all users, by name.
func (s *Service) Users(ctx context.Context) (all []User, err error) {
	err = s.each(ctx, func(scan func(...any) error) error {
		var u User
		var roles string
		var created int64
		if err := scan(&u.Name, &roles, &u.Password, &u.Tokens, &u.Passkeys, &created); err != nil {
			return err
		}
		u.Roles, u.Created = unlist(roles), moment(created)
		all = append(all, u)
		return nil
	}, `SELECT name, roles, password <> '', (SELECT count(*) FROM token WHERE token.user = number),
		(SELECT count(*) FROM passkey WHERE passkey.user = number), created
		FROM user ORDER BY name`)
	return all, err
}

// each runs a query and calls f for each row. If the file does not exist, there are no rows.
func (s *Service) each(ctx context.Context, f func(scan func(...any) error) error, query string, args ...any) error {
	db, err := s.store.reader()
	if db == nil || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// RemoveUser removes a user with all its credentials, and ends what they opened. Running hosts end what
// belongs to the user; see OnRemoved and AwaitEndings. Callers without credentials stay refused even if
// no user is left.
func (s *Service) RemoveUser(ctx context.Context, name string) error {
	return s.RemoveUserFor(ctx, name, "")
}

// RemoveUserFor is RemoveUser, but hands what belongs to the user to another user where that is
// possible. The error wraps ErrNoHeir if that user does not exist.
func (s *Service) RemoveUserFor(ctx context.Context, name, heir string) error {
	return s.alter(ctx, name, "user_removed", func(tx *sql.Tx) (sql.Result, error) {
		if err := retire(tx, name, heir); err != nil {
			return nil, err
		}
		return tx.Exec("DELETE FROM user WHERE name = ?", name)
	})
}

// SetRoles replaces a user's roles. Connections of the user end and can be opened again with the new
// roles.
func (s *Service) SetRoles(ctx context.Context, name string, roles []string) error {
	roles, err := tidyRoles(roles)
	if err != nil {
		return err
	}
	return s.alter(ctx, name, "roles_changed", func(tx *sql.Tx) (sql.Result, error) {
		return tx.Exec("UPDATE user SET roles = ? WHERE name = ?", joinNames(roles), name)
	})
}

// SetPassword replaces a user's password and ends its logins. Tokens stay valid.
func (s *Service) SetPassword(ctx context.Context, name, password string) error {
	kept, err := s.pass.hash(ctx, password)
	if err != nil {
		return err
	}
	err = s.changeRows(ctx, ErrNoUser, func(tx *sql.Tx) error {
		if err := touched(tx.Exec("UPDATE user SET password = ?, epoch = epoch + 1 WHERE name = ?", kept, name)); err != nil {
			return err
		}
		_, err := endLogins(tx, name, "")
		return err
	})
	if err == nil {
		s.publishEvent("password_changed", name, "", "")
	}
	return err
}

// alter changes one user and ends its connections.
func (s *Service) alter(ctx context.Context, name, kind string, change func(*sql.Tx) (sql.Result, error)) error {
	err := s.changeRows(ctx, ErrNoUser, func(tx *sql.Tx) error {
		if err := touched(change(tx)); err != nil {
			return err
		}
		return recordRevocations(tx, time.Now(), Revocation{Principal: name})
	})
	if err == nil {
		s.publishEvent(kind, name, "", "")
	}
	return err
}

// touched returns ErrNoUser if a statement changed no row.
func touched(r sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return ErrNoUser
}

// account holds the fields of a user that a login needs.
type account struct {
	number, epoch int64
	name, kept    string
	id            string // see Principal
	roles         []string
	foreign       *Principal // of a login at a provider by no user of this host; nil for users
}

// findAccount reads the user that a query selects; ok is false if there is none.
func (s *Service) findAccount(ctx context.Context, where string, args ...any) (a account, ok bool, err error) {
	db, err := s.store.reader()
	if db == nil || err != nil {
		return a, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var roles string
	err = db.QueryRowContext(ctx,
		"SELECT number, epoch, name, password, roles, "+ownerID+" FROM user WHERE "+where, args...).
		Scan(&a.number, &a.epoch, &a.name, &a.kept, &roles, &a.id)
	if errors.Is(err, sql.ErrNoRows) {
		return a, false, nil
	}
	a.roles = unlist(roles)
	return a, err == nil, err
}
