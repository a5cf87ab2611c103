package oauth

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

const maxMetadata = 1 << 20 // bytes of one document

// resourceMetadata is the metadata of a protected resource (RFC 9728).
type resourceMetadata struct {
	Resource string   `json:"resource"`
	Servers  []string `json:"authorization_servers"`
	Scopes   []string `json:"scopes_supported"`
}

// serverMetadata is the metadata of an authorization server (RFC 8414).
type serverMetadata struct {
	Issuer        string   `json:"issuer"`
	Authorization string   `json:"authorization_endpoint"`
	Token         string   `json:"token_endpoint"`
	Registration  string   `json:"registration_endpoint"`
	Scopes        []string `json:"scopes_supported"`
	AuthMethods   []string `json:"token_endpoint_auth_methods_supported"`
	Challenges    []string `json:"code_challenge_methods_supported"`
	DocumentIDs   bool     `json:"client_id_metadata_document_supported"`
	SendsIssuer   bool     `json:"authorization_response_iss_parameter_supported"`

	guessed bool // there is no metadata: the endpoints of revision 2025-03-26
}

// found is what discovery has found.
type found struct {
	resource resourceMetadata
	server   serverMetadata
	audience string // the resource parameter; "" sends none
}

// errAbsent means that there is no document at an address.
var errAbsent = errors.New("there is no metadata")

// discover finds the authorization server of the resource. at is the address of the resource's
// metadata if the server has named it.
func (t *Transport) discover(ctx context.Context, at string) (*found, error) {
	resource, err := url.Parse(t.Resource)
	if err != nil {
		return nil, err
	}
	origin := resource.Scheme + "://" + resource.Host
	var of found
	addresses := []string{at}
	if at == "" {
		const wellKnown = "/.well-known/oauth-protected-resource"
		addresses = []string{origin + wellKnown + strings.TrimSuffix(resource.EscapedPath(), "/"), origin + wellKnown}
	}
	err = t.firstDocument(ctx, slices.Compact(addresses), &of.resource)
	switch {
	case errors.Is(err, errAbsent) && at == "":
		return t.discoverOldServer(ctx, origin)
	case err != nil:
		return nil, fmt.Errorf("metadata of the resource: %w", err)
	case !covers(of.resource.Resource, t.Resource):
		return nil, fmt.Errorf("the metadata is of the resource %.200q", of.resource.Resource)
	case len(of.resource.Servers) == 0:
		return nil, errors.New("the metadata of the resource names no authorization server")
	}
	of.audience = of.resource.Resource
	issuer := of.resource.Servers[0]
	if want := t.Config.Issuer; want != "" {
		if !slices.Contains(of.resource.Servers, want) {
			return nil, fmt.Errorf("the resource no longer names the authorization server %.200q", want)
		}
		issuer = want
	}
	of.server, err = t.serverMetadata(ctx, issuer)
	return &of, err
}

// discoverOldServer finds the authorization server of a resource of revision 2025-03-26, which
// is at its origin.
func (t *Transport) discoverOldServer(ctx context.Context, origin string) (*found, error) {
	server, err := t.serverMetadata(ctx, origin)
	if errors.Is(err, errAbsent) {
		server, err = serverMetadata{
			Issuer: origin, Authorization: origin + "/authorize", Token: origin + "/token",
			Registration: origin + "/register", guessed: true,
		}, nil
	}
	return &found{server: server, audience: t.Resource}, err
}

// serverMetadata finds the metadata of an authorization server, which must be its own.
func (t *Transport) serverMetadata(ctx context.Context, issuer string) (m serverMetadata, err error) {
	u, err := url.Parse(issuer)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return m, fmt.Errorf("%.200q is no authorization server", issuer)
	}
	origin, path := u.Scheme+"://"+u.Host, strings.Trim(u.EscapedPath(), "/")
	const oauth, openID = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
	addresses := []string{origin + oauth, origin + openID}
	if path != "" {
		addresses = []string{origin + oauth + "/" + path, origin + openID + "/" + path, origin + "/" + path + openID}
	}
	if err := t.firstDocument(ctx, addresses, &m); err != nil {
		return m, fmt.Errorf("metadata of the authorization server %s: %w", issuer, err)
	}
	if m.Issuer != issuer {
		return m, fmt.Errorf("the metadata of the authorization server %s is of %.200q", issuer, m.Issuer)
	}
	for _, endpoint := range []string{m.Token, cmp.Or(m.Authorization, m.Token), cmp.Or(m.Registration, m.Token)} {
		if e, err := url.Parse(endpoint); err != nil || e.Host == "" || e.Scheme != "https" && e.Scheme != u.Scheme {
			return m, fmt.Errorf("the metadata of the authorization server %s has the endpoint %.200q", issuer,
				endpoint)
		}
	}
	return m, nil
}

// covers reports whether a resource is a server or a part of its address that leads to it.
func covers(resource, server string) bool {
	r, err := url.Parse(resource)
	s, err2 := url.Parse(server)
	if err != nil || err2 != nil || r.Host == "" || !strings.EqualFold(r.Scheme, s.Scheme) ||
		!strings.EqualFold(r.Host, s.Host) {
		return false
	}
	path := strings.TrimSuffix(r.EscapedPath(), "/")
	return s.EscapedPath() == path || strings.HasPrefix(s.EscapedPath(), path+"/") ||
		path == "" && s.EscapedPath() == ""
}

// firstDocument decodes the first document that exists.
func (t *Transport) firstDocument(ctx context.Context, addresses []string, into any) error {
	for _, at := range addresses {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Accept", "application/json")
		resp, err := t.http().Do(req)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxMetadata))
		resp.Body.Close()
		switch {
		case err != nil:
			return err
		case resp.StatusCode >= 500:
			return fmt.Errorf("%s answered %d", at, resp.StatusCode)
		case resp.StatusCode != http.StatusOK:
			continue
		}
		if err := json.NewDecoder(bytes.NewReader(body)).Decode(into); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		return nil
	}
	return errAbsent
}

func (t *Transport) http() *http.Client {
	if t.Config.HTTP != nil {
		return t.Config.HTTP
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.guarded == nil {
		t.guarded = newGuard(t.Resource)
	}
	return t.guarded
}
