package identity

import (
	"cmp"
	"context"
	"crypto/subtle"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/access/passkey"
	"gatehouse/internal/files/sqlfile"
)

// Passkey is a passkey of a user.
type Passkey struct {
	ID      string    `json:"id"`
	User    string    `json:"user"`
	Name    string    `json:"name" doc:"to recognize it by"`
	Origin  string    `json:"origin" doc:"the only address of pages at which it works"`
	Decides bool      `json:"decides" doc:"counts for approvals, because this host knew it when it started"`
	Created time.Time `json:"created"`
	Used    time.Time `json:"lastUsed,omitzero"`
}

const passkeyTable = `
CREATE TABLE IF NOT EXISTS passkey (
	id TEXT PRIMARY KEY, credential BLOB NOT NULL UNIQUE, user INTEGER NOT NULL REFERENCES user ON DELETE CASCADE,
	handle BLOB NOT NULL, public BLOB NOT NULL, origin TEXT NOT NULL, name TEXT NOT NULL, counter INTEGER NOT NULL,
	created INTEGER NOT NULL, used INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS passkey_user ON passkey (user);`

const (
	ceremonyLife   = 5 * time.Minute
	mostCeremonies = 2000 // begun and not finished; the oldest is forgotten
	mostPasskeys   = 20   // of one user
	ceremonyTries  = 30   // of one network, in loginWindow
	challengeSize  = 32
)

// passkeys holds the ceremonies that have begun, and the passkeys that decide about approvals.
type passkeys struct {
	mu    sync.Mutex
	begun map[string]ceremony

	// deciding are the passkeys that existed when the service was opened, by credential. Any program of the host's
	// account can write a passkey of its own to the file later, which therefore decides nothing.
	deciding map[string]*storedPasskey
}

// ceremony is a challenge that was given out. It is answered once.
type ceremony struct {
	Challenge []byte `json:"challenge"`
	Handle    []byte `json:"handle,omitempty"`
	User      int64  `json:"user,omitempty"` // whose passkey is registered; 0 for a login

	until time.Time
}

// storedPasskey is a row of the table.
type storedPasskey struct {
	passkey.Key
	id     string
	user   int64
	handle []byte
}

var errCeremony = errors.New("this use of a passkey is over or was never begun; begin again")

// beginCeremony returns the ID of a new ceremony, which in a cluster is the ceremony itself.
func (s *Service) beginCeremony(c ceremony) (id string, err error) {
	now := clock()
	if s.o.Nodes != nil {
		return s.seal(ceremonyPurpose, ceremonyBinding(c.User), &c, now.Add(ceremonyLife))
	}
	k := &s.passkeys
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.begun == nil {
		k.begun = map[string]ceremony{}
	}
	maps.DeleteFunc(k.begun, func(_ string, c ceremony) bool { return !now.Before(c.until) })
	for len(k.begun) >= mostCeremonies {
		oldest := ""
		for id, c := range k.begun {
			if oldest == "" || c.until.Before(k.begun[oldest].until) {
				oldest = id
			}
		}
		delete(k.begun, oldest)
	}
	id = newID("w_")
	c.until = now.Add(ceremonyLife)
	k.begun[id] = c
	return id, nil
}

func ceremonyBinding(user int64) []byte { return strconv.AppendInt(nil, user, 10) }

// endCeremony returns a ceremony, which cannot be ended again.
func (s *Service) endCeremony(ctx context.Context, id string, user int64) (c ceremony, err error) {
	if s.o.Nodes != nil {
		if !s.unseal(ceremonyPurpose, ceremonyBinding(user), id, &c) {
			return c, errCeremony
		}
		if first, err := s.once(ctx, id); err != nil || !first {
			return c, cmp.Or(err, errCeremony)
		}
		return c, nil
	}
	k := &s.passkeys
	k.mu.Lock()
	defer k.mu.Unlock()
	c, ok := k.begun[id]
	delete(k.begun, id)
	if !ok || !clock().Before(c.until) || c.User != user {
		return c, errCeremony
	}
	return c, nil
}

// originOf returns the origin of the pages that send a request to this listener.
func (s *Service) originOf(r *http.Request) string {
	scheme := "http"
	if s.secure(r) {
		scheme = "https"
	}
	return scheme + "://" + strings.ToLower(r.Host)
}

