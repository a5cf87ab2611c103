// Package proxy is the only network access of a sandbox: it serves HTTP, CONNECT and SOCKS5 on a listener
// inside, and forwards what the rules allow.
//
// A target is judged once, in one canonical form, and what was judged is what is dialled. Rules that deny are
// checked first, then those that allow; nothing is allowed by default. A name is resolved after a rule has
// allowed it, so that name server queries carry no data out. An address that is not public, whatever name
// resolves to it, must also be allowed by the settings, and the listeners of this process are never reached.
// Forwarded requests contain a Via field. The name in a TLS ClientHello and the Host of a request must be the
// target's.
//
// It cannot see data inside TLS, including a name in an encrypted ClientHello, nor whether an allowed server
// forwards data to others. Secrets are inserted into the head of plain HTTP requests only, which the proxy
// itself then sends over TLS with a verified certificate; in a TLS connection of the sandbox's own (CONNECT)
// no secret can be inserted.
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

// Limits bound what a sandbox can make the proxy do. Zero fields take the default given.
type Limits struct {
	Connections int           // open at once, from inside; 128
	Header      int           // bytes of the head of a request or response; 64 KiB
	Handshake   time.Duration // from the start of a request or ClientHello to its end; 10 s
	Dial        time.Duration // for resolving a name and connecting; 10 s
	Answer      time.Duration // until a server starts to answer a request; 5 min
	Idle        time.Duration // without data in either direction; 5 min
	Bytes       int64         // through one tunnel or request, both directions together; 4 GiB
}

