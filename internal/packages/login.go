package packages

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/files/filelock"
	"gatehouse/internal/mcp/client"
	"gatehouse/internal/mcp/client/oauth"
	"gatehouse/tool"
)

// Whose login a package uses at its server; see Record.Login.
const (
	SharedLogin    = "shared"    // one login for all callers, which an administrator makes
	PrincipalLogin = "principal" // each caller logs in on its own
)

// Grants by which a package gets tokens; see OAuth.Grant.
const (
	ClientCredentials = "client_credentials"
	TokenExchange     = "token_exchange"
)

// OAuth says how a package identifies this host to the authorization server of its server. The
// zero value registers the host there.
type OAuth struct {
	ClientID string `json:"client_id,omitempty" yaml:"client_id" doc:"Client ID that the authorization server has assigned; left out, this host registers itself."`
	// ClientSecret refers to a secret.
	ClientSecret string   `json:"client_secret,omitempty" yaml:"client_secret" doc:"Secret of the client, as ${secret:NAME}."`
	Issuer       string   `json:"issuer,omitempty" doc:"Authorization server that has assigned client_id; left out, the first that the server names."`
	Scopes       []string `json:"scopes,omitempty" doc:"Scopes to request besides those that the server requires."`
	Redirect     string   `json:"redirect,omitempty" doc:"Address to which users are sent back, if the authorization server accepts only a registered one: http://127.0.0.1:PORT/PATH."`
	Grant        string   `json:"grant,omitempty" doc:"How tokens are got without a user: client_credentials, or token_exchange of subject_token." enum:"client_credentials,token_exchange"`
	// SubjectToken refers to a secret.
	SubjectToken string `json:"subject_token,omitempty" yaml:"subject_token" doc:"Token that token_exchange exchanges, as ${secret:NAME}."`
	SubjectType  string `json:"subject_type,omitempty" yaml:"subject_type" doc:"Type of subject_token, a URI; left out, an access token."`
}

// Given returns what a user has given, or nil for the zero value.
func (o OAuth) Given() *OAuth {
	if reflect.ValueOf(o).IsZero() {
		return nil
	}
	return &o
}

const (
	maxLogins      = 100 // that were begun and are not finished
	maxLoginScopes = 50
	maxRedirected  = 16 << 10 // bytes of the address to which a user was sent back
)

// checkLogin validates what a record says of logins.
func (r *Record) checkLogin() error {
	o := r.OAuth
	if r.Login == "" && o == nil {
		return nil
	}
	_, credential := r.authorization()
	switch {
	case r.Source.Kind != URL:
		return invalid("login and oauth: only a package with a source url:ADDRESS has any")
	case r.Login != "" && r.Login != SharedLogin && r.Login != PrincipalLogin:
		return invalid("login %q: expected %s or %s", r.Login, SharedLogin, PrincipalLogin)
	case credential:
		return invalid("headers: Authorization cannot be set beside login and oauth")
	case o == nil:
		return nil
	case o.Grant != "" && o.Grant != ClientCredentials && o.Grant != TokenExchange:
		return invalid("oauth.grant %q: expected %s or %s", o.Grant, ClientCredentials, TokenExchange)
	case o.Grant != "" && o.ClientID == "":
		return invalid("oauth.client_id is missing: %s needs one", o.Grant)
	case o.Grant != "" && r.Login == PrincipalLogin:
		return invalid("login: with oauth.grant all callers share the tokens")
	case (o.Grant == TokenExchange) != (o.SubjectToken != ""):
		return invalid("oauth.subject_token: %s needs it, and nothing else does", TokenExchange)
	case len(o.Scopes) > maxLoginScopes || totalSize(o.Scopes) > maxText:
		return invalid("oauth.scopes: at most %d", maxLoginScopes)
	}
	if u, err := url.Parse(o.Redirect); o.Redirect != "" &&
		(err != nil || u.Scheme != "http" || u.Hostname() != "127.0.0.1") {
		return invalid("oauth.redirect %q: expected http://127.0.0.1:PORT/PATH", o.Redirect)
	}
	for name, value := range map[string]string{"client_secret": o.ClientSecret, "subject_token": o.SubjectToken} {
		if names, err := secret.Names(value); value != "" &&
			(err != nil || len(names) != 1 || value != SecretReference(names[0])) {
			return invalid("oauth.%s: expected ${secret:NAME}; store the value with gatehouse secret set NAME", name)
		}
	}
	return nil
}

