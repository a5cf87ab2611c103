// Package identity turns whatever a caller brings into one Principal.
//
// Callers bring a session cookie, a token, a client certificate, an access
// token of an OAuth provider, or the kernel's word about who is at the other
// end of a socket. One credential counts: a header before a cookie, a cookie
// before a certificate. What is presented and wrong is refused, also where
// nothing would have been needed, and every refusal of a kind costs and reads
// the same, so that callers do not learn which users exist.
//
// Users, tokens and lasting logins lie in one SQLite file that several
// processes may share; what one of them changes, the others follow within a
// second. Passwords are kept as argon2id, everything random as SHA-256.
package identity

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// Mode is whether callers on this machine need credentials.
type Mode uint8

const (
	// OpenLoopback lets callers over HTTP from loopback in as the anonymous
	// principal, as long as nothing was ever set up here to tell callers apart:
	// no user, no token set by hand, no OAuth provider, no authority for client
	// certificates. Over TCP, where nothing else says who connects, every client
	// needs a token.
	OpenLoopback Mode = iota
	// Required refuses callers without credentials.
	Required
)

// Options of a Service. The zero value serves loopback callers.
type Options struct {
	Mode     Mode
	Insecure bool // a caller without credentials is anonymous, from any address
	Embedded bool // the same at all doors but TCP: a program has its own way to decide who gets as far as those

	AuthToken  string // a token set by hand, at least 16 bytes; good from everywhere
	LocalToken string // path of the file that keeps the local token, made when missing; "" means there is none
	ClientCA   bool   // the doors verify client certificates

	// Known are paths of files outside the folder of the users' file. They are
	// made when there is a user, and remember it when that file is lost.
	Known []string
	OAuth *OAuth // nil means no provider

	Origins []string // web origins besides our own whose pages may act with a cookie: scheme://host[:port]
	Secure  bool     // a proxy in front speaks TLS, so cookies are Secure although this host sees none

	Log  *slog.Logger // nil means none
	Told func(Event)  // receives events for the ledger; must not block; nil means none
}

// Event is something about users and credentials that should be remembered.
type Event struct {
	Kind       string // login, login_failed, logout, paired, user_added, token_revoked ...
	Principal  string // who, or who was claimed
	Credential string // public id; "" when there is none
	From       string // network address; "" from the command line
}

// Service knows who is who. Safe for concurrent use.
type Service struct {
	o      Options
	log    *slog.Logger
	store  *store
	watch  watch
	known  credentialCache
	uses   uses
	brief  temporaryLogins
	pass   *passwords
	tries  tries
	pair   pairing
	oauth  *provider // nil means none
	sameAs *http.CrossOriginProtection
	local  fixed
	byHand fixed
	owner  string   // name of the user this process belongs to
	salt   [16]byte // of digests in events; another one in each process

	// mu guards what follows, up to removals.
	mu      sync.Mutex
	revoked []func(Revocation)
	leaving map[string]*leavingLogin // by id; see ChangePassword

	removals sync.Mutex   // guards removed, and is held while its function runs
	removed  *removalHook // nil until OnRemoved
}

// fixed is a token that is not in the file.
type fixed struct {
	secret string // "" means there is none
	hash   [sha256.Size]byte
}

func newFixed(secret string) fixed { return fixed{secret, sha256.Sum256([]byte(secret))} }

func (f *fixed) is(hash [sha256.Size]byte) bool {
	return f.secret != "" && subtle.ConstantTimeCompare(f.hash[:], hash[:]) == 1
}

const leastByHand = 16 // bytes of a token set by hand

// Open opens the users kept in the file at path, which need not exist: it is
// made with the first user. With path "" they are kept in memory. The error
// names the option or file that is wrong.
func Open(path string, o Options) (*Service, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{
		o: o, log: o.Log, store: newStore(path), pass: newPasswords(defaultCost),
		tries: newTries(), sameAs: http.NewCrossOriginProtection(), owner: processOwner(),
	}
	copy(s.salt[:], random(len(s.salt)))
	if err := s.configure(); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	if err := s.refreshCaches(true); err != nil {
		s.store.closeFile()
		return nil, fmt.Errorf("identity: %w", err)
	}
	return s, nil
}

func (s *Service) configure() (err error) {
	o := s.o
	for _, origin := range o.Origins {
		if origin == "*" {
			continue // pages of every origin may call, but not with a cookie
		}
		if err := s.sameAs.AddTrustedOrigin(origin); err != nil {
			return fmt.Errorf("origin %q: %w", origin, err)
		}
	}
	if o.AuthToken != "" {
		if len(o.AuthToken) < leastByHand {
			return fmt.Errorf("the token set by hand has %d bytes; expected at least %d", len(o.AuthToken), leastByHand)
		}
		s.byHand = newFixed(o.AuthToken)
	}
	if o.LocalToken != "" {
		token, err := loadLocalToken(o.LocalToken)
		if errors.Is(err, errNotMade) {
			s.log.Warn("there is no local token: its file cannot be made", "file", o.LocalToken, "err", err)
			token, err = "", nil
		}
		if err != nil {
			return fmt.Errorf("local token: %w", err)
		}
		if token != "" {
			s.local = newFixed(token)
		}
	}
	if o.OAuth != nil {
		if s.oauth, err = newProvider(*o.OAuth); err != nil {
			return fmt.Errorf("OAuth: %w", err)
		}
	}
	return nil
}

// LocalToken returns the token for callers on this machine; "" when there is none.
func (s *Service) LocalToken() string { return s.local.secret }

// Run follows what other processes change, records last uses, and keeps the
// provider's keys fresh, until ctx is done.
func (s *Service) Run(ctx context.Context) error {
	var all sync.WaitGroup
	all.Go(func() { every(ctx, lookEvery, func() { s.refreshCaches(false) }) })
	all.Go(func() { every(ctx, flushEvery, func() { s.flush() }) })
	if s.oauth != nil {
		all.Go(func() { every(ctx, keysEvery, func() { s.oauth.keys.refresh(ctx) }) })
	}
	all.Wait()
	return s.flush()
}

func every(ctx context.Context, d time.Duration, f func()) {
	t := time.NewTicker(d)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			f()
		}
	}
}

// Close closes the file. Logins that are not lasting end with it.
func (s *Service) Close() error {
	s.endAllNow()
	if s.oauth != nil {
		s.oauth.keys.stopFetching()
	}
	return errors.Join(s.flush(), s.store.closeFile())
}

func (s *Service) publishEvent(kind, principal, credential, from string) {
	if s.o.Told != nil {
		s.o.Told(Event{kind, principal, credential, from})
	}
}

// Revocation means that a principal or credential lost what it was granted.
type Revocation struct {
	Principal  string
	Credential string // "" means all of the principal's
}

// Ends reports whether something that p opened is to end. It may come back
// with what holds now.
func (r Revocation) Ends(p Principal) bool {
	return r.Principal == p.Name && (r.Credential == "" || r.Credential == p.Credential)
}

// OnRevoked calls f for every revocation, those by other processes within a
// second. f must not block.
func (s *Service) OnRevoked(f func(Revocation)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revoked = append(s.revoked, f)
}

func (s *Service) revoke(all []Revocation) {
	s.mu.Lock()
	hooks := s.revoked
	s.mu.Unlock()
	for _, r := range all {
		for _, f := range hooks {
			f(r)
		}
	}
}
