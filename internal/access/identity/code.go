package identity

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Kinds of codes, which open one login each. Only some of them prove that a person was there.
const (
	codeTerminal = "terminal" // shown at a terminal
	codeCommand  = "command"  // given to a program
	codeForm     = "form"     // a form with the right password
	codeProvider = "provider" // a login at the OpenID provider
)

const (
	codeLife = 2 * time.Minute
	maxCodes = 100 // unused ones of one user
)

// A LoginLink opens one login within two minutes.
type LoginLink struct {
	ID    string
	Code  string // for the fragment of the address of the page: #login=CODE
	Until time.Time
}

// CreateLink makes a link that logs in a user, or the host's own user for "". terminal says that the link is shown to
// a person at a terminal, whose decisions about calls count.
func (s *Service) CreateLink(ctx context.Context, user string, terminal bool) (l LoginLink, err error) {
	a := account{name: s.owner}
	if user != "" {
		var there bool
		if a, there, err = s.findAccount(ctx, "name = ?", user); err == nil && !there {
			err = fmt.Errorf("user %s: %w", clip(user), ErrNoUser)
		}
		if err != nil {
			return l, err
		}
	}
	kind := codeCommand
	if terminal {
		kind = codeTerminal
	}
	if l.Code, err = s.newCode(ctx, a.number, kind, false); err != nil {
		return l, err
	}
	l.ID, l.Until = codeID(l.Code), clock().Add(codeLife)
	s.publishEvent("link_created", a.name, l.ID, "")
	return l, nil
}

// LinkWaits reports whether a link has not been used yet.
func (s *Service) LinkWaits(ctx context.Context, id string) (waits bool) {
	db, err := s.store.reader()
	if db == nil || err != nil {
		return false
	}
	err = db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM code WHERE id = ?)", id).Scan(&waits)
	return waits && err == nil
}

// codeID returns the public ID of a code.
func codeID(code string) string {
	hash := digestOf("id of " + code)
	return "l_" + letters.EncodeToString(hash[:10])
}

// newCode stores a code for a user.
func (s *Service) newCode(ctx context.Context, user int64, kind string, lasting bool) (string, error) {
	return s.newCodeFor(ctx, user, kind, lasting, nil)
}

// newCodeFor is newCode for a code that only the browser with a cookie can use; browser is the digest of the cookie.
func (s *Service) newCodeFor(
	ctx context.Context, user int64, kind string, lasting bool, browser []byte,
) (code string, err error) {
	code = newLoginSecret()
	hash, now := digestOf(code), clock()
	err = s.createRows(ctx, func(tx *sql.Tx) error {
		if _, err := tx.Exec("INSERT INTO code VALUES (?, ?, ?, ?, ?, ?, ?)",
			hash[:], codeID(code), user, kind, lasting, browser, stamp(now.Add(codeLife))); err != nil {
			return err
		}
		_, err := tx.Exec(`DELETE FROM code WHERE until < ? OR hash IN
			(SELECT hash FROM code WHERE user = ? ORDER BY until DESC, id LIMIT -1 OFFSET ?)`, stamp(now), user, maxCodes)
		return err
	})
	return code, err
}

// useCode removes a code and returns what it is for. ok is false if there is no such code for this browser.
func (s *Service) useCode(
	ctx context.Context,
	code string,
	browser []byte,
) (user int64, kind string, lasting, ok bool, err error) {
	if len(code) != 2*cookieSize {
		return 0, "", false, false, nil
	}
	if db, err := s.store.reader(); db == nil || err != nil {
		return 0, "", false, false, err
	}
	hash := digestOf(code)
	var bound []byte
	var until int64
	err = s.store.changeInTx(ctx, func(tx *sql.Tx) error {
		return tx.QueryRow("DELETE FROM code WHERE hash = ? RETURNING user, kind, lasting, browser, until", hash[:]).
			Scan(&user, &kind, &lasting, &bound, &until)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return 0, "", false, false, nil
	}
	ok = clock().Before(moment(until)) && (bound == nil || subtle.ConstantTimeCompare(bound, browser) == 1)
	return user, kind, lasting, ok, err
}

// loginByLink opens a login for the bearer of a code.
func (s *Service) loginByLink(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Code string `json:"code"`
	}
	if !s.readJSON(w, r, &in) {
		return
	}
	s.refreshCaches(false)
	from, _ := From(r)
	a, kind, lasting := account{name: s.owner}, codeProvider, false
	user := int64(0)
	e, ok, err := s.useSignIn(r.Context(), in.Code, s.browserOf(r))
	switch {
	case err != nil:
	case ok:
		user = e.User
		if user == 0 {
			a = account{name: e.Name, foreign: &Principal{Name: e.Name, Roles: e.Roles}}
		}
	default:
		user, kind, lasting, ok, err = s.useCode(r.Context(), in.Code, s.browserOf(r))
	}
	if ok && err == nil && user != 0 {
		a, ok, err = s.findAccount(r.Context(), "number = ?", user)
	}
	var secret string
	var l Login
	if ok && err == nil {
		person := kind == codeTerminal || kind == codeForm
		secret, l, err = s.openLogin(r.Context(), a, lasting, person, r.UserAgent())
	}
	switch {
	case err != nil && !errors.Is(err, ErrNoUser):
		s.unable(w, r, err)
	case !ok || err != nil:
		s.publishEvent("login_failed", "", codeID(in.Code), from.String())
		writeError(w, 401, "invalid_code", "this link is not valid: it works once, for two minutes; make another one")
	default:
		s.welcome(w, r, secret, l)
	}
}

