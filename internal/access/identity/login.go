package identity

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"time"
)

// Handler serves the paths below /auth/, and the metadata of the protected resource below
// /.well-known/oauth-protected-resource. The server must have checked the Host and Origin of each
// request.
func (s *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /auth/login", s.login)
	mux.HandleFunc("POST /auth/logout", s.logout)
	mux.HandleFunc("POST /auth/pair", s.pairFirst)
	mux.HandleFunc("POST /auth/link", s.loginByLink)
	mux.HandleFunc("GET /auth/link/proof", s.proveLink)
	mux.HandleFunc("GET /auth/me", s.me)
	mux.HandleFunc("GET /auth/ways", s.ways)
	mux.HandleFunc("POST /auth/passkey/login", s.beginPasskeyLogin)
	mux.HandleFunc("POST /auth/passkey/login/finish", s.endPasskeyLogin)
	mux.HandleFunc("POST /auth/passkey/register", s.beginPasskey)
	mux.HandleFunc("POST /auth/passkey/register/finish", s.endPasskey)
	if s.issues != nil {
		s.issues.routes(mux)
	}
	if s.signIn != nil {
		mux.HandleFunc("GET /auth/oidc/start", s.beginSignIn)
		mux.HandleFunc("GET /auth/oidc/callback", s.endSignIn)
	}
	if s.oauth != nil {
		mux.HandleFunc("GET "+wellKnown, s.metadata)
		mux.HandleFunc("GET "+wellKnown+"/mcp", s.metadata)
		mux.HandleFunc("GET "+wellKnown+"/mcp/{context}", s.metadata)
	}
	return mux
}

// Cookie names. With TLS the prefix makes browsers accept the cookie from this host only.
const (
	cookieName   = "gatehouse_session"
	deviceName   = "gatehouse_device"
	securePrefix = "__Host-"
)

func (s *Service) secure(r *http.Request) bool { return r.TLS != nil || s.o.Secure }

func (s *Service) cookieName(r *http.Request, name string) string {
	if s.secure(r) {
		return securePrefix + name
	}
	return name
}

// cookieFor returns a cookie that browsers send to this server only, from its own pages only.
func (s *Service) cookieFor(r *http.Request, name, value string) *http.Cookie {
	return &http.Cookie{
		Name: s.cookieName(r, name), Value: value, Path: "/",
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: s.secure(r),
	}
}

// KeyHeader is the header that carries the second half of a login. The page keeps it in its sessionStorage, which
// belongs to one port, as cookies do not.
const KeyHeader = "Gatehouse-Key"

// cookie returns the secret of a login: the session cookie, and after it the key. ok is false without a key, because
// a cookie alone is no credential: browsers send it to every port of a host. With two cookies the secret is "",
// because one of them is not ours.
func (s *Service) cookie(r *http.Request) (secret string, ok bool) {
	all, keys := r.CookiesNamed(s.cookieName(r, cookieName)), r.Header[KeyHeader]
	switch {
	case len(all) == 0, len(keys) == 0:
		return "", false
	case len(all) == 1 && len(keys) == 1:
		return all[0].Value + keys[0], true
	}
	return "", true
}

