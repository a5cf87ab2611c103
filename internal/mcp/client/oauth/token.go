package oauth

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Client is this client as one authorization server knows it.
type Client struct {
	ID       string `json:"id,omitempty"`
	Secret   string `json:"secret,omitempty"`
	Method   string `json:"method,omitempty"`   // of authentication at the token endpoint
	Redirect string `json:"redirect,omitempty"` // that was registered
}

// identify returns the client at an authorization server, and registers it if there is no other
// way.
func (t *Transport) identify(ctx context.Context, of *found, scopes []string, redirect string) (Client, error) {
	c := &t.Config
	switch {
	case c.ID != "":
		return Client{c.ID, c.Secret, t.authMethod(of, c.Secret != ""), redirect}, nil
	case c.MetadataURL != "" && of.server.DocumentIDs:
		return Client{ID: c.MetadataURL, Method: "none", Redirect: redirect}, nil
	}
	now, err := t.current()
	if err != nil {
		return Client{}, err
	}
	if known := now.Client; known.ID != "" && now.Issuer == of.server.Issuer && known.Redirect == redirect {
		return known, nil
	}
	if of.server.Registration == "" {
		return Client{}, errors.New(
			"the authorization server registers no clients; set a client ID that it has assigned",
		)
	}
	known, err := t.registerClient(ctx, of, scopes, redirect)
	if err != nil {
		return Client{}, fmt.Errorf("registration: %w", err)
	}
	return known, nil
}

// authMethod chooses how the client authenticates at the token endpoint.
func (t *Transport) authMethod(of *found, secret bool) string {
	offered := of.server.AuthMethods
	switch {
	case t.Config.Key != nil:
		return "private_key_jwt"
	case !secret:
		return "none"
	case len(offered) == 0 || slices.Contains(offered, "client_secret_basic"):
		return "client_secret_basic"
	}
	return "client_secret_post"
}

