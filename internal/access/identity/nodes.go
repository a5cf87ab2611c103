package identity

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"time"
)

// Nodes are the hosts of a cluster. The requests of a browser may come to any of them, so that what a step of a login
// leaves for the next one is sealed and given to the browser, in place of being kept here.
type Nodes interface {
	// Seal returns a URL-safe token of plain, which Open opens on every node for the same purpose and binding until it
	// expires.
	Seal(purpose string, bind, plain []byte, expires time.Time) string
	Open(purpose string, bind []byte, token string, now time.Time) ([]byte, error)
	// Once reports true for the first call with a key on all nodes, within an hour.
	Once(ctx context.Context, key string) (bool, error)
}

// The purposes of what is sealed.
const (
	signInPurpose   = "login at an OpenID provider"
	codePurpose     = "code of a login at an OpenID provider"
	ceremonyPurpose = "use of a passkey"
	loginPurpose    = "login"
)

// mostSealed bounds the second half of a login that is sealed, in bytes.
const mostSealed = 4 << 10

// seal returns what a step of a login leaves for the next one.
func (s *Service) seal(purpose string, bind []byte, step any, until time.Time) (string, error) {
	plain, err := json.Marshal(step)
	if err != nil {
		return "", err
	}
	return s.o.Nodes.Seal(purpose, bind, plain, until), nil
}

// unseal reads what seal returned. It reports false for anything else.
func (s *Service) unseal(purpose string, bind []byte, token string, step any) bool {
	plain, err := s.o.Nodes.Open(purpose, bind, token, clock())
	return err == nil && json.Unmarshal(plain, step) == nil
}

// once reports whether what was sealed is used for the first time. Without a cluster it is removed when it is used.
func (s *Service) once(ctx context.Context, token string) (bool, error) {
	if s.o.Nodes == nil {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	sum := sha256.Sum256([]byte(token))
	return s.o.Nodes.Once(ctx, hex.EncodeToString(sum[:]))
}

// sealedLogin is a login that is no row of the file: that of a link, or of a person of a provider.
type sealedLogin struct {
	ID     string    `json:"id"`
	User   string    `json:"user"`
	Number int64     `json:"number,omitempty"` // of the user; 0 for a person who is none here
	Epoch  int64     `json:"epoch,omitempty"`
	Roles  []string  `json:"roles,omitempty"` // of such a person
	Until  time.Time `json:"until"`
	Person bool      `json:"person,omitempty"`
}

// sealLogin returns the secret of a login that every node accepts. Its first half is the cookie, to which the second
// one is bound.
func (s *Service) sealLogin(a account, l Login, person bool) (secret string, err error) {
	cookie := newCookie()
	one := sealedLogin{ID: l.ID, User: l.User, Number: a.number, Epoch: a.epoch, Until: l.Until, Person: person}
	if a.foreign != nil {
		one.Roles = a.foreign.Roles
	}
	sealed, err := s.seal(loginPurpose, []byte(cookie), &one, l.Until)
	return cookie + sealed, err
}

// ofSealed returns the principal of a login that was sealed, unless it has ended or its user was removed or has another
// password.
func (s *Service) ofSealed(ctx context.Context, secret string) (p Principal, ok bool, err error) {
	if s.o.Nodes == nil || len(secret) <= 2*cookieSize || len(secret) > mostSealed {
		return p, false, nil
	}
	var l sealedLogin
	if !s.unseal(loginPurpose, []byte(secret[:cookieSize]), secret[cookieSize:], &l) {
		return p, false, nil
	}
	hash := digestOf(secret)
	if p, ok = s.known.lookup(hash); !ok {
		epoch := s.known.currentEpoch()
		if p, ok, err = s.readSealed(ctx, &l); !ok {
			return p, false, err
		}
		s.known.storePrincipal(epoch, hash, p)
	}
	s.uses.noteUse(l.ID, clock())
	return p, true, nil
}

func (s *Service) readSealed(ctx context.Context, l *sealedLogin) (p Principal, ok bool, err error) {
	db, err := s.store.reader()
	if err != nil {
		return p, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if db != nil {
		if over, err := hasEnded(ctx, db, Revocation{l.User, l.ID}); over || err != nil {
			return p, false, err
		}
	}
	p = Principal{Name: l.User, Roles: l.Roles, Until: l.Until, Way: Cookie, Credential: l.ID, person: l.Person}
	if l.Number == 0 {
		return p, true, nil
	}
	a, ok, err := s.findAccount(ctx, "number = ? AND epoch = ?", l.Number, l.Epoch)
	p.Name, p.ID, p.Roles = a.name, a.id, a.roles
	return p, ok, err
}

// hasEnded reports whether a credential was revoked within keepEnded, which is longer than a login that is sealed.
func hasEnded(ctx context.Context, db *sql.DB, r Revocation) (is bool, err error) {
	err = db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM ended WHERE user = ? AND credential = ?)", r.Principal,
		r.Credential).Scan(&is)
	return is, err
}

// endSealed ends a login that was sealed, on all nodes.
func (s *Service) endSealed(ctx context.Context, r Revocation) error {
	err := s.createRows(ctx, func(tx *sql.Tx) error { return recordRevocations(tx, clock(), r) })
	if err == nil {
		s.publishEvent("logout", r.Principal, r.Credential, "")
	}
	return err
}
