package manager

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
)

const (
	mostPorts = 8  // of one sandbox
	mostConns = 64 // of one port
	dialWait  = 10 * time.Second
)

// Errors of ports.
var (
	ErrNoPort       = errors.New("this port of the sandbox is not open to the host")
	ErrTooManyPorts = fmt.Errorf("%d ports of this sandbox are open to the host, which is the most: "+
		"close one first", mostPorts)
)

// Port is a port on the host's loopback interface that is forwarded to one of the sandbox.
type Port struct {
	Port    uint16 // in the sandbox
	Address string // on the host, as host:port
}

// portForwarder serves one exposed Port.
type portForwarder struct {
	Port
	box   *Box
	from  sandbox.Dialer
	l     net.Listener
	slots chan struct{}

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// Expose forwards a port of the host's loopback interface, at an address that is this sandbox's own, to a port
// of the sandbox. It is closed with the sandbox. A port that is exposed already stays as it is.
func (b *Box) Expose(port uint16) (Port, error) {
	from, ok := b.Sandbox.(sandbox.Dialer)
	if !ok {
		return Port{}, unsupported(b, "do not support ports")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch d := b.ports[port]; {
	case b.left:
		return Port{}, sandbox.ErrClosed
	case d != nil:
		return d.Port, nil
	case len(b.ports) >= mostPorts:
		return Port{}, ErrTooManyPorts
	}
	if !b.loopback.IsValid() {
		b.loopback = ownLoopback()
	}
	l, err := net.Listen("tcp", netip.AddrPortFrom(b.loopback, 0).String())
	if err != nil {
		return Port{}, err
	}
	d := &portForwarder{
		Port: Port{port, l.Addr().String()}, box: b, from: from, l: l,
		slots: make(chan struct{}, mostConns), conns: map[net.Conn]struct{}{},
	}
	if b.ports == nil {
		b.ports = map[uint16]*portForwarder{}
	}
	b.ports[port] = d
	b.manager.runs.Go(d.acceptLoop) // the sandbox is registered, so Close does not wait for runs yet
	return d.Port, nil
}

// ownLoopback returns an address of 127.64.0.0/10 at random. Browsers send cookies
// to every port of a host, so a port of 127.0.0.1 would hand those of the host's
// listener to the sandbox, and those of one sandbox to another.
func ownLoopback() netip.Addr {
	var r [3]byte
	rand.Read(r[:])
	return netip.AddrFrom4([4]byte{127, 64 | r[0]&63, r[1], 1 + r[2]%254})
}

// Unexpose closes a port and its connections; it returns ErrNoPort if the port is not exposed.
func (b *Box) Unexpose(port uint16) error {
	b.mu.Lock()
	d := b.ports[port]
	delete(b.ports, port)
	b.mu.Unlock()
	if d == nil {
		return ErrNoPort
	}
	d.closeAll()
	return nil
}

// Ports returns the exposed ports in order.
func (b *Box) Ports() (all []Port) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.ports {
		all = append(all, d.Port)
	}
	slices.SortFunc(all, func(a, b Port) int { return int(a.Port) - int(b.Port) })
	return all
}

// closePorts closes all ports. b.left is set, so none is opened afterwards.
func (b *Box) closePorts() {
	b.mu.Lock()
	all := b.ports
	b.ports = nil
	b.mu.Unlock()
	for _, d := range all {
		d.closeAll()
	}
}

// acceptLoop accepts connections until the port is closed.
func (p *portForwarder) acceptLoop() {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := p.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // too many files are open
			continue
		}
		select {
		case p.slots <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		if !p.addConn(conn) {
			conn.Close()
			return
		}
		all.Go(func() {
			defer func() { <-p.slots }()
			defer p.removeConn(conn)
			p.forward(conn)
		})
	}
}

// forward relays one connection in both directions, and keeps the sandbox from expiring as idle meanwhile.
func (p *portForwarder) forward(outer net.Conn) {
	defer outer.Close()
	defer p.box.Use()()
	ctx, cancel := context.WithTimeout(p.box.manager.life, dialWait)
	inner, err := p.from.Dial(ctx, p.Port.Port)
	cancel()
	if err != nil {
		return
	}
	if !p.addConn(inner) {
		inner.Close()
		return
	}
	defer p.removeConn(inner)
	defer inner.Close()
	var both sync.WaitGroup
	both.Go(func() { pass(inner, outer) })
	both.Go(func() { pass(outer, inner) })
	both.Wait()
}

// pass copies until the end of the data and then closes that direction.
func pass(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		half.CloseWrite()
		return
	}
	to.Close()
	if err != nil {
		from.Close()
	}
}

func (p *portForwarder) addConn(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *portForwarder) removeConn(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (p *portForwarder) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.l.Close()
	for c := range p.conns {
		c.Close()
	}
}
