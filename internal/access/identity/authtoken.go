package identity

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"
)

// errGrant is the error for a code or refresh token that is wrong, used or expired; the client does not learn which.
var errGrant = errors.New("the code or refresh token is not valid: let the user allow the client again")

// issued is an answer of the token endpoint.
type issued struct {
	access, refresh string
	scopes          []string
}

// token serves the token endpoint.
func (a *authServer) token(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	http.NewResponseController(w).SetReadDeadline(time.Now().Add(authTime))
	r.Body = http.MaxBytesReader(w, r.Body, mostBody)
	if err := r.ParseForm(); err != nil {
		oauthError(w, "invalid_request", "expected a form")
		return
	}
	v := r.PostForm
	if _, ok := a.contextOf(v.Get("resource")); !ok {
		oauthError(w, "invalid_target", "resource is not "+a.issuer+"/mcp")
		return
	}
	var out issued
	var err error
	switch v.Get("grant_type") {
	case "authorization_code":
		out, err = a.redeem(r.Context(), v.Get("code"), v.Get("client_id"), v.Get("redirect_uri"),
			v.Get("code_verifier"), v.Get("resource"))
	case "refresh_token":
		out, err = a.refresh(r.Context(), v.Get("refresh_token"), v.Get("client_id"), v.Get("scope"))
	default:
		oauthError(w, "unsupported_grant_type", "expected authorization_code or refresh_token")
		return
	}
	switch {
	case errors.Is(err, errGrant):
		from, _ := From(r)
		a.s.publishEvent("refused", "", "", from.String())
		oauthError(w, "invalid_grant", err.Error())
	case err != nil:
		a.s.unable(w, r, err)
	default:
		writeJSON(w, 200, map[string]any{
			"access_token": out.access, "token_type": "Bearer", "expires_in": int(accessLife / time.Second),
			"refresh_token": out.refresh, "scope": strings.Join(out.scopes, " "),
		})
	}
}

// redeem exchanges a code. A code that is used twice was stolen, so that its grant ends.
func (a *authServer) redeem(
	ctx context.Context,
	code, client, redirect, verifier, resource string,
) (out issued, err error) {
	hash, now := digestOf(code), clock()
	sum := sha256.Sum256([]byte(verifier))
	challenge := base64.RawURLEncoding.EncodeToString(sum[:])
	if len(verifier) < 43 || len(verifier) > 128 {
		return out, errGrant
	}
	twice := ""
	err = a.s.changeRows(ctx, errGrant, func(tx *sql.Tx) error {
		var of, name, at, want, scopes, bound, used string
		var user, until int64
		err := tx.QueryRow("SELECT client, name, redirect, challenge, user, scopes, context, until, "+
			"grant_id FROM oauth_code WHERE hash = ?",
			hash[:]).
			Scan(&of, &name, &at, &want, &user, &scopes, &bound, &until, &used)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return errGrant
		case err != nil:
			return err
		case used != "":
			twice = used
			return a.endGrant(tx, used)
		case of != client, redirect != "" && redirect != at, !now.Before(moment(until)),
			subtle.ConstantTimeCompare([]byte(want), []byte(challenge)) != 1:
			return errGrant
		}
		if asked, ok := a.contextOf(resource); !ok || resource != "" && asked != bound {
			return errGrant
		}
		g := grant{id: newID("g_"), client: client, name: name, user: user, scopes: unlist(scopes), context: bound}
		if out, err = a.issue(tx, &g, now); err != nil {
			return err
		}
		_, err = tx.Exec("UPDATE oauth_code SET grant_id = ? WHERE hash = ?", g.id, hash[:])
		return err
	})
	if err == nil && twice != "" {
		err = errGrant
	}
	return out, err
}

// grant is what a user has allowed a client.
type grant struct {
	id, client, name string
	user             int64
	scopes           []string
	context          string
	prior            []byte // the refresh token that is exchanged; nil for a new grant
}