// authorization returns the header Authorization of a record.
func (r *Record) authorization() (value string, ok bool) {
	for name, value := range r.Headers {
		if strings.EqualFold(name, "Authorization") {
			return value, true
		}
	}
	return "", false
}

// logsIn reports whether a login may be used at the server.
func (r *Record) logsIn() bool {
	_, credential := r.authorization()
	passes := slices.Contains(r.PassHeaders, "Authorization")
	_, _, local := socketEndpoint(r.Source.From)
	return r.Source.Kind == URL && !local && !credential && !passes
}

// loginOf returns whose login a request of a caller uses: "" is the shared one.
func (r *Record) loginOf(principal string) string {
	if r.Login == PrincipalLogin {
		return principal
	}
	return ""
}

// loginKey is the context key of the principal whose login a connection uses.
type loginKey struct{}

// withLogin returns the context in which a connection is opened that uses a principal's login.
func withLogin(ctx context.Context, principal string) context.Context {
	if principal == "" {
		return ctx
	}
	return context.WithValue(ctx, loginKey{}, principal)
}

// logins are the logins of one package. It is safe for concurrent use.
type logins struct {
	mu  sync.Mutex
	of  map[string]*oauth.Transport // by principal; "" is the shared one
	rec string                      // what of the record they were made from
	// needed is why a login was needed last, by principal.
	needed map[string]string
}

// transport returns what authorizes requests with the login of a principal.
func (p *managedPackage) transport(r *Record, principal string) (*oauth.Transport, error) {
	made := recordOfLogin(r)
	p.logins.mu.Lock()
	defer p.logins.mu.Unlock()
	if p.logins.rec != made {
		p.logins.of, p.logins.rec, p.logins.needed = nil, made, nil
	}
	if t := p.logins.of[principal]; t != nil {
		return t, nil
	}
	c, err := p.oauthConfig(r)
	if err != nil {
		return nil, err
	}
	if s := p.manager.opts.Logins; s != nil {
		c.Store = &loginStore{
			store: s, name: loginName(p.id, principal), principal: principal,
			lock: filepath.Join(p.folder(), loginName("login", principal)+".lock"),
		}
	}
	t := &oauth.Transport{Base: r.remoteTransport(), Resource: r.Source.From, Config: c}
	if p.logins.of == nil {
		p.logins.of = map[string]*oauth.Transport{}
	}
	p.logins.of[principal] = t
	return t, nil
}

// recordOfLogin is what of a record its logins depend on.
func recordOfLogin(r *Record) string {
	b, _ := json.Marshal([]any{r.Source, r.Login, r.OAuth}) // strings alone
	return string(b)
}

// oauthConfig describes this host to the authorization server of a package's server.
func (p *managedPackage) oauthConfig(r *Record) (c oauth.Config, err error) {
	c = oauth.Config{Name: p.manager.opts.Name, MetadataURL: p.manager.opts.ClientDocument}
	o := r.OAuth
	if o == nil {
		return c, nil
	}
	fill := p.manager.opts.Secrets
	if fill == nil {
		fill = noSecrets
	}
	filled, err := fill(map[string]string{"client_secret": o.ClientSecret, "subject_token": o.SubjectToken})
	if err != nil {
		return c, fmt.Errorf("oauth: %w", err)
	}
	c.ID, c.Issuer, c.Scopes = o.ClientID, o.Issuer, o.Scopes
	if u, err := url.Parse(o.Redirect); o.Redirect != "" && (err != nil || u.Path != callbackPath) {
		c.MetadataURL = "" // the document names another address to return to
	}
	c.Secret = filled["client_secret"].Reveal()
	switch o.Grant {
	case ClientCredentials:
		c.OwnCredentials = true
	case TokenExchange:
		c.Exchange = &oauth.Exchange{Token: filled["subject_token"].Reveal(), Type: o.SubjectType}
	}
	return c, nil
}