func (l Limits) filled() Limits {
	for _, d := range []struct {
		v         *time.Duration
		otherwise time.Duration
	}{{&l.Handshake, 10 * time.Second}, {&l.Dial, 10 * time.Second}, {&l.Answer, 5 * time.Minute},
		{&l.Idle, 5 * time.Minute}} {
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

// Options are for New. The zero value is ready to use.
type Options struct {
	// Limits are set by tests, to reach them; the zero value means the defaults.
	Limits Limits
	// Dial connects; nil means TCP. Tests set it, because they have no network.
	Dial func(context.Context, netip.AddrPort) (net.Conn, error)
	// Own returns the addresses of this host; nil asks the system. Tests set it, to have others.
	Own func() []netip.Addr
	// OwnListener reports whether a listener of this process is there; nil asks the kernel. Tests set it, for
	// systems whose kernel does not say.
	OwnListener func(netip.AddrPort) (bool, error)
	Roots       *x509.CertPool // nil means the host's
}

// Proxy is the network access of one sandbox. It refuses everything until Set allows something. It is safe for
// concurrent use. The caller must call Close.
type Proxy struct {
	limits Limits
	dialTo func(context.Context, netip.AddrPort) (net.Conn, error)
	own    func() []netip.Addr
	mine   func(netip.AddrPort) (bool, error)
	roots  *x509.CertPool
	policy atomic.Pointer[policy]
	ctx    context.Context // ends with Close; it bounds requests, which have no context of their own
	stop   context.CancelFunc
	work   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	clients map[net.Conn]bool
	flows   map[*flow]bool

	answered answers // of ServeDNS
}

// New returns a proxy that refuses everything.
func New(o Options) *Proxy {
	p := &Proxy{
		limits: o.Limits.filled(), dialTo: o.Dial, own: o.Own, mine: o.OwnListener, roots: o.Roots,
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

// Check returns an error if a Network is malformed.
func Check(n sandbox.Network) error {
	_, err := newPolicy(n)
	return err
}

// Set replaces what is allowed, and closes connections that are no longer allowed.
func (p *Proxy) Set(n sandbox.Network) error {
	to, err := newPolicy(n)
	if err != nil {
		return err
	}
	p.policy.Store(to)
	own := p.own()
	for _, f := range p.openFlows() {
		err := to.allows(f.target, f.at.Addr(), own)
		if err == nil {
			continue
		}
		f.end()
		p.reportDecision(f.method, f.target, f.at, "",
			fmt.Errorf("the connection was closed because the rules changed: %w", err))
	}
	return nil
}

func (p *Proxy) openFlows() (all []*flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for f := range p.flows {
		all = append(all, f)
	}
	return all
}

const tooManyConnections = "HTTP/1.1 503 too many connections are open\r\nContent-Length: 0\r\n" +
	"Connection: close\r\n\r\n"

// Serve accepts connections until the caller closes the listener.
func (p *Proxy) Serve(l net.Listener) error {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if !p.acceptConn(c) {
			c.SetWriteDeadline(time.Now().Add(time.Second))
			io.WriteString(c, tooManyConnections)
			c.Close()
			continue
		}
		go func() {
			defer p.leave(c)
			p.serveConn(c)
		}()
	}
}

func (p *Proxy) acceptConn(c net.Conn) bool {
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

// Close closes all connections and waits for their goroutines.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	for c := range p.clients {
		c.Close()
	}
	p.mu.Unlock()
	p.stop()
	for _, f := range p.openFlows() {
		f.end()
	}
	p.work.Wait()
	return nil
}

// serveConn handles one connection, in the protocol of its first byte.
func (p *Proxy) serveConn(conn net.Conn) {
	c := newClient(p, conn)
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

func newClient(p *Proxy, conn net.Conn) *client {
	c := &client{proxy: p, conn: conn}
	c.in = bufio.NewReaderSize(c, max(p.limits.Header, maxClientHello))
	return c
}

// reportDecision reports a decision.
func (p *Proxy) reportDecision(way string, t target, at netip.AddrPort, rule string, err error) {
	d := sandbox.Decision{Allowed: err == nil, Method: printable(way), Rule: rule}
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

// flow is a connection to one target.
type flow struct {
	target target
	at     netip.AddrPort
	method string
	end    func() // closes the connection; may be called more than once
	left   atomic.Int64
}

// registerFlow registers a flow, and judges it again, because the policy may have changed meanwhile.
func (p *Proxy) registerFlow(f *flow) error {
	f.left.Store(p.limits.Bytes)
	p.mu.Lock()
	closed := p.closed
	p.flows[f] = true
	p.mu.Unlock()
	if closed {
		p.removeFlow(f)
		return net.ErrClosed
	}
	if err := p.policy.Load().allows(f.target, f.at.Addr(), p.own()); err != nil {
		p.removeFlow(f)
		return err
	}
	return nil
}

func (p *Proxy) removeFlow(f *flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.flows, f)
}

var errTooMuch = errors.New("the connection was closed because it reached the limit of bytes")

// countBytes subtracts bytes from those that a flow may carry.
func (f *flow) countBytes(n int) error {
	if f.left.Add(-int64(n)) < 0 {
		return errTooMuch
	}
	return nil
}

// dial tries the judged addresses in order, each for its share of the time.
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

// notOurs refuses a listener of this host, whatever the rules and the settings say, because its callers have
// the permissions of this machine. It is called after connecting and before sending, because the listener may
// be newer than the rules.
func (p *Proxy) notOurs(at netip.AddrPort) error {
	if _, isSpecial := specialOf(effectiveAddr(at.Addr()), p.own()); !isSpecial {
		return nil
	}
	switch mine, err := p.mine(at); {
	case err != nil:
		return refusef("", "%s is an address of this machine, and what listens there is unknown: %v", at, err)
	case mine:
		return refusef("", "%s is a listener of this host, which no sandbox may reach", at)
	}
	return nil
}

// client is a connection from inside. One goroutine reads from it.
type client struct {
	proxy *Proxy
	conn  net.Conn
	in    *bufio.Reader
	until time.Time // time by which a request that has started must be complete; else zero
	touch func()    // extends the deadlines; set in a tunnel
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