func (s *Service) setCookie(w http.ResponseWriter, r *http.Request, secret string, l Login) {
	c := s.cookieFor(r, cookieName, secret[:min(len(secret), cookieSize)])
	if l.Lasting {
		c.MaxAge = int(time.Until(l.Until) / time.Second)
	}
	if secret == "" {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}

// entry is the body of /auth/login and /auth/pair.
type entry struct {
	User     string `json:"user"`
	Password string `json:"password"`
	Lasting  bool   `json:"lasting"` // the login outlives the browser's window; for /auth/login
	Code     string `json:"code"`    // for /auth/pair
}

const mostEntry = 16 << 10 // bytes

// readEntry reads an entry as JSON or as a form. If ok is false, it has answered the request.
func (s *Service) readEntry(w http.ResponseWriter, r *http.Request) (e entry, form, ok bool) {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	form = kind == "application/x-www-form-urlencoded"
	if !form && kind != "application/json" {
		writeError(w, 415, "unsupported_media_type", "send application/json, or a form")
		return e, form, false
	}
	if s.sameAs.Check(r) != nil {
		writeError(w, 403, "cross_origin", "only pages of this server may log in here")
		return e, form, false
	}
	// fails harmlessly if there is no connection, as in tests
	http.NewResponseController(w).SetReadDeadline(time.Now().Add(authTime))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostEntry))
	if _, big := errors.AsType[*http.MaxBytesError](err); big {
		writeError(w, 413, "too_large", "the body is too long for a login")
		return e, form, false
	}
	if err == nil {
		e, err = parseEntry(body, form)
	}
	if err != nil {
		writeError(
			w,
			400,
			"invalid_request",
			`expected user and password, as {"user":"...","password":"..."} or a form`,
		)
		return e, form, false
	}
	return e, form, true
}

func parseEntry(body []byte, form bool) (e entry, err error) {
	if !form {
		return e, json.Unmarshal(body, &e)
	}
	v, err := url.ParseQuery(string(body))
	return entry{v.Get("user"), v.Get("password"), v.Get("lasting") != "", v.Get("code")}, err
}

// slow refuses a caller who tries too often, by network or by account, and counts the try even if the
// account does not exist. A device that the account's user has logged in with is counted separately.
func (s *Service) slow(w http.ResponseWriter, r *http.Request, account string) bool {
	from, _ := From(r)
	var wait time.Duration
	if device, known := s.knownDevice(r, account); known {
		wait = s.countTry(triesDevice, string(device[:]))
	} else if wait = s.countTry(triesNetwork, network(from)); wait <= 0 {
		wait = s.countTry(triesAccount, account)
	}
	if wait <= 0 {
		return false
	}
	w.Header().Set("Retry-After", seconds(wait))
	writeError(w, 429, "too_many_tries", "too many tries: wait "+seconds(wait)+" s")
	s.publishEvent("login_limited", s.claimed(r.Context(), account), "", from.String())
	return true
}

func (s *Service) login(w http.ResponseWriter, r *http.Request) {
	e, form, ok := s.readEntry(w, r)
	if !ok || s.slow(w, r, clip(e.User)) {
		return
	}
	from, _ := From(r)
	a, err := s.verifyEntry(r.Context(), e)
	var secret string
	var l Login
	switch {
	case err != nil:
	case form:
		// A form gets no answer that a script could read, so that the page logs in with a code.
		secret, err = s.newCode(r.Context(), a.number, codeForm, e.Lasting)
	default:
		secret, l, err = s.openLogin(r.Context(), a, e.Lasting, true, r.UserAgent())
	}
	if errors.Is(err, ErrNoUser) {
		err = errWrong // the user was removed or got another password after the comparison
	}
	switch {
	case errors.Is(err, errWrong):
		s.publishEvent("login_failed", s.claimed(r.Context(), e.User), "", from.String())
		w.Header()["Www-Authenticate"] = s.challenge("")["Www-Authenticate"]
		writeError(w, 401, "invalid_login", err.Error())
		return
	case err != nil:
		s.unable(w, r, err)
		return
	}
	if form {
		w.Header().Set("Cache-Control", "no-store")
		http.Redirect(w, r, "/#login="+secret, http.StatusSeeOther)
		return
	}
	s.welcome(w, r, secret, l)
}

// welcome answers a request that opened a login: it replaces the one that the request came with.
func (s *Service) welcome(w http.ResponseWriter, r *http.Request, secret string, l Login) {
	from, _ := From(r)
	s.endPresented(r)
	s.setCookie(w, r, secret, l)
	s.rememberDevice(w, r, l.User)
	s.publishEvent("login", l.User, l.ID, from.String())
	writeJSON(w, 200, map[string]any{
		"user": l.User, "key": secret[cookieSize:], "expires": l.Until, "lasting": l.Lasting,
	})
}

