package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var noAddress netip.AddrPort

// via is the Via field of forwarded requests, by which no server mistakes them for requests of this machine.
const via = "1.1 gatehouse-sandbox"

const (
	httpPort  = 80
	httpsPort = 443
)

// http handles requests until one of them is the last. Inside a tunnel, fixed is its target, which all
// requests must have.
func (c *client) http(fixed *target) {
	for {
		b, err := c.nextHead()
		if err == nil {
			var h head
			if h, err = parseHead(b); err == nil {
				if !c.handleRequest(h, len(b), fixed) {
					return
				}
				continue
			}
		}
		if no, ok := errors.AsType[*malformed](err); ok {
			c.proxy.reportDecision("HTTP", target{}, noAddress, "", err)
			c.writeRefusal(no.status, no.reason)
		}
		return
	}
}

// nextHead waits for a request up to Idle, and then for the rest of its head up to Handshake.
func (c *client) nextHead() ([]byte, error) {
	if _, err := c.in.Peek(1); err != nil {
		return nil, err
	}
	c.until = time.Now().Add(c.proxy.limits.Handshake)
	defer func() { c.until = time.Time{} }()
	return peekHead(c.in, c.proxy.limits.Header)
}

// handleRequest handles one request. It returns false if the connection cannot be used again.
func (c *client) handleRequest(h head, size int, fixed *target) (again bool) {
	if h.method == http.MethodConnect {
		c.serveConnect(h, size, fixed)
		return false
	}
	t, secure, err := h.where(fixed)
	if err == nil {
		err = h.sameHost(t, secure)
	}
	if err != nil {
		c.proxy.reportDecision(h.method, t, noAddress, "", err)
		status := http.StatusBadRequest
		if no, ok := errors.AsType[*malformed](err); ok {
			status = no.status
		}
		c.writeRefusal(status, err.Error())
		return false
	}
	r, err := http.ReadRequest(c.in)
	if err != nil {
		c.writeRefusal(http.StatusBadRequest, "the request is malformed: "+printable(err.Error()))
		return false
	}
	return c.forward(h, r, t, secure)
}

// serveConnect opens a tunnel for a CONNECT request.
func (c *client) serveConnect(h head, size int, fixed *target) {
	t, err := parseAuthority(h.target, 0)
	switch {
	case err != nil:
		err = badRequest("CONNECT requires host:port: %v", err)
	case fixed != nil:
		err = badRequest("a tunnel inside a tunnel is not allowed")
	case h.body:
		err = badRequest("CONNECT must not have a body")
	case h.hasHost:
		err = h.sameHost(t, t.port == httpsPort)
	}
	if err != nil {
		c.proxy.reportDecision(h.method, t, noAddress, "", err)
		no, _ := errors.AsType[*malformed](err)
		c.writeRefusal(no.status, no.reason)
		return
	}
	c.in.Discard(size)
	c.tunnel(h.method, t, func(err error) error {
		var no *refusal
		switch {
		case err == nil:
			_, err = io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
			return err
		case errors.As(err, &no):
			return c.writeRefusal(http.StatusForbidden, err.Error())
		}
		return c.writeRefusal(http.StatusBadGateway, err.Error())
	})
}