// ClientDocument is the document that describes a host to authorization servers, which fetch it at the address that is
// its client ID. Users come back to a loopback address, whose port may be any (RFC 8252).
func ClientDocument(id, name string) ([]byte, error) {
	return json.Marshal(map[string]any{
		"client_id": id, "client_name": name, "redirect_uris": []string{"http://127.0.0.1" + callbackPath},
		"grant_types": []string{"authorization_code", "refresh_token"}, "response_types": []string{"code"},
		"token_endpoint_auth_method": "none", "application_type": "native",
	})
}

// loginName is the name of a login in its store.
func loginName(id, principal string) string {
	if principal == "" {
		return id + ".shared"
	}
	sum := sha256.Sum256([]byte(principal))
	return id + ".p" + hex.EncodeToString(sum[:12])
}

// loginStore keeps one login in the store of the host's logins. It implements oauth.Store.
type loginStore struct {
	store     *secret.Store
	name      string
	principal string
	lock      string // the file that processes lock while they get a token
}

// savedLogin is a login as it is stored, with the principal that it belongs to.
type savedLogin struct {
	Principal string `json:"principal,omitempty"`
	oauth.Saved
}

// Load implements oauth.Store. A login of another principal is not returned.
func (s *loginStore) Load() (oauth.Saved, error) {
	text, err := s.store.Get(s.name)
	if errors.Is(err, secret.ErrNotFound) {
		return oauth.Saved{}, nil
	}
	if err != nil {
		return oauth.Saved{}, err
	}
	var l savedLogin
	if err := json.Unmarshal([]byte(text.Reveal()), &l); err != nil {
		return oauth.Saved{}, errors.New("a stored login cannot be decoded; log out and in again")
	}
	if l.Principal != s.principal {
		return oauth.Saved{}, nil
	}
	return l.Saved, nil
}

// Save implements oauth.Store.
func (s *loginStore) Save(now oauth.Saved) error {
	if now.Access == "" && now.Client.ID == "" {
		err := s.store.Remove(s.name)
		if errors.Is(err, secret.ErrNotFound) {
			err = nil
		}
		return err
	}
	b, err := json.Marshal(savedLogin{s.principal, now})
	if err != nil {
		return err
	}
	return s.store.Set(s.name, secret.New(string(b)))
}

// Lock implements oauth.Store.
func (s *loginStore) Lock(ctx context.Context) (unlock func(), err error) {
	l, err := filelock.Wait(ctx, s.lock, filelock.Exclusive)
	if err != nil {
		return nil, err
	}
	return func() { l.Release() }, nil
}

// LoginLife is how long a login can be finished after it was begun.
const LoginLife = 10 * time.Minute

// Login is a login that was begun: the address at which the user approves, and to which
// the authorization server then sends the user back.
type Login struct {
	URL      string
	State    string // names the login; it cannot be guessed
	Issuer   string
	Scopes   []string
	Redirect string
}

// beganLogin is a login that waits for its user. It belongs to a principal, a package, and an
// issuer.
type beganLogin struct {
	id, principal string // of the package, and of the caller that began it
	of            string // whose login it becomes: "" is the shared one
	login         *oauth.Login
	transport     *oauth.Transport
	expires       time.Time
	done          chan struct{} // closed when it has ended
	err           error         // how it ended; set before
	ended         bool
}

// loginTable holds the logins that were begun. It is safe for concurrent use.
type loginTable struct {
	mu  sync.Mutex
	all map[string]*beganLogin // by state
}

// addLogin adds a login, and removes those that have expired.
func (t *loginTable) addLogin(b *beganLogin) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[string]*beganLogin{}
	}
	mine := 0
	for state, other := range t.all {
		if time.Now().After(other.expires) {
			other.endLogin(errors.New("the login was not finished in time"))
			delete(t.all, state)
		} else if other.principal == b.principal {
			mine++
		}
	}
	if len(t.all) >= maxLogins || mine >= maxLogins/4 {
		return tool.Refuse(tool.CodeBusy, "%d logins wait for their users; finish one, or wait %v", len(t.all),
			LoginLife)
	}
	t.all[b.login.State] = b
	return nil
}

