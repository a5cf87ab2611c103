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

// via is what a forwarded request carries, so that no server takes it for one
// of this machine.
const via = "1.1 gatehouse-sandbox"

const (
	httpPort  = 80
	httpsPort = 443
)

// http answers requests until one of them is the last. Inside a tunnel fixed is
// its target, which all of them have to be for.
func (c *client) http(fixed *target) {
	for {
		b, err := c.nextHead()
		if err == nil {
			var h head
			if h, err = parseHead(b); err == nil {
				if !c.answer(h, len(b), fixed) {
					return
				}
				continue
			}
		}
		if no, ok := errors.AsType[*unreadable](err); ok {
			c.proxy.say("HTTP", target{}, noAddress, "", err)
			c.refuse(no.status, no.reason)
		}
		return
	}
}

// nextHead waits for a request as long as for anything, and then for the rest
// of its head not so long.
func (c *client) nextHead() ([]byte, error) {
	if _, err := c.in.Peek(1); err != nil {
		return nil, err
	}
	c.until = time.Now().Add(c.proxy.limits.Handshake)
	defer func() { c.until = time.Time{} }()
	return peekHead(c.in, c.proxy.limits.Header)
}

// answer does what one request asks for. It is false when the connection is of
// no use any more.
func (c *client) answer(h head, size int, fixed *target) (again bool) {
	if h.method == http.MethodConnect {
		c.connect(h, size, fixed)
		return false
	}
	t, secure, err := h.where(fixed)
	if err == nil {
		err = h.sameHost(t, secure)
	}
	if err != nil {
		c.proxy.say(h.method, t, noAddress, "", err)
		status := http.StatusBadRequest
		if no, ok := errors.AsType[*unreadable](err); ok {
			status = no.status
		}
		c.refuse(status, err.Error())
		return false
	}
	r, err := http.ReadRequest(c.in)
	if err != nil {
		c.refuse(http.StatusBadRequest, "the request is malformed: "+printable(err.Error()))
		return false
	}
	return c.exchange(h, r, t, secure)
}

// connect opens a tunnel for whoever asks by CONNECT.
func (c *client) connect(h head, size int, fixed *target) {
	t, err := parseAuthority(h.target, 0)
	switch {
	case err != nil:
		err = bad("CONNECT wants host:port: %v", err)
	case fixed != nil:
		err = bad("a tunnel inside a tunnel is not opened")
	case h.body:
		err = bad("CONNECT has no body")
	case h.hasHost:
		err = h.sameHost(t, t.port == httpsPort)
	}
	if err != nil {
		c.proxy.say(h.method, t, noAddress, "", err)
		no, _ := errors.AsType[*unreadable](err)
		c.refuse(no.status, no.reason)
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
			return c.refuse(http.StatusForbidden, err.Error())
		}
		return c.refuse(http.StatusBadGateway, err.Error())
	})
}

// where is the target of a request, and whether it is to be reached over TLS.
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
		return t, false, bad("this is a proxy: send the whole URL, as in GET http://example.org/ HTTP/1.1")
	case !ok && h.target[0] != '/' && h.target != "*":
		return t, false, bad("the target of the request is no path")
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
		return target{}, false, bad("the URL leads nowhere: %v", err)
	}
	if fixed != nil && (t != *fixed || secure) {
		return t, secure, &unreadable{http.StatusMisdirectedRequest, fmt.Sprintf("the request is for %s in a tunnel to %s", t, fixed)}
	}
	return t, secure, nil
}

func cutFold(s, prefix string) (string, bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}

// sameHost refuses a Host that is not the target's.
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
		host.port = t.port // some leave the port out
	}
	if err != nil || host != t {
		return &unreadable{http.StatusMisdirectedRequest, fmt.Sprintf("the Host of the request is %s, and its target %s; they have to be the same", printable(h.host), t)}
	}
	return nil
}

// exchange passes on one request and its response.
func (c *client) exchange(h head, r *http.Request, t target, secure bool) (again bool) {
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
		p.say(h.method, t, noAddress, "", err)
		c.refuse(http.StatusForbidden, err.Error())
		return false
	}
	ctx, cancel := context.WithTimeout(p.ctx, p.limits.Dial)
	v, err := pol.judge(ctx, t, p.own())
	cancel()
	if err == nil && t != asked && asked.name != "" {
		_, err = pol.byName(asked)
	}
	if err != nil {
		p.say(h.method, t, noAddress, "", err)
		c.refuse(http.StatusForbidden, err.Error())
		return false
	}
	return c.perform(h, r, t, secure, v, swapped)
}

