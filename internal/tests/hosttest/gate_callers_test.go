package hosttest_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// credential is what a caller sends: headers or a certificate if the transport has them, otherwise a token in the
// message.
type credential struct {
	header http.Header
	cert   *tls.Certificate
	token  string
}

func headers(pairs ...string) credential {
	h := http.Header{}
	for i := 0; i+1 < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return credential{header: h}
}

// gateOps are the requests that every caller makes in both eras.
var gateOps = []string{"list", "call", "read", "subscribe"}

const (
	legacyEra = "legacy"
	modernEra = "modern"
)

var gateEras = []string{legacyEra, modernEra}

// paramsOf returns a request's method and params, without _meta.
func paramsOf(era, op string) (method, params string) {
	switch op {
	case "list":
		return "tools/list", ""
	case "call":
		return "tools/call", `"name":"probe_who","arguments":{}`
	case "read":
		return "resources/read", `"uri":"probe://who"`
	}
	if era == modernEra {
		return "subscriptions/listen", `"notifications":{"resourceSubscriptions":["probe://who"]}`
	}
	return "resources/subscribe", `"uri":"probe://who"`
}

// message returns a request; meta contains members of _meta, each followed by a comma.
func message(id int, era, method, params, meta string) string {
	if era == modernEra {
		meta += `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},`
	}
	if meta = strings.TrimSuffix(meta, ","); meta != "" {
		meta = `"_meta":{` + meta + `}`
	}
	if params != "" && meta != "" {
		params += ","
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s}}`, id, method, params+meta)
}

const handshake = `"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"gate","version":"1"}`

var saidWho = regexp.MustCompile(`who=([^;]*);`)

// verdict returns the result of a request: the principal it was served for, ok if an answer names none, or the code
// of the error.
func verdict(body []byte) string {
	var m struct {
		Method string
		Error  *struct{ Code int }
	}
	if json.Unmarshal(body, &m) != nil {
		return "no JSON"
	}
	switch who := saidWho.FindSubmatch(body); {
	case m.Error != nil:
		return fmt.Sprint(m.Error.Code)
	case who != nil:
		return string(who[1])
	}
	return "ok"
}

// caller uses a credential at one listener.
type caller interface {
	// open begins a legacy session; the verdict is ok if it succeeds.
	open() string
	// try makes one request, in the open session or without one.
	try(era, op string) string
	// brings changes the credential, and the context of the address.
	brings(c credential)
	names(context string)
}

// byHTTP is a caller of the HTTP or HTTPS listener.
type byHTTP struct {
	t       testing.TB
	http    *http.Client
	url     string
	cred    credential
	context string
	session string
}

func (g *gateHost) byHTTP(listener string, c credential, beyond bool) *byHTTP {
	scheme := "http://"
	transport := &http.Transport{DisableKeepAlives: true} // a certificate is shown with a connection
	if listener == "HTTPS" {
		scheme = "https://"
		transport.TLSClientConfig = &tls.Config{
			RootCAs:            g.trust,
			InsecureSkipVerify: beyond,
		} // the certificate is for loopback
	}
	b := &byHTTP{
		t:    g.t,
		url:  scheme + g.reach(listener, beyond) + "/mcp",
		http: &http.Client{Transport: transport, Timeout: gateWait},
	}
	b.brings(c)
	return b
}

func (b *byHTTP) brings(c credential) {
	b.cred = c
	if tc := b.http.Transport.(*http.Transport).TLSClientConfig; tc != nil {
		tc = tc.Clone()
		tc.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if c.cert == nil {
				return &tls.Certificate{}, nil
			}
			return c.cert, nil
		}
		b.http.Transport = &http.Transport{DisableKeepAlives: true, TLSClientConfig: tc}
	}
}

func (b *byHTTP) names(context string) { b.context = context }

// request returns a request with the caller's credential.
func (b *byHTTP) request(ctx context.Context, method, url, body string) *http.Request {
	b.t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	maps.Copy(r.Header, b.cred.header)
	if b.context != "" {
		r.Header.Set("X-MCP-Context", b.context)
	}
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Content-Type", "application/json")
	return r
}

func (b *byHTTP) open() string {
	b.t.Helper()
	r := b.request(b.t.Context(), "POST", b.url, message(1, legacyEra, "initialize", handshake, ""))
	res, err := b.http.Do(r)
	if err != nil {
		return "no handshake"
	}
	defer res.Body.Close()
	b.session = res.Header.Get("Mcp-Session-Id")
	return answered(b.t, res)
}

// asking makes the request for one thing.
func (b *byHTTP) asking(ctx context.Context, era, op string) *http.Request {
	b.t.Helper()
	method, params := paramsOf(era, op)
	r := b.request(ctx, "POST", b.url, message(2, era, method, params, ""))
	if era == modernEra {
		r.Header.Set("MCP-Protocol-Version", "2026-07-28")
		r.Header.Set("Mcp-Method", method)
		switch op {
		case "call":
			r.Header.Set("Mcp-Name", "probe_who")
		case "read":
			r.Header.Set("Mcp-Name", "probe://who")
		}
	} else {
		r.Header.Set("Mcp-Session-Id", b.session)
	}
	return r
}

