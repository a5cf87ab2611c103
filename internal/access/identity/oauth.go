package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"gatehouse/tool"
)

// OAuth makes this host a resource server of one OAuth 2.1 or OpenID Connect
// provider, which issues JWTs as access tokens.
type OAuth struct {
	Issuer string // exactly as in the provider's metadata
	// where callers reach this server, such as https://tools.example.com/mcp; tokens must be issued for it
	Resource string

	Audiences []string // audiences accepted besides Resource
	JWKS      string   // URL of the provider's keys; "" means that its metadata names it
	Scopes    []string // published to clients as the scopes to request
	Required  []string // every token needs all of these

	// Grants maps a scope of the provider to the scopes of tokens that it grants here. A token with
	// none of them grants nothing. nil uses scopes unchanged, and then a token without any scope grants
	// everything that its principal may do.
	Grants map[string][]string

	UserClaim  string // the claim that names the caller; "" means sub
	RolesClaim string // the claim of its roles here, a string or strings; "" means that only users here have roles
	// Client fetches metadata and keys; nil means a default client. Tests set it for a provider of
	// their own.
	Client *http.Client
}

const (
	wellKnown = "/.well-known/oauth-protected-resource"
	skew      = time.Minute // between the provider's clock and ours
)

// algorithms are the accepted signatures. The algorithm none and those with a shared secret are not
// accepted.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
	jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// provider is an OAuth with its keys.
type provider struct {
	OAuth
	keys        *keys
	accepts     jwt.Audience
	host        string // of the issuer; the suffix of the names it defines
	metadataURL string
	document    []byte // the metadata of this resource
}

func newProvider(o OAuth) (*provider, error) {
	if o.UserClaim == "" {
		o.UserClaim = "sub"
	}
	issuer, err := checkURL("issuer", o.Issuer)
	if err != nil {
		return nil, err
	}
	resource, err := checkURL("resource", o.Resource)
	if err != nil {
		return nil, err
	}
	if o.JWKS != "" {
		if _, err := checkURL("keys", o.JWKS); err != nil {
			return nil, err
		}
	}
	for _, scope := range slices.Concat(o.Scopes, o.Required) {
		if err := checkScope(scope); err != nil {
			return nil, err
		}
	}
	p := &provider{
		OAuth:   o,
		keys:    newKeys(o),
		host:    issuer.Host,
		accepts: append(jwt.Audience{o.Resource}, o.Audiences...),
	}
	p.metadataURL = resource.Scheme + "://" + resource.Host + wellKnown + strings.TrimSuffix(
		resource.EscapedPath(),
		"/",
	)
	p.document, err = json.Marshal(struct {
		Resource string   `json:"resource"`
		Servers  []string `json:"authorization_servers"`
		Scopes   []string `json:"scopes_supported,omitempty"`
		Methods  []string `json:"bearer_methods_supported"`
		Name     string   `json:"resource_name"`
	}{o.Resource, []string{o.Issuer}, slices.Concat(o.Scopes, o.Required), []string{"header"}, "gatehouse"})
	return p, err
}

// checkURL returns an error unless s is an https URL, or http on loopback.
func checkURL(what, s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
		strings.ContainsAny(s, "\"\\ ") ||
		u.Scheme != "https" && !(u.Scheme == "http" && isLoopback(u.Hostname())) {
		return nil, fmt.Errorf("%s %q: expected an https URL, without query; http is for loopback", what, s)
	}
	return u, nil
}

// metadata serves the document of RFC 9728.
func (s *Service) metadata(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "max-age=300")
	w.Write(s.oauth.document)
}

// claims are the claims of an access token that are used beyond the registered ones.
type claims struct {
	jwt.Claims
	Scope  string `json:"scope"`
	Scp    names  `json:"scp"` // some providers
	Client string `json:"client_id"`
}

// ofProgram reports whether a token was issued to a client itself and to no user. Without a user the subject is the
// client (RFC 9068, section 2.2); Auth0 and Microsoft Entra say it in claims of their own.
func (c claims) ofProgram(all map[string]any) bool {
	return c.Subject != "" && c.Subject == c.Client || all["gty"] == "client-credentials" || all["idtyp"] == "app"
}

// names is a space-separated string of words, or an array of strings.
type names []string

func (n *names) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*n = strings.Fields(one)
		return nil
	}
	return json.Unmarshal(b, (*[]string)(n))
}

// ofJWT returns the principal of an access token. A verified token is cached until it expires or its
// key is withdrawn.
func (s *Service) ofJWT(ctx context.Context, token string, hash digest) (Principal, error) {
	now := clock()
	if p, ok := s.known.lookup(hash); ok && p.Live(now) && s.oauth.keys.hasKey(p.signer) {
		return p, nil
	}
	epoch := s.known.currentEpoch()
	c, all, kid, err := s.oauth.verify(ctx, token, now)
	if err != nil {
		return Principal{}, err
	}
	p, err := s.subject(ctx, all)
	if err != nil {
		return Principal{}, err
	}
	if p.Scopes, err = s.oauth.scopes(c); err != nil {
		return Principal{}, err
	}
	p.Unattended = c.ofProgram(all)
	p.Way, p.Until, p.signer = ByOAuth, c.Expiry.Time().Add(skew), kid
	p.Credential = oauthID + letters.EncodeToString(hash[:10])
	s.known.storePrincipal(epoch, hash, p)
	return p, nil
}