// registerClient registers the client (RFC 7591).
func (t *Transport) registerClient(ctx context.Context, of *found, scopes []string, redirect string) (Client, error) {
	method := "none"
	if offered := of.server.AuthMethods; len(offered) > 0 && !slices.Contains(offered, "none") {
		method = t.authMethod(of, true)
	}
	kind := "web"
	if u, err := url.Parse(redirect); err == nil &&
		(u.Scheme != "https" || u.Hostname() == "localhost" || u.Hostname() == "127.0.0.1") {
		kind = "native"
	}
	body, err := json.Marshal(map[string]any{
		"client_name": cmp.Or(t.Config.Name, "MCP client"), "redirect_uris": []string{redirect},
		"grant_types": []string{"authorization_code", "refresh_token"}, "response_types": []string{"code"},
		"token_endpoint_auth_method": method, "application_type": kind, "scope": strings.Join(scopes, " "),
	})
	if err != nil {
		return Client{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, of.server.Registration, bytes.NewReader(body))
	if err != nil {
		return Client{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	var r struct {
		ID     string `json:"client_id"`
		Secret string `json:"client_secret"`
		Method string `json:"token_endpoint_auth_method"`
	}
	if err := t.send(req, &r); err != nil {
		return Client{}, err
	}
	if r.ID == "" {
		return Client{}, errors.New("the authorization server has assigned no client ID")
	}
	if r.Secret == "" {
		r.Method = "none"
	}
	return Client{r.ID, r.Secret, cmp.Or(r.Method, method), redirect}, nil
}

// Login is an approval of a user that was begun and is not finished. It belongs to one issuer.
type Login struct {
	URL    string // where the user approves
	State  string // what the answer names; it cannot be guessed
	Issuer string
	Scopes []string

	of       *found
	who      Client
	verifier string
}

// savedLogin is a login as JSON. It has the verifier, and the secret of the client if there is one.
type savedLogin struct {
	URL, State, Issuer string
	Scopes             []string
	Server             serverMetadata
	Guessed            bool
	Audience, Verifier string
	Client             Client
}

// MarshalJSON encodes a login with its secrets, so that another process can finish it.
func (l *Login) MarshalJSON() ([]byte, error) {
	return json.Marshal(savedLogin{
		l.URL, l.State, l.Issuer, l.Scopes, l.of.server, l.of.server.guessed, l.of.audience, l.verifier, l.who,
	})
}

// UnmarshalJSON decodes what MarshalJSON has encoded.
func (l *Login) UnmarshalJSON(raw []byte) error {
	var s savedLogin
	if err := json.Unmarshal(raw, &s); err != nil {
		return err
	}
	s.Server.guessed = s.Guessed
	*l = Login{
		URL: s.URL, State: s.State, Issuer: s.Issuer, Scopes: s.Scopes, who: s.Client, verifier: s.Verifier,
		of: &found{server: s.Server, audience: s.Audience},
	}
	return nil
}

// Begin begins a login, with PKCE. redirect is where the authorization server sends the user
// back to. If no request has been refused before, the server is asked what it requires.
func (t *Transport) Begin(ctx context.Context, redirect string) (*Login, error) {
	t.mu.Lock()
	challenge, more := t.wants, t.more
	t.mu.Unlock()
	now, err := t.current()
	if err == nil && challenge == nil {
		challenge, err = t.probe(ctx)
	}
	if err != nil {
		return nil, err
	}
	of, err := t.discover(ctx, challenge["resource_metadata"])
	if err != nil {
		return nil, err
	}
	return t.beginLogin(ctx, of, t.scopes(of, challenge, now, more), redirect)
}

// probe asks the server without a token what it requires.
func (t *Transport) probe(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, metadataTimeout)
	defer cancel()
	body := strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.Resource, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := t.base().RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body.Close()
	return parseChallenge(resp.Header.Values("WWW-Authenticate")), nil
}

func (t *Transport) beginLogin(ctx context.Context, of *found, scopes []string, redirect string) (*Login, error) {
	if !of.server.guessed && !slices.Contains(of.server.Challenges, "S256") {
		return nil, errors.New("the authorization server does not support PKCE with S256")
	}
	who, err := t.identify(ctx, of, scopes, redirect)
	if err != nil {
		return nil, err
	}
	at, err := url.Parse(of.server.Authorization)
	if err != nil || at.Host == "" {
		return nil, errors.New("the authorization server has no page on which a user approves")
	}
	l := &Login{
		State: randomText(), Issuer: of.server.Issuer, Scopes: scopes, of: of, who: who, verifier: randomText(),
	}
	sum := sha256.Sum256([]byte(l.verifier))
	q := at.Query()
	for k, v := range map[string]string{
		"response_type": "code", "client_id": who.ID, "redirect_uri": redirect, "state": l.State,
		"code_challenge": base64.RawURLEncoding.EncodeToString(sum[:]), "code_challenge_method": "S256",
		"resource": of.audience, "scope": strings.Join(scopes, " "),
	} {
		if v != "" {
			q.Set(k, v)
		}
	}
	if slices.Contains(scopes, "offline_access") {
		q.Set("prompt", "consent")
	}
	at.RawQuery = q.Encode()
	l.URL = at.String()
	return l, nil
}

// Finish ends a login with the parameters of the address to which the authorization server has
// sent the user back. They must answer this login and come from its issuer.
func (t *Transport) Finish(ctx context.Context, l *Login, back url.Values) error {
	got, err := t.redeem(ctx, l, back)
	if err != nil {
		return err
	}
	t.authorizing.Lock()
	defer t.authorizing.Unlock()
	return t.save(got)
}

func (t *Transport) redeem(ctx context.Context, l *Login, back url.Values) (Saved, error) {
	code, err := checkCallback(back, l.State, &l.of.server)
	if err != nil {
		return Saved{}, err
	}
	return t.requestToken(ctx, l.of, l.who, l.Scopes, url.Values{
		"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {l.who.Redirect},
		"code_verifier": {l.verifier},
	})
}

// userToken gets a token by a user's approval.
func (t *Transport) userToken(ctx context.Context, of *found, scopes []string) (Saved, error) {
	l, err := t.beginLogin(ctx, of, scopes, t.Config.Redirect)
	if err != nil {
		return Saved{}, err
	}
	back, err := t.Config.Authorize(ctx, l.URL)
	if err != nil {
		return Saved{}, err
	}
	return t.redeem(ctx, l, back)
}

// checkCallback returns the code of an authorization response, which must be the answer to this
// request and come from this authorization server (RFC 9207).
func checkCallback(back url.Values, state string, server *serverMetadata) (code string, err error) {
	issuer := back.Get("iss")
	switch {
	case subtle.ConstantTimeCompare([]byte(back.Get("state")), []byte(state)) != 1:
		return "", errors.New("the authorization response answers another request")
	case issuer == "" && server.SendsIssuer:
		return "", errors.New("the authorization response does not name its issuer")
	case issuer != "" && issuer != server.Issuer:
		return "", fmt.Errorf("the authorization response is of the issuer %.200q instead of %s", issuer, server.Issuer)
	case back.Get("error") != "":
		return "", fmt.Errorf("the authorization was refused: %.100q %.300q", back.Get("error"),
			back.Get("error_description"))
	case back.Get("code") == "":
		return "", errors.New("the authorization response has no code")
	}
	return back.Get("code"), nil
}

// refreshToken gets a token by a refresh token.
func (t *Transport) refreshToken(ctx context.Context, of *found, earlier Saved) (Saved, error) {
	who := earlier.Client
	if c := &t.Config; c.ID != "" {
		who = Client{c.ID, c.Secret, t.authMethod(of, c.Secret != ""), who.Redirect}
	}
	got, err := t.requestToken(ctx, of, who, earlier.Scopes, url.Values{
		"grant_type": {"refresh_token"}, "refresh_token": {earlier.Refresh},
	})
	got.Refresh = cmp.Or(got.Refresh, earlier.Refresh)
	return got, err
}

// ownToken gets a token without a user: by the client's own credentials, or for another token.
func (t *Transport) ownToken(ctx context.Context, of *found, scopes []string) (Saved, error) {
	form := url.Values{"grant_type": {"client_credentials"}}
	if x := t.Config.Exchange; x != nil {
		const access = "urn:ietf:params:oauth:token-type:access_token"
		form = url.Values{
			"grant_type":    {"urn:ietf:params:oauth:grant-type:token-exchange"},
			"subject_token": {x.Token}, "subject_token_type": {cmp.Or(x.Type, access)},
			"requested_token_type": {access},
		}
	}
	who, err := t.identify(ctx, of, scopes, "")
	if err != nil {
		return Saved{}, err
	}
	if len(scopes) > 0 {
		form.Set("scope", strings.Join(scopes, " "))
	}
	got, err := t.requestToken(ctx, of, who, scopes, form)
	got.Refresh = "" // another is got the same way
	return got, err
}

// requestToken sends a request to the token endpoint.
func (t *Transport) requestToken(
	ctx context.Context, of *found, who Client, scopes []string, form url.Values,
) (Saved, error) {
	if of.audience != "" {
		form.Set("resource", of.audience)
	}
	switch who.Method {
	case "client_secret_basic":
	case "private_key_jwt":
		assertion, err := t.assertion(who.ID, of.server.Issuer)
		if err != nil {
			return Saved{}, err
		}
		form.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
		form.Set("client_assertion", assertion)
		form.Set("client_id", who.ID)
	case "client_secret_post":
		form.Set("client_secret", who.Secret)
		form.Set("client_id", who.ID)
	default:
		form.Set("client_id", who.ID)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, of.server.Token, strings.NewReader(form.Encode()))
	if err != nil {
		return Saved{}, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if who.Method == "client_secret_basic" {
		req.SetBasicAuth(url.QueryEscape(who.ID), url.QueryEscape(who.Secret))
	}
	var r struct {
		Access  string `json:"access_token"`
		Kind    string `json:"token_type"`
		Refresh string `json:"refresh_token"`
		Scope   string `json:"scope"`
		Seconds int64  `json:"expires_in"`
	}
	if err := t.send(req, &r); err != nil {
		return Saved{}, fmt.Errorf("token: %w", err)
	}
	if r.Access == "" || !strings.EqualFold(r.Kind, "bearer") {
		return Saved{}, errors.New("token: the authorization server has issued no bearer token")
	}
	got := Saved{
		Resource: t.Resource, Issuer: of.server.Issuer, Access: r.Access, Refresh: r.Refresh, Scopes: scopes,
		Client: who,
	}
	if r.Scope != "" {
		got.Scopes = strings.Fields(r.Scope)
	}
	if r.Seconds > 0 {
		got.Expires = time.Now().Add(time.Duration(r.Seconds) * time.Second)
	}
	return got, nil
}

// send sends a request to an authorization server and decodes its answer.
func (t *Transport) send(req *http.Request, into any) error {
	req.Header.Set("Accept", "application/json")
	resp, err := t.http().Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxMetadata))
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		var e struct {
			Code string `json:"error"`
			Text string `json:"error_description"`
		}
		json.Unmarshal(body, &e) // the status says enough otherwise
		return &errStatus{resp.StatusCode, e.Code, e.Text}
	}
	return json.Unmarshal(body, into)
}

