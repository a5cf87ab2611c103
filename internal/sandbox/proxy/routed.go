package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
)

// firstWords is how long a client may take to send its first bytes, if its target follows from them. A client that
// waits for its server is judged by the address then.
const firstWords = 2 * time.Second

// ServeRouted accepts connections of programs that know of no proxy, until the caller closes the listener: each is for
// the address and port at which it arrived. Its target is the name that ServeDNS answered with this address, or that
// the client sends first (in a TLS ClientHello or as the Host of a request), or the address. A name is resolved again,
// by the host, so that a client cannot have another address dialled for it.
func (p *Proxy) ServeRouted(l net.Listener) error {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if !p.acceptConn(c) {
			c.Close()
			continue
		}
		go func() {
			defer p.leave(c)
			p.serveRouted(c)
		}()
	}
}

func (p *Proxy) serveRouted(conn net.Conn) {
	at, err := netip.ParseAddrPort(conn.LocalAddr().String())
	if err != nil {
		return
	}
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	c := newClient(p, conn)
	t := c.routedTarget(at)
	c.tunnel("TCP", t, func(err error) error {
		if err != nil {
			c.refuseRouted(err)
		}
		return err
	})
}

// routedTarget returns what a connection to an address is for.
func (c *client) routedTarget(at netip.AddrPort) target {
	policy := c.proxy.policy.Load()
	var names []string
	for _, name := range c.proxy.answered.namesOf(at.Addr()) {
		if _, err := policy.byName(target{name: name, port: at.Port()}); err == nil {
			names = append(names, name)
		}
	}
	literal := target{addr: at.Addr(), port: at.Port()}
	if len(names) == 1 {
		return target{name: names[0], port: at.Port()}
	}
	if _, err := policy.byAddress(literal, at.Addr(), "", c.proxy.own()); err == nil {
		return literal
	}
	said := c.namedFirst(at.Port())
	if len(names) == 0 && said.name == "" && !said.addr.IsValid() {
		return literal
	}
	if len(names) > 0 && !slices.Contains(names, said.name) {
		return target{name: names[len(names)-1], port: at.Port()}
	}
	return said
}

// namedFirst returns the target that the first bytes of a client name, without consuming them; the zero target if they
// name none.
func (c *client) namedFirst(port uint16) (t target) {
	c.until = time.Now().Add(firstWords)
	defer func() { c.until = time.Time{} }()
	first, err := c.in.Peek(1)
	if err != nil {
		return t
	}
	t.port = port
	if first[0] == tlsHandshake {
		name, err := peekClientHello(c.in)
		if err != nil || t.setHost(name, false) != nil {
			return target{}
		}
		return t
	}
	b, err := peekHead(c.in, c.proxy.limits.Header)
	if err != nil {
		return target{}
	}
	h, err := parseHead(b)
	if err != nil || !h.hasHost {
		return target{}
	}
	if t, err = parseAuthority(h.host, port); err != nil || t.port != port {
		return target{}
	}
	return t
}

// refuseRouted tells a client why it is refused, in the protocol that it speaks.
func (c *client) refuseRouted(err error) {
	c.until = time.Now().Add(firstWords)
	defer func() { c.until = time.Time{} }()
	first, peekErr := c.in.Peek(1)
	if peekErr != nil {
		return
	}
	if first[0] == tlsHandshake {
		c.Write(unrecognised)
		return
	}
	b, _ := c.in.Peek(c.in.Buffered())
	if speech, known := firstLine(b); known && speech == protocolHTTP {
		c.writeRefusal(http.StatusForbidden, err.Error())
	}
}

// answers are the addresses that the resolver has answered with. It is safe for concurrent use.
type answers struct {
	mu     sync.Mutex
	byAddr map[netip.Addr][]string // names, the newest last
}

const (
	maxAnswers = 4096 // addresses that are remembered
	maxNamed   = 16   // names of one address
)

func (a *answers) namesOf(at netip.Addr) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.byAddr[at])
}

