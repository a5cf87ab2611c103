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

// socks opens a tunnel for whoever asks by SOCKS5.
func (c *client) socks() {
	c.until = time.Now().Add(c.proxy.limits.Handshake)
	if !greetSocks(c.in, c) {
		return
	}
	t, code, err := readSocks(c.in)
	c.until = time.Time{}
	if err != nil {
		c.proxy.say("SOCKS5", target{}, noAddress, "", err)
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

// tunnel connects a client to its target, if that may be, after answer told it
// so.
func (c *client) tunnel(way string, t target, answer func(error) error) {
	p := c.proxy
	ctx, cancel := context.WithTimeout(p.ctx, p.limits.Dial)
	defer cancel()
	v, err := p.policy.Load().judge(ctx, t, p.own())
	if err != nil {
		p.say(way, t, noAddress, "", err)
		answer(err)
		return
	}
	server, at, err := p.dial(ctx, v)
	if no, ours := errors.AsType[*refusal](err); ours {
		p.say(way, t, at, "", no)
		answer(no)
		return
	}
	p.say(way, t, at, v.rule, nil)
	if err != nil {
		answer(errors.New(silent(t, err)))
		return
	}
	defer server.Close()
	f := &flow{target: t, at: at, way: way, end: func() { server.Close(); c.conn.Close() }}
	if err := p.begin(f); err != nil {
		p.say(way, t, at, "", err)
		answer(err)
		return
	}
	http := c.relay(server, f, answer)
	p.finish(f)
	if http {
		c.http(&t)
	}
}

// relay passes on what both sides say until one of them is done. It reports
// that the client speaks HTTP, which is then not passed on but judged, request
// by request.
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
	var judged atomic.Bool // the client has no more to do with this server
	back.Go(func() {
		err := pass(c, server, f, c.touch)
		if judged.Load() {
			return
		}
		if err != nil {
			p.tooMuch(f, err)
			f.end()
		}
		closeWrite(c.conn)
	})
	defer back.Wait()
	speech, err := c.listen(f)
	switch {
	case err != nil:
		judged.Store(true)
		server.Close()
		if _, ok := errors.AsType[*refusal](err); ok {
			p.say(f.way, f.target, f.at, "", err)
		}
		if speech == speaksTLS {
			c.Write(unrecognised)
		}
		f.end()
		return false
	case speech == speaksHTTP:
		judged.Store(true)
		server.Close()
		back.Wait()
		return true
	case speech == speaksOther && !p.policy.Load().raw(f.target, f.at.Addr()):
		judged.Store(true)
		p.say(f.way, f.target, f.at, "", refuse("", "%s: what the tunnel carries is neither HTTP nor TLS, which alone "+
			"pass at this port; a rule such as %s/tcp allows other protocols", f.target, f.target))
		f.end()
		return false
	}
	if err := pass(server, c.in, f, c.touch); err != nil {
		p.tooMuch(f, err)
		f.end()
	}
	closeWrite(server)
	return false
}

func (p *Proxy) tooMuch(f *flow, err error) {
	if errors.Is(err, errTooMuch) {
		p.say(f.way, f.target, f.at, "", err)
	}
}

// pass copies until the end, and counts.
func pass(to io.Writer, from io.Reader, f *flow, touch func()) error {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		touch()
		if n > 0 {
			if err := f.count(n); err != nil {
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

// closeWrite says that nothing follows, where that can be said.
func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		half.CloseWrite()
		return
	}
	c.Close()
}

// speech is what a client speaks in a tunnel.
type speech int

const (
	speaksNothing speech = iota
	speaksOther
	speaksTLS
	speaksHTTP
)

// longLine is how long a first line may be that could be one of HTTP.
const longLine = 8 << 10

// listen finds out what the client speaks from what it says first, and refuses
// TLS for another name than the target's. It takes nothing.
func (c *client) listen(f *flow) (speech, error) {
	first, err := c.in.Peek(1)
	if err != nil {
		return speaksNothing, nil // it may yet listen
	}
	late := time.AfterFunc(c.proxy.limits.Handshake, f.end)
	defer late.Stop()
	if first[0] == tlsHandshake {
		name, err := peekHello(c.in)
		if err != nil {
			return speaksTLS, refuse("", "%s: %v", f.target, err)
		}
		return speaksTLS, sameName(name, f.target)
	}
	for n := 1; ; n = c.in.Buffered() + 1 {
		if _, err := c.in.Peek(n); err != nil {
			return speaksOther, nil
		}
		b, _ := c.in.Peek(c.in.Buffered())
		if speech, known := firstLine(b); known {
			return speech, nil
		}
		if len(b) > longLine {
			return speaksHTTP, nil
		}
	}
}

func sameName(name string, t target) error {
	if name == "" {
		if t.name == "" {
			return nil
		}
		return refuse("", "%s: the TLS hello names no server, so nobody can tell whom it is for; it has to name %s", t, t.name)
	}
	clean, err := cleanName(name)
	if err != nil || clean != t.name {
		return refuse("", "%s: the TLS hello names %s, which is another server than the one that was asked for", t, printable(name))
	}
	return nil
}

// blank reports what some reader may skip before or between the words of a request.
func blank(c rune) bool { return c == ' ' || '\t' <= c && c <= '\r' || 0x1c <= c && c <= 0x1f }

// firstLine tells HTTP from the rest as soon as that is known. What could be
// HTTP to somebody is.
func firstLine(b []byte) (s speech, known bool) {
	line := bytes.TrimLeftFunc(b, blank)                                                                          // as lenient servers do
	word := bytes.TrimLeft(line, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~") // as a method may have
	switch {
	case len(word) == 0:
		return speaksOther, false // it may go on to be
	case len(word) == len(line) || word[0] == '\r' || word[0] == '\n' || !blank(rune(word[0])):
		return speaksOther, true
	}
	before, _, ok := bytes.Cut(line, []byte{'\n'})
	if !ok {
		return speaksOther, false
	}
	if bytes.Contains(bytes.ToUpper(before), []byte("HTTP/")) {
		return speaksHTTP, true
	}
	return speaksOther, true
}