// readJSON reads a small JSON body from a page of this server. If it returns false, it has answered the request.
func (s *Service) readJSON(w http.ResponseWriter, r *http.Request, into any) bool {
	if s.sameAs.Check(r) != nil {
		writeError(w, 403, "cross_origin", "only pages of this server may do this")
		return false
	}
	if r.Header.Get("Content-Type") != "application/json" {
		writeError(w, 415, "unsupported_media_type", "send application/json")
		return false
	}
	// fails harmlessly if there is no connection, as in tests
	http.NewResponseController(w).SetReadDeadline(time.Now().Add(authTime))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostBody))
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		writeError(w, 400, "invalid_request", "the body is not the JSON that is expected here")
	}
	return err == nil
}

const mostBody = 64 << 10 // bytes

// proofOfLink returns what a server that knows a code answers to a challenge at one of its ports.
func proofOfLink(hash digest, challenge, port string) string {
	m := hmac.New(sha256.New, hash[:])
	fmt.Fprintf(m, "gatehouse link 1\n%s\n%s", challenge, port)
	return hex.EncodeToString(m.Sum(nil))
}

// Proves reports whether an answer comes from a server that knows the link and has accepted the connection at a port.
// A program that listens in its place, or passes the challenge on to it, cannot give this answer.
func (l LoginLink) Proves(challenge, port, answer string) bool {
	return hmac.Equal([]byte(answer), []byte(proofOfLink(digestOf(l.Code), challenge, port)))
}

// proveLink answers a challenge with which a command finds out whether this is the host that knows its link.
func (s *Service) proveLink(w http.ResponseWriter, r *http.Request) {
	id, challenge := r.URL.Query().Get("link"), r.URL.Query().Get("challenge")
	if len(id) > 64 || len(challenge) < 16 || len(challenge) > 64 {
		writeError(w, 400, "invalid_request", "expected link and a challenge of 16 to 64 characters")
		return
	}
	var hash []byte
	db, err := s.store.reader()
	if err == nil && db != nil {
		err = db.QueryRowContext(r.Context(), "SELECT hash FROM code WHERE id = ? AND until > ?", id, stamp(clock())).
			Scan(&hash)
	}
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		s.unable(w, r, err)
		return
	}
	if len(hash) != sha256.Size {
		writeError(w, 404, "not_found", "there is no such link")
		return
	}
	port := ""
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		port = strconv.Itoa(at.Port)
	}
	writeJSON(w, 200, map[string]any{"proof": proofOfLink(digest(hash), challenge, port)})
}

// ownerOfLogin returns the principal of a login of the host's own user, who is no user of the file.
func (s *Service) ownerOfLogin(l temporaryLogin) Principal {
	return Principal{
		Name: s.owner, Roles: []string{Admin}, Until: l.Until, Way: Cookie, Credential: l.ID, person: l.person,
	}
}

// browserOf returns the digest of the cookie that binds a code to a browser; nil without one.
func (s *Service) browserOf(r *http.Request) []byte {
	all := r.CookiesNamed(s.cookieName(r, browserName))
	if len(all) != 1 {
		return nil
	}
	hash := digestOf(all[0].Value)
	return hash[:]
}

const browserName = "gatehouse_browser" // binds a login at a provider to the browser that began it

// me tells a caller who it is.
func (s *Service) me(w http.ResponseWriter, r *http.Request) {
	p, denied := s.HTTP(r)
	if denied != nil {
		maps.Copy(w.Header(), denied.Header)
		writeError(w, denied.Status, denied.Code, denied.Message)
		return
	}
	out := map[string]any{
		"user": p.Name, "roles": append([]string{}, p.Roles...), "way": p.Way, "person": p.Person(),
		"admin": p.Has(Admin) && len(p.Scopes) == 0,
	}
	if p.Way == Cookie {
		out["login"] = p.Credential
	}
	if !p.Until.IsZero() {
		out["expires"] = p.Until
	}
	writeJSON(w, 200, out)
}

// ways tells a page how people log in here. It says nothing about users, except that there are none yet.
func (s *Service) ways(w http.ResponseWriter, r *http.Request) {
	_, local := From(r)
	_, err := s.unnamed(local)
	s.pair.mu.Lock()
	pairing := clock().Before(s.pair.until)
	s.pair.mu.Unlock()
	oidc := []any{}
	if s.signIn != nil {
		oidc = append(oidc, map[string]string{"id": "1", "title": s.signIn.Title})
	}
	writeJSON(w, 200, map[string]any{
		"password": true, "passkey": s.hasPasskeys(r.Context(), s.originOf(r)), "oidc": oidc, "pairing": pairing,
		"anonymous": err == nil,
	})
}