// errWrong is the error for a wrong password, an unknown user, and a user without a password, so that
// they cannot be distinguished.
var errWrong = errors.New("user or password is wrong")

// verifyEntry compares a password and returns its account. The cost is the same for unknown users.
func (s *Service) verifyEntry(ctx context.Context, e entry) (account, error) {
	s.refreshCaches(false)
	a, there, err := s.findAccount(ctx, "name = ?", e.User)
	if err != nil {
		return a, err
	}
	ok, stale, err := s.pass.verify(ctx, a.kept, e.Password)
	switch {
	case err != nil:
		return a, err
	case !ok || !there:
		return a, errWrong
	case stale:
		s.renew(ctx, a, e.Password)
	}
	return a, nil
}

// renew stores a hash with the present cost. A failure is only logged, because the old hash still
// works.
func (s *Service) renew(ctx context.Context, a account, password string) {
	kept, err := s.pass.hash(ctx, password)
	if err != nil {
		return
	}
	if err := s.store.changeInTx(ctx, func(tx *sql.Tx) error {
		_, err := tx.Exec("UPDATE user SET password = ? WHERE number = ? AND password = ?", kept, a.number, a.kept)
		return err
	}); err != nil {
		s.log.WarnContext(ctx, "cannot renew a password's hash", "user", a.name, "err", err)
	}
}

// endPresented ends the login with which a request came, because a new one replaces it.
func (s *Service) endPresented(r *http.Request) (id string) {
	secret, ok := s.cookie(r)
	if !ok {
		return ""
	}
	p, ok, err := s.ofCookie(r.Context(), secret)
	if !ok || err != nil {
		return ""
	}
	err = s.EndLogin(r.Context(), p.Credential)
	if errors.Is(err, ErrNone) && s.o.Nodes != nil { // opened on another node, and no row of the file
		err = s.endSealed(r.Context(), Revocation{p.Name, p.Credential})
	}
	if err != nil {
		return ""
	}
	return p.Credential
}

func (s *Service) logout(w http.ResponseWriter, r *http.Request) {
	if s.sameAs.Check(r) != nil {
		writeError(w, 403, "cross_origin", "only pages of this server may log out here")
		return
	}
	if s.endPresented(r) == "" {
		w.Header()["Www-Authenticate"] = s.challenge("")["Www-Authenticate"]
		writeError(w, 401, "unauthorized", "you are not logged in")
		return
	}
	s.setCookie(w, r, "", Login{})
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

func (s *Service) pairFirst(w http.ResponseWriter, r *http.Request) {
	e, _, ok := s.readEntry(w, r)
	if !ok || s.slow(w, r, clip(e.User)) {
		return
	}
	from, _ := From(r)
	err := s.Pair(r.Context(), e.Code, e.User, e.Password)
	switch {
	case err == nil:
		s.publishEvent("paired", e.User, "", from.String())
		writeJSON(w, 201, map[string]any{"user": e.User, "roles": []string{Admin}})
	case errors.Is(err, ErrPairing):
		s.publishEvent("pair_failed", s.claimed(r.Context(), e.User), "", from.String())
		writeError(w, 403, "invalid_code", err.Error())
	case checkUser(e.User) != nil || checkPassword(e.Password) != nil:
		writeError(w, 400, "invalid_request", err.Error())
	default:
		s.unable(w, r, err)
	}
}

// unable answers a request that failed for a reason on the server's side.
func (s *Service) unable(w http.ResponseWriter, r *http.Request, err error) {
	if !errors.Is(err, errBusy) && r.Context().Err() == nil {
		s.log.ErrorContext(r.Context(), "cannot log in", "err", err)
	}
	w.Header().Set("Retry-After", "5")
	writeError(w, 503, "unavailable", errBusyOr(err).Error())
}

func errBusyOr(err error) error {
	if errors.Is(err, errBusy) {
		return errBusy
	}
	return errCannotAsk
}

func writeError(w http.ResponseWriter, status int, code, message string) {
	writeJSON(w, status, map[string]any{"error": code, "message": message})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}
