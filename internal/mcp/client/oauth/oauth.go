// Package oauth gets access tokens for MCP servers that require them.
//
// It finds the authorization server of a protected resource (RFC 9728, RFC 8414, OpenID
// Connect Discovery), identifies this client there, gets a token for the resource alone (RFC
// 8707) by the code of a user's approval with PKCE or by the client's own credentials, and
// asks for more when a server requires more scopes.
//
// A Transport does that around the requests of a client.Conn.
package oauth

import (
	"context"
	"crypto"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// Config describes this client to authorization servers. Of the ways to identify it the first
// is used that is set and that a server offers: ID, MetadataURL, registration.
type Config struct {
	// HTTP is for metadata and tokens; nil means a client that refuses addresses nearer than the
	// resource, and redirects to another origin.
	HTTP *http.Client

	ID     string // as the authorization server has assigned it
	Secret string // of ID; "" for a public client
	// Issuer is the authorization server that has assigned ID; "" means the one that the
	// resource names first.
	Issuer      string
	MetadataURL string   // https URL of a client ID metadata document; "" for none
	Name        string   // for registration
	Redirect    string   // where authorization servers send users back to, for Authorize
	Scopes      []string // requested besides those that the server requires

	// Authorize has the user approve at address, and returns the parameters with which the
	// authorization server sends the user back to Redirect. If it is nil, and neither
	// OwnCredentials nor Exchange is set, a user logs in by Begin and Finish, and until then
	// requests end with a *LoginRequiredError.
	Authorize func(ctx context.Context, address string) (url.Values, error)

	// OwnCredentials gets tokens for the client itself, by ID and either Secret or Key.
	OwnCredentials bool
	Key            crypto.Signer // an RSA or P-256 key for private_key_jwt; nil uses Secret

	// Exchange exchanges a token for one of the resource (RFC 8693), without a user.
	Exchange *Exchange

	// Store keeps tokens beyond the life of the Transport, and for other processes; nil keeps
	// them in memory.
	Store Store
}

// Exchange is the subject of a token exchange.
type Exchange struct {
	Token string // the subject token
	Type  string // its type, a URI; "" means an access token
}

// Store keeps the tokens of one user at one resource.
type Store interface {
	// Load returns what was saved last, or the zero value.
	Load() (Saved, error)
	// Save replaces it. The zero value removes it.
	Save(Saved) error
	// Lock excludes other processes until unlock is called, so that one of them refreshes a
	// token at a time.
	Lock(ctx context.Context) (unlock func(), err error)
}

// Saved is a token with what refreshing it needs. It is for one resource and of one issuer, and
// is sent to no other.
type Saved struct {
	Resource string    `json:"resource"`
	Issuer   string    `json:"issuer"`
	Access   string    `json:"access,omitempty"`
	Refresh  string    `json:"refresh,omitempty"`
	Scopes   []string  `json:"scopes,omitempty"` // that were asked for, or granted where the server says so
	Expires  time.Time `json:"expires,omitzero"` // zero if it is not known
	Client   Client    `json:"client,omitzero"`
}

// LoginRequiredError means that a user has to log in before the server accepts requests.
// The request was not run.
type LoginRequiredError struct {
	Resource string
	Scopes   []string // that the server requires and the present login does not have
	Why      string   // "" if no user has logged in yet
}

func (e *LoginRequiredError) Error() string {
	said := "a login at " + e.Resource + " is needed"
	if len(e.Scopes) > 0 {
		said += fmt.Sprintf(" with the scopes %.500q", strings.Join(e.Scopes, " "))
	}
	if e.Why != "" {
		said += ": " + e.Why
	}
	return said
}

const (
	maxAttempts = 3                // limits how often one request is authorized again
	renewBefore = 30 * time.Second // of the end of a token
)

// Transport sends requests with an access token, which it gets when the server requires one.
// It is safe for concurrent use; one authorization runs at a time.
type Transport struct {
	Base     http.RoundTripper // nil means the default one
	Resource string            // the URL of the MCP server, which tokens are for
	Config   Config

	// authorizing is held while a token is got, which includes the approval of Authorize. It is
	// taken before mu.
	authorizing sync.Mutex

	// mu guards what follows.
	mu      sync.Mutex
	loaded  bool // Store was asked
	token   Saved
	wants   map[string]string // the challenge that a login answers
	more    bool              // the challenge asks for further scopes
	guarded *http.Client      // made when it is first used
}

// RoundTrip implements http.RoundTripper. The body of a request that may be repeated must have
// GetBody.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	for try := 0; ; try++ {
		now, err := t.current()
		if err != nil {
			return nil, err
		}
		if try == 0 && t.renewable(now) {
			if err := t.authorize(req.Context(), now, nil, false); err == nil {
				now, _ = t.current() // otherwise the server says whether the token is still good
			}
		}
		out := req.Clone(req.Context())
		if try > 0 && req.GetBody != nil {
			body, err := req.GetBody()
			if err != nil {
				return nil, err
			}
			out.Body = body
		}
		if now.Access != "" {
			out.Header.Set("Authorization", "Bearer "+now.Access)
		}
		resp, err := t.base().RoundTrip(out)
		if err != nil {
			return nil, err
		}
		challenge := parseChallenge(resp.Header.Values("WWW-Authenticate"))
		more := resp.StatusCode == http.StatusForbidden && challenge["error"] == "insufficient_scope"
		if resp.StatusCode != http.StatusUnauthorized && !more || try >= maxAttempts || req.Body != nil &&
			req.Body != http.NoBody && req.GetBody == nil {
			return resp, nil
		}
		resp.Body.Close()
		if err := t.authorize(req.Context(), now, challenge, more); err != nil {
			return nil, fmt.Errorf("authorization for %s: %w", t.Resource, err)
		}
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

// CloseIdleConnections closes those of Base.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// current returns the token, which the first call loads from the store.
func (t *Transport) current() (Saved, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.loaded || t.Config.Store == nil {
		return t.token, nil
	}
	if err := t.load(); err != nil {
		return Saved{}, err
	}
	return t.token, nil
}

// load loads the token from the store. One for another resource is not used; t.mu is held.
func (t *Transport) load() error {
	if t.Config.Store == nil {
		return nil
	}
	saved, err := t.Config.Store.Load()
	if err != nil {
		return fmt.Errorf("read the login: %w", err)
	}
	if t.loaded = true; saved.Resource != t.Resource {
		saved = Saved{}
	}
	t.token = saved
	return nil
}

// LoggedIn reports whether there is a token, also if it has expired.
func (t *Transport) LoggedIn() (bool, error) {
	now, err := t.current()
	return now.Access != "", err
}

// Forget removes the token, also from the store.
func (t *Transport) Forget() error {
	t.authorizing.Lock()
	defer t.authorizing.Unlock()
	return t.save(Saved{})
}

// Reload forgets the token that is in memory, so that the store is read again.
func (t *Transport) Reload() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loaded = false
}