// ceremonyAllowed reads the body of a request about a passkey. If ok is false, it has answered the request.
func (s *Service) ceremonyAllowed(w http.ResponseWriter, r *http.Request, into any) (party string, ok bool) {
	if !s.readJSON(w, r, into) {
		return "", false
	}
	from, _ := From(r)
	if wait := s.countTry(triesCeremony, network(from)); wait > 0 {
		w.Header().Set("Retry-After", seconds(wait))
		writeError(w, 429, "too_many_tries", "too many tries: wait "+seconds(wait)+" s")
		return "", false
	}
	party, err := passkey.RelyingParty(s.originOf(r))
	if err != nil {
		writeError(w, 400, "invalid_request", err.Error())
		return "", false
	}
	s.refreshCaches(false)
	return party, true
}

// beginPasskeyLogin gives out a challenge that any passkey of this origin may answer.
func (s *Service) beginPasskeyLogin(w http.ResponseWriter, r *http.Request) {
	party, ok := s.ceremonyAllowed(w, r, &struct{}{})
	if !ok {
		return
	}
	challenge := random(challengeSize)
	id, err := s.beginCeremony(ceremony{Challenge: challenge})
	if err != nil {
		s.unable(w, r, err)
		return
	}
	writeJSON(w, 200, map[string]any{
		"ceremony": id,
		"options": map[string]any{"publicKey": map[string]any{
			"challenge": passkey.Text.EncodeToString(challenge), "rpId": party, "userVerification": "required",
			"timeout": ceremonyLife.Milliseconds(),
		}},
	})
}

// endPasskeyLogin opens a login for the user of the passkey that answered.
func (s *Service) endPasskeyLogin(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Ceremony string            `json:"ceremony"`
		Lasting  bool              `json:"lasting"`
		Response passkey.Assertion `json:"response"`
	}
	if _, ok := s.ceremonyAllowed(w, r, &in); !ok {
		return
	}
	from, _ := From(r)
	c, err := s.endCeremony(r.Context(), in.Ceremony, 0)
	var k storedPasskey
	if err == nil {
		k, err = s.usePasskey(r.Context(), "", c.Challenge, &in.Response)
	}
	var a account
	if err == nil {
		var there bool
		if a, there, err = s.findAccount(r.Context(), "number = ?", k.user); err == nil && !there {
			err = ErrNoUser
		}
	}
	var secret string
	var l Login
	if err == nil {
		secret, l, err = s.openLogin(r.Context(), a, in.Lasting, true, r.UserAgent())
	}
	if err != nil {
		s.passkeyRefused(r, err, k)
		if _, broken := errors.AsType[*storeError](err); broken {
			s.unable(w, r, err)
			return
		}
		s.publishEvent("login_failed", "", k.id, from.String())
		writeError(w, 401, "invalid_passkey", "the passkey was not accepted: "+err.Error())
		return
	}
	s.welcome(w, r, secret, l)
}

// storeError wraps an error of the file, which is no fault of the passkey.
type storeError struct{ error }

func (e *storeError) Unwrap() error { return e.error }

// passkeyRefused publishes that a passkey may have been copied.
func (s *Service) passkeyRefused(r *http.Request, err error, k storedPasskey) {
	if !errors.Is(err, passkey.ErrCounter) {
		return
	}
	from, _ := From(r)
	s.publishCopied(r.Context(), k, from.String())
}

func (s *Service) publishCopied(ctx context.Context, k storedPasskey, from string) {
	a, _, _ := s.findAccount(ctx, "number = ?", k.user)
	s.publishEvent("passkey_copied", a.name, k.id, from)
}