// issue makes an access token and a refresh token for a grant, and stores them.
func (a *authServer) issue(tx *sql.Tx, g *grant, now time.Time) (out issued, err error) {
	out = issued{newSecret(tokenPrefix), newLoginSecret(), g.scopes}
	access, refresh, id := digestOf(out.access), digestOf(out.refresh), newID("t_")
	name := clip("client " + cmp.Or(g.name, g.client))
	if _, err := tx.Exec(`INSERT INTO token (id, hash, user, name, context, scopes, created, until) VALUES (?,?,?,?,?,?,?,?)`,
		id, access[:], g.user, name, g.context, joinNames(g.scopes), stamp(now),
		stamp(now.Add(accessLife))); err != nil {
		return out, err
	}
	if _, err := tx.Exec("INSERT INTO oauth_token VALUES (?, ?)", id, g.id); err != nil {
		return out, err
	}
	// Access tokens that have expired are of no use, and would count as tokens of the user.
	if _, err := tx.Exec("DELETE FROM token WHERE until < ? AND id IN (SELECT token FROM oauth_token)", stamp(now)); err != nil {
		return out, err
	}
	if _, err := tx.Exec(`INSERT INTO oauth_grant VALUES (?,?,?,?,?,?,?,?,?,?) ON CONFLICT (id) DO UPDATE SET
		refresh = excluded.refresh, prior = excluded.prior, token = excluded.token, until = excluded.until`,
		g.id, g.client, g.name, g.user, joinNames(g.scopes), g.context, refresh[:], g.prior, id,
		stamp(now.Add(grantLife))); err != nil {
		return out, err
	}
	rows, err := tx.Query("SELECT id FROM oauth_grant WHERE user = ? ORDER BY until DESC, id LIMIT -1 OFFSET ?", g.user,
		mostGrants)
	if err != nil {
		return out, err
	}
	var old []string
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return out, errors.Join(err, rows.Close())
		}
		old = append(old, id)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return out, err
	}
	for _, id := range old {
		if err := a.endGrant(tx, id); err != nil {
			return out, err
		}
	}
	return out, nil
}

// refresh exchanges a refresh token for a new one. One that was exchanged before was stolen, so that its grant ends;
// so does a grant whose access token was revoked.
func (a *authServer) refresh(ctx context.Context, secret, client, scope string) (out issued, err error) {
	hash, now := digestOf(secret), clock()
	ended := false
	err = a.s.changeRows(ctx, errGrant, func(tx *sql.Tx) error {
		g := grant{prior: hash[:]}
		var scopes string
		var until int64
		var current, alive bool
		err := tx.QueryRow(`SELECT id, client, name, user, scopes, context, until, refresh = ?1,
			EXISTS (SELECT 1 FROM token WHERE token.id = oauth_grant.token)
			FROM oauth_grant WHERE refresh = ?1 OR prior = ?1`, hash[:]).
			Scan(&g.id, &g.client, &g.name, &g.user, &scopes, &g.context, &until, &current, &alive)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return errGrant
		case err != nil:
			return err
		case g.client != client:
			return errGrant
		case !current, !alive, !now.Before(moment(until)):
			ended = true
			return a.endGrant(tx, g.id)
		}
		g.scopes = unlist(scopes)
		for one := range strings.FieldsSeq(scope) {
			if one != "offline_access" && !slices.Contains(g.scopes, one) {
				return errGrant
			}
		}
		out, err = a.issue(tx, &g, now)
		return err
	})
	if err == nil && ended {
		err = errGrant
	}
	return out, err
}

// endGrant removes a grant with its tokens, and ends what was opened with them.
func (a *authServer) endGrant(tx *sql.Tx, id string) error {
	rows, err := tx.Query(`SELECT token.id, user.name FROM oauth_token JOIN token ON token.id = oauth_token.token
		JOIN user ON user.number = token.user WHERE grant_id = ?`, id)
	if err != nil {
		return err
	}
	var ended []Revocation
	for rows.Next() {
		var r Revocation
		if err := rows.Scan(&r.Credential, &r.Principal); err != nil {
			return errors.Join(err, rows.Close())
		}
		ended = append(ended, r)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	if _, err := tx.Exec("DELETE FROM token WHERE id IN (SELECT token FROM oauth_token WHERE grant_id = ?)", id); err != nil {
		return err
	}
	if _, err := tx.Exec("DELETE FROM oauth_grant WHERE id = ?", id); err != nil {
		return err
	}
	return recordRevocations(tx, clock(), ended...)
}

// revoke ends the grant of an access token or a refresh token (RFC 7009). It answers the same for every token.
func (a *authServer) revoke(w http.ResponseWriter, r *http.Request) {
	http.NewResponseController(w).SetReadDeadline(time.Now().Add(authTime))
	r.Body = http.MaxBytesReader(w, r.Body, mostBody)
	if err := r.ParseForm(); err != nil {
		oauthError(w, "invalid_request", "expected a form")
		return
	}
	hash := digestOf(r.PostForm.Get("token"))
	err := a.s.changeRows(r.Context(), errGrant, func(tx *sql.Tx) error {
		var id string
		err := tx.QueryRow(`SELECT id FROM oauth_grant WHERE refresh = ?1 OR prior = ?1
			UNION SELECT grant_id FROM oauth_token JOIN token ON token.id = oauth_token.token WHERE hash = ?1 LIMIT 1`,
			hash[:]).Scan(&id)
		if errors.Is(err, sql.ErrNoRows) {
			return errGrant
		}
		if err != nil {
			return err
		}
		return a.endGrant(tx, id)
	})
	if err != nil && !errors.Is(err, errGrant) {
		a.s.unable(w, r, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(200)
}
