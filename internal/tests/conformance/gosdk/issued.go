package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
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

// issued has the members that issued.mjs prints as well.
type issued struct {
	Revision, Read, Again, First, Second, Scope string
}

// person is a user with a browser, and the tokens that a client got for them.
type person struct {
	user, password string

	mu      sync.Mutex
	got     issued
	expired bool // the first token is used until this is set
	first   *oauth2.Token
	later   oauth2.TokenSource
}

// issue logs in at a host that issues tokens itself, knowing nothing but its address: gosdk issued REVISION URL USER
// PASSWORD. It reads a.txt, has its access token refreshed, and reads it again.
func issue(ctx context.Context, args []string) (*issued, error) {
	if len(args) != 4 {
		return nil, errors.New("want a revision, a URL, a user and a password")
	}
	p := &person{user: args[2], password: args[3]}
	handler, err := auth.NewAuthorizationCodeHandler(&auth.AuthorizationCodeHandlerConfig{
		RedirectURL: done, AuthorizationCodeFetcher: p.allow, RequestRefreshToken: true, Client: http.DefaultClient,
		NewTokenSource: func(ctx context.Context, c *oauth2.Config, t *oauth2.Token) (oauth2.TokenSource, error) {
			old := *t
			old.Expiry = time.Now().Add(-time.Hour)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.first, p.later = t, c.TokenSource(ctx, &old)
			p.got.First = t.AccessToken
			p.got.Scope, _ = t.Extra("scope").(string)
			return p, nil
		},
		DynamicClientRegistrationConfig: &auth.DynamicClientRegistrationConfig{
			Metadata: &oauthex.ClientRegistrationMetadata{
				ClientName: "go-client", RedirectURIs: []string{done}, TokenEndpointAuthMethod: "none",
				GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"},
			},
		},
	})
	if err != nil {
		return nil, err
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "go-client", Version: "1.8.0"}, nil).Connect(ctx,
		&mcp.StreamableClientTransport{Endpoint: args[1], OAuthHandler: handler},
		&mcp.ClientSessionOptions{ProtocolVersion: args[0]})
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	p.got.Revision = session.InitializeResult().ProtocolVersion
	read := func() (text string, err error) {
		r, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "file_read", Arguments: map[string]any{"path": "a.txt"}})
		if err != nil {
			return "", fmt.Errorf("file_read: %w", err)
		}
		for _, c := range r.Content {
			if t, ok := c.(*mcp.TextContent); ok {
				text += t.Text
			}
		}
		return text, nil
	}
	if p.got.Read, err = read(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.expired = true
	p.mu.Unlock()
	if p.got.Again, err = read(); err != nil {
		return nil, err
	}
	return &p.got, session.Close()
}

// Token implements oauth2.TokenSource.
func (p *person) Token() (*oauth2.Token, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.expired {
		return p.first, nil
	}
	t, err := p.later.Token()
	if err == nil {
		p.got.Second = t.AccessToken
	}
	return t, err
}

var hidden = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// allow fills in the consent page.
func (p *person) allow(ctx context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
	ask, err := http.NewRequestWithContext(ctx, "GET", args.URL, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(ask)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	page, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	form := url.Values{"grant": {"asked"}, "user": {p.user}, "password": {p.password}, "decision": {"allow"}}
	for _, m := range hidden.FindAllStringSubmatch(string(page), -1) {
		form.Set(m[1], html.UnescapeString(m[2]))
	}
	issuer := ask.URL.Scheme + "://" + ask.URL.Host
	post, err := http.NewRequestWithContext(ctx, "POST", issuer+"/auth/authorize", strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	post.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	post.Header.Set("Origin", issuer)
	answer, err := http.DefaultTransport.RoundTrip(post) // does not follow the redirect
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	to, err := answer.Location()
	if err != nil {
		said, _ := io.ReadAll(answer.Body)
		return nil, fmt.Errorf("the consent page answered %s: %s", answer.Status, said)
	}
	q := to.Query()
	return &auth.AuthorizationResult{Code: q.Get("code"), State: q.Get("state"), Iss: q.Get("iss")}, nil
}