// usePasskey verifies an assertion with a passkey of the file, and stores its counter. user, unless it is "", is the
// name of the only user whose passkey counts.
func (s *Service) usePasskey(
	ctx context.Context, user string, challenge []byte, a *passkey.Assertion,
) (k storedPasskey, err error) {
	k, err = s.findPasskey(ctx, a.ID)
	if err != nil {
		return k, err
	}
	if user != "" {
		owner, there, err := s.findAccount(ctx, "number = ?", k.user)
		if err != nil {
			return k, &storeError{err}
		}
		if !there || owner.name != user {
			return k, fmt.Errorf("the passkey belongs to another user than %s", user)
		}
	}
	if h := a.Response.UserHandle; h != "" {
		named, err := passkey.Text.DecodeString(h)
		if err != nil || subtle.ConstantTimeCompare(named, k.handle) != 1 {
			return k, errors.New("the authenticator names another user than that of the passkey")
		}
	}
	s.passkeys.mu.Lock()
	if known := s.passkeys.deciding[string(k.Credential)]; known != nil {
		k.Counter = max(k.Counter, known.Counter)
	}
	s.passkeys.mu.Unlock()
	counter, err := a.Verify(k.Key, challenge)
	if err != nil {
		return k, err
	}
	if err := s.store.changeInTx(ctx, func(tx *sql.Tx) error {
		// The condition lets only one of two assertions with the same counter pass.
		return touched(tx.Exec("UPDATE passkey SET counter = ?, used = ? WHERE id = ? AND (counter < ? OR ? = 0)",
			counter, stamp(clock()), k.id, counter, counter))
	}); errors.Is(err, ErrNoUser) {
		return k, passkey.ErrCounter
	} else if err != nil {
		return k, &storeError{err}
	}
	s.passkeys.mu.Lock()
	defer s.passkeys.mu.Unlock()
	if known := s.passkeys.deciding[string(k.Credential)]; known != nil {
		known.Counter = max(known.Counter, counter)
	}
	return k, nil
}

var errNoPasskey = errors.New("this host does not know that passkey")

func (s *Service) findPasskey(ctx context.Context, credential string) (k storedPasskey, err error) {
	id, err := passkey.Text.DecodeString(credential)
	if err != nil || len(credential) > 2048 {
		return k, errNoPasskey
	}
	db, err := s.store.reader()
	if err != nil {
		return k, &storeError{err}
	}
	if db == nil {
		return k, errNoPasskey
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = db.QueryRowContext(ctx,
		"SELECT id, user, handle, credential, public, origin, counter FROM passkey WHERE credential = ?", id).
		Scan(&k.id, &k.user, &k.handle, &k.Credential, &k.Public, &k.Origin, &k.Counter)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return k, errNoPasskey
	case err != nil:
		return k, &storeError{err}
	}
	return k, nil
}

// registrant returns the account of the person who logged in and sends a request. If ok is false, it has answered
// the request.
func (s *Service) registrant(w http.ResponseWriter, r *http.Request) (a account, ok bool) {
	p, denied := s.HTTP(r)
	if denied != nil {
		maps.Copy(w.Header(), denied.Header)
		writeError(w, denied.Status, denied.Code, denied.Message)
		return a, false
	}
	if !p.Person() {
		writeError(
			w,
			403,
			"forbidden",
			"only a person who logged in with a password, a passkey or a link shown at a terminal can register a passkey",
		)
		return a, false
	}
	a, there, err := s.findAccount(r.Context(), "name = ?", p.Name)
	switch {
	case err != nil:
		s.unable(w, r, err)
	case !there:
		writeError(w, 403, "forbidden",
			"only a user of this host can have a passkey: add one with gatehouse user add, and log in as that user")
	}
	return a, there && err == nil
}

// beginPasskey gives out a challenge for a new passkey of the caller.
func (s *Service) beginPasskey(w http.ResponseWriter, r *http.Request) {
	party, ok := s.ceremonyAllowed(w, r, &struct{}{})
	if !ok {
		return
	}
	a, ok := s.registrant(w, r)
	if !ok {
		return
	}
	c := ceremony{Challenge: random(challengeSize), Handle: random(32), User: a.number}
	exclude := []any{}
	err := s.each(r.Context(), func(scan func(...any) error) error {
		var credential []byte
		err := scan(&credential, &c.Handle)
		exclude = append(exclude, map[string]any{"type": "public-key", "id": passkey.Text.EncodeToString(credential)})
		return err
	}, "SELECT credential, handle FROM passkey WHERE user = ? AND origin = ?", a.number, s.originOf(r))
	if err != nil {
		s.unable(w, r, err)
		return
	}
	id, err := s.beginCeremony(c)
	if err != nil {
		s.unable(w, r, err)
		return
	}
	kinds := []any{}
	for _, alg := range passkey.Algorithms {
		kinds = append(kinds, map[string]any{"type": "public-key", "alg": alg})
	}
	writeJSON(w, 200, map[string]any{
		"ceremony": id,
		"options": map[string]any{"publicKey": map[string]any{
			"challenge": passkey.Text.EncodeToString(
				c.Challenge,
			), "rp": map[string]string{"id": party, "name": "gatehouse"},
			"user": map[string]string{
				"id": passkey.Text.EncodeToString(c.Handle), "name": a.name, "displayName": a.name,
			},
			"pubKeyCredParams": kinds, "excludeCredentials": exclude, "attestation": "none",
			"timeout": ceremonyLife.Milliseconds(),
			"authenticatorSelection": map[string]any{
				"residentKey":        "required",
				"requireResidentKey": true,
				"userVerification":   "required",
			},
		}},
	})
}

