package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"
)

const done = "https://callback.test/done"

// admitted has the members that oauth.mjs prints as well.
type admitted struct {
	Era, Revision, Read, Again, Written, Client string
	Before, After, Steps                        []string
}

// visitor is a client with OAuth that records its steps.
type visitor struct {
	target string
	http   *http.Client
	mu     sync.Mutex
	got    admitted
}

// admit logs in with OAuth; the provider knows the client by registration or by a document: gosdk oauth REVISION
// registers|document URL. It reads a.txt, refreshes its token, and writes b.txt, which requires another scope.
func admit(ctx context.Context, args []string) (*admitted, error) {
	if len(args) != 3 {
		return nil, errors.New("want a revision, registers or document, and a URL")
	}
	v := &visitor{target: args[2]}
	v.http = &http.Client{Transport: v}
	handler, err := auth.NewAuthorizationCodeHandler(v.config(args[1] == "document"))
	if err != nil {
		return nil, err
	}
	connect := func() (*mcp.ClientSession, error) {
		client := mcp.NewClient(&mcp.Implementation{Name: "go-client", Version: "1.8.0"}, nil)
		return client.Connect(
			ctx,
			&mcp.StreamableClientTransport{Endpoint: v.target, HTTPClient: v.http, OAuthHandler: handler},
			&mcp.ClientSessionOptions{ProtocolVersion: args[0]},
		)
	}
	session, err := connect()
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	v.got.Revision = session.InitializeResult().ProtocolVersion
	err = v.work(ctx, session)
	// A client caches the lists of the newest revision for a while; a new client has no cache.
	other, failed := connect()
	if failed != nil {
		return nil, fmt.Errorf("connect again: %w", failed)
	}
	v.got.After, failed = names(ctx, other)
	return &v.got, errors.Join(err, failed, session.Close(), other.Close())
}

func names(ctx context.Context, s *mcp.ClientSession) (all []string, err error) {
	r, err := s.ListTools(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list tools: %w", err)
	}
	for _, t := range r.Tools {
		all = append(all, t.Name)
	}
	return all, nil
}

func (v *visitor) work(ctx context.Context, s *mcp.ClientSession) (err error) {
	call := func(name string, args map[string]any) (text string) {
		if err != nil {
			return ""
		}
		r, failed := s.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: args})
		if failed != nil {
			err = fmt.Errorf("%s: %w", name, failed)
			return ""
		}
		for _, c := range r.Content {
			if t, ok := c.(*mcp.TextContent); ok {
				text += t.Text
			}
		}
		return text
	}
	v.got.Before, err = names(ctx, s)
	v.got.Read = call("file_read", map[string]any{"path": "a.txt"})
	v.got.Again = call("file_read", map[string]any{"path": "a.txt"})
	v.step("- a tool that needs more")
	call("file_write", map[string]any{"path": "b.txt", "content": "written"})
	v.got.Written = call("file_read", map[string]any{"path": "b.txt"})
	return err
}

func (v *visitor) config(document bool) *auth.AuthorizationCodeHandlerConfig {
	c := &auth.AuthorizationCodeHandlerConfig{
		RedirectURL: done, AuthorizationCodeFetcher: v.agree, RequestRefreshToken: true, Client: v.http,
		// The first token is treated as expired, so that it is refreshed at its first use.
		NewTokenSource: func(ctx context.Context, c *oauth2.Config, t *oauth2.Token) (oauth2.TokenSource, error) {
			v.mu.Lock()
			v.got.Client = c.ClientID
			v.mu.Unlock()
			old := *t
			old.Expiry = time.Now().Add(-time.Hour)
			return c.TokenSource(ctx, &old), nil
		},
	}
	if document {
		c.ClientIDMetadataDocumentConfig = &auth.ClientIDMetadataDocumentConfig{URL: "https://client.test/oauth-client"}
		return c
	}
	c.DynamicClientRegistrationConfig = &auth.DynamicClientRegistrationConfig{
		Metadata: &oauthex.ClientRegistrationMetadata{
			ClientName: "go-client", RedirectURIs: []string{done}, TokenEndpointAuthMethod: "none",
			GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"},
		},
	}
	return c
}

// agree acts as the browser of a user who agrees to everything.
func (v *visitor) agree(ctx context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
	ask, err := url.Parse(args.URL)
	if err != nil {
		return nil, err
	}
	q := ask.Query()
	v.step("authorize [%s] %s%s", q.Get("scope"), q.Get("code_challenge_method"), forResource(q))
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	browser := &http.Client{Jar: jar, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if r.URL.Host == "callback.test" {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	r, err := http.NewRequestWithContext(ctx, "GET", args.URL, nil)
	if err != nil {
		return nil, err
	}
	res, err := browser.Do(r)
	if err != nil {
		return nil, err
	}
	res.Body.Close()
	back, err := res.Location()
	if err != nil {
		return nil, fmt.Errorf("authorizing ended with %s: %w", res.Status, err)
	}
	got := back.Query()
	return &auth.AuthorizationResult{Code: got.Get("code"), State: got.Get("state"), Iss: got.Get("iss")}, nil
}

func (v *visitor) step(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.got.Steps = append(v.got.Steps, fmt.Sprintf(format, args...))
}

func forResource(q url.Values) string {
	if q.Has("resource") {
		return " for the resource"
	}
	return ""
}

var (
	challenged = regexp.MustCompile(`error="([^"]*)"`)
	scoped     = regexp.MustCompile(`scope="([^"]*)"`)
)

func first(re *regexp.Regexp, s string) string {
	if m := re.FindStringSubmatch(s); m != nil {
		return m[1]
	}
	return ""
}

// RoundTrip records the steps that a request shows.
func (v *visitor) RoundTrip(r *http.Request) (*http.Response, error) {
	var form url.Values
	if r.Method == "POST" && strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-www-form-urlencoded") {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r.Body.Close()
		r.Body = io.NopCloser(bytes.NewReader(body))
		form, _ = url.ParseQuery(string(body))
	}
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	challenge := res.Header.Get("WWW-Authenticate")
	switch at := r.URL.Path; {
	case r.URL.String() == v.target && challenge != "":
		v.step("%d %s [%s]", res.StatusCode, first(challenged, challenge), first(scoped, challenge))
	case strings.HasPrefix(at, "/.well-known/oauth-protected-resource"):
		v.step("metadata %d", res.StatusCode)
	case at == "/reg":
		v.step("registration %d", res.StatusCode)
	case at == "/token":
		v.step("token %s %d%s", form.Get("grant_type"), res.StatusCode, forResource(form))
	}
	return res, nil
}