// endLogin sets how a login ended; the table's lock is held.
func (b *beganLogin) endLogin(err error) {
	if !b.ended {
		b.ended, b.err = true, err
		close(b.done)
	}
}

// removeLogin returns the login that an answer names, once.
func (t *loginTable) removeLogin(state string) *beganLogin {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.all[state]
	delete(t.all, state)
	if b == nil || time.Now().After(b.expires) {
		return nil
	}
	return b
}

func (t *loginTable) findLogin(state string) *beganLogin {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all[state]
}

// mayLogIn returns whose login a caller may make or end at a package: with a shared login, only
// administrators may.
func (p *managedPackage) mayLogIn(who *tool.Caller) (of string, r Record, err error) {
	p.mu.Lock()
	r = p.rec
	p.mu.Unlock()
	switch {
	case !r.logsIn():
		return "", r, tool.Refuse(tool.CodeUnsupported,
			"package %s has no login: its server is no address of http, or headers of the package are its credentials",
			p.id)
	case r.OAuth != nil && r.OAuth.Grant != "":
		return "", r, tool.Refuse(tool.CodeUnsupported, "package %s gets its tokens without a login (oauth.grant %s)",
			p.id, r.OAuth.Grant)
	case p.manager.opts.Logins == nil:
		return "", r, tool.Refuse(tool.CodeUnsupported, "this host has no config folder, so it keeps no logins")
	case r.Login != PrincipalLogin && (p.manager.opts.Administrator == nil || !p.manager.opts.Administrator(*who)):
		return "", r, &tool.Refusal{
			Code: tool.CodeDenied,
			Message: "the login of package " + p.id +
				" is for all callers, so only administrators of this host may make it",
			Next: "An administrator logs in with gatehouse package login " + p.id + ".",
		}
	}
	return r.loginOf(who.Principal), r, nil
}

// EachLogsIn reports whether each caller has a login of its own at a package.
func (h *Manager) EachLogsIn(id string) bool {
	p, err := h.findPackage(id)
	if err != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rec.Login == PrincipalLogin
}

// BeginLogin begins the login of a caller at the server of a package. redirect is where the
// user is sent back to; the caller passes what arrives there to FinishLogin.
func (h *Manager) BeginLogin(ctx context.Context, id string, who *tool.Caller, redirect string) (Login, error) {
	p, err := h.findPackage(id)
	if err != nil {
		return Login{}, err
	}
	of, r, err := p.mayLogIn(who)
	if err != nil {
		return Login{}, err
	}
	if r.OAuth != nil && r.OAuth.Redirect != "" {
		redirect = r.OAuth.Redirect
	}
	if u, err := url.Parse(redirect); err != nil || u.Host == "" || u.Scheme != "http" || u.Hostname() != "127.0.0.1" {
		return Login{}, invalid("redirect %q: expected http://127.0.0.1:PORT/PATH", shorten(redirect, 200))
	}
	b, err := p.beginLogin(ctx, &r, of, who.Principal, redirect)
	if err != nil {
		return Login{}, err
	}
	return Login{b.login.URL, b.login.State, b.login.Issuer, b.login.Scopes, redirect}, nil
}

func (p *managedPackage) beginLogin(
	ctx context.Context, r *Record, of, principal, redirect string,
) (*beganLogin, error) {
	t, err := p.transport(r, of)
	if err != nil {
		return nil, err
	}
	l, err := t.Begin(ctx, redirect)
	if err != nil {
		return nil, tool.Refuse(tool.CodeUnavailable, "the login at package %s cannot begin: %s", p.id,
			shorten(err.Error(), maxErrorMessage))
	}
	b := &beganLogin{
		id: p.id, principal: principal, of: of, login: l, transport: t, expires: time.Now().Add(LoginLife),
		done: make(chan struct{}),
	}
	if err := p.manager.logins.addLogin(b); err != nil {
		return b, err
	}
	return b, p.manager.shareLogin(ctx, b)
}

