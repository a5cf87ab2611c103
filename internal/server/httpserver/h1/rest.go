package h1

import (
	"net"
	"sync"
)

// handoverListener is a listener of connections that were accepted elsewhere.
type handoverListener struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newHanded() *handoverListener {
	return &handoverListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// offer passes a connection on, or closes it if no server accepts it any more.
func (h *handoverListener) offer(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.done:
		c.Close()
	}
}

func (h *handoverListener) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *handoverListener) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

func (h *handoverListener) Addr() net.Addr { return h.addr }

// prefixedConn is a connection of which some bytes have been read already.
type prefixedConn struct {
	net.Conn
	read []byte
}

func (b *prefixedConn) Read(p []byte) (int, error) {
	if len(b.read) == 0 {
		return b.Conn.Read(p)
	}
	n := copy(p, b.read)
	if b.read = b.read[n:]; len(b.read) == 0 {
		b.read = nil // releases the buffer
	}
	return n, nil
}

// NetConn returns the connection that the bytes were read from.
func (p *prefixedConn) NetConn() net.Conn { return p.Conn }

// CloseWrite lets net/http close its half before it closes the connection.
func (p *prefixedConn) CloseWrite() error {
	if half, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
