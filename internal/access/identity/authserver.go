package identity

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/displaytext"
)

// authServer issues tokens to MCP clients of this host's users, as OAuth 2.1 has it: with PKCE alone, for public
// clients, which register themselves or name a document about themselves. Access tokens are tokens like any other,
// with at least one scope, so that their bearer never administers the host.
type authServer struct {
	s         *Service
	issuer    string // scheme://host[:port]
	documents documents
}

const (
	accessLife   = time.Hour
	grantLife    = 30 * 24 * time.Hour // since the last refresh
	authCodeLife = time.Minute
	mostClients  = 1000 // registered ones; the oldest without a grant is removed
	mostGrants   = 50   // of one user; the oldest is removed
	mostURIs     = 10   // redirect URIs of one client
	mostURI      = 1024 // bytes
)

// everything is the scope that a client gets that asks for none. It includes no administration.
const everything = "*"

// authTables are the tables of the authorization server. A grant is what a user has allowed a client; prior is the
// refresh token before the present one, whose use means that one of the two was stolen.
const authTables = `
CREATE TABLE IF NOT EXISTS oauth_client (
	id TEXT PRIMARY KEY, name TEXT NOT NULL, redirects TEXT NOT NULL, created INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS oauth_grant (
	id TEXT PRIMARY KEY, client TEXT NOT NULL, name TEXT NOT NULL, user INTEGER NOT NULL REFERENCES user ON DELETE CASCADE,
	scopes TEXT NOT NULL, context TEXT NOT NULL, refresh BLOB NOT NULL UNIQUE, prior BLOB, token TEXT NOT NULL,
	until INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS oauth_token (
	token TEXT PRIMARY KEY REFERENCES token ON DELETE CASCADE, grant_id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS oauth_code (
	hash BLOB PRIMARY KEY, client TEXT NOT NULL, name TEXT NOT NULL, redirect TEXT NOT NULL, challenge TEXT NOT NULL,
	user INTEGER NOT NULL REFERENCES user ON DELETE CASCADE, scopes TEXT NOT NULL, context TEXT NOT NULL,
	until INTEGER NOT NULL, grant_id TEXT NOT NULL DEFAULT '');`

func newAuthServer(s *Service, issuer string, client *http.Client) (*authServer, error) {
	u, err := checkURL("server", issuer)
	if err != nil {
		return nil, err
	}
	if strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("server %q: expected scheme and host alone", issuer)
	}
	return &authServer{s: s, issuer: u.Scheme + "://" + u.Host, documents: documents{client: client}}, nil
}

func (a *authServer) routes(mux *http.ServeMux) {
	mux.HandleFunc("GET "+serverWellKnown, a.metadata)
	for _, path := range []string{"", "/mcp", "/mcp/{context}"} {
		mux.HandleFunc("GET "+wellKnown+path, a.resource)
	}
	mux.HandleFunc("POST /auth/register", a.registerClient)
	mux.HandleFunc("GET /auth/authorize", a.askConsent)
	mux.HandleFunc("POST /auth/authorize", a.decide)
	mux.HandleFunc("POST /auth/token", a.token)
	mux.HandleFunc("POST /auth/revoke", a.revoke)
}

const serverWellKnown = "/.well-known/oauth-authorization-server"

// metadata serves the document of RFC 8414.
func (a *authServer) metadata(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, 200, map[string]any{
		"issuer": a.issuer, "authorization_endpoint": a.issuer + "/auth/authorize",
		"token_endpoint": a.issuer + "/auth/token", "registration_endpoint": a.issuer + "/auth/register",
		"revocation_endpoint": a.issuer + "/auth/revoke", "response_types_supported": []string{"code"},
		"grant_types_supported":                          []string{"authorization_code", "refresh_token"},
		"token_endpoint_auth_methods_supported":          []string{"none"},
		"revocation_endpoint_auth_methods_supported":     []string{"none"},
		"code_challenge_methods_supported":               []string{"S256"},
		"scopes_supported":                               []string{everything, "read"},
		"authorization_response_iss_parameter_supported": true,
		"client_id_metadata_document_supported":          true,
	})
}