// FinishLogin ends a login that the caller began, with the address to which its user was sent
// back. The server is then connected to anew.
func (h *Manager) FinishLogin(ctx context.Context, id string, who *tool.Caller, redirected string) error {
	u, err := url.Parse(strings.TrimSpace(redirected))
	if err != nil || len(redirected) > maxRedirected || u.Query().Get("state") == "" {
		return invalid("redirected: expected the whole address to which the browser was sent back, with code and state")
	}
	state := u.Query().Get("state")
	b := h.logins.findLogin(state)
	if b == nil {
		if b, err = h.loginOfNode(ctx, state, id, who.Principal); err != nil {
			return err
		}
	}
	if b == nil || b.id != id || b.principal != who.Principal {
		return &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: "no login of this caller at package " + id + " waits for that answer",
			Next: "Begin again with gatehouse package login " + id +
				"; a login has to be finished within 10 minutes.",
		}
	}
	return h.finishLogin(ctx, state, u.Query())
}

// finishLogin ends the login that an answer names.
func (h *Manager) finishLogin(ctx context.Context, state string, back url.Values) error {
	b := h.logins.removeLogin(state)
	if b == nil {
		return tool.Refuse(tool.CodeNotFound, "no login waits for that answer")
	}
	err := h.claimLogin(ctx, state)
	if err == nil {
		err = b.transport.Finish(ctx, b.login, back)
	}
	if err != nil {
		err = tool.Refuse(tool.CodeDenied, "the login at package %s failed: %s", b.id,
			shorten(err.Error(), maxErrorMessage))
	}
	if p, gone := h.findPackage(b.id); gone == nil && err == nil {
		err = p.loginChanged(ctx, b.of)
	}
	h.logins.mu.Lock()
	b.endLogin(err)
	h.logins.mu.Unlock()
	return err
}

// loginChanged has the servers of a principal connected to anew, and lists what the server
// offers. The error is that the server does not accept the login.
func (p *managedPackage) loginChanged(ctx context.Context, of string) error {
	p.logins.mu.Lock()
	delete(p.logins.needed, of)
	p.logins.mu.Unlock()
	p.mu.Lock()
	stale := []*instance{p.shared}
	for _, i := range p.poolInstances() {
		if i.key.login == of {
			stale = append(stale, i)
		}
	}
	for _, i := range stale {
		i.failures, i.why, i.next = 0, nil, time.Time{}
	}
	ran := p.shared.running != nil
	p.mu.Unlock()
	p.publishState()
	if ran {
		p.listAgain()
		return nil
	}
	u, err := p.shared.ready(ctx)
	if err == nil {
		u.releaseUpstream()
		return nil
	}
	if need, login := loginRequired(err); login {
		return tool.Refuse(tool.CodeDenied, "the server of package %s does not accept the login: %s", p.id,
			shorten(need.Error(), publicText))
	}
	p.manager.log.Warn("a package cannot be started after a login", "package", p.id, "err", err)
	return nil
}

// recallLogin remembers that the server required a login when the package was installed, if no user
// has logged in since. No other goroutine uses the package yet.
func (p *managedPackage) recallLogin() {
	if !p.rec.AsksLogin || p.manager.opts.Logins == nil {
		return
	}
	of := p.rec.loginOf(p.listingLogin(&p.rec))
	t, err := p.transport(&p.rec, of)
	if err != nil {
		return
	}
	if in, err := t.LoggedIn(); err == nil && !in {
		need := &oauth.LoginRequiredError{Resource: p.rec.Source.From}
		p.logins.needed = map[string]string{of: shorten(need.Error(), publicText)}
	}
}

