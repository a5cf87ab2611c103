// Package identity resolves the credentials of a caller to one Principal.
//
// Credentials are a session cookie, a token, a client certificate, an access token of an OAuth
// provider, or the peer credentials of a socket, which the kernel reports. One credential counts: a
// header before a cookie, a cookie before a certificate. A wrong credential is refused, also if none
// would have been needed, and every refusal of a kind costs and reads the same, so that callers do not
// learn which users exist.
//
// Users, tokens and lasting logins are stored in one SQLite file that several processes may share; each
// process notices the changes of the others within a second. Passwords are stored as argon2id, random
// secrets as SHA-256.
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

	"gatehouse/internal/files/sqlfile"
)

// Mode defines whether callers on this machine need credentials.
type Mode uint8

const (
	// OpenLoopback admits callers over HTTP from loopback as the anonymous principal, if no means to
	// identify callers was ever set up: no user, no token set by hand, no OAuth provider, no authority
	// for client certificates. Over TCP, where nothing else identifies the client, every client needs a
	// token.
	OpenLoopback Mode = iota
	// Required refuses callers without credentials.
	Required
)

// Options configures a Service. The zero value serves loopback callers.
type Options struct {
	Mode     Mode
	Insecure bool // a caller without credentials is anonymous, from any address
	Embedded bool // the same on all listeners except TCP, for an embedding program that authenticates callers itself

	AuthToken  string // a token set by hand, at least 16 bytes; accepted from every address
	LocalToken string // path of the file of the local token, created if missing; "" means there is none
	ClientCA   bool   // the listeners verify client certificates

	// Known are paths of marker files outside the folder of the users' file. They are created when a
	// user exists, and record that fact if the users' file is lost.
	Known []string
	OAuth *OAuth // nil means no provider
	// Server is scheme and host at which MCP clients of users reach this host, which then issues tokens to them; ""
	// means that it issues none. Clients fetches the documents of such clients; nil fetches public ones.
	Server  string
	Clients *http.Client
	SignIn  *SignIn // an OpenID provider at which people log in; nil means none

	Origins []string // other web origins whose pages may use a cookie: scheme://host[:port]
	Secure  bool     // a proxy in front terminates TLS, so cookies are Secure although this host sees no TLS

	// Replicate makes the file of users the same on all nodes of a cluster; nil means that there is none. It calls
	// applied after each change, before this node says that it has it.
	Replicate func(file *sqlfile.File, applied func() error) error

	// Nodes are the hosts of that cluster; nil means that there is none.
	Nodes Nodes

	// Tried is called with each try of a password, or of what is limited like one, so that other nodes count it by
	// CountTry; it must not block. nil means that there are none.
	Tried func(kind, key string)

	Log     *slog.Logger // nil means none
	OnEvent func(Event)  // receives events for the ledger; must not block; nil means none
}

// Event is an event about users or credentials that the ledger records.
type Event struct {
	Kind       string // login, login_failed, logout, paired, user_added, token_revoked ...
	Principal  string // the principal, or the one that was claimed
	Credential string // public ID; "" if there is none
	From       string // network address; "" from the command line
}

// Service authenticates callers and manages users and their credentials. It is safe for concurrent use.
type Service struct {
	o        Options
	log      *slog.Logger
	store    *store
	watch    watch
	known    credentialCache
	uses     uses
	brief    temporaryLogins
	pass     *passwords
	tries    tries
	pair     pairing
	oauth    *provider   // nil means none
	issues   *authServer // nil means that no tokens are issued to clients
	signIn   *signIn     // nil means that people log in at no provider
	passkeys passkeys
	sameAs   *http.CrossOriginProtection
	local    fixed
	byHand   fixed
	owner    string   // name of the user that this process runs as
	salt     [16]byte // of digests in events; different in each process

	// mu guards the fields up to removals.
	mu      sync.Mutex
	revoked []func(Revocation)
	leaving map[string]*leavingLogin // by ID; see ChangePassword

	removals sync.Mutex   // guards removed, and is held while its function runs
	removed  *removalHook // nil until OnRemoved
}

// fixed is a token that is not stored in the file.
type fixed struct {
	secret string // "" means there is none
	hash   [sha256.Size]byte
}

func newFixed(secret string) fixed { return fixed{secret, sha256.Sum256([]byte(secret))} }

func (f *fixed) is(hash [sha256.Size]byte) bool {
	return f.secret != "" && subtle.ConstantTimeCompare(f.hash[:], hash[:]) == 1
}

const leastByHand = 16 // bytes of a token set by hand

// Open opens the users stored in the file at path, which need not exist: the first user creates it.
// With path "" they are kept in memory. The error names the option or file that is wrong.
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
	var err error
	if o.Replicate != nil {
		s.store.replicated = true
		err = o.Replicate(&s.store.file, s.applyChanges)
	}
	if err == nil {
		err = s.refreshCaches(true)
	}
	if err == nil {
		err = s.loadDeciding(context.Background())
	}
	if err != nil {
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
			s.log.Warn("there is no local token: its file cannot be created", "file", o.LocalToken, "err", err)
			token, err = "", nil
		}
		if err != nil {
			return fmt.Errorf("local token: %w", err)
		}
		if token != "" {
			s.local = newFixed(token)
		}
	}
	if o.SignIn != nil {
		if s.signIn, err = newSignIn(*o.SignIn); err != nil {
			return fmt.Errorf("login at a provider: %w", err)
		}
	}
	if o.Server != "" {
		if o.OAuth != nil {
			return errors.New(
				"server: this host accepts the tokens of an OAuth provider, so that it issues none itself",
			)
		}
		if s.issues, err = newAuthServer(s, o.Server, o.Clients); err != nil {
			return fmt.Errorf("OAuth: %w", err)
		}
	}
	if o.OAuth != nil {
		if s.oauth, err = newProvider(*o.OAuth); err != nil {
			return fmt.Errorf("OAuth: %w", err)
		}
	}
	return nil
}

// LocalToken returns the token for callers on this machine; "" if there is none.
func (s *Service) LocalToken() string { return s.local.secret }

// Run notices changes by other processes, records last uses, and refreshes the provider's keys, until
// ctx is done.
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
	if s.signIn != nil {
		s.signIn.p.keys.stopFetching()
	}
	if s.oauth != nil {
		s.oauth.keys.stopFetching()
	}
	return errors.Join(s.flush(), s.store.closeFile())
}

func (s *Service) publishEvent(kind, principal, credential, from string) {
	if s.o.OnEvent != nil {
		s.o.OnEvent(Event{kind, principal, credential, from})
	}
}

// Revocation reports that a principal or credential lost rights.
type Revocation struct {
	Principal  string
	Credential string // "" means all of the principal's
}

// Ends reports whether something that p opened must end. Its caller may open it again with the rights
// that hold now.
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
		if r.Credential != "" { // it may have ended on another node
			s.brief.removeLogins(func(l *temporaryLogin) bool { return l.ID == r.Credential })
		}
		for _, f := range hooks {
			f(r)
		}
	}
}
