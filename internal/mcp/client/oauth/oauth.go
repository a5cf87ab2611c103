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
	"errors"
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
	HTTP *http.Client // for metadata and tokens; nil means the default one

	ID     string // as the authorization server has assigned it
	Secret string // of ID; "" for a public client
	// Issuer is the authorization server that has assigned ID; "" means the one that the
	// resource names first.
	Issuer      string
	MetadataURL string // https URL of a client ID metadata document; "" for none
	Name        string // for registration
	Redirect    string // where authorization servers send users back to

	// Authorize has the user approve at address, and returns the parameters with which the
	// authorization server sends the user back to Redirect. It must be set unless
	// OwnCredentials is.
	Authorize func(ctx context.Context, address string) (url.Values, error)

	// OwnCredentials gets tokens for the client itself, by ID and either Secret or Key.
	OwnCredentials bool
	Key            crypto.Signer // an RSA or P-256 key for private_key_jwt; nil uses Secret
}

// maxAttempts limits how often one request is authorized again.
const maxAttempts = 3

// Transport sends requests with an access token, which it gets when the server requires one.
// It is safe for concurrent use; one authorization runs at a time.
type Transport struct {
	Base     http.RoundTripper // nil means the default one
	Resource string            // the URL of the MCP server, which tokens are for
	Config   Config

	// authorizing is held while a token is got, which includes a user's approval. It is taken
	// before mu.
	authorizing sync.Mutex

	// mu guards what follows.
	mu      sync.Mutex
	token   token
	clients map[string]credentials // by issuer, for as long as this Transport lives
}

// RoundTrip implements http.RoundTripper. The body of a request that may be repeated must have
// GetBody.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	for try := 0; ; try++ {
		now := t.current()
		out := req.Clone(req.Context())
		if try > 0 && req.GetBody != nil {
			body, err := req.GetBody()
			if err != nil {
				return nil, err
			}
			out.Body = body
		}
		if now.access != "" {
			out.Header.Set("Authorization", "Bearer "+now.access)
		}
		base := t.Base
		if base == nil {
			base = http.DefaultTransport
		}
		resp, err := base.RoundTrip(out)
		if err != nil {
			return nil, err
		}
		challenge := parseChallenge(resp.Header.Values("WWW-Authenticate"))
		more := resp.StatusCode == http.StatusForbidden && challenge["error"] == "insufficient_scope"
		if resp.StatusCode != http.StatusUnauthorized && !more || try >= maxAttempts || req.Body != nil &&
			req.GetBody == nil {
			return resp, nil
		}
		resp.Body.Close()
		if err := t.authorize(req.Context(), now, challenge, more); err != nil {
			return nil, fmt.Errorf("authorization for %s: %w", t.Resource, err)
		}
	}
}

func (t *Transport) current() token {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.token
}

// authorize replaces a token that the server did not accept. more says that its scopes do not
// suffice. If another request has replaced it meanwhile, nothing is done.
func (t *Transport) authorize(ctx context.Context, refused token, challenge map[string]string, more bool) error {
	t.authorizing.Lock()
	defer t.authorizing.Unlock()
	if t.current().access != refused.access {
		return nil
	}
	of, err := t.discover(ctx, challenge["resource_metadata"])
	if err != nil {
		return err
	}
	scopes := t.scopes(of, challenge, refused, more)
	who, err := t.identify(ctx, of, scopes)
	if err != nil {
		return err
	}
	var got token
	switch {
	case t.Config.OwnCredentials:
		got, err = t.ownToken(ctx, of, who, scopes)
	case refused.refresh != "" && refused.issuer == of.server.Issuer && !more:
		if got, err = t.refreshToken(ctx, of, who, refused); err != nil {
			got, err = t.userToken(ctx, of, who, scopes)
		}
	default:
		got, err = t.userToken(ctx, of, who, scopes)
	}
	if err != nil {
		return err
	}
	got.issuer = of.server.Issuer
	t.mu.Lock()
	t.token = got
	t.mu.Unlock()
	return nil
}

// scopes returns what to ask for: what the server requires, otherwise all that it supports; with
// more also what the earlier token had; and offline_access if the authorization server
// gives refresh tokens for it.
func (t *Transport) scopes(of *found, challenge map[string]string, refused token, more bool) []string {
	scopes := strings.Fields(challenge["scope"])
	if len(scopes) == 0 {
		scopes = slices.Clone(of.resource.Scopes)
	}
	if more {
		scopes = append(slices.Clone(refused.scopes), scopes...)
	}
	if !t.Config.OwnCredentials && slices.Contains(of.server.Scopes, "offline_access") {
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

// token is an access token and what is known of it.
type token struct {
	access, refresh string
	issuer          string
	scopes          []string // that were asked for, or granted where the server says so
	expires         time.Time
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

var errNoAuthorize = errors.New("a user has to approve, and there is no way to ask one")
