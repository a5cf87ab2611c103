// Package proxy is the only way out of a sandbox: it speaks HTTP, CONNECT and
// SOCKS5 on a listener inside, and lets through what the rules allow.
//
// A target is judged once, in one form, and what was judged is what is dialled.
// Rules that deny count first, then those that allow; nothing is allowed by
// itself. A name is resolved after a rule allowed it, so that no question to a
// name server carries anything out. An address that is not public, whatever name
// led to it, has to be opened by the settings too, and the listeners of this
// process are never reached. A forwarded request says so by Via. The name in a TLS hello
// and the Host of a request have to be the target's.
//
// What it cannot see: what is said inside TLS, including a name in an encrypted
// hello, and whether a server that is allowed passes things on to others.
// Secrets are swapped into the head of plain HTTP requests only, which the proxy
// itself then sends over TLS with the certificate verified; through a TLS
// connection of the sandbox's own (CONNECT) no secret can be swapped in.
package proxy

import (
	"bufio"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/sandbox"
)

// Limits bound what a sandbox can make the proxy do. Zero members take the
// default that is named.
type Limits struct {
	Connections int           // open at once, from inside; 128
	Header      int           // bytes of the head of a request or response; 64 KiB
	Handshake   time.Duration // until a request or a hello that began is whole; 10 s
	Dial        time.Duration // until a name is resolved and a server answers; 10 s
	Answer      time.Duration // until a server begins to answer a request; 5 min
	Idle        time.Duration // while nothing moves; 5 min
	Bytes       int64         // through one tunnel or request, both ways together; 4 GiB
}

func (l Limits) filled() Limits {
	for _, d := range []struct {
		v         *time.Duration
		otherwise time.Duration
	}{{&l.Handshake, 10 * time.Second}, {&l.Dial, 10 * time.Second}, {&l.Answer, 5 * time.Minute}, {&l.Idle, 5 * time.Minute}} {
		if *d.v == 0 {
			*d.v = d.otherwise
		}
	}
	if l.Connections == 0 {
		l.Connections = 128
	}
	if l.Header == 0 {
		l.Header = 64 << 10
	}
	if l.Bytes == 0 {
		l.Bytes = 4 << 30
	}
	return l
}

// Options are for New. The zero value serves.
type Options struct {
	// Limits are set by tests, to reach them; the zero value means the defaults.
	Limits Limits
	// Dial connects; nil means TCP. Tests set it, because they have no network.
	Dial func(context.Context, netip.AddrPort) (net.Conn, error)
	// Own returns the addresses of this host; nil means to ask the system. Tests set it, to have
	// others.
	Own func() []netip.Addr
	// Mine reports whether a listener of this process is there; nil means to ask the kernel.
	// Tests set it, for systems whose kernel does not say.
	Mine  func(netip.AddrPort) (bool, error)
	Roots *x509.CertPool // nil means the host's
}

// Proxy is the way out of one sandbox. It lets nothing through until Set says
// what. It is safe for concurrent use; whoever makes it calls Close.
type Proxy struct {
	limits Limits
	dialTo func(context.Context, netip.AddrPort) (net.Conn, error)
	own    func() []netip.Addr
	mine   func(netip.AddrPort) (bool, error)
	roots  *x509.CertPool
	policy atomic.Pointer[policy]
	// ctx ends with Close. Connections belong to no call.
	ctx  context.Context
	stop context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	clients map[net.Conn]bool
	flows   map[*flow]bool
}

// New makes a proxy that refuses everything.
func New(o Options) *Proxy {
	p := &Proxy{
		limits: o.Limits.filled(), dialTo: o.Dial, own: o.Own, mine: o.Mine, roots: o.Roots,
		clients: map[net.Conn]bool{}, flows: map[*flow]bool{},
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	if p.dialTo == nil {
		var d net.Dialer
		p.dialTo = func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", a.String())
		}
	}
	if p.own == nil {
		p.own = ofThisHost
	}
	if p.mine == nil {
		p.mine = listensHere
	}
	nothing, _ := newPolicy(sandbox.Network{})
	p.policy.Store(nothing)
	return p
}

func ofThisHost() (all []netip.Addr) {
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			all = append(all, p.Addr())
		}
	}
	return all
}

// Check reports what is malformed in a Network.
func Check(n sandbox.Network) error {
	_, err := newPolicy(n)
	return err
}

// Set replaces what is let through, and cuts off what is no longer allowed.
func (p *Proxy) Set(n sandbox.Network) error {
	to, err := newPolicy(n)
	if err != nil {
		return err
	}
	p.policy.Store(to)
	own := p.own()
	for _, f := range p.open() {
		err := to.still(f.target, f.at.Addr(), own)
		if err == nil {
			continue
		}
		f.end()
		p.say(f.way, f.target, f.at, "", fmt.Errorf("a connection was cut off since the rules changed: %w", err))
	}
	return nil
}

func (p *Proxy) open() (all []*flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for f := range p.flows {
		all = append(all, f)
	}
	return all
}

const full = "HTTP/1.1 503 too many connections are open\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