// verify returns the claims of a token if the provider signed it for this resource and it is valid now.
func (o *provider) verify(
	ctx context.Context,
	token string,
	now time.Time,
) (c claims, all map[string]any, kid string, err error) {
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil || len(parsed.Headers) != 1 {
		return c, nil, "", errToken
	}
	h := parsed.Headers[0]
	if !isAccessToken(h.ExtraHeaders[jose.HeaderType]) {
		return c, nil, "", errToken
	}
	candidates, err := o.keys.findKey(ctx, h.KeyID, h.Algorithm)
	if err != nil {
		return c, nil, "", err
	}
	for _, key := range candidates {
		if parsed.Claims(key.Key, &c, &all) == nil {
			return c, all, key.KeyID, o.hold(c, now)
		}
	}
	return c, nil, "", errToken
}

// isAccessToken reports false for JWTs that are not access tokens: RFC 9068 tokens have the type
// at+jwt, those of older providers JWT or none.
func isAccessToken(typ any) bool {
	s, ok := typ.(string)
	if typ != nil && !ok {
		return false
	}
	s = strings.TrimPrefix(strings.ToLower(s), "application/")
	return s == "" || s == "jwt" || s == "at+jwt"
}

// hold checks the registered claims of a token.
func (o *provider) hold(c claims, now time.Time) error {
	expected := jwt.Expected{Issuer: o.Issuer, AnyAudience: o.accepts, Time: now}
	if c.Expiry == nil || !now.Before(c.Expiry.Time().Add(skew)) || c.ValidateWithLeeway(expected, skew) != nil {
		return errToken
	}
	return nil
}

// subject returns the principal of the claims: the user linked to it, or a name that ends in the
// provider's host and so never equals a user's name here.
func (s *Service) subject(ctx context.Context, all map[string]any) (p Principal, err error) {
	name, _ := all[s.oauth.UserClaim].(string)
	if name == "" || len(name) > mostSubject {
		return p, errToken
	}
	a, linked, err := s.linked(ctx, LinkOAuth, name)
	if err != nil {
		return p, err
	}
	if linked {
		return Principal{Name: a.name, ID: a.id, Roles: a.roles}, nil
	}
	return Principal{Name: url.PathEscape(name) + "@" + s.oauth.host, Roles: s.oauth.roles(all)}, nil
}

func (o *provider) roles(all map[string]any) []string {
	if o.RolesClaim == "" {
		return nil
	}
	b, err := json.Marshal(all[o.RolesClaim])
	var found names
	if err != nil || json.Unmarshal(b, &found) != nil {
		return nil
	}
	found = slices.DeleteFunc(found, func(r string) bool { return checkName("role", r) != nil })
	roles, err := tidyRoles(found)
	if err != nil {
		return nil
	}
	return roles
}

// scopes returns the scopes that a token grants here.
func (o *provider) scopes(c claims) ([]string, error) {
	have := slices.Concat(strings.Fields(c.Scope), c.Scp)
	for _, need := range o.Required {
		if !slices.Contains(have, need) {
			return nil, &ScopeError{o.Required}
		}
	}
	if o.Grants == nil {
		return slices.Compact(slices.Sorted(slices.Values(have))), nil
	}
	var granted []string
	for _, scope := range have {
		granted = append(granted, o.Grants[scope]...)
	}
	if len(granted) == 0 {
		var names []string
		for name := range o.Grants {
			names = append(names, name)
		}
		slices.Sort(names)
		return nil, &ScopeError{names}
	}
	slices.Sort(granted)
	return slices.Compact(granted), nil
}

// StepUp returns the scopes for which the bearer of an access token could ask the provider to reach
// something; enough reports whether given scopes here would suffice. Of several it returns the smallest
// grant, together with the scopes that every token needs. If no scope suffices, and for other kinds of
// credentials, it returns nothing.
func (s *Service) StepUp(who tool.Caller, enough func(scopes []string) bool) (needed []string, challenge string) {
	if s.oauth == nil || !strings.HasPrefix(who.Credential, oauthID) {
		return nil, ""
	}
	least, size := "", math.MaxInt
	for name, granted := range s.oauth.offers() {
		n := len(granted)
		if slices.Contains(granted, "*") {
			n = math.MaxInt - 1 // everything, which is the largest grant although its name is short
		}
		if n < size && enough(slices.Concat(who.Scopes, granted)) {
			least, size = name, n
		}
	}
	if least == "" {
		return nil, ""
	}
	needed = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(s.oauth.Required), least))))
	return needed, s.challenge("insufficient_scope", needed...).Get("WWW-Authenticate")
}

// offers yields the scopes that can be requested, by name, and the scopes that each grants here.
func (o *provider) offers() iter.Seq2[string, []string] {
	return func(yield func(string, []string) bool) {
		names := o.Scopes
		if o.Grants != nil {
			names = slices.Sorted(maps.Keys(o.Grants))
		}
		for _, name := range names {
			granted := o.Grants[name]
			if o.Grants == nil {
				granted = []string{name}
			}
			if !yield(name, granted) {
				return
			}
		}
	}
}

const oauthID = "o_" // the prefix of the public IDs of access tokens

var errNoKeys = errors.New("cannot fetch the keys of the OAuth provider")
