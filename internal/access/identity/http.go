package identity

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Public reports whether a request is served without identifying the caller:
// OPTIONS, /.well-known/*, /health, /ready, and the ways to log in.
func Public(r *http.Request) bool {
	switch p := r.URL.Path; p {
	case "/health", "/healthz", "/ready", "/auth/login", "/auth/pair", "/auth/link", "/auth/link/proof", "/auth/ways",
		"/auth/passkey/login", "/auth/passkey/login/finish",
		"/auth/oidc/start", "/auth/oidc/callback", "/auth/register", "/auth/authorize", "/auth/token", "/auth/revoke":
		return true
	default:
		return r.Method == "OPTIONS" || strings.HasPrefix(p, "/.well-known/")
	}
}

// HTTP returns the principal of a request. It reads headers and the connection, never the body, and
// handles all methods alike.
func (s *Service) HTTP(r *http.Request) (Principal, *Denied) {
	s.refreshCaches(false)
	from, local := From(r)
	token, presented, err := headerToken(r.Header)
	switch {
	case err != nil:
		return s.resolveRequest(r.Context(), from, Principal{}, err)
	case presented:
		p, err := s.bearer(r.Context(), token, local)
		return s.resolveRequest(r.Context(), from, p, err)
	}
	if secret, ok := s.cookie(r); ok {
		if err := s.sameAs.Check(r); err != nil {
			return Principal{}, &Denied{Status: 403, Code: "cross_origin",
				Message: "a page of another origin may not use your login: send a token instead"}
		}
		p, ok, err := s.ofCookie(r.Context(), secret)
		if err == nil && !ok {
			err = errLogin
		}
		return s.resolveRequest(r.Context(), from, p, err)
	}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 && len(r.TLS.VerifiedChains[0]) > 0 {
		p, err := s.ofCertificate(r.Context(), r.TLS.VerifiedChains[0][0])
		return s.resolveRequest(r.Context(), from, p, err)
	}
	p, err := s.unnamed(local)
	return s.resolveRequest(r.Context(), from, p, err)
}

// refusal is the reason for which a credential is not accepted, in the words that the caller reads. No
// refusal reveals more than that.
type refusal string

func (r refusal) Error() string { return string(r) }

const (
	errToken    refusal = "this token is not valid here: it may have expired or been revoked"
	errMistyped refusal = "this is not a complete token: check that all of it was copied"
	errLogin    refusal = "this login is over: log in again"
	errCert     refusal = "this certificate belongs to no user of this host"
	errUnnamed  refusal = "authenticate: send a token as Authorization: Bearer gh_..., or log in at /auth/login"
	errNoHeader refusal = "authenticate: send a token in _meta, as " + MetaToken
	errTwo      refusal = "more than one token was sent: send one, as Authorization: Bearer or X-API-Key"
	errScheme   refusal = "only tokens are accepted: send Authorization: Bearer gh_..."
)

var errCannotAsk = errors.New("the caller cannot be identified now: try again in a moment")

// resolveRequest turns the result of one authentication method into a principal or a denial.
func (s *Service) resolveRequest(ctx context.Context, from netip.Addr, p Principal, err error) (Principal, *Denied) {
	if err == nil {
		return p, nil
	}
	if scope, lacking := errors.AsType[*ScopeError](err); lacking {
		return Principal{}, s.InsufficientScope(scope.Needed...)
	}
	why, refused := errors.AsType[refusal](err)
	switch {
	case why == errUnnamed, why == errNoHeader:
		return Principal{}, s.denied("unauthorized", why)
	case refused:
		s.publishEvent("refused", "", "", from.String())
		return Principal{}, s.denied("invalid_token", why)
	}
	if ctx.Err() == nil {
		s.log.WarnContext(ctx, "cannot identify the caller", "err", err)
	}
	return Principal{}, &Denied{
		Status:  503,
		Code:    "unavailable",
		Message: errCannotAsk.Error(),
		Header:  http.Header{"Retry-After": {"5"}},
	}
}

// denied returns a 401 with its challenge.
func (s *Service) denied(code string, why refusal) *Denied {
	wire := code
	if code == "unauthorized" {
		wire = "" // RFC 6750: a request without credentials gets no error code
	}
	return &Denied{Status: 401, Code: code, Message: string(why), Header: s.challenge(wire)}
}

// InsufficientScope returns the denial of a caller whose credential lacks scopes that its principal
// could be granted.
func (s *Service) InsufficientScope(needed ...string) *Denied {
	return &Denied{Status: 403, Code: "insufficient_scope", Header: s.challenge("insufficient_scope", needed...),
		Message: "the credential's scope does not cover this; it needs " + strings.Join(needed, " ")}
}

// ScopeError is the error for a valid credential whose scopes do not suffice.
type ScopeError struct{ Needed []string }

func (e *ScopeError) Error() string {
	return "the credential lacks a scope: " + strings.Join(e.Needed, " ")
}

// challenge returns the WWW-Authenticate header. All values come from the settings or were checked, so
// no value contains a quote.
func (s *Service) challenge(code string, scopes ...string) http.Header {
	var b strings.Builder
	b.WriteString(`Bearer realm="gatehouse"`)
	add := func(name, value string) {
		if value != "" {
			b.WriteString(", " + name + "=" + strconv.Quote(value))
		}
	}
	add("error", code)
	if s.issues != nil {
		add("scope", strings.Join(scopes, " "))
		add("resource_metadata", s.issues.issuer+wellKnown+"/mcp")
	}
	if s.oauth != nil {
		if scopes == nil {
			scopes = s.oauth.Required
		}
		add("scope", strings.Join(scopes, " "))
		add("resource_metadata", s.oauth.metadataURL)
	}
	return http.Header{"Www-Authenticate": {b.String()}}
}

