package agentclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
)

// tryAgain is the wait when the agent has too much under way for one more
// connection.
const tryAgain = 50 * time.Millisecond

// listener is a port in the sandbox that the host listens at. It is a
// net.Listener.
type listener struct {
	link *Link
	id   uint32
	port uint16

	ready chan struct{} // the agent listens, or it is over
	over  chan struct{} // the last frame came, or the link broke
	err   error         // why it is over; set before

	// ctx ends with Close, because Accept of net.Listener has no context.
	ctx   context.Context
	close context.CancelFunc
	once  sync.Once

	up bool // of the goroutine that reads the link
}

// Listen has the agent listen at a port of the sandbox's loopback, whose
// connections are then taken from here. ctx bounds that only. The listener and
// its connections end with the sandbox.
func (l *Link) Listen(ctx context.Context, port uint16) (net.Listener, error) {
	if port == 0 {
		return nil, fmt.Errorf("there is no port 0: %w", syscall.EINVAL)
	}
	n := &listener{link: l, port: port, ready: make(chan struct{}), over: make(chan struct{})}
	n.ctx, n.close = context.WithCancel(context.WithoutCancel(ctx))
	id, err := l.add(n)
	if err == nil {
		n.id = id
		err = l.request(agentprotocol.Listen, id, agentprotocol.Port(port).Body())
	}
	if err != nil {
		n.close()
		return nil, err
	}
	select {
	case <-n.ready:
	case <-ctx.Done():
		n.Close()
		return nil, context.Cause(ctx)
	}
	select {
	case <-n.over:
		n.close()
		return nil, n.err
	default:
		return n, nil
	}
}

// take is called by the goroutine that reads the link.
func (n *listener) take(f agentprotocol.Frame) (last bool, err error) {
	switch {
	case f.Kind == agentprotocol.Ready && !n.up:
		n.up = true
		close(n.ready)
		return false, nil
	case f.Kind == agentprotocol.Failed:
		why, err := agentprotocol.ParseFailure(f.Body)
		if err != nil {
			return false, err
		}
		n.broken(why)
		return true, nil
	case f.Kind == agentprotocol.Exit && n.up:
		if _, err := agentprotocol.ParseEnded(f.Body); err != nil {
			return false, err
		}
		n.broken(net.ErrClosed)
		return true, nil
	}
	return false, fmt.Errorf("%w: a frame of kind %d for what listens", agentprotocol.ErrBroken, f.Kind)
}

func (n *listener) broken(err error) {
	n.err = err
	close(n.over)
	n.close()
	if !n.up {
		close(n.ready)
	}
}

// Accept waits for a connection. While as many are open as there may be, it
// waits for the end of one.
func (n *listener) Accept() (net.Conn, error) {
	select {
	case n.link.accepted <- struct{}{}:
	case <-n.ctx.Done():
		return nil, n.wrong(net.ErrClosed)
	}
	for {
		c, err := n.link.open(n.ctx, agentprotocol.Accept, agentprotocol.Number(n.id).Body(), n.link.accepted, loopback(n.port), &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		switch {
		case err == nil:
			return c, nil
		case n.ctx.Err() != nil:
			return nil, n.wrong(net.ErrClosed)
		case !n.passing(err):
			return nil, n.wrong(err)
		}
		select {
		case n.link.accepted <- struct{}{}:
		case <-n.ctx.Done():
			return nil, n.wrong(net.ErrClosed)
		}
	}
}

// passing waits for the end of what is in the way of a connection for the time
// being, and reports whether it was that.
func (n *listener) passing(err error) bool {
	wait := time.NewTimer(tryAgain)
	defer wait.Stop()
	let := n.link.pace.held()
	if errors.Is(err, sandbox.ErrPaused) {
		select {
		case <-let: // nil when it has gone on already
			return true
		case <-wait.C:
			return true
		case <-n.ctx.Done():
			return false
		}
	}
	if !errors.Is(err, syscall.EAGAIN) {
		return false
	}
	select {
	case <-wait.C:
		return true
	case <-n.ctx.Done():
		return false
	}
}

func (n *listener) wrong(err error) error {
	return &net.OpError{Op: "accept", Net: "tcp", Addr: n.Addr(), Err: err}
}

// Close returns when nobody listens any more, and at once while the link is
// held. Connections stay.
func (n *listener) Close() error {
	n.once.Do(func() {
		n.close()
		off := make(chan struct{})
		go n.callOff(off)
		select {
		case <-off:
		case <-n.link.pace.still(): // it is done when the sandbox goes on
		}
	})
	return nil
}

// callOff has the agent listen no more. One that does not is given up.
func (n *listener) callOff(off chan struct{}) {
	defer close(off)
	select {
	case <-n.over:
		return
	default:
	}
	n.link.send(agentprotocol.Signal, n.id, []byte{sigkill})
	late := n.link.pace.after(killWait)
	defer late.stop()
	select {
	case <-n.over:
	case <-late.up:
		n.link.fail(errors.New("the agent did not end what was to listen no more"))
	}
}

// Addr is that of the port in the sandbox.
func (n *listener) Addr() net.Addr { return loopback(n.port) }