// assertion returns a JWT that authenticates the client (RFC 7523).
func (t *Transport) assertion(id, audience string) (string, error) {
	algorithm := "RS256"
	if k, ok := t.Config.Key.Public().(*ecdsa.PublicKey); ok {
		if algorithm = "ES256"; k.Curve != elliptic.P256() {
			return "", errors.New("the key is of no curve that is supported; use P-256")
		}
	} else if _, ok := t.Config.Key.Public().(*rsa.PublicKey); !ok {
		return "", errors.New("the key is neither RSA nor P-256")
	}
	now := time.Now()
	claims, err := json.Marshal(map[string]any{
		"iss": id, "sub": id, "aud": audience, "jti": randomText(), "iat": now.Unix(),
		"exp": now.Add(time.Minute).Unix(),
	})
	if err != nil {
		return "", err
	}
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(`{"alg":"`+algorithm+`","typ":"JWT"}`)) + "." + encode(claims)
	sum := sha256.Sum256([]byte(text))
	signature, err := t.Config.Key.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err == nil && algorithm == "ES256" {
		signature, err = joseSignature(signature)
	}
	return text + "." + encode(signature), err
}

// joseSignature returns an ECDSA signature of P-256 as JWTs have it: both numbers in 32 bytes.
func joseSignature(der []byte) ([]byte, error) {
	var s struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &s); err != nil {
		return nil, err
	}
	out := make([]byte, 64)
	s.R.FillBytes(out[:32])
	s.S.FillBytes(out[32:])
	return out, nil
}

func randomText() string { return rand.Text() + rand.Text() }