// headerToken returns the token in the headers.
func headerToken(h http.Header) (token string, presented bool, err error) {
	auth, keys := h["Authorization"], h["X-Api-Key"]
	switch {
	case len(auth)+len(keys) == 0:
		return "", false, nil
	case len(auth)+len(keys) > 1:
		return "", true, errTwo
	case len(keys) == 1:
		return strings.TrimSpace(keys[0]), true, nil
	}
	scheme, token, _ := strings.Cut(strings.TrimSpace(auth[0]), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", true, errScheme
	}
	return strings.TrimSpace(token), true, nil
}

const mostToken = 16 << 10 // bytes

// bearer returns the principal of a token, whichever header held it. local reports whether the caller
// is on this machine; the local token is accepted only then.
func (s *Service) bearer(ctx context.Context, token string, local bool) (Principal, error) {
	if len(token) > mostToken {
		return Principal{}, errToken
	}
	hash := digestOf(token)
	if s.byHand.is(hash) {
		return Principal{Name: s.owner, Way: Flag, Credential: "flag"}, nil
	}
	switch spell(token) {
	case mistyped:
		return Principal{}, errMistyped
	case locals:
		if local && s.local.is(hash) {
			// The user is the same as over the socket, because a caller who can read the token file can
			// read and change all data of the host.
			return Principal{Name: s.owner, Roles: []string{Admin}, Way: Local, Credential: "local"}, nil
		}
		return Principal{}, errToken
	case ours:
		return found(s.ofToken(ctx, hash))
	}
	if s.oauth != nil && strings.Count(token, ".") == 2 {
		return s.ofJWT(ctx, token, hash)
	}
	return Principal{}, errToken
}

func found(p Principal, ok bool, err error) (Principal, error) {
	if err == nil && !ok {
		err = errToken
	}
	return p, err
}

// Line returns the principal at the other end of a newline-delimited connection that sent this token in
// _meta. "" means no token: then the caller is refused, also from this machine, or anonymous if the
// options allow it. addr is the remote address of a TCP connection; a connection without an address
// does not count as local.
func (s *Service) Line(ctx context.Context, token string, addr netip.Addr) (Principal, *Denied) {
	s.refreshCaches(false)
	var p Principal
	var err error
	addr = addr.Unmap()
	switch {
	case token != "":
		p, err = s.bearer(ctx, token, addr.IsLoopback())
	case s.o.Insecure || s.o.Embedded && !addr.IsValid(): // a Unix socket on a system that reports no peer credentials
		p = anonymous
	default:
		err = errNoHeader
	}
	return s.resolveRequest(ctx, addr, p, err)
}

// MetaToken is the key of _meta in which listeners without headers look for a token.
const MetaToken = "gatehouse/token"

// unnamed returns the principal of an HTTP request without credentials.
func (s *Service) unnamed(local bool) (Principal, error) {
	if s.o.Insecure || s.o.Embedded || local && s.o.Mode == OpenLoopback && !s.Authenticates() {
		return anonymous, nil
	}
	return Principal{}, errUnnamed
}

// Authenticates reports whether any means to identify callers, beyond the local ones, is configured or
// ever was.
func (s *Service) Authenticates() bool {
	return s.byHand.secret != "" || s.oauth != nil || s.o.ClientCA || s.watch.claimed.Load() || s.watch.lost.Load()
}

// MustAuthenticate refuses a listener that other machines can reach while no user could log in there.
// host is the address the listener binds to; "" means loopback. The local token does not count. In mode
// Required no caller is admitted before a user exists, so a pairing code suffices.
func (s *Service) MustAuthenticate(host string) error {
	if s.o.Insecure || s.o.Embedded || s.o.Mode == Required || isLoopback(host) || s.Authenticates() {
		return nil
	}
	return beyond(host)
}

func beyond(host string) error {
	return errors.New(
		"binding to " + host + " lets other machines reach this host, and no user or token exists to log in with: " +
			"add a user (gatehouse user add NAME), set a token (auth.token, or --auth-token of gatehouse serve), " +
			"or name an OAuth provider; auth.insecure, or --insecure of gatehouse serve, serves every client " +
			"without credentials",
	)
}

// errNoToken is returned for a TCP listener that would refuse every client.
var errNoToken = errors.New("no client could connect over TCP, where every caller needs a token, and none exists: " +
	"set one (auth.token, or --auth-token of gatehouse serve), or add a user (gatehouse user add NAME); " +
	"auth.insecure, or --insecure of gatehouse serve, serves every client without credentials")

// MustHaveTokens refuses a TCP listener that no client could use, and beyond loopback one that
// MustAuthenticate refuses. On loopback the local token suffices.
func (s *Service) MustHaveTokens(host string) error {
	switch {
	case s.o.Insecure || s.o.Mode == Required || s.Authenticates() || isLoopback(host) && s.local.secret != "":
		return nil
	case isLoopback(host):
		return errNoToken
	}
	return beyond(host)
}

// isLoopback reports whether only this machine can reach a listener at host. Names other than localhost
// do not count, because they may resolve to any address.
func isLoopback(host string) bool {
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if host == "" || host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

// seconds formats a duration for Retry-After, rounded up.
func seconds(d time.Duration) string { return strconv.Itoa(int((d + time.Second - 1) / time.Second)) }