// endPasskey registers a passkey of the caller.
func (s *Service) endPasskey(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Ceremony string               `json:"ceremony"`
		Name     string               `json:"name"`
		Response passkey.Registration `json:"response"`
	}
	if _, ok := s.ceremonyAllowed(w, r, &in); !ok {
		return
	}
	a, ok := s.registrant(w, r)
	if !ok {
		return
	}
	c, err := s.endCeremony(r.Context(), in.Ceremony, a.number)
	var k passkey.Key
	if err == nil {
		k, err = in.Response.Verify(s.originOf(r), c.Challenge)
	}
	if err != nil {
		writeError(w, 400, "invalid_passkey", "the passkey was not registered: "+err.Error())
		return
	}
	made := Passkey{
		ID: newID("p_"), User: a.name, Name: passkeyName(in.Name), Origin: k.Origin,
		Created: clock().UTC().Truncate(time.Millisecond),
	}
	err = s.changeRows(r.Context(), ErrNoUser, func(tx *sql.Tx) error {
		// The epoch is checked because the password, or another passkey, may just have been taken from the user.
		err := touched(
			tx.Exec(`INSERT INTO passkey (id, credential, user, handle, public, origin, name, counter, created)
			SELECT ?, ?, number, ?, ?, ?, ?, ?, ? FROM user WHERE number = ? AND epoch = ?
			AND (SELECT count(*) FROM passkey WHERE user = number) < ?`, made.ID, k.Credential, c.Handle, k.Public,
				k.Origin, made.Name, k.Counter, stamp(made.Created), a.number, a.epoch, mostPasskeys),
		)
		if sqlfile.IsTaken(err) {
			err = ErrTaken
		}
		return err
	})
	switch {
	case errors.Is(err, ErrTaken):
		writeError(w, 409, "exists", "that passkey is registered already")
	case errors.Is(err, ErrNoUser):
		writeError(w, 409, "limit", fmt.Sprintf("a user has at most %d passkeys: remove one", mostPasskeys))
	case err != nil:
		s.unable(w, r, err)
	default:
		from, _ := From(r)
		s.publishEvent("passkey_added", a.name, made.ID, from.String())
		writeJSON(w, 201, made)
	}
}

func passkeyName(name string) string {
	return cmp.Or(displaytext.Cut(displaytext.Line(strings.TrimSpace(name)), mostName, ""), "passkey")
}

// Passkeys lists the passkeys of a user, or of all users for "", oldest first.
func (s *Service) Passkeys(ctx context.Context, user string) (all []Passkey, err error) {
	s.passkeys.mu.Lock()
	deciding := map[string]bool{}
	for _, k := range s.passkeys.deciding {
		deciding[k.id] = true
	}
	s.passkeys.mu.Unlock()
	err = s.each(ctx, func(scan func(...any) error) error {
		var k Passkey
		var created, used int64
		err := scan(&k.ID, &k.User, &k.Name, &k.Origin, &created, &used)
		k.Created, k.Used, k.Decides = moment(created), moment(used), deciding[k.ID]
		all = append(all, k)
		return err
	}, `SELECT id, user.name, passkey.name, origin, passkey.created, used FROM passkey JOIN user ON user = number
		WHERE ? IN ('', user.name) ORDER BY passkey.created, id`, user)
	return all, err
}

// RenamePasskey gives a passkey another name. user, unless it is "", must be its user. The error is ErrNone if there
// is no such passkey.
func (s *Service) RenamePasskey(ctx context.Context, user, id, name string) error {
	err := s.changeRows(ctx, ErrNone, func(tx *sql.Tx) error {
		return touched(tx.Exec(`UPDATE passkey SET name = ? WHERE id = ?
			AND ? IN ('', (SELECT name FROM user WHERE number = user))`, passkeyName(name), id, user))
	})
	if errors.Is(err, ErrNoUser) {
		err = ErrNone
	}
	return err
}