// perform carries out a request that is allowed.
func (c *client) perform(h head, r *http.Request, t target, secure bool, v verdict, swapped secrets) (again bool) {
	p := c.proxy
	ctx, cancel := context.WithTimeout(p.ctx, p.limits.Dial)
	server, at, err := p.dial(ctx, v)
	cancel()
	if no, ours := errors.AsType[*refusal](err); ours {
		p.say(h.method, t, at, "", no)
		c.refuse(http.StatusForbidden, no.Error())
		return false
	}
	p.say(h.method, t, at, v.rule, nil)
	if err != nil {
		c.refuse(http.StatusBadGateway, silent(t, err))
		return false
	}
	defer server.Close()
	ctx, cancel = context.WithCancel(p.ctx)
	defer cancel()
	f := &flow{target: t, at: at, way: h.method, end: func() { cancel(); server.Close(); c.conn.Close() }}
	if err := p.begin(f); err != nil {
		p.say(h.method, t, at, "", err)
		c.refuse(http.StatusForbidden, err.Error())
		return false
	}
	defer p.finish(f)
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
			err = swapped.hideIn(resp)
		}
	}
	if err != nil {
		p.tooMuch(f, err)
		c.refuse(http.StatusBadGateway, silent(t, err))
		return false
	}
	if err := c.pass(resp, h, keep); err != nil {
		p.tooMuch(f, err)
		return false
	}
	return keep && body.ended.Load()
}

var errUpgrade = errors.New("the server changed the protocol, which it may only to WebSocket, and not where a secret was swapped in")

func wantsWebSocket(r *http.Request) bool {
	for token := range strings.SplitSeq(strings.Join(r.Header["Connection"], ","), ",") {
		if strings.EqualFold(strings.TrimSpace(token), "upgrade") {
			return r.Method == http.MethodGet && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
		}
	}
	return false
}

// switched passes on what both sides say after they agreed on WebSocket. What
// they say cannot be looked through piece by piece, so that there must be no
// secret the server could repeat.
func (c *client) switched(resp *http.Response, swapped secrets, f *flow) error {
	server, ok := resp.Body.(io.ReadWriteCloser)
	if !ok || len(swapped) > 0 || !strings.EqualFold(resp.Header.Get("Upgrade"), "websocket") {
		return errUpgrade
	}
	head := *resp
	head.Body = http.NoBody // else it would be read from
	if err := head.Write(c); err != nil {
		return nil // there is nobody to tell
	}
	c.touch = func() { c.conn.SetDeadline(time.Now().Add(c.proxy.limits.Idle)) }
	c.touch()
	var back sync.WaitGroup
	back.Go(func() {
		_, err := io.Copy(c, server)
		c.proxy.tooMuch(f, err)
		f.end()
	})
	io.Copy(server, c.in)
	f.end()
	back.Wait()
	return nil
}

// fetch sends a request over a connection that serves for nothing else.
func (c *client) fetch(ctx context.Context, r *http.Request, t target, secure bool, server net.Conn) (*http.Response, error) {
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
		r.Header["User-Agent"] = nil // else one is made up
	}
	return transport.RoundTrip(r.WithContext(ctx))
}

// hostField is the Host of a request; the usual port goes without saying.
func hostField(t target, secure bool) string {
	if secure && t.port == httpsPort || !secure && t.port == httpPort {
		if t.addr.Is6() {
			return "[" + t.host() + "]"
		}
		return t.host()
	}
	return t.String()
}

func silent(t target, err error) string {
	return fmt.Sprintf("%s is allowed, but does not answer: %s", t, printable(err.Error()))
}

// pass gives a response to the client.
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

// clean takes away what is said to the next hop only.
func clean(h http.Header) {
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			h.Del(textproto.TrimString(name))
		}
	}
	for _, name := range []string{"Connection", "Proxy-Connection", "Proxy-Authorization", "Proxy-Authenticate", "Keep-Alive", "TE", "Trailer", "Upgrade"} {
		h.Del(name)
	}
}

// refuse answers with a reason, in the status line too, since that is what some
// clients show of a proxy's answer and nothing else.
func (c *client) refuse(status int, reason string) error {
	reason = printable(reason)
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s\n", status, reason, len(reason)+1, reason)
	_, err := c.Write(b.Bytes())
	return err
}

// incoming is the body of a request on its way.
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

// Close leaves what was not read: it was not asked for, and the connection ends.
func (i *incoming) Close() error { return nil }

// counted is a connection to a server that may carry so much and idle so long.
type counted struct {
	net.Conn
	flow *flow
	idle time.Duration
}

func (c *counted) Read(b []byte) (int, error) {
	c.SetReadDeadline(time.Now().Add(c.idle))
	n, err := c.Conn.Read(b)
	if over := c.flow.count(n); over != nil {
		return 0, over
	}
	return n, err
}

func (c *counted) Write(b []byte) (int, error) {
	c.SetWriteDeadline(time.Now().Add(c.idle))
	if err := c.flow.count(len(b)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
