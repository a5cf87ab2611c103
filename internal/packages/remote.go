package packages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/mcp/client"
	"gatehouse/internal/mcp/rawjson"
)

const (
	// quiet is how long the connection to a server at an address carries nothing before the server is asked for a sign
	// of life.
	quiet = 30 * time.Second

	bearer      = "Bearer "
	maxHeaders  = 50
	dialTimeout = 10 * time.Second // for the connection and the TLS handshake of a remote server
)

// reservedHeaders are set by the protocol or the transport, so a record cannot set them.
var reservedHeaders = []string{
	"Accept", "Connection", "Content-Length", "Content-Type", "Host", "Last-Event-Id", "Mcp-Method", "Mcp-Name",
	"Mcp-Protocol-Version", "Mcp-Session-Id", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// checkRemote validates the address and the headers of a remote server.
func (r *Record) checkRemote() error {
	switch {
	case r.Source.Kind != URL && len(r.PassHeaders) > 0:
		return invalid("pass_headers: only a package with a source url:ADDRESS has any")
	case !r.Source.IsRemote() && len(r.Headers) > 0:
		return invalid("headers: only a package whose server runs already, at an address, has any")
	case !r.Source.IsRemote():
		return nil
	}
	if err := r.checkAddress(); err != nil {
		return err
	}
	switch {
	case r.Command != "" || len(r.Args) > 0 || len(r.Env) > 0:
		return invalid("command, args and env: a remote server has none")
	case len(r.Headers) > maxHeaders || totalSize(slices.Collect(maps.Values(r.Headers))) > maxText:
		return invalid("headers: at most %d, with %d bytes together", maxHeaders, maxText)
	}
	if err := r.checkPassed(); err != nil {
		return err
	}
	for name, value := range r.Headers {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if r.Source.Kind != URL && (canonical != "Authorization" || !strings.HasPrefix(value, bearer)) {
			return invalid("headers: a socket has none but Authorization, which is Bearer and the token of the server")
		}
		if !headerForm(name) || slices.Contains(reservedHeaders, canonical) ||
			strings.HasPrefix(canonical, "Mcp-Param-") {
			return invalid("headers: %q cannot be set", name)
		}
		if strings.ContainsAny(value, "\r\n\x00") {
			return invalid("headers %s: expected one line", name)
		}
		if _, err := secret.Names(value); err != nil {
			return invalid("headers %s: %v", name, err)
		}
	}
	return nil
}

// hopHeaders are those of one connection, besides the reserved ones.
var hopHeaders = []string{
	"Keep-Alive",
	"Proxy-Authenticate",
	"Proxy-Authorization",
	"Proxy-Connection",
	"Origin",
	"Referer",
}

// checkPassed validates the names of headers that clients may pass on.
func (r *Record) checkPassed() error {
	if len(r.PassHeaders) > maxHeaders {
		return invalid("pass_headers: at most %d", maxHeaders)
	}
	for i, name := range r.PassHeaders {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if !headerForm(name) || slices.Contains(reservedHeaders, canonical) || slices.Contains(hopHeaders, canonical) ||
			strings.HasPrefix(canonical, "Mcp-") || strings.HasPrefix(canonical, "X-Mcp-") {
			return invalid("pass_headers: %q cannot be passed on; name a header of the server itself, such as X-Tenant",
				name)
		}
		for set := range r.Headers {
			if textproto.CanonicalMIMEHeaderKey(set) == canonical {
				return invalid("pass_headers: %q is set by headers", name)
			}
		}
		r.PassHeaders[i] = canonical
	}
	return nil
}

type forwardKey struct{}

// Forwarding returns a context for requests that a client made with these headers, by canonical
// name. Those that a package may get go on to its server.
func Forwarding(ctx context.Context, headers map[string]string) context.Context {
	if len(headers) == 0 {
		return ctx
	}
	return context.WithValue(ctx, forwardKey{}, headers)
}

// passed returns of the headers of a client's request those that go on to the server.
func (p *managedPackage) passed(ctx context.Context) (some map[string]string) {
	all, _ := ctx.Value(forwardKey{}).(map[string]string)
	if len(all) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range p.rec.PassHeaders {
		if value, ok := all[name]; ok {
			if some == nil {
				some = map[string]string{}
			}
			some[name] = value
		}
	}
	return some
}

// Forwards returns the canonical names of the headers that some package's server may get from a
// client's request. The slice must not be changed.
func (h *Manager) Forwards() []string {
	if all := h.forwards.Load(); all != nil {
		return *all
	}
	h.mu.Lock()
	epoch := h.epoch
	h.mu.Unlock()
	all := []string{}
	for _, p := range h.sortedPackages() {
		p.mu.Lock()
		all = append(all, p.rec.PassHeaders...)
		p.mu.Unlock()
	}
	slices.Sort(all)
	all = slices.Compact(all)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.epoch == epoch {
		h.forwards.Store(&all)
	}
	return all
}

// checkAddress validates the address of a remote server.
func (r *Record) checkAddress() error {
	switch r.Source.Kind {
	case Unix:
		if !filepath.IsAbs(r.Source.From) {
			return invalid("source %q: expected unix: and an absolute path", r.Source.String())
		}
	case TCP:
		if host, port, err := net.SplitHostPort(r.Source.From); err != nil || host == "" || port == "" {
			return invalid("source %q: expected tcp:HOST:PORT", r.Source.String())
		}
	default:
		if socket, path, ok := socketEndpoint(r.Source.From); ok {
			if !filepath.IsAbs(socket) || !strings.HasPrefix(path, "/") {
				return invalid(
					"source %q: expected url:http+unix:, the absolute path of a socket, and :/PATH of the endpoint, "+
						"as in http+unix:/run/app.sock:/mcp",
					r.Source.String(),
				)
			}
			return nil
		}
		u, err := url.Parse(r.Source.From)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Fragment != "" {
			return invalid("source %q: expected url:https://HOST/PATH, or http", r.Source.String())
		}
		if u.User != nil {
			return invalid("source: a password in the address would be shown; use headers with ${secret:NAME}")
		}
	}
	return nil
}

// socketScheme begins the address of a server that is reached by HTTP over a Unix socket.
const socketScheme = "http+unix:"

// socketEndpoint returns the socket and the path of the endpoint that an address names, as in
// http+unix:/run/app.sock:/mcp. Without a path the endpoint is /mcp.
func socketEndpoint(address string) (socket, path string, ok bool) {
	rest, ok := strings.CutPrefix(address, socketScheme)
	if socket, path, ok := strings.Cut(rest, ":"); ok {
		return socket, path, strings.HasPrefix(address, socketScheme)
	}
	return rest, "/mcp", ok
}

// headerForm reports whether name is a token of RFC 9110, section 5.6.2.
func headerForm(name string) bool {
	return name != "" && len(name) <= 100 &&
		strings.Trim(strings.ToLower(name), "abcdefghijklmnopqrstuvwxyz0123456789-_") == ""
}

// connectRemote returns an upstream for a server at an address. Over HTTP redirects to
// another host are refused, because the headers are for this one. Over a socket the
// credential of the header Authorization is part of each message.
func (p *managedPackage) connectRemote(ctx context.Context, r *Record, o client.ConnOptions) (*upstream, error) {
	fill := p.manager.opts.Secrets
	if fill == nil {
		fill = noSecrets
	}
	filled, err := fill(r.Headers)
	if err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	headers, hidden := http.Header{}, []secret.Text(nil)
	for name, value := range filled {
		headers.Set(name, value.Reveal())
		if refers, _ := secret.Names(r.Headers[name]); len(refers) > 0 {
			hidden = append(hidden, value)
			if _, credential, ok := strings.Cut(value.Reveal(), " "); ok && len(credential) >= 8 {
				hidden = append(hidden, secret.New(credential)) // without the scheme, as in "Bearer abc"
			}
		}
	}
	u := &upstream{
		journal: &p.journal, watched: &p.watched, secrets: secret.NewHider(hidden...), relist: make(chan struct{}, 1),
		gone: make(chan struct{}), used: time.Now(), remote: r.Source.Kind,
	}
	limit := int(p.manager.opts.Message)
	o.Limit, o.Notified, o.Invalid = limit, u.handleNotification, u.handleInvalid
	o.TooLong = func(n int64) error { return u.tooLong(n, limit) }
	if r.Source.Kind == URL {
		hc, err := p.remoteClient(ctx, r)
		if err != nil {
			return nil, err
		}
		address := r.Source.From
		if _, path, ok := socketEndpoint(address); ok {
			address = "http://localhost" + path
		}
		u.conn = client.NewHTTP(address, client.HTTPOptions{Client: hc, Headers: headers}, o)
	} else {
		socket, err := r.dialOutbound(ctx, r.Source.Kind, r.Source.From)
		if err != nil {
			return nil, err
		}
		u.conn = client.NewSocket(socket, strings.TrimPrefix(headers.Get("Authorization"), bearer), o)
	}
	go func() { // it ends with the connection, which ends with the manager
		select {
		case <-p.manager.ctx.Done():
			u.conn.Close() // the server may refuse the end of the session
		case <-u.conn.Done():
		}
		close(u.gone)
	}()
	return u, nil
}

// remoteClient returns the client for a remote server, with the login of ctx if the record has
// no credentials of its own.
func (p *managedPackage) remoteClient(ctx context.Context, r *Record) (*http.Client, error) {
	var t http.RoundTripper = r.remoteTransport()
	if r.logsIn() {
		principal, _ := ctx.Value(loginKey{}).(string)
		if principal == "" {
			principal = p.listingLogin(r)
		}
		var err error
		if t, err = p.transport(r, r.loginOf(principal)); err != nil {
			return nil, err
		}
	}
	return &http.Client{
		Transport: t,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) > 3 || req.URL.Host != via[0].URL.Host || req.URL.Scheme != via[0].URL.Scheme {
				return errors.New("the server redirects to " + req.URL.Host + "; set the address of that server")
			}
			return nil
		},
	}, nil
}