func (b *byHTTP) try(era, op string) string {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	defer cancel()
	res, err := b.http.Do(b.asking(ctx, era, op))
	if err != nil {
		return "no handshake"
	}
	defer res.Body.Close()
	return answered(b.t, res)
}

var challenged = regexp.MustCompile(`error="([^"]*)"`)

// answered reads an answer over HTTP: its result, or its status with the code of the challenge or of the message.
func answered(t testing.TB, res *http.Response) string {
	t.Helper()
	body := io.Reader(res.Body)
	var first []byte
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		lines := bufio.NewScanner(body)
		for lines.Scan() {
			if data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: ")); ok {
				first = bytes.Clone(data)
				break
			}
		}
	} else {
		var err error
		if first, err = io.ReadAll(io.LimitReader(body, 1<<20)); err != nil {
			return "cut off"
		}
	}
	if res.StatusCode == 200 {
		return verdict(first)
	}
	says := res.Header.Get("WWW-Authenticate")
	switch code := challenged.FindStringSubmatch(says); {
	case code != nil:
		return fmt.Sprint(res.StatusCode, " ", code[1])
	case says != "":
		return fmt.Sprint(res.StatusCode, " unauthorized")
	}
	return fmt.Sprint(res.StatusCode, " ", verdict(first))
}

// byLine is a caller of a listener for newline-framed messages.
type byLine struct {
	t       testing.TB
	dial    func() (net.Conn, error)
	token   string
	context string
	session *lineConn
}

type lineConn struct {
	conn net.Conn
	in   *bufio.Reader
	next int
}

func (b *byLine) brings(c credential)  { b.token = c.token }
func (b *byLine) names(context string) { b.context = context }

func (b *byLine) meta() (meta string) {
	if b.token != "" {
		meta = fmt.Sprintf(`"gatehouse/token":%q,`, b.token)
	}
	if b.context != "" {
		meta += fmt.Sprintf(`"gatehouse/context":%q,`, b.context)
	}
	return meta
}

func (b *byLine) connect() (*lineConn, string) {
	conn, err := b.dial()
	if err != nil {
		return nil, "no connection"
	}
	b.t.Cleanup(func() { conn.Close() })
	return &lineConn{conn: conn, in: bufio.NewReader(conn)}, ""
}

// ask sends a request and reads until its answer, or the acknowledgement of a subscription.
func (l *lineConn) ask(era, method, params, meta string) string {
	l.next++
	l.conn.SetDeadline(time.Now().Add(gateWait))
	if _, err := io.WriteString(l.conn, message(l.next, era, method, params, meta)+"\n"); err != nil {
		return "closed"
	}
	for {
		line, err := l.in.ReadBytes('\n')
		if err != nil {
			return "closed"
		}
		var m struct {
			ID     *int
			Method string
			Error  json.RawMessage
		}
		if json.Unmarshal(line, &m) != nil {
			return "no JSON"
		}
		switch {
		case m.ID != nil && *m.ID == l.next, m.ID == nil && m.Error != nil:
			return verdict(line)
		case m.Method == "notifications/subscriptions/acknowledged":
			return "ok"
		}
	}
}

func (b *byLine) open() string {
	l, no := b.connect()
	if l == nil {
		b.session = nil
		return no
	}
	b.session = l
	return l.ask(legacyEra, "initialize", handshake, b.meta())
}

func (b *byLine) try(era, op string) string {
	method, params := paramsOf(era, op)
	if era == legacyEra {
		if b.session == nil {
			return "no connection"
		}
		return b.session.ask(era, method, params, "")
	}
	l, no := b.connect()
	if l == nil {
		return no
	}
	defer l.conn.Close()
	return l.ask(era, method, params, b.meta())
}

// at returns a caller at a listener.
func (g *gateHost) at(listener string, c credential, beyond bool) caller {
	g.t.Helper()
	switch listener {
	case "HTTP", "HTTPS":
		return g.byHTTP(listener, c, beyond)
	}
	b := &byLine{t: g.t, token: c.token}
	switch listener {
	case "TCP":
		b.dial = func() (net.Conn, error) { return net.Dial("tcp", g.reach("TCP", beyond)) }
	case "Unix":
		b.dial = func() (net.Conn, error) { return net.Dial("unix", g.cfg.Listen.Unix) }
	case "stdio":
		b.dial = g.standard
	}
	return b
}

// standard opens another client on standard input and output.
func (g *gateHost) standard() (net.Conn, error) {
	ours, theirs := net.Pipe()
	d, err := g.app.OpenStdio(theirs, theirs)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { d.Serve(ctx); close(ended) }()
	g.t.Cleanup(func() { ours.Close(); stop(); <-ended })
	return ours, nil
}