// resource serves the document of RFC 9728.
func (a *authServer) resource(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, 200, map[string]any{
		"resource":              a.issuer + cmp.Or(strings.TrimPrefix(r.URL.Path, wellKnown), "/mcp"),
		"authorization_servers": []string{a.issuer}, "bearer_methods_supported": []string{"header"},
		"scopes_supported": []string{everything, "read"}, "resource_name": "gatehouse",
	})
}

// oauthClient is a client of the authorization server.
type oauthClient struct {
	ID        string   `json:"client_id"`
	Name      string   `json:"client_name"`
	Redirects []string `json:"redirect_uris"`
}

// oauthError writes an error of RFC 6749.
func oauthError(w http.ResponseWriter, code, message string) {
	writeJSON(w, 400, map[string]any{"error": code, "error_description": message})
}

// registerClient registers a client (RFC 7591). It never gets a secret, because it could not keep one.
func (a *authServer) registerClient(w http.ResponseWriter, r *http.Request) {
	var in oauthClient
	if err := decodeBody(w, r, &in); err != nil {
		oauthError(w, "invalid_client_metadata", "the body is not JSON of at most 64 KiB")
		return
	}
	if err := checkRedirects(in.Redirects); err != nil {
		oauthError(w, "invalid_redirect_uri", err.Error())
		return
	}
	in.ID, in.Name = newID("c_"), displaytext.Cut(displaytext.Line(in.Name), mostName, "")
	now := clock()
	err := a.s.createRows(r.Context(), func(tx *sql.Tx) error {
		if _, err := tx.Exec("INSERT INTO oauth_client VALUES (?, ?, ?, ?)",
			in.ID, in.Name, joinNames(in.Redirects), stamp(now)); err != nil {
			return err
		}
		_, err := tx.Exec(`DELETE FROM oauth_client WHERE id IN (SELECT id FROM oauth_client
			WHERE id NOT IN (SELECT client FROM oauth_grant) ORDER BY created DESC, id LIMIT -1 OFFSET ?)`, mostClients)
		return err
	})
	if err != nil {
		a.s.unable(w, r, err)
		return
	}
	writeJSON(w, 201, map[string]any{
		"client_id": in.ID, "client_name": in.Name, "redirect_uris": in.Redirects, "client_id_issued_at": now.Unix(),
		"token_endpoint_auth_method": "none", "grant_types": []string{"authorization_code", "refresh_token"},
		"response_types": []string{"code"},
	})
}

func decodeBody(w http.ResponseWriter, r *http.Request, into any) error {
	http.NewResponseController(w).SetReadDeadline(time.Now().Add(authTime))
	return json.NewDecoder(http.MaxBytesReader(w, r.Body, mostBody)).Decode(into)
}

// checkRedirects returns an error unless each address is one to which a browser can be sent safely.
func checkRedirects(all []string) error {
	if len(all) == 0 || len(all) > mostURIs {
		return fmt.Errorf("redirect_uris has %d entries; expected 1 to %d", len(all), mostURIs)
	}
	for _, one := range all {
		u, err := url.Parse(one)
		bad := err != nil || len(one) > mostURI || u.Scheme == "" || u.Fragment != "" || u.User != nil ||
			strings.ContainsFunc(one, func(r rune) bool {
				return r <= ' ' || r == '"' || r == '<' || r == '>' || r == ';' || r == ',' || r > '~'
			})
		if !bad {
			switch strings.ToLower(u.Scheme) {
			case "https":
				bad = u.Host == ""
			case "http":
				bad = !isLoopback(u.Hostname()) || u.Host == ""
			case "javascript", "data", "file", "blob", "vbscript", "about", "ftp", "ws", "wss":
				bad = true
			}
		}
		if bad {
			return fmt.Errorf("redirect URI %q: expected https, http on this machine, or a scheme of the client",
				clip(one))
		}
	}
	return nil
}

