package identity

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
)

// SignIn is an OpenID provider at which people log in to the pages of this host.
type SignIn struct {
	Issuer   string   // exactly as in its metadata
	ClientID string   // of this host at the provider
	Secret   string   // likewise; "" for a public client
	Title    string   // for the button; "" means the issuer's host
	Server   string   // scheme and host of this host, to which the provider sends browsers back: /auth/oidc/callback
	Scopes   []string // besides openid

	UserClaim  string       // the claim that names the person; "" means sub
	RolesClaim string       // the claim of the roles here; "" means that only linked users have some
	Client     *http.Client // nil means a default client
}

const (
	signInLife  = 10 * time.Minute
	mostSignIns = 1000 // that were begun
)

// signIn is a SignIn with the keys of its provider.
type signIn struct {
	SignIn
	p *provider

	// mu guards begun and ended.
	mu    sync.Mutex
	begun map[digest]begunSignIn // by state
	ended map[digest]endedSignIn // by code
}

type begunSignIn struct {
	browser digest
	until   time.Time

	Nonce    string `json:"nonce"`
	Verifier string `json:"verifier"`
	Next     string `json:"next"`
}

type endedSignIn struct {
	browser digest
	until   time.Time

	Name  string   `json:"name"` // of a person who is no user here
	Roles []string `json:"roles,omitempty"`
	User  int64    `json:"user,omitempty"` // of a linked user; 0 for others
}

func newSignIn(o SignIn) (*signIn, error) {
	server, err := checkURL("server", o.Server)
	if err != nil {
		return nil, err
	}
	if o.ClientID == "" {
		return nil, errors.New("client_id is empty; expected that of this host at the provider")
	}
	p, err := newProvider(OAuth{
		Issuer: o.Issuer, Resource: o.Server, UserClaim: o.UserClaim, RolesClaim: o.RolesClaim, Client: o.Client,
	})
	if err != nil {
		return nil, err
	}
	if o.Title == "" {
		o.Title = p.host
	}
	o.Server = server.Scheme + "://" + server.Host
	return &signIn{SignIn: o, p: p, begun: map[digest]begunSignIn{}, ended: map[digest]endedSignIn{}}, nil
}

func (i *signIn) callback() string { return i.Server + "/auth/oidc/callback" }

// endpoints are the addresses in the metadata of a provider.
type endpoints struct {
	Issuer    string `json:"issuer"`
	Authorize string `json:"authorization_endpoint"`
	Token     string `json:"token_endpoint"`
}

// discover reads the metadata of the provider.
func (i *signIn) discover(ctx context.Context) (e endpoints, err error) {
	r, err := http.NewRequestWithContext(ctx, "GET",
		strings.TrimSuffix(i.Issuer, "/")+"/.well-known/openid-configuration", nil)
	if err != nil {
		return e, err
	}
	if err := i.fetch(r, &e); err != nil {
		return e, err
	}
	if e.Issuer != i.Issuer {
		return e, fmt.Errorf("the metadata is that of another issuer, %s", clip(e.Issuer))
	}
	_, err = checkURL("authorization_endpoint", e.Authorize)
	_, err2 := checkURL("token_endpoint", e.Token)
	return e, errors.Join(err, err2)
}

func (i *signIn) fetch(r *http.Request, into any) error {
	ctx, cancel := context.WithTimeout(r.Context(), fetchTime)
	defer cancel()
	res, err := i.p.keys.client.Do(r.WithContext(ctx))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, mostFetch))
	if err != nil {
		return err
	}
	if res.StatusCode != 200 {
		return fmt.Errorf("%s answers %d", r.URL.Host, res.StatusCode)
	}
	return json.Unmarshal(text, into)
}

// localPath returns a path of this host to which a browser may be sent; "/" for anything else.
func localPath(next string) string {
	if !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || len(next) > mostURI ||
		strings.ContainsFunc(next, func(r rune) bool { return r <= ' ' || r == '\\' || r == '#' || r > '~' }) {
		return "/"
	}
	return next
}

