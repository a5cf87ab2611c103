package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// socks opens a tunnel for a SOCKS5 request.
func (c *client) socks() {
	c.until = time.Now().Add(c.proxy.limits.Handshake)
	if !greetSocks(c.in, c) {
		return
	}
	t, code, err := readSocks(c.in)
	c.until = time.Time{}
	if err != nil {
		c.proxy.reportDecision("SOCKS5", target{}, noAddress, "", err)
		answerSocks(c, code)
		return
	}
	c.tunnel("SOCKS5", t, func(err error) error {
		var no *refusal
		switch {
		case err == nil:
			return answerSocks(c, socksOK)
		case errors.As(err, &no):
			return answerSocks(c, socksDenied)
		}
		return answerSocks(c, socksUnreachable)
	})
}

// tunnel connects a client to its target, if that is allowed. answer sends the result to the client.
func (c *client) tunnel(way string, t target, answer func(error) error) {
	p := c.proxy
	ctx, cancel := context.WithTimeout(p.ctx, p.limits.Dial)
	defer cancel()
	v, err := p.policy.Load().judge(ctx, t, p.own())
	if err != nil {
		p.reportDecision(way, t, noAddress, "", err)
		answer(err)
		return
	}
	server, at, err := p.dial(ctx, v)
	if no, ours := errors.AsType[*refusal](err); ours {
		p.reportDecision(way, t, at, "", no)
		answer(no)
		return
	}
	p.reportDecision(way, t, at, v.rule, nil)
	if err != nil {
		answer(errors.New(noAnswer(t, err)))
		return
	}
	defer server.Close()
	f := &flow{target: t, at: at, method: way, end: func() { server.Close(); c.conn.Close() }}
	if err := p.registerFlow(f); err != nil {
		p.reportDecision(way, t, at, "", err)
		answer(err)
		return
	}
	http := c.relay(server, f, answer)
	p.removeFlow(f)
	if http {
		c.http(&t)
	}
}

// relay relays both directions until one of them ends. It returns true if the client sends HTTP, whose
// requests are then judged one by one instead.
func (c *client) relay(server net.Conn, f *flow, answer func(error) error) (http bool) {
	p := c.proxy
	c.touch = func() {
		until := time.Now().Add(p.limits.Idle)
		server.SetDeadline(until)
		c.conn.SetDeadline(until)
	}
	c.touch()
	defer func() { c.touch = nil }()
	if answer(nil) != nil {
		return false
	}
	var back sync.WaitGroup
	var judged atomic.Bool // the client does not use this server any more
	back.Go(func() {
		err := pass(c, server, f, c.touch)
		if judged.Load() {
			return
		}
		if err != nil {
			p.reportLimit(f, err)
			f.end()
		}
		closeWrite(c.conn)
	})
	defer back.Wait()
	speech, err := c.detect(f)
	switch {
	case err != nil:
		judged.Store(true)
		server.Close()
		if _, ok := errors.AsType[*refusal](err); ok {
			p.reportDecision(f.method, f.target, f.at, "", err)
		}
		if speech == protocolTLS {
			c.Write(unrecognised)
		}
		f.end()
		return false
	case speech == protocolHTTP:
		judged.Store(true)
		server.Close()
		back.Wait()
		return true
	case speech == protocolOther && !p.policy.Load().raw(f.target, f.at.Addr()):
		judged.Store(true)
		p.reportDecision(f.method, f.target, f.at, "",
			refusef("", "%s: the tunnel carries neither HTTP nor TLS, and only these are "+
				"allowed at this port; a rule such as %s/tcp allows other protocols", f.target, f.target))
		f.end()
		return false
	}
	if err := pass(server, c.in, f, c.touch); err != nil {
		p.reportLimit(f, err)
		f.end()
	}
	closeWrite(server)
	return false
}

func (p *Proxy) reportLimit(f *flow, err error) {
	if errors.Is(err, errTooMuch) {
		p.reportDecision(f.method, f.target, f.at, "", err)
	}
}

// pass copies until the end of the data, and counts it.
func pass(to io.Writer, from io.Reader, f *flow, touch func()) error {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		touch()
		if n > 0 {
			if err := f.countBytes(n); err != nil {
				return err
			}
			if _, err := to.Write(b[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// closeWrite closes the sending direction if the connection supports that.
func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		half.CloseWrite()
		return
	}
	c.Close()
}

// protocol is the protocol that a client uses in a tunnel.
type protocol int

const (
	protocolUnknown protocol = iota
	protocolOther
	protocolTLS
	protocolHTTP
)

// longLine is the longest first line that may be HTTP.
const longLine = 8 << 10

// detect finds the protocol from the client's first bytes, without consuming them, and refuses TLS for another
// name than the target's.
func (c *client) detect(f *flow) (protocol, error) {
	first, err := c.in.Peek(1)
	if err != nil {
		return protocolUnknown, nil // the server may send first
	}
	late := time.AfterFunc(c.proxy.limits.Handshake, f.end)
	defer late.Stop()
	if first[0] == tlsHandshake {
		name, err := peekClientHello(c.in)
		if err != nil {
			return protocolTLS, refusef("", "%s: %v", f.target, err)
		}
		return protocolTLS, sameName(name, f.target)
	}
	for n := 1; ; n = c.in.Buffered() + 1 {
		if _, err := c.in.Peek(n); err != nil {
			return protocolOther, nil
		}
		b, _ := c.in.Peek(c.in.Buffered())
		if speech, known := firstLine(b); known {
			return speech, nil
		}
		if len(b) > longLine {
			return protocolHTTP, nil
		}
	}
}

func sameName(name string, t target) error {
	if name == "" {
		if t.name == "" {
			return nil
		}
		return refusef("", "%s: the TLS ClientHello names no server; it must name %s", t, t.name)
	}
	clean, err := cleanName(name)
	if err != nil || clean != t.name {
		return refusef("", "%s: the TLS ClientHello names %s, which is not the requested server", t, printable(name))
	}
	return nil
}

// blank reports whether some parser may skip c before or between the words of a request.
func blank(c rune) bool { return c == ' ' || '\t' <= c && c <= '\r' || 0x1c <= c && c <= 0x1f }

// firstLine decides as soon as possible whether the data is HTTP. Data that some parser may take for HTTP
// counts as HTTP.
func firstLine(b []byte) (s protocol, known bool) {
	line := bytes.TrimLeftFunc(b, blank) // as lenient servers do
	// What remains after the bytes that a method may have.
	word := bytes.TrimLeft(line, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~")
	switch {
	case len(word) == 0:
		return protocolOther, false // more data is needed
	case len(word) == len(line) || word[0] == '\r' || word[0] == '\n' || !blank(rune(word[0])):
		return protocolOther, true
	}
	before, _, ok := bytes.Cut(line, []byte{'\n'})
	if !ok {
		return protocolOther, false
	}
	if bytes.Contains(bytes.ToUpper(before), []byte("HTTP/")) {
		return protocolHTTP, true
	}
	return protocolOther, true
}
