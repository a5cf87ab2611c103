package identity

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// Token is a bearer token or API key of a user, without its secret.
type Token struct {
	ID      string    `json:"id"`
	Name    string    `json:"name,omitempty"` // for people; at most 64 bytes
	User    string    `json:"user"`
	Context string    `json:"context,omitempty"` // the context that it is bound to; "" means none
	Scopes  []string  `json:"scopes,omitempty"`  // what it grants; empty means everything the user may do
	Created time.Time `json:"created"`
	Until   time.Time `json:"until,omitzero"`    // zero means never
	Used    time.Time `json:"lastUsed,omitzero"` // zero means never; up to a minute late
	// Unattended marks the token of a program that no person is beside, see Principal.Unattended.
	Unattended bool `json:"unattended,omitempty"`
}

const (
	mostTokens = 1000 // of one user
	mostScopes = 32
	mostScope  = 256 // bytes
)

// checkScope returns an error unless a scope has the syntax of RFC 6749.
func checkScope(scope string) error {
	ok := scope != "" && len(scope) <= mostScope
	for _, c := range []byte(scope) {
		ok = ok && c > ' ' && c < 0x7f && c != '"' && c != '\\'
	}
	if !ok {
		return fmt.Errorf(
			"scope %q: expected up to %d printable characters without spaces, quotes and backslashes",
			clip(scope),
			mostScope,
		)
	}
	return nil
}

func (t *Token) validate() error {
	var errs []error
	for _, scope := range t.Scopes {
		errs = append(errs, checkScope(scope))
	}
	if len(t.Scopes) > mostScopes {
		errs = append(errs, fmt.Errorf("a token has at most %d scopes", mostScopes))
	}
	if len(t.Name) > mostName || len(t.Context) > mostName {
		errs = append(errs, fmt.Errorf("names of tokens and contexts have at most %d bytes", mostName))
	}
	if !t.Until.IsZero() && !t.Until.After(t.Created) {
		errs = append(errs, fmt.Errorf("the token would expire at %s, before it is made", t.Until.Format(time.RFC3339)))
	}
	return errors.Join(errs...)
}

// CreateToken creates a token for t.User. The secret is not stored and cannot be shown again. It
// ignores t.ID, t.Created and t.Used.
func (s *Service) CreateToken(ctx context.Context, t Token) (secret string, made Token, err error) {
	secret = newSecret(tokenPrefix)
	t.ID, t.Created, t.Used = newID("t_"), clock().UTC().Truncate(time.Millisecond), time.Time{}
	if err := t.validate(); err != nil {
		return "", Token{}, err
	}
	hash := digestOf(secret)
	err = s.changeRows(ctx, ErrNoUser, func(tx *sql.Tx) error {
		var number, have int64
		err := tx.QueryRow("SELECT number, (SELECT count(*) FROM token WHERE user = number) FROM user WHERE name = ?", t.User).
			Scan(&number, &have)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return ErrNoUser
		case err != nil:
			return err
		case have >= mostTokens:
			return fmt.Errorf("user %s has %d tokens; revoke one first", t.User, have)
		}
		_, err = tx.Exec(
			"INSERT INTO token (id, hash, user, name, context, scopes, created, until) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
			t.ID,
			hash[:],
			number,
			t.Name,
			t.Context,
			joinNames(t.Scopes),
			stamp(t.Created),
			stamp(t.Until),
		)
		if err == nil && t.Unattended {
			_, err = tx.Exec("INSERT INTO unattended (token) VALUES (?)", t.ID)
		}
		return err
	})
	if err != nil {
		return "", Token{}, err
	}
	s.publishEvent("token_created", t.User, t.ID, "")
	return secret, t, nil
}

// Tokens lists the tokens of a user, or of all users for "", oldest first.
func (s *Service) Tokens(ctx context.Context, user string) (all []Token, err error) {
	err = s.each(ctx, func(scan func(...any) error) error {
		var t Token
		var scopes string
		var created, until, used int64
		if err := scan(&t.ID, &t.Name, &t.User, &t.Context, &scopes, &created, &until, &used, &t.Unattended); err != nil {
			return err
		}
		t.Scopes, t.Created, t.Until, t.Used = unlist(scopes), moment(created), moment(until), moment(used)
		all = append(all, t)
		return nil
	}, `SELECT id, token.name, user.name, context, scopes, token.created, until, used, `+isUnattended+`
		FROM token JOIN user ON user = number
		WHERE ? IN ('', user.name) ORDER BY token.created, id`, user)
	return all, err
}

// RevokeToken removes a token and ends what was opened with it.
func (s *Service) RevokeToken(ctx context.Context, id string) error {
	return s.drop(ctx, "token", "token_revoked", id)
}

// drop removes a token or a lasting login.
func (s *Service) drop(ctx context.Context, table, kind, id string) error {
	var user string
	err := s.changeRows(ctx, ErrNone, func(tx *sql.Tx) error {
		err := tx.QueryRow("SELECT user.name FROM "+table+" JOIN user ON user = number WHERE id = ?", id).Scan(&user)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrNone
		}
		if err != nil {
			return err
		}
		if _, err := tx.Exec("DELETE FROM "+table+" WHERE id = ?", id); err != nil {
			return err
		}
		return recordRevocations(tx, clock(), Revocation{user, id})
	})
	if err == nil {
		s.publishEvent(kind, user, id, "")
	}
	return err
}

// ofToken returns the principal of a user's token. An expired token has none.
func (s *Service) ofToken(ctx context.Context, hash digest) (p Principal, ok bool, err error) {
	return s.lookup(ctx, hash, ByToken, `SELECT id, user.name, roles, context, scopes, until, `+ownerID+`, `+isUnattended+`
		FROM token JOIN user ON user = number WHERE hash = ?`, hash[:])
}

// ofLogin returns the principal of a lasting login.
func (s *Service) ofLogin(ctx context.Context, hash digest) (p Principal, ok bool, err error) {
	return s.lookup(ctx, hash, Cookie, `SELECT id, user.name, roles, '', '[]', until, `+ownerID+`, 0
		FROM login JOIN user ON user = number WHERE hash = ?`, hash[:])
}

// lookup returns the principal of a secret, from the cache or from the file.
func (s *Service) lookup(
	ctx context.Context,
	hash digest,
	way Way,
	query string,
	args ...any,
) (p Principal, ok bool, err error) {
	now := clock()
	if p, ok = s.known.lookup(hash); !ok {
		epoch := s.known.currentEpoch()
		if p, ok, err = s.readPrincipal(ctx, way, query, args...); !ok {
			return p, false, err
		}
		s.known.storePrincipal(epoch, hash, p)
	}
	if !p.Live(now) || p.Way != way {
		return Principal{}, false, nil
	}
	s.uses.noteUse(p.Credential, now)
	return p, true, nil
}

func (s *Service) readPrincipal(
	ctx context.Context, way Way, query string, args ...any,
) (p Principal, ok bool, err error) {
	db, err := s.store.reader()
	if db == nil || err != nil {
		return p, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var roles, scopes string
	var until int64
	err = db.QueryRowContext(ctx, query, args...).
		Scan(&p.Credential, &p.Name, &roles, &p.Context, &scopes, &until, &p.ID, &p.Unattended)
	if errors.Is(err, sql.ErrNoRows) {
		return p, false, nil
	}
	p.Way, p.Roles, p.Scopes, p.Until = way, unlist(roles), unlist(scopes), moment(until)
	p.person = way == Cookie // only a person opens a lasting login
	return p, err == nil, err
}
