package identity

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/access/displaytext"
)

// Login is an open session of a user who logged in with a password, a passkey, a link or at a provider.
type Login struct {
	ID      string    `json:"id"`
	User    string    `json:"user"`
	Agent   string    `json:"agent,omitempty"` // the User-Agent of the browser
	Lasting bool      `json:"lasting"`         // outlives its browser window, and this process
	Created time.Time `json:"created"`
	Until   time.Time `json:"until"`
	Used    time.Time `json:"lastUsed"` // up to a minute late
}

const (
	briefLife   = 12 * time.Hour
	lastingLife = 30 * 24 * time.Hour
	mostLogins  = 50 // of one user and kind; the oldest is removed
	mostAgent   = 200
)

// temporaryLogins are the logins that end with this process.
type temporaryLogins struct {
	mu  sync.Mutex
	all map[digest]*temporaryLogin
}

type temporaryLogin struct {
	Login
	number, epoch int64      // of the user; 0 is the host's own user
	person        bool       // see Principal.Person
	foreign       *Principal // who logged in at a provider and is no user here; nil for others
}

// openLogin opens a login for a user whose password was just verified.
func (s *Service) openLogin(
	ctx context.Context, a account, lasting, person bool, agent string,
) (secret string, l Login, err error) {
	secret = newLoginSecret()
	now := clock().UTC().Truncate(time.Millisecond)
	l = Login{
		ID:      newID("s_"),
		User:    a.name,
		Agent:   displaytext.Cut(agent, mostAgent, ""),
		Lasting: lasting,
		Created: now,
		Used:    now,
	}
	l.Lasting, l.Until = lasting && person && a.number != 0, now.Add(lastingLife)
	if !l.Lasting {
		l.Until = now.Add(briefLife)
	}
	// In a cluster the next request of the browser may come to another node.
	if stored := l.Lasting || s.o.Replicate != nil && person && a.number != 0; !stored {
		if s.o.Nodes != nil && (a.number != 0 || a.foreign != nil) {
			secret, err = s.sealLogin(a, l, person)
		}
		s.brief.addLogin(digestOf(secret), &temporaryLogin{l, a.number, a.epoch, person, a.foreign}, now)
		return secret, l, err
	}
	hash := digestOf(secret)
	err = s.changeRows(ctx, ErrNoUser, func(tx *sql.Tx) error {
		// The epoch is checked because the password may have changed since it was compared.
		if err := touched(tx.Exec(`INSERT INTO login (id, hash, user, agent, created, until, used)
			SELECT ?, ?, number, ?, ?, ?, ? FROM user WHERE number = ? AND epoch = ?`,
			l.ID, hash[:], l.Agent, stamp(now), stamp(l.Until), stamp(now), a.number, a.epoch)); err != nil {
			return err
		}
		_, err := tx.Exec(`DELETE FROM login WHERE until < ? OR id IN
			(SELECT id FROM login WHERE user = ? ORDER BY created DESC, id LIMIT -1 OFFSET ?)`, stamp(now), a.number, mostLogins)
		return err
	})
	return secret, l, err
}

func (t *temporaryLogins) addLogin(hash digest, l *temporaryLogin, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[digest]*temporaryLogin{}
	}
	var oldest digest
	count := 0
	for h, other := range t.all {
		switch {
		case !now.Before(other.Until):
			delete(t.all, h)
		case other.number == l.number:
			if count++; count == 1 || other.Created.Before(t.all[oldest].Created) {
				oldest = h
			}
		}
	}
	if count >= mostLogins {
		delete(t.all, oldest)
	}
	t.all[hash] = l
}

func (t *temporaryLogins) findLogin(hash digest) (l temporaryLogin, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, ok := t.all[hash]
	if ok {
		l = *p
	}
	return l, ok
}

// removeLogins removes the matching logins and returns them.
func (t *temporaryLogins) removeLogins(fits func(*temporaryLogin) bool) (removed []Login) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for h, l := range t.all {
		if fits(l) {
			delete(t.all, h)
			removed = append(removed, l.Login)
		}
	}
	return removed
}

func (t *temporaryLogins) listLogins() (all []Login) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.all {
		all = append(all, l.Login)
	}
	return all
}

// ofBrief returns the principal of a login kept in memory. It checks in the file that the user still
// exists and still has the password of the login.
func (s *Service) ofBrief(ctx context.Context, hash digest) (p Principal, ok bool, err error) {
	l, ok := s.brief.findLogin(hash)
	now := clock()
	if !ok || !now.Before(l.Until) {
		return p, false, nil
	}
	if l.foreign != nil {
		p = Principal{Name: l.foreign.Name, Roles: l.foreign.Roles, Until: l.Until, Way: Cookie, Credential: l.ID}
	} else if l.number == 0 {
		p = s.ownerOfLogin(l)
	} else if p, ok = s.known.lookup(hash); !ok {
		epoch := s.known.currentEpoch()
		a, ok, err := s.findAccount(ctx, "number = ? AND epoch = ?", l.number, l.epoch)
		if !ok {
			return p, false, err
		}
		p = Principal{Name: a.name, ID: a.id, Roles: a.roles, Until: l.Until, Way: Cookie, Credential: l.ID,
			person: l.person}
		s.known.storePrincipal(epoch, hash, p)
	}
	s.uses.noteUse(l.ID, now)
	return p, true, nil
}

// ofCookie returns the principal of a session cookie with its key.
func (s *Service) ofCookie(ctx context.Context, secret string) (p Principal, ok bool, err error) {
	if len(secret) != 2*cookieSize {
		return s.ofSealed(ctx, secret)
	}
	hash := digestOf(secret)
	if p, ok, err = s.ofBrief(ctx, hash); ok || err != nil {
		return p, ok, err
	}
	return s.ofLogin(ctx, hash)
}

// Logins lists the open logins of a user, or of all users for "", oldest first. Without a cluster, logins that are not
// lasting are known to their own process only.
func (s *Service) Logins(ctx context.Context, user string) (all []Login, err error) {
	all = slices.DeleteFunc(s.brief.listLogins(), func(l Login) bool { return user != "" && l.User != user })
	now := clock()
	err = s.each(ctx, func(scan func(...any) error) error {
		var l Login
		var created, until, used int64
		if err := scan(&l.ID, &l.User, &l.Agent, &created, &until, &used); err != nil {
			return err
		}
		l.Created, l.Until, l.Used = moment(created), moment(until), moment(used)
		l.Lasting = l.Until.Sub(l.Created) > briefLife
		all = append(all, l)
		return nil
	}, `SELECT id, name, agent, login.created, until, used FROM login JOIN user ON user = number WHERE ? IN ('', name)`, user)
	all = slices.DeleteFunc(all, func(l Login) bool { return !now.Before(l.Until) })
	slices.SortFunc(all, func(a, b Login) int { return a.Created.Compare(b.Created) })
	return all, err
}

// EndLogin ends a login and what was opened with it.
func (s *Service) EndLogin(ctx context.Context, id string) error {
	removed := s.brief.removeLogins(func(l *temporaryLogin) bool { return l.ID == id })
	if len(removed) == 0 {
		return s.drop(ctx, "login", "logout", id)
	}
	if l := removed[0]; s.o.Nodes != nil {
		return s.endSealed(ctx, Revocation{l.User, id})
	}
	s.known.dropCredentials()
	s.publishEvent("logout", removed[0].User, id, "")
	s.revoke([]Revocation{{removed[0].User, id}})
	return nil
}
