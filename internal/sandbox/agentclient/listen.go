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

// retryDelay is how long to wait if the agent has too many requests in progress for one more connection.
const retryDelay = 50 * time.Millisecond

// listener is a net.Listener for a port in the sandbox.
type listener struct {
	client *Client
	id     uint32
	port   uint16

	ready chan struct{} // closed when the agent listens, or with over
	over  chan struct{} // closed when the last frame arrived or the client broke
	err   error         // why it is over; set before over is closed

	ctx   context.Context // bounds Accept, whose signature has no context; cancelled by Close
	close context.CancelFunc
	once  sync.Once

	up bool // used only by the goroutine that reads the channel
}

// Listen makes the agent listen on a port of the sandbox's loopback interface and returns a listener for its
// connections. ctx bounds only the call. The listener and its connections end with the sandbox.
func (l *Client) Listen(ctx context.Context, port uint16) (net.Listener, error) {
	if port == 0 {
		return nil, fmt.Errorf("port 0 does not exist: %w", syscall.EINVAL)
	}
	n := &listener{client: l, port: port, ready: make(chan struct{}), over: make(chan struct{})}
	n.ctx, n.close = context.WithCancel(context.WithoutCancel(ctx))
	id, err := l.addReceiver(n)
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

// handle is called by the goroutine that reads the channel.
func (n *listener) handle(f agentprotocol.Frame) (last bool, err error) {
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
		if _, err := agentprotocol.ParseExitStatus(f.Body); err != nil {
			return false, err
		}
		n.broken(net.ErrClosed)
		return true, nil
	}
	return false, fmt.Errorf("%w: unexpected frame of kind %d for a listener", agentprotocol.ErrBroken, f.Kind)
}

func (n *listener) broken(err error) {
	n.err = err
	close(n.over)
	n.close()
	if !n.up {
		close(n.ready)
	}
}

// Accept waits for a connection. While the most connections are open, it waits for the end of one.
func (n *listener) Accept() (net.Conn, error) {
	select {
	case n.client.accepted <- struct{}{}:
	case <-n.ctx.Done():
		return nil, n.opError(net.ErrClosed)
	}
	for {
		c, err := n.client.openConn(n.ctx, agentprotocol.Accept, agentprotocol.RequestID(n.id).Body(),
			n.client.accepted, loopback(n.port), &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		switch {
		case err == nil:
			return c, nil
		case n.ctx.Err() != nil:
			return nil, n.opError(net.ErrClosed)
		case !n.retriable(err):
			return nil, n.opError(err)
		}
		select {
		case n.client.accepted <- struct{}{}:
		case <-n.ctx.Done():
			return nil, n.opError(net.ErrClosed)
		}
	}
}

// retriable reports whether err is temporary, after waiting until the next attempt makes sense.
func (n *listener) retriable(err error) bool {
	wait := time.NewTimer(retryDelay)
	defer wait.Stop()
	let := n.client.clock.paused()
	if errors.Is(err, sandbox.ErrPaused) {
		select {
		case <-let: // nil if it has resumed already
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

func (n *listener) opError(err error) error {
	return &net.OpError{Op: "accept", Net: "tcp", Addr: n.Addr(), Err: err}
}

// Close returns when the agent no longer listens, and at once while the client is suspended. Accepted connections
// stay open.
func (n *listener) Close() error {
	n.once.Do(func() {
		n.close()
		off := make(chan struct{})
		go n.stopListening(off)
		select {
		case <-off:
		case <-n.client.clock.stopped(): // the agent stops listening after Continue
		}
	})
	return nil
}

// stopListening makes the agent stop listening. If it does not, the sandbox is given up.
func (n *listener) stopListening(off chan struct{}) {
	defer close(off)
	select {
	case <-n.over:
		return
	default:
	}
	n.client.sendFrame(agentprotocol.Signal, n.id, []byte{sigkill})
	late := n.client.clock.after(killWait)
	defer late.stopTimers()
	select {
	case <-n.over:
	case <-late.up:
		n.client.failWith(errors.New("the agent did not close a listener within the time allowed"))
	}
}

// Addr returns the address of the port in the sandbox.
func (n *listener) Addr() net.Addr { return loopback(n.port) }