// follow receives what a server sends outside of requests: over HTTP by a stream of
// its own, and from a modern server by a subscription. It returns when the connection
// has ended.
func (u *upstream) follow(ctx context.Context) {
	if !u.conn.IsModern() {
		u.conn.Follow(ctx, func() { // a server may refuse it
			u.listAgain()
			u.watched.missed()
		})
		return
	}
	want := []byte(`{}`)
	for _, kind := range []string{"tools", "prompts", "resources"} {
		declared, _ := rawjson.Get(u.capabilities[kind], "listChanged")
		if string(declared) == "true" {
			want = rawjson.Splice(want, rawjson.Edit{Key: kind + "ListChanged", Value: []byte("true")})
		}
	}
	if len(want) == 2 {
		return
	}
	params := rawjson.Splice([]byte(`{}`), rawjson.Edit{Key: "notifications", Value: want})
	pace := listInterval
	for u.conn.Err() == nil && ctx.Err() == nil {
		begun := time.Now()
		_, err := u.conn.Do(ctx, client.Request{
			Method: "subscriptions/listen", Params: params,
			Notified: func(method string, _ json.RawMessage) bool {
				open := method == "notifications/subscriptions/acknowledged"
				if open {
					u.listAgain() // for what has changed before
				}
				return open
			},
		})
		if _, refused := errors.AsType[*client.RPCError](err); refused {
			return
		}
		if time.Since(begun) > time.Minute {
			pace = listInterval
		}
		sleepUntil(u.gone, pace)
		pace = min(2*pace, time.Minute)
	}
}