// beginSignIn sends a browser to the provider. The browser gets a cookie, so that the login of
// another browser cannot end here.
func (s *Service) beginSignIn(w http.ResponseWriter, r *http.Request) {
	i := s.signIn
	w.Header().Set("Cache-Control", "no-store")
	e, err := i.discover(r.Context())
	if err != nil {
		s.unable(w, r, err)
		return
	}
	browser := newCookie()
	b := begunSignIn{
		browser: digestOf(browser), Nonce: newCookie(), Verifier: newLoginSecret(),
		Next: localPath(r.URL.Query().Get("next")), until: clock().Add(signInLife),
	}
	state, err := s.storeBegun(b)
	if err != nil {
		s.unable(w, r, err)
		return
	}
	c := s.cookieFor(r, browserName, browser)
	c.SameSite, c.MaxAge = http.SameSiteLaxMode, int(signInLife/time.Second) // the provider sends the browser back
	http.SetCookie(w, c)
	sum := sha256.Sum256([]byte(b.Verifier))
	u, _ := url.Parse(e.Authorize) // checked
	v := u.Query()
	for name, value := range map[string]string{
		"response_type": "code", "client_id": i.ClientID, "redirect_uri": i.callback(), "state": state,
		"nonce":          b.Nonce,
		"scope":          strings.Join(append([]string{"openid"}, i.Scopes...), " "),
		"code_challenge": base64.RawURLEncoding.EncodeToString(sum[:]), "code_challenge_method": "S256",
	} {
		v.Set(name, value)
	}
	u.RawQuery = v.Encode()
	http.Redirect(w, r, u.String(), http.StatusSeeOther)
}

// endSignIn takes a browser that comes back from the provider, and sends it to the page with a code for its login.
func (s *Service) endSignIn(w http.ResponseWriter, r *http.Request) {
	i, q := s.signIn, r.URL.Query()
	w.Header().Set("Cache-Control", "no-store")
	b, known := s.takeBegun(q.Get("state"), s.browserOf(r))
	from, _ := From(r)
	if !known || q.Has("iss") && q.Get("iss") != i.Issuer {
		s.publishEvent("login_failed", "", "", from.String())
		writeError(w, 401, "invalid_state", "this login was not begun in this browser, or too long ago: begin again")
		return
	}
	e, err := s.redeemSignIn(r.Context(), q.Get("code"), b)
	if err == nil {
		var first bool
		if first, err = s.once(r.Context(), q.Get("state")); err == nil && !first {
			err = errors.New("its state was used before")
		}
	}
	if err != nil {
		s.publishEvent("login_failed", "", "", from.String())
		if r.Context().Err() == nil {
			s.log.WarnContext(r.Context(), "a login at the OpenID provider is not accepted", "err", err)
		}
		writeError(w, 401, "invalid_login", "the provider did not let this person log in here")
		return
	}
	e.browser, e.until = b.browser, clock().Add(codeLife)
	code, err := s.storeCode(e)
	if err != nil {
		s.unable(w, r, err)
		return
	}
	http.Redirect(w, r, b.Next+"#login="+code, http.StatusSeeOther)
}