// allows reports whether a redirect URI is one of the client's. Of those on loopback the port may differ (RFC 8252).
func (c *oauthClient) allows(uri string) bool {
	return slices.ContainsFunc(c.Redirects, func(known string) bool {
		if uri == known {
			return true
		}
		a, err := url.Parse(known)
		b, err2 := url.Parse(uri)
		if err != nil || err2 != nil || a.Scheme != "http" || !isLoopback(a.Hostname()) ||
			a.Hostname() != b.Hostname() {
			return false
		}
		a.Host, b.Host = "", ""
		return *a == *b
	})
}

// findClient returns a client by its id: one that registered, or one that the document at that address describes.
func (a *authServer) findClient(ctx context.Context, id string) (c oauthClient, err error) {
	if strings.HasPrefix(id, "https://") {
		return a.documents.fetch(ctx, id)
	}
	db, err := a.s.store.reader()
	if err != nil {
		return c, err
	}
	if db == nil {
		return c, errNoClient
	}
	var redirects string
	err = db.QueryRowContext(ctx, "SELECT id, name, redirects FROM oauth_client WHERE id = ?", id).
		Scan(&c.ID, &c.Name, &redirects)
	if errors.Is(err, sql.ErrNoRows) {
		err = errNoClient
	}
	c.Redirects = unlist(redirects)
	return c, err
}

var errNoClient = errors.New("there is no such client; it has to register again")

// authRequest is an authorization request that was checked.
type authRequest struct {
	client                       oauthClient
	redirect, state, challenge   string
	scopes                       []string
	context                      string
	user, password, grant, allow string // of the form
}

// errRedirect is a mistake in a request that its client is told about.
type errRedirect struct{ code, message string }

func (e *errRedirect) Error() string { return e.message }

// parse checks a request. An *errRedirect goes to the client; with any other error, the client or its address is
// wrong, and the browser goes nowhere.
func (a *authServer) parse(ctx context.Context, v url.Values) (q authRequest, err error) {
	for name, values := range v {
		if len(values) > 1 {
			return q, fmt.Errorf("%s is given twice", clip(name))
		}
	}
	if q.client, err = a.findClient(ctx, v.Get("client_id")); err != nil {
		return q, err
	}
	if q.redirect = v.Get("redirect_uri"); q.redirect == "" && len(q.client.Redirects) == 1 {
		q.redirect = q.client.Redirects[0]
	}
	if !q.client.allows(q.redirect) {
		return q, errors.New("the client did not register the address to which it wants the browser to be sent")
	}
	q.state, q.challenge = v.Get("state"), v.Get("code_challenge")
	q.user, q.password, q.grant, q.allow = v.Get("user"), v.Get("password"), v.Get("grant"), v.Get("decision")
	switch {
	case v.Get("response_type") != "code":
		return q, &errRedirect{"unsupported_response_type", "response_type is not code"}
	case v.Get("code_challenge_method") != "S256", len(q.challenge) != base64.RawURLEncoding.EncodedLen(sha256.Size):
		return q, &errRedirect{"invalid_request", "code_challenge is missing; expected PKCE with S256"}
	}
	ok := false
	if q.context, ok = a.contextOf(v.Get("resource")); !ok {
		return q, &errRedirect{"invalid_target", "resource is not " + a.issuer + "/mcp"}
	}
	for scope := range strings.FieldsSeq(v.Get("scope")) {
		if scope == "offline_access" || slices.Contains(q.scopes, scope) {
			continue
		}
		if checkScope(scope) != nil || len(q.scopes) >= mostScopes || !grantable(scope) {
			return q, &errRedirect{"invalid_scope", "a scope is none of this server's"}
		}
		q.scopes = append(q.scopes, scope)
	}
	if len(q.scopes) == 0 {
		q.scopes = []string{everything}
	}
	return q, nil
}

// grantable reports whether a scope has the form of the scopes of tokens; see permit.CheckScope.
func grantable(scope string) bool {
	kind, pattern, ok := strings.Cut(scope, ":")
	return scope == everything || scope == "read" ||
		ok && pattern != "" && slices.Contains([]string{"tools", "resources", "prompts"}, kind)
}