// where returns the target of a request, and whether it uses TLS.
func (h head) where(fixed *target) (t target, secure bool, err error) {
	rest, ok := "", false
	if len(h.target) >= 8 {
		if rest, ok = cutFold(h.target, "https://"); ok {
			secure = true
		} else {
			rest, ok = cutFold(h.target, "http://")
		}
	}
	switch {
	case !ok && fixed == nil:
		return t, false, badRequest("this is a proxy: send the whole URL, as in GET http://example.org/ HTTP/1.1")
	case !ok && h.target[0] != '/' && h.target != "*":
		return t, false, badRequest("the target of the request is not a path")
	case !ok:
		return *fixed, false, nil
	}
	otherwise := uint16(httpPort)
	if secure {
		otherwise = httpsPort
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	if t, err = parseAuthority(rest[:end], otherwise); err != nil {
		return target{}, false, badRequest("the URL is malformed: %v", err)
	}
	if fixed != nil && (t != *fixed || secure) {
		return t, secure,
			&malformed{http.StatusMisdirectedRequest, fmt.Sprintf("the request is for %s in a tunnel to %s", t, fixed)}
	}
	return t, secure, nil
}

func cutFold(s, prefix string) (string, bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}

// sameHost refuses a Host that differs from the target.
func (h head) sameHost(t target, secure bool) error {
	if !h.hasHost {
		return nil
	}
	otherwise := uint16(httpPort)
	if secure {
		otherwise = httpsPort
	}
	host, err := parseAuthority(h.host, otherwise)
	if err == nil && host.port == otherwise && t.port != otherwise && h.method == http.MethodConnect {
		host.port = t.port // some clients omit the port
	}
	if err != nil || host != t {
		return &malformed{http.StatusMisdirectedRequest,
			fmt.Sprintf("the Host of the request is %s, but its target is %s; they must be the same",
				printable(h.host), t)}
	}
	return nil
}

// forward forwards one request and its response.
func (c *client) forward(h head, r *http.Request, t target, secure bool) (again bool) {
	p := c.proxy
	pol := p.policy.Load()
	upgrade := wantsWebSocket(r)
	clean(r.Header)
	r.Header.Add("Via", via)
	if upgrade {
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "websocket")
	}
	asked := t
	swapped, err := pol.swap(r, &t, &secure)
	if err != nil {
		p.reportDecision(h.method, t, noAddress, "", err)
		c.writeRefusal(http.StatusForbidden, err.Error())
		return false
	}
	ctx, cancel := context.WithTimeout(p.ctx, p.limits.Dial)
	v, err := pol.judge(ctx, t, p.own())
	cancel()
	if err == nil && t != asked && asked.name != "" {
		_, err = pol.byName(asked)
	}
	if err != nil {
		p.reportDecision(h.method, t, noAddress, "", err)
		c.writeRefusal(http.StatusForbidden, err.Error())
		return false
	}
	return c.forwardAllowed(h, r, t, secure, v, swapped)
}

// forwardAllowed forwards a request that is allowed.
func (c *client) forwardAllowed(h head, r *http.Request, t target, secure bool, v verdict,
	swapped secrets) (again bool) {
	p := c.proxy
	ctx, cancel := context.WithTimeout(p.ctx, p.limits.Dial)
	server, at, err := p.dial(ctx, v)
	cancel()
	if no, ours := errors.AsType[*refusal](err); ours {
		p.reportDecision(h.method, t, at, "", no)
		c.writeRefusal(http.StatusForbidden, no.Error())
		return false
	}
	p.reportDecision(h.method, t, at, v.rule, nil)
	if err != nil {
		c.writeRefusal(http.StatusBadGateway, noAnswer(t, err))
		return false
	}
	defer server.Close()
	ctx, cancel = context.WithCancel(p.ctx)
	defer cancel()
	f := &flow{target: t, at: at, method: h.method, end: func() { cancel(); server.Close(); c.conn.Close() }}
	if err := p.registerFlow(f); err != nil {
		p.reportDecision(h.method, t, at, "", err)
		c.writeRefusal(http.StatusForbidden, err.Error())
		return false
	}
	defer p.removeFlow(f)
	body := &incoming{from: r.Body}
	if r.Body != http.NoBody {
		r.Body = body
	} else {
		body.ended.Store(true)
	}
	keep := h.minor >= 1 && !r.Close
	resp, err := c.fetch(ctx, r, t, secure, &counted{Conn: server, flow: f, idle: p.limits.Idle})
	if err == nil {
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusSwitchingProtocols {
			err = c.switched(resp, swapped, f)
			if err == nil {
				return false
			}
		} else {
			err = swapped.redact(resp)
		}
	}
	if err != nil {
		p.reportLimit(f, err)
		c.writeRefusal(http.StatusBadGateway, noAnswer(t, err))
		return false
	}
	if err := c.pass(resp, h, keep); err != nil {
		p.reportLimit(f, err)
		return false
	}
	return keep && body.ended.Load()
}

var errUpgrade = errors.New("the server switched protocols; only WebSocket is allowed, and not if a secret " +
	"was inserted")

func wantsWebSocket(r *http.Request) bool {
	for token := range strings.SplitSeq(strings.Join(r.Header["Connection"], ","), ",") {
		if strings.EqualFold(strings.TrimSpace(token), "upgrade") {
			return r.Method == http.MethodGet && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
		}
	}
	return false
}

// switched relays both directions after a switch to WebSocket. Its messages cannot be searched for secrets, so
// it is refused if the request contained one.
func (c *client) switched(resp *http.Response, swapped secrets, f *flow) error {
	server, ok := resp.Body.(io.ReadWriteCloser)
	if !ok || len(swapped) > 0 || !strings.EqualFold(resp.Header.Get("Upgrade"), "websocket") {
		return errUpgrade
	}
	head := *resp
	head.Body = http.NoBody // Write would read the connection otherwise
	if err := head.Write(c); err != nil {
		return nil // the client is gone
	}
	c.touch = func() { c.conn.SetDeadline(time.Now().Add(c.proxy.limits.Idle)) }
	c.touch()
	var back sync.WaitGroup
	back.Go(func() {
		_, err := io.Copy(c, server)
		c.proxy.reportLimit(f, err)
		f.end()
	})
	io.Copy(server, c.in)
	f.end()
	back.Wait()
	return nil
}