// redeemSignIn exchanges the provider's code for an ID token, and returns the person that it names.
func (s *Service) redeemSignIn(ctx context.Context, code string, b begunSignIn) (out endedSignIn, err error) {
	i := s.signIn
	e, err := i.discover(ctx)
	if err != nil {
		return out, err
	}
	form := url.Values{
		"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {i.callback()}, "client_id": {i.ClientID},
		"code_verifier": {b.Verifier},
	}
	if i.Secret != "" {
		form.Set("client_secret", i.Secret)
	}
	r, err := http.NewRequestWithContext(ctx, "POST", e.Token, strings.NewReader(form.Encode()))
	if err != nil {
		return out, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Accept", "application/json")
	var got struct {
		ID string `json:"id_token"`
	}
	if err := i.fetch(r, &got); err != nil {
		return out, err
	}
	all, err := i.verify(ctx, got.ID, b.Nonce)
	if err != nil {
		return out, err
	}
	name, _ := all[i.p.UserClaim].(string)
	if name == "" || len(name) > mostSubject {
		return out, fmt.Errorf("the ID token has no claim %s", i.p.UserClaim)
	}
	a, linked, err := s.linked(ctx, LinkOAuth, name)
	if err != nil || linked {
		return endedSignIn{User: a.number}, err
	}
	return endedSignIn{Name: url.PathEscape(name) + "@" + i.p.host, Roles: i.p.roles(all)}, nil
}

// verify returns the claims of an ID token that the provider made for this login.
func (i *signIn) verify(ctx context.Context, token, nonce string) (all map[string]any, err error) {
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil || len(parsed.Headers) != 1 {
		return nil, errToken
	}
	h := parsed.Headers[0]
	candidates, err := i.p.keys.findKey(ctx, h.KeyID, h.Algorithm)
	if err != nil {
		return nil, err
	}
	var c struct {
		jwt.Claims
		Nonce string `json:"nonce"`
		Party string `json:"azp"`
	}
	for _, key := range candidates {
		if parsed.Claims(key.Key, &c, &all) != nil {
			continue
		}
		expected := jwt.Expected{Issuer: i.Issuer, AnyAudience: jwt.Audience{i.ClientID}, Time: clock()}
		if err := c.ValidateWithLeeway(expected, skew); err != nil {
			return nil, err
		}
		if c.Expiry == nil || c.Nonce != nonce || len(c.Audience) > 1 && c.Party != i.ClientID ||
			c.Party != "" && c.Party != i.ClientID {
			return nil, errToken
		}
		return all, nil
	}
	return nil, errToken
}

// storeBegun returns the state of a login that begins.
func (s *Service) storeBegun(b begunSignIn) (state string, err error) {
	if s.o.Nodes != nil {
		return s.seal(signInPurpose, b.browser[:], &b, b.until)
	}
	i := s.signIn
	state = newCookie()
	i.mu.Lock()
	defer i.mu.Unlock()
	for h, other := range i.begun {
		if !clock().Before(other.until) || len(i.begun) >= mostSignIns {
			delete(i.begun, h)
		}
	}
	i.begun[digestOf(state)] = b
	return state, nil
}

// takeBegun returns the login that has a state; ok is false if there is none of this browser.
func (s *Service) takeBegun(state string, browser []byte) (b begunSignIn, ok bool) {
	if s.o.Nodes != nil {
		ok = len(browser) == len(b.browser) && s.unseal(signInPurpose, browser, state, &b)
		copy(b.browser[:], browser)
		return b, ok
	}
	i, h := s.signIn, digestOf(state)
	i.mu.Lock()
	defer i.mu.Unlock()
	b, ok = i.begun[h]
	delete(i.begun, h)
	return b, ok && clock().Before(b.until) && subtle.ConstantTimeCompare(b.browser[:], browser) == 1
}

// storeCode returns the code with which the page opens a login.
func (s *Service) storeCode(e endedSignIn) (code string, err error) {
	if s.o.Nodes != nil {
		return s.seal(codePurpose, e.browser[:], &e, e.until)
	}
	i := s.signIn
	code = newLoginSecret()
	i.mu.Lock()
	defer i.mu.Unlock()
	for h, other := range i.ended {
		if !clock().Before(other.until) || len(i.ended) >= mostSignIns {
			delete(i.ended, h)
		}
	}
	i.ended[digestOf(code)] = e
	return code, nil
}

// useSignIn uses up a code and returns whom it logs in; ok is false if there is no such code for this browser.
func (s *Service) useSignIn(ctx context.Context, code string, browser []byte) (e endedSignIn, ok bool, err error) {
	i := s.signIn
	if i == nil {
		return e, false, nil
	}
	if s.o.Nodes != nil {
		if len(browser) != len(e.browser) || !s.unseal(codePurpose, browser, code, &e) {
			return e, false, nil
		}
		ok, err = s.once(ctx, code)
		return e, ok, err
	}
	if len(code) != 2*cookieSize {
		return e, false, nil
	}
	h := digestOf(code)
	i.mu.Lock()
	defer i.mu.Unlock()
	e, ok = i.ended[h]
	delete(i.ended, h)
	return e, ok && clock().Before(e.until) && subtle.ConstantTimeCompare(e.browser[:], browser) == 1, nil
}