// Logout forgets the login of a caller at a package. It reports whether there was one.
func (h *Manager) Logout(id string, who *tool.Caller) (was bool, err error) {
	p, err := h.findPackage(id)
	if err != nil {
		return false, err
	}
	of, r, err := p.mayLogIn(who)
	if err != nil {
		return false, err
	}
	t, err := p.transport(&r, of)
	if err != nil {
		return false, err
	}
	t.Reload()
	if was, err = t.LoggedIn(); err != nil {
		return false, err
	}
	if err := t.Forget(); err != nil {
		return was, err
	}
	p.mu.Lock()
	stop := []*instance{p.shared}
	for _, i := range p.poolInstances() {
		if i.key.login == of {
			stop = append(stop, i)
		}
	}
	p.mu.Unlock()
	for _, i := range stop {
		i.stopInstance()
	}
	p.publishState()
	return was, nil
}

// forgetLogins removes all logins of a package.
func (p *managedPackage) forgetLogins() error {
	s := p.manager.opts.Logins
	if s == nil {
		return nil
	}
	all, err := s.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range all {
		if strings.HasPrefix(e.Name, p.id+".") {
			errs = append(errs, s.Remove(e.Name))
		}
	}
	return errors.Join(errs...)
}

// listingLogin returns the principal whose login lists what a server offers, if each has its own:
// the one that installed it if it has logged in, otherwise any that has.
func (p *managedPackage) listingLogin(r *Record) string {
	s := p.manager.opts.Logins
	if r.Login != PrincipalLogin || s == nil {
		return ""
	}
	all, err := s.List()
	if err != nil {
		return r.By
	}
	first := ""
	for _, e := range all {
		if !strings.HasPrefix(e.Name, p.id+".p") {
			continue
		}
		text, err := s.Get(e.Name)
		var l savedLogin
		if err != nil || json.Unmarshal([]byte(text.Reveal()), &l) != nil || l.Access == "" ||
			l.Resource != r.Source.From {
			continue
		}
		if l.Principal == r.By {
			return r.By
		}
		if first == "" {
			first = l.Principal
		}
	}
	if first == "" {
		return r.By
	}
	return first
}

// loginRequired returns the error of a request that ended because a login is needed.
func loginRequired(err error) (*oauth.LoginRequiredError, bool) {
	return errors.AsType[*oauth.LoginRequiredError](err)
}

// noteLogin remembers that a login is needed, which the package's public state shows.
func (p *managedPackage) noteLogin(of string, need *oauth.LoginRequiredError) {
	p.logins.mu.Lock()
	if p.logins.needed == nil {
		p.logins.needed = map[string]string{}
	}
	_, known := p.logins.needed[of]
	if len(p.logins.needed) < maxLogins {
		p.logins.needed[of] = shorten(need.Error(), publicText)
	}
	p.logins.mu.Unlock()
	if !known {
		p.publishState()
	}
}

// LoginNeeded returns why a package cannot be used until a user logs in, "" if it can. If
// each principal has a login of its own, it is about the one that lists what the server offers.
func (h *Manager) LoginNeeded(id string) string {
	p, err := h.findPackage(id)
	if err != nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loginNeeded(&p.rec)
}

// loginNeeded is LoginNeeded; p.mu is held.
func (p *managedPackage) loginNeeded(r *Record) string {
	p.logins.mu.Lock()
	defer p.logins.mu.Unlock()
	if r.Login != PrincipalLogin {
		return p.logins.needed[""]
	}
	if len(p.tools) > 0 {
		return "" // what it offers is known, and each caller is told on its own
	}
	for _, why := range p.logins.needed {
		return why
	}
	return ""
}

// refuseLogin returns the refusal of a request that needs a login.
func (p *managedPackage) refuseLogin(need *oauth.LoginRequiredError) error {
	return &tool.Refusal{
		Code:    tool.CodeUnavailable,
		Message: "package " + p.id + ": " + shorten(need.Error(), publicText) + "; nothing was run",
		Next:    "Log in with gatehouse package login " + p.id + ", then call again.",
	}
}

// remoteTransport returns what sends requests to a remote server.
func (r *Record) remoteTransport() *http.Transport {
	dial := r.dialOutbound
	if socket, _, ok := socketEndpoint(r.Source.From); ok {
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return r.dialOutbound(ctx, Unix, socket) }
	}
	t := client.NewTransport(dial, quiet)
	t.TLSHandshakeTimeout = dialTimeout
	t.MaxIdleConnsPerHost = 16
	return t
}

