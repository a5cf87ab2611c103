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

// credentials are what this client is to one authorization server.
type credentials struct {
	id, secret string
	method     string // of authentication at the token endpoint
}

// identify returns the client's credentials at an authorization server, and registers it if
// there is no other way.
func (t *Transport) identify(ctx context.Context, of *found, scopes []string) (credentials, error) {
	c := &t.Config
	switch {
	case c.ID != "":
		return credentials{c.ID, c.Secret, t.authMethod(of, c.Secret != "")}, nil
	case c.MetadataURL != "" && of.server.DocumentIDs:
		return credentials{id: c.MetadataURL, method: "none"}, nil
	}
	t.mu.Lock()
	known, ok := t.clients[of.server.Issuer]
	t.mu.Unlock()
	if ok {
		return known, nil
	}
	if of.server.Registration == "" {
		return credentials{}, errors.New("the authorization server registers no clients; set a client ID that it has assigned")
	}
	known, err := t.registerClient(ctx, of, scopes)
	if err != nil {
		return credentials{}, fmt.Errorf("registration: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.clients == nil {
		t.clients = map[string]credentials{}
	}
	t.clients[of.server.Issuer] = known
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
func (t *Transport) registerClient(ctx context.Context, of *found, scopes []string) (credentials, error) {
	method := "none"
	if offered := of.server.AuthMethods; len(offered) > 0 && !slices.Contains(offered, "none") {
		method = t.authMethod(of, true)
	}
	kind := "web"
	if u, err := url.Parse(t.Config.Redirect); err == nil && (u.Scheme != "https" || u.Hostname() == "localhost") {
		kind = "native"
	}
	body, err := json.Marshal(map[string]any{
		"client_name": cmp.Or(t.Config.Name, "MCP client"), "redirect_uris": []string{t.Config.Redirect},
		"grant_types": []string{"authorization_code", "refresh_token"}, "response_types": []string{"code"},
		"token_endpoint_auth_method": method, "application_type": kind, "scope": strings.Join(scopes, " "),
	})
	if err != nil {
		return credentials{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, of.server.Registration, bytes.NewReader(body))
	if err != nil {
		return credentials{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	var r struct {
		ID     string `json:"client_id"`
		Secret string `json:"client_secret"`
		Method string `json:"token_endpoint_auth_method"`
	}
	if err := t.send(req, &r); err != nil {
		return credentials{}, err
	}
	if r.ID == "" {
		return credentials{}, errors.New("the authorization server has assigned no client ID")
	}
	if r.Secret == "" {
		r.Method = "none"
	}
	return credentials{r.ID, r.Secret, cmp.Or(r.Method, method)}, nil
}

// userToken gets a token by a user's approval, with PKCE.
func (t *Transport) userToken(ctx context.Context, of *found, who credentials, scopes []string) (token, error) {
	if t.Config.Authorize == nil {
		return token{}, errNoAuthorize
	}
	if !of.server.guessed && !slices.Contains(of.server.Challenges, "S256") {
		return token{}, errors.New("the authorization server does not support PKCE with S256")
	}
	verifier, state := randomText(), randomText()
	sum := sha256.Sum256([]byte(verifier))
	at, err := url.Parse(of.server.Authorization)
	if err != nil {
		return token{}, err
	}
	q := at.Query()
	for k, v := range map[string]string{
		"response_type": "code", "client_id": who.id, "redirect_uri": t.Config.Redirect, "state": state,
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
	back, err := t.Config.Authorize(ctx, at.String())
	if err != nil {
		return token{}, err
	}
	code, err := checkCallback(back, state, &of.server)
	if err != nil {
		return token{}, err
	}
	return t.request(ctx, of, who, scopes, url.Values{
		"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {t.Config.Redirect},
		"code_verifier": {verifier},
	})
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
func (t *Transport) refreshToken(ctx context.Context, of *found, who credentials, earlier token) (token, error) {
	got, err := t.request(ctx, of, who, earlier.scopes, url.Values{
		"grant_type": {"refresh_token"}, "refresh_token": {earlier.refresh},
	})
	got.refresh = cmp.Or(got.refresh, earlier.refresh)
	return got, err
}

// ownToken gets a token by the client's own credentials.
func (t *Transport) ownToken(ctx context.Context, of *found, who credentials, scopes []string) (token, error) {
	form := url.Values{"grant_type": {"client_credentials"}}
	if len(scopes) > 0 {
		form.Set("scope", strings.Join(scopes, " "))
	}
	return t.request(ctx, of, who, scopes, form)
}

// request sends a request to the token endpoint.
func (t *Transport) request(
	ctx context.Context, of *found, who credentials, scopes []string, form url.Values,
) (token, error) {
	if of.audience != "" {
		form.Set("resource", of.audience)
	}
	switch who.method {
	case "client_secret_basic":
	case "private_key_jwt":
		assertion, err := t.assertion(who.id, of.server.Issuer)
		if err != nil {
			return token{}, err
		}
		form.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
		form.Set("client_assertion", assertion)
		form.Set("client_id", who.id)
	case "client_secret_post":
		form.Set("client_secret", who.secret)
		form.Set("client_id", who.id)
	default:
		form.Set("client_id", who.id)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, of.server.Token, strings.NewReader(form.Encode()))
	if err != nil {
		return token{}, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if who.method == "client_secret_basic" {
		req.SetBasicAuth(url.QueryEscape(who.id), url.QueryEscape(who.secret))
	}
	var r struct {
		Access  string `json:"access_token"`
		Kind    string `json:"token_type"`
		Refresh string `json:"refresh_token"`
		Scope   string `json:"scope"`
		Seconds int64  `json:"expires_in"`
	}
	if err := t.send(req, &r); err != nil {
		return token{}, fmt.Errorf("token: %w", err)
	}
	if r.Access == "" || !strings.EqualFold(r.Kind, "bearer") {
		return token{}, errors.New("token: the authorization server has issued no bearer token")
	}
	got := token{access: r.Access, refresh: r.Refresh, scopes: scopes}
	if r.Scope != "" {
		got.scopes = strings.Fields(r.Scope)
	}
	if r.Seconds > 0 {
		got.expires = time.Now().Add(time.Duration(r.Seconds) * time.Second)
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
		return fmt.Errorf("the authorization server answered %d: %.100q %.300q", resp.StatusCode, e.Code, e.Text)
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