// save replaces the token, in the store first.
func (t *Transport) save(now Saved) error {
	if t.Config.Store != nil {
		if err := t.Config.Store.Save(now); err != nil {
			return fmt.Errorf("store the login: %w", err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.token, t.loaded = now, true
	if now.Access != "" {
		t.wants, t.more = nil, false
	}
	return nil
}

// unattended reports whether tokens are got without a user.
func (t *Transport) unattended() bool { return t.Config.OwnCredentials || t.Config.Exchange != nil }

// renewable reports whether a token ends soon and can be replaced without a user.
func (t *Transport) renewable(now Saved) bool {
	return now.Access != "" && !now.Expires.IsZero() && time.Until(now.Expires) < renewBefore &&
		(now.Refresh != "" || t.unattended())
}

// authorize replaces a token that the server did not accept. more says that its scopes do not
// suffice. If another request or process has replaced it meanwhile, nothing is done.
func (t *Transport) authorize(ctx context.Context, refused Saved, challenge map[string]string, more bool) error {
	t.authorizing.Lock()
	defer t.authorizing.Unlock()
	if now, err := t.current(); err != nil || now.Access != refused.Access {
		return err
	}
	if s := t.Config.Store; s != nil {
		unlock, err := s.Lock(ctx)
		if err != nil {
			return err
		}
		defer unlock()
		t.mu.Lock()
		err = t.load()
		now := t.token
		t.mu.Unlock()
		if err != nil || now.Access != refused.Access && now.Access != "" {
			return err
		}
		refused = now
	}
	alone := !t.unattended() && t.Config.Authorize == nil
	if alone && (more || refused.Refresh == "") {
		return t.requireLogin(refused, challenge, more, "")
	}
	of, err := t.discover(ctx, challenge["resource_metadata"])
	if err != nil {
		return err
	}
	if !more && refused.Refresh != "" && refused.Issuer == of.server.Issuer && refused.Client.ID != "" {
		got, err := t.refreshToken(ctx, of, refused)
		if err == nil {
			return t.save(got)
		}
		if alone && !refusesGrant(err) {
			return err
		}
	}
	if alone {
		why := "the earlier login is no longer accepted"
		if refused.Issuer != of.server.Issuer {
			why = "the server has another authorization server than at the earlier login"
		}
		if err := t.save(Saved{Resource: t.Resource, Issuer: refused.Issuer, Client: refused.Client}); err != nil {
			return err
		}
		return t.requireLogin(refused, challenge, false, why)
	}
	scopes := t.scopes(of, challenge, refused, more)
	var got Saved
	switch {
	case t.unattended():
		got, err = t.ownToken(ctx, of, scopes)
	default:
		got, err = t.userToken(ctx, of, scopes)
	}
	if err != nil {
		return err
	}
	return t.save(got)
}

// requireLogin remembers what a login has to ask for.
func (t *Transport) requireLogin(now Saved, challenge map[string]string, more bool, why string) error {
	t.mu.Lock()
	t.wants, t.more = challenge, more
	t.mu.Unlock()
	e := &LoginRequiredError{Resource: t.Resource, Why: why}
	if more {
		for s := range strings.FieldsSeq(challenge["scope"]) {
			if !slices.Contains(now.Scopes, s) {
				e.Scopes = append(e.Scopes, s)
			}
		}
		e.Why = "the server requires more than the present login permits"
	}
	return e
}

// scopes returns what to ask for: what the server requires, otherwise all that it supports; with
// more also what the earlier token had; and offline_access if the authorization server
// gives refresh tokens for it.
func (t *Transport) scopes(of *found, challenge map[string]string, refused Saved, more bool) []string {
	scopes := strings.Fields(challenge["scope"])
	if len(scopes) == 0 {
		scopes = slices.Clone(of.resource.Scopes)
	}
	if more {
		scopes = append(slices.Clone(refused.Scopes), scopes...)
	}
	scopes = append(scopes, t.Config.Scopes...)
	if !t.unattended() && slices.Contains(of.server.Scopes, "offline_access") {
		scopes = append(scopes, "offline_access")
	}
	var once []string
	for _, s := range scopes {
		if !slices.Contains(once, s) {
			once = append(once, s)
		}
	}
	return once
}

// parseChallenge returns the parameters of the first Bearer challenge.
func parseChallenge(headers []string) map[string]string {
	params := map[string]string{}
	for _, h := range headers {
		scheme, rest, _ := strings.Cut(strings.TrimSpace(h), " ")
		if !strings.EqualFold(scheme, "Bearer") {
			continue
		}
		for rest != "" {
			var key, value string
			var ok bool
			if key, rest, ok = strings.Cut(strings.TrimLeft(rest, " ,"), "="); !ok {
				break
			}
			if strings.HasPrefix(rest, `"`) {
				value, rest = quotedString(rest[1:])
			} else {
				end := strings.IndexAny(rest, ", ")
				if end < 0 {
					end = len(rest)
				}
				value, rest = rest[:end], rest[end:]
			}
			if key = strings.ToLower(strings.TrimSpace(key)); params[key] == "" {
				params[key] = value
			}
		}
		return params
	}
	return params
}

// quotedString reads a quoted string whose first quote has been read.
func quotedString(s string) (value, rest string) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case s[i] == '"':
			return b.String(), s[i+1:]
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String(), ""
}