// loginWait is how long a call waits for a user who has agreed to log in.
const loginWait = 2 * time.Minute

// askLogin returns the error of a call that needs a login: a caller that can be sent to an
// address, and may make the login, is asked to visit it. The browser has to be on this machine.
func (p *managedPackage) askLogin(ctx context.Context, from *Peer, need *oauth.LoginRequiredError) error {
	if from == nil || from.Caller == nil {
		return p.refuseLogin(need)
	}
	of, r, err := p.mayLogIn(from.Caller)
	p.noteLogin(of, need)
	if err != nil || from.can()&tool.CanElicitURL == 0 {
		return p.refuseLogin(need)
	}
	redirect := r.redirect()
	if redirect == "" {
		if redirect, err = p.manager.callback.open(p.manager); err != nil {
			return p.refuseLogin(need)
		}
	}
	b, err := p.beginLogin(ctx, &r, of, from.Caller.Principal, redirect)
	if err != nil {
		return err
	}
	key := "login-" + b.login.State[:16]
	message := fmt.Sprintf("Log in at %s, so that the package %s can be used. Its tools then act with your account.",
		shorten(b.login.Issuer, 200), p.id)
	if of == "" {
		message = fmt.Sprintf(
			"Log in at %s for the package %s. All users of this host then act with your account there.",
			shorten(b.login.Issuer, 200),
			p.id,
		)
	}
	q := tool.ElicitURL(key, message, b.login.URL)
	state := relayState{Login: b.login.State, Before: from.State}
	return &InputRequired{tool.Input{Questions: []tool.Question{q}, State: state.encode()}}
}

// redirect is the address that an authorization server sends users back to; "" means any.
func (r *Record) redirect() string {
	if r.OAuth == nil {
		return ""
	}
	return r.OAuth.Redirect
}

// resumeLogin continues a call whose caller was sent to log in: it waits for the end of the
// login, and returns the caller with the state that the call had before.
func (p *managedPackage) resumeLogin(ctx context.Context, from *Peer) (*Peer, error) {
	if from == nil || len(from.State) == 0 {
		return from, nil
	}
	var state relayState
	if err := json.Unmarshal(from.State, &state); err != nil {
		return nil, fmt.Errorf("decode the state of the call: %w", err)
	}
	if state.Login == "" {
		return from, nil
	}
	next := *from
	next.State = state.Before
	b := p.manager.logins.findLogin(state.Login)
	if b == nil && from.Caller != nil {
		var err error
		if b, err = p.manager.loginOfNode(ctx, state.Login, p.id, from.Caller.Principal); err != nil {
			return nil, err
		}
	}
	if b == nil || b.id != p.id || from.Caller == nil || b.principal != from.Caller.Principal {
		return &next, nil // it has ended; the server says whether it was enough
	}
	elsewhere, stop := p.manager.watchLogin(ctx, state.Login)
	defer stop()
	if action, err := tool.Elicited(from.Answers["login-"+state.Login[:16]], nil); err != nil || action != "accept" {
		p.manager.logins.drop(state.Login)
		if err := p.manager.claimLogin(ctx, state.Login); err != nil {
			p.manager.log.Debug("a login that was declined ends by itself", "package", p.id, "err", err)
		}
		return nil, tool.Refuse(tool.CodeDenied, "the login at package %s was declined; nothing was run", p.id)
	}
	late := time.NewTimer(loginWait)
	defer late.Stop()
	select {
	case <-b.done:
		return &next, b.err
	case <-elsewhere: // another node has finished it; the server says whether it was enough
		return &next, nil
	case <-late.C:
		return nil, &tool.Refusal{
			Code: tool.CodeTimeout,
			Message: fmt.Sprintf("the login at package %s was not finished within %v; nothing was run", p.id,
				loginWait),
			Next: "Call again when you have logged in.",
		}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// drop removes a login whose user has declined.
func (t *loginTable) drop(state string) {
	if b := t.removeLogin(state); b != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		b.endLogin(errors.New("it was declined"))
	}
}