// fetch sends a request over a connection that is used for nothing else.
func (c *client) fetch(ctx context.Context, r *http.Request, t target, secure bool,
	server net.Conn) (*http.Response, error) {
	p := c.proxy
	if r.Header.Get("Expect") != "" {
		r.Header.Del("Expect")
		if _, err := io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
			return nil, err
		}
	}
	var taken atomic.Bool
	transport := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			if taken.Swap(true) {
				return nil, errors.New("the connection broke off before the answer")
			}
			return server, nil
		},
		DisableKeepAlives: true, DisableCompression: true,
		TLSClientConfig: &tls.Config{ServerName: t.host(), RootCAs: p.roots}, TLSHandshakeTimeout: p.limits.Handshake,
		ResponseHeaderTimeout: p.limits.Answer, MaxResponseHeaderBytes: int64(p.limits.Header),
	}
	scheme := "http"
	if secure {
		scheme = "https"
	}
	if r.RequestURI == "*" {
		r.URL.Path = "*"
	}
	r.URL.Scheme, r.URL.Host, r.URL.User = scheme, t.String(), nil
	r.RequestURI, r.Host = "", hostField(t, secure)
	if _, ok := r.Header["User-Agent"]; !ok {
		r.Header["User-Agent"] = nil // otherwise Go sets one
	}
	return transport.RoundTrip(r.WithContext(ctx))
}

// hostField returns the Host of a request, without the default port.
func hostField(t target, secure bool) string {
	if secure && t.port == httpsPort || !secure && t.port == httpPort {
		if t.addr.Is6() {
			return "[" + t.host() + "]"
		}
		return t.host()
	}
	return t.String()
}

func noAnswer(t target, err error) string {
	return fmt.Sprintf("%s is allowed but does not answer: %s", t, printable(err.Error()))
}

// pass sends a response to the client.
func (c *client) pass(resp *http.Response, h head, keep bool) error {
	clean(resp.Header)
	resp.Trailer = nil
	resp.Proto, resp.ProtoMajor, resp.ProtoMinor = "HTTP/1.1", 1, 1
	resp.TransferEncoding, resp.Close = nil, !keep
	if resp.ContentLength < 0 {
		if h.minor >= 1 {
			resp.TransferEncoding = []string{"chunked"}
		} else {
			resp.Close = true
		}
	}
	return resp.Write(c)
}

// clean removes hop-by-hop fields.
func clean(h http.Header) {
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			h.Del(textproto.TrimString(name))
		}
	}
	for _, name := range []string{"Connection", "Proxy-Connection", "Proxy-Authorization", "Proxy-Authenticate",
		"Keep-Alive", "TE", "Trailer", "Upgrade"} {
		h.Del(name)
	}
}

// writeRefusal answers with a reason, also in the status line, because some clients show nothing else of a proxy's
// answer.
func (c *client) writeRefusal(status int, reason string) error {
	reason = printable(reason)
	var b bytes.Buffer
	fmt.Fprintf(
		&b,
		"HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n"+
			"Connection: close\r\n\r\n%s\n",
		status,
		reason,
		len(reason)+1,
		reason,
	)
	_, err := c.Write(b.Bytes())
	return err
}

// incoming is the body of a request.
type incoming struct {
	from  io.ReadCloser
	ended atomic.Bool
}

func (i *incoming) Read(b []byte) (int, error) {
	n, err := i.from.Read(b)
	if errors.Is(err, io.EOF) {
		i.ended.Store(true)
	}
	return n, err
}

// Close does not read the rest: the server did not read it, and the connection ends.
func (i *incoming) Close() error { return nil }

// counted is a connection to a server with limits of bytes and idle time.
type counted struct {
	net.Conn
	flow *flow
	idle time.Duration
}

func (c *counted) Read(b []byte) (int, error) {
	c.SetReadDeadline(time.Now().Add(c.idle))
	n, err := c.Conn.Read(b)
	if over := c.flow.countBytes(n); over != nil {
		return 0, over
	}
	return n, err
}

func (c *counted) Write(b []byte) (int, error) {
	c.SetWriteDeadline(time.Now().Add(c.idle))
	if err := c.flow.countBytes(len(b)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