func (a *answers) recordAnswers(name string, all []netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byAddr == nil || len(a.byAddr)+len(all) > maxAnswers {
		a.byAddr = map[netip.Addr][]string{} // a client that still uses an old answer sends a name first, or asks again
	}
	for _, at := range all {
		names := slices.DeleteFunc(a.byAddr[at], func(n string) bool { return n == name })
		if len(names) >= maxNamed {
			names = names[1:]
		}
		a.byAddr[at] = append(names, name)
	}
}

// maxAttempts is how many different attempts are reported in attemptsWindow.
const (
	maxAttempts    = 200
	attemptsWindow = time.Minute
)

// WatchAttempts reports the packets that it reads from a socket (see package agent) as refused, unless they are for
// the resolver or one of the ports that ServeRouted accepts connections at. It returns when the socket is closed.
func (p *Proxy) WatchAttempts(packets io.Reader, ports []uint16) {
	seen, since := map[string]bool{}, time.Now()
	b := make([]byte, 256)
	for {
		n, err := packets.Read(b)
		if err != nil {
			return
		}
		what, to, ok := parseAttempt(b[:n])
		if !ok || what == "TCP" && slices.Contains(ports, to.Port()) {
			continue
		}
		if time.Since(since) > attemptsWindow {
			seen, since = map[string]bool{}, time.Now()
		}
		key := what + to.String()
		if seen[key] || len(seen) >= maxAttempts {
			continue
		}
		seen[key] = true
		d := sandbox.Decision{Method: what, Target: to.String(), Address: to.String()}
		d.Reason = fmt.Sprintf("%s is not allowed by %s: only TCP to allowed ports leaves a sandbox, and queries for "+
			"names are answered by the host", to, what)
		if what == "TCP" {
			d.Reason = fmt.Sprintf("%s is not allowed: no rule has this port", to)
		}
		p.policy.Load().decided(d)
	}
}

// Protocols of IP, and types of messages of ICMP.
const (
	protoICMP  = 1
	protoTCP   = 6
	protoUDP   = 17
	protoICMP6 = 58
	echo       = 8
	echo6      = 128
	dnsPort    = 53
)

// parseAttempt parses the start of an IP packet. ok is false if it is no attempt to reach something: an answer of the
// resolver, or what a kernel sends by itself.
func parseAttempt(b []byte) (what string, to netip.AddrPort, ok bool) {
	var proto byte
	var addr netip.Addr
	var rest []byte
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		proto = b[9]
		addr = netip.AddrFrom4([4]byte(b[16:20]))
		rest = b[min(int(b[0]&15)*4, len(b)):]
	case len(b) >= 40 && b[0]>>4 == 6:
		proto = b[6]
		addr = netip.AddrFrom16([16]byte(b[24:40]))
		rest = b[40:]
	default:
		return "", to, false
	}
	if len(rest) < 4 {
		return "", to, false
	}
	from, port := binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
	switch proto {
	case protoTCP:
		return "TCP", netip.AddrPortFrom(addr, port), true
	case protoUDP:
		return "UDP", netip.AddrPortFrom(addr, port), from != dnsPort && port != dnsPort
	case protoICMP, protoICMP6:
		return "ICMP", netip.AddrPortFrom(addr, 0), rest[0] == echo || rest[0] == echo6
	}
	return fmt.Sprint("protocol ", proto), netip.AddrPortFrom(addr, 0), !addr.IsMulticast()
}

// hasNameAnywhere reports whether a name is allowed at any port, so that it may be resolved.
func (p *policy) hasNameAnywhere(name string) error {
	for i := range p.deny {
		if r := &p.deny[i]; r.hasName(name) && r.at(httpsPort) && r.at(httpPort) {
			return refusef(r.text, "%s is denied by the rule %s", name, r.text)
		}
	}
	var texts []string
	for i := range p.allow {
		if p.allow[i].hasName(name) {
			return nil
		}
		texts = append(texts, p.allow[i].text)
	}
	if len(texts) == 0 {
		return refusef("", "%s is not allowed: this sandbox has no network", name)
	}
	return refusef("", "%s is not allowed: no rule matches it; allowed are %s", name,
		strings.Join(texts[:min(len(texts), 10)], ", "))
}