// Serve takes connections until the listener is closed, which is the caller's
// to do.
func (p *Proxy) Serve(l net.Listener) error {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if !p.enter(c) {
			c.SetWriteDeadline(time.Now().Add(time.Second))
			io.WriteString(c, full)
			c.Close()
			continue
		}
		go func() {
			defer p.leave(c)
			p.attend(c)
		}()
	}
}

func (p *Proxy) enter(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.clients) >= p.limits.Connections {
		return false
	}
	p.clients[c] = true
	p.work.Add(1)
	return true
}

func (p *Proxy) leave(c net.Conn) {
	c.Close()
	p.mu.Lock()
	delete(p.clients, c)
	p.mu.Unlock()
	p.work.Done()
}

// Close cuts everything off and waits until nothing is left of it.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	for c := range p.clients {
		c.Close()
	}
	p.mu.Unlock()
	p.stop()
	for _, f := range p.open() {
		f.end()
	}
	p.work.Wait()
	return nil
}

// attend speaks with one client as it speaks.
func (p *Proxy) attend(conn net.Conn) {
	c := &client{proxy: p, conn: conn}
	c.in = bufio.NewReaderSize(c, max(p.limits.Header, mostOfHello))
	first, err := c.in.Peek(1)
	if err != nil {
		return
	}
	if first[0] == socksVersion {
		c.socks()
		return
	}
	c.http(nil)
}

// say tells a decision.
func (p *Proxy) say(way string, t target, at netip.AddrPort, rule string, err error) {
	d := sandbox.Decision{Allowed: err == nil, Way: printable(way), Rule: rule}
	if t.port != 0 && (t.name != "" || t.addr.IsValid()) {
		d.Target = t.String()
	}
	if at.IsValid() {
		d.Address = at.String()
	}
	if err != nil {
		d.Reason = printable(err.Error())
		if r, ok := errors.AsType[*refusal](err); ok {
			d.Rule = r.rule
		}
	} else {
		d.Reason = fmt.Sprintf("%s is allowed by the rule %s", d.Target, rule)
	}
	p.policy.Load().decided(d)
}

// flow is what goes on with one target.
type flow struct {
	target target
	at     netip.AddrPort
	way    string
	end    func() // cuts it off; may be called more than once
	left   atomic.Int64
}

// begin takes a flow into the books. A policy that came in between judges it
// too.
func (p *Proxy) begin(f *flow) error {
	f.left.Store(p.limits.Bytes)
	p.mu.Lock()
	closed := p.closed
	p.flows[f] = true
	p.mu.Unlock()
	if closed {
		p.finish(f)
		return net.ErrClosed
	}
	if err := p.policy.Load().still(f.target, f.at.Addr(), p.own()); err != nil {
		p.finish(f)
		return err
	}
	return nil
}

func (p *Proxy) finish(f *flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.flows, f)
}

var errTooMuch = errors.New("the connection was ended since it carried as many bytes as one may")

// count takes bytes from what a flow may carry.
func (f *flow) count(n int) error {
	if f.left.Add(-int64(n)) < 0 {
		return errTooMuch
	}
	return nil
}

// dial tries what was judged, one address after the other, none of which may
// take all of the time when there are more.
func (p *Proxy) dial(ctx context.Context, v verdict) (c net.Conn, at netip.AddrPort, err error) {
	for i := range v.at {
		at = v.at[i]
		one, cancel := context.WithTimeout(ctx, p.limits.Dial/time.Duration(len(v.at)))
		var e error
		c, e = p.dialTo(one, at)
		cancel()
		if e == nil {
			e = p.notOurs(at)
			if e == nil {
				return c, at, nil
			}
			c.Close()
		}
		err = errors.Join(err, e)
	}
	return nil, at, err
}

// notOurs refuses a listener of this host, whatever the rules and the settings
// say: its callers have the rights of this machine. It is asked after the
// connection was made and before a byte is sent, because a listener may have
// come since the rules were read.
func (p *Proxy) notOurs(at netip.AddrPort) error {
	if _, isSpecial := specialOf(judged(at.Addr()), p.own()); !isSpecial {
		return nil
	}
	switch mine, err := p.mine(at); {
	case err != nil:
		return refuse("", "%s is an address of this machine, and it cannot be told what listens there: %v", at, err)
	case mine:
		return refuse("", "%s is a listener of this host, which no sandbox reaches", at)
	}
	return nil
}

// client is a connection from inside. One goroutine reads from it.
type client struct {
	proxy *Proxy
	conn  net.Conn
	in    *bufio.Reader
	until time.Time // what began has to be whole by then; zero when nothing did
	touch func()    // of a tunnel: puts the deadlines off
}

func (c *client) Read(b []byte) (int, error) {
	if c.touch != nil {
		n, err := c.conn.Read(b)
		c.touch()
		return n, err
	}
	deadline := time.Now().Add(c.proxy.limits.Idle)
	if !c.until.IsZero() && c.until.Before(deadline) {
		deadline = c.until
	}
	c.conn.SetReadDeadline(deadline)
	return c.conn.Read(b)
}

func (c *client) Write(b []byte) (int, error) {
	if c.touch == nil {
		c.conn.SetWriteDeadline(time.Now().Add(c.proxy.limits.Idle))
	}
	n, err := c.conn.Write(b)
	if c.touch != nil {
		c.touch()
	}
	return n, err
}