// contextOf returns the context that a resource names; ok is false if it is not one of this server.
func (a *authServer) contextOf(resource string) (context string, ok bool) {
	rest, ours := strings.CutPrefix(resource, a.issuer)
	switch rest = strings.TrimSuffix(rest, "/"); {
	case resource == "", ours && (rest == "" || rest == "/mcp"):
		return "", true
	case ours:
		context, ok = strings.CutPrefix(rest, "/mcp/")
		return context, ok && context != "" && len(context) <= mostName && !strings.ContainsAny(context, "/?#%")
	}
	return "", false
}

// back returns the address to which the browser is sent.
func (a *authServer) back(q *authRequest, pairs ...string) string {
	u, _ := url.Parse(q.redirect) // it was registered
	v := u.Query()
	for i := 0; i+1 < len(pairs); i += 2 {
		v.Set(pairs[i], pairs[i+1])
	}
	if q.state != "" {
		v.Set("state", q.state)
	}
	v.Set("iss", a.issuer)
	u.RawQuery = v.Encode()
	return u.String()
}

// refuseRequest answers a request that cannot be granted. Without a decision of the user the browser goes nowhere, because
// any page can register a client and send a browser here.
func (a *authServer) refuseRequest(w http.ResponseWriter, r *http.Request, q *authRequest, err error) {
	if told, ok := errors.AsType[*errRedirect](err); ok && r.Method == "POST" {
		http.Redirect(w, r, a.back(q, "error", told.code, "error_description", told.message), http.StatusSeeOther)
		return
	}
	a.page(w, 400, q, err.Error())
}

// askConsent shows the consent page.
func (a *authServer) askConsent(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	q, err := a.parse(r.Context(), r.URL.Query())
	if err != nil {
		a.refuseRequest(w, r, &q, err)
		return
	}
	a.page(w, 200, &q, "")
}

// decide handles what a user decided on the consent page. It needs the user's password each time, so that neither a
// cookie nor a page of another origin can allow anything.
func (a *authServer) decide(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if a.s.sameAs.Check(r) != nil {
		writeError(w, 403, "cross_origin", "only the page of this server may do this")
		return
	}
	http.NewResponseController(w).SetReadDeadline(time.Now().Add(authTime))
	r.Body = http.MaxBytesReader(w, r.Body, mostBody)
	if err := r.ParseForm(); err != nil {
		writeError(w, 400, "invalid_request", "expected the form of the page")
		return
	}
	q, err := a.parse(r.Context(), r.PostForm)
	if err != nil {
		a.refuseRequest(w, r, &q, err)
		return
	}
	if q.allow != "allow" {
		a.refuseRequest(w, r, &q, &errRedirect{"access_denied", "the user did not allow it"})
		return
	}
	if a.s.slow(w, r, clip(q.user)) {
		return
	}
	from, _ := From(r)
	acct, err := a.s.verifyEntry(r.Context(), entry{User: q.user, Password: q.password})
	switch {
	case errors.Is(err, errWrong):
		a.s.publishEvent("login_failed", a.s.claimed(r.Context(), q.user), "", from.String())
		a.page(w, 401, &q, err.Error())
		return
	case err != nil:
		a.s.unable(w, r, err)
		return
	}
	if q.grant == "read" {
		q.scopes = []string{"read"}
	}
	code := newLoginSecret()
	hash := digestOf(code)
	err = a.s.createRows(r.Context(), func(tx *sql.Tx) error {
		if _, err := tx.Exec("DELETE FROM oauth_code WHERE until < ?", stamp(clock().Add(-authCodeLife))); err != nil {
			return err
		}
		_, err := tx.Exec(
			"INSERT INTO oauth_code (hash, client, name, redirect, challenge, user, scopes, context, "+
				"until) VALUES (?,?,?,?,?,?,?,?,?)",
			hash[:],
			q.client.ID,
			q.client.Name,
			q.redirect,
			q.challenge,
			acct.number,
			joinNames(q.scopes),
			q.context,
			stamp(clock().Add(authCodeLife)),
		)
		return err
	})
	if err != nil {
		a.s.unable(w, r, err)
		return
	}
	a.s.publishEvent("client_allowed", acct.name, q.client.ID, from.String())
	http.Redirect(w, r, a.back(&q, "code", code), http.StatusSeeOther)
}