// RemovePasskey removes a passkey and ends all logins of its user, because it is not stored which of them it opened.
// user, unless it is "", must be its user. The error is ErrNone if there is no such passkey.
func (s *Service) RemovePasskey(ctx context.Context, user, id string) error {
	var owner string
	err := s.changeRows(ctx, ErrNone, func(tx *sql.Tx) error {
		err := tx.QueryRow("SELECT user.name FROM passkey JOIN user ON user = number WHERE id = ? AND ? IN ('', user.name)", id, user).
			Scan(&owner)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrNone
		}
		if err == nil {
			_, err = tx.Exec("DELETE FROM passkey WHERE id = ?", id)
		}
		if err == nil {
			_, err = tx.Exec("UPDATE user SET epoch = epoch + 1 WHERE name = ?", owner)
		}
		if err == nil {
			_, err = endLogins(tx, owner, "")
		}
		return err
	})
	if err == nil {
		s.publishEvent("passkey_removed", owner, id, "")
	}
	return err
}

// loadDeciding reads the passkeys that decide about approvals.
func (s *Service) loadDeciding(ctx context.Context) error {
	all := map[string]*storedPasskey{}
	err := s.each(ctx, func(scan func(...any) error) error {
		var k storedPasskey
		err := scan(&k.id, &k.user, &k.handle, &k.Credential, &k.Public, &k.Origin, &k.Counter)
		all[string(k.Credential)] = &k
		return err
	}, "SELECT id, user, handle, credential, public, origin, counter FROM passkey")
	s.passkeys.mu.Lock()
	defer s.passkeys.mu.Unlock()
	s.passkeys.deciding = all
	return err
}

// HasDeciding reports whether a passkey counts for approvals.
func (s *Service) HasDeciding() bool {
	s.passkeys.mu.Lock()
	defer s.passkeys.mu.Unlock()
	return len(s.passkeys.deciding) > 0
}

var errUndeciding = errors.New(
	"the passkey counts for approvals once this host has been restarted, because any program " +
		"of the host's account could register one while it runs",
)

// decidingKey returns the key of a passkey that counts for approvals, as it was when the service was opened.
func (s *Service) decidingKey(a *passkey.Assertion) (storedPasskey, error) {
	id, _ := passkey.Text.DecodeString(a.ID)
	s.passkeys.mu.Lock()
	defer s.passkeys.mu.Unlock()
	if k := s.passkeys.deciding[string(id)]; k != nil {
		return *k, nil
	}
	return storedPasskey{}, errUndeciding
}

// Approve verifies that a user used a passkey to approve what challenge is the digest of. assertion is JSON.
func (s *Service) Approve(ctx context.Context, user string, challenge []byte, assertion []byte) error {
	a, k, err := s.parseApproval(assertion)
	if err != nil {
		return err
	}
	// the key as it was when the service was opened, without the counter, which usePasskey checks
	if err := approves(a, k.Key, challenge); err != nil {
		return err
	}
	k, err = s.usePasskey(ctx, user, challenge, a)
	if errors.Is(err, passkey.ErrCounter) {
		s.publishCopied(ctx, k, "")
	}
	return err
}

// Approved verifies an assertion that Approve has accepted, here or in another process.
func (s *Service) Approved(ctx context.Context, challenge []byte, assertion []byte) error {
	a, k, err := s.parseApproval(assertion)
	if err == nil {
		_, err = s.findPasskey(ctx, a.ID) // it may have been removed
	}
	if err != nil {
		return err
	}
	return approves(a, k.Key, challenge)
}

func approves(a *passkey.Assertion, k passkey.Key, challenge []byte) error {
	k.Counter = 0
	_, err := a.Verify(k, challenge)
	return err
}

func (s *Service) parseApproval(text []byte) (*passkey.Assertion, storedPasskey, error) {
	var a passkey.Assertion
	if err := json.Unmarshal(text, &a); err != nil {
		return nil, storedPasskey{}, errors.New("the assertion of the passkey is missing or not JSON")
	}
	k, err := s.decidingKey(&a)
	return &a, k, err
}

// hasPasskeys reports whether a passkey is registered for an origin.
func (s *Service) hasPasskeys(ctx context.Context, origin string) (has bool) {
	db, err := s.store.reader()
	if db == nil || err != nil {
		return false
	}
	err = db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM passkey WHERE origin = ?)", origin).Scan(&has)
	return has && err == nil
}
