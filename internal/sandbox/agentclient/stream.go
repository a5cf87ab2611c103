package agentclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
)

const (
	mostStreams = 64               // open in each direction; fewer than the requests the agent accepts
	closeWait   = 30 * time.Second // for the last bytes of a connection that was closed
)

// conn is a net.Conn to a port in the sandbox.
type conn struct {
	client *Client
	id     uint32
	from   net.Addr
	to     net.Addr

	place chan struct{} // the semaphore that holds an element for it while it is not over
	gone  sync.Once     // guards the release of place

	ready chan struct{} // closed when it is connected, or with over
	over  chan struct{} // closed when the last frame arrived or the client broke

	// mu guards the fields up to turn.
	mu     sync.Mutex
	change *sync.Cond // signals a change of any field below
	up     bool       // it was connected
	got    [][]byte   // data that was not read yet
	size   int        // bytes of got
	ended  bool       // the peer sends no more
	debt   agentprotocol.Consumed
	left   int   // bytes that may be sent
	shut   bool  // this side sends no more
	closed bool  // by this side
	err    error // why it is over
	wakes  bool  // a goroutine waits to wake writers when the client resumes

	reading, writing deadline

	turn sync.Mutex // serializes writers; locked before mu
}

// deadline is the time after which a wait ends. The conn's mu guards it.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

// openConn requests a connection and waits until it is established. The caller has acquired an element of place,
// which the connection releases when it is over.
func (l *Client) openConn(ctx context.Context, k agentprotocol.Kind, body []byte, place chan struct{}, from,
	to net.Addr) (*conn, error) {
	s := &conn{
		client: l,
		place:  place,
		from:   from,
		to:     to,
		left:   agentprotocol.Window,
		ready:  make(chan struct{}),
		over:   make(chan struct{}),
	}
	s.change = sync.NewCond(&s.mu)
	id, err := l.addReceiver(s)
	if err == nil {
		s.id = id
		err = l.request(k, id, body)
	}
	if err != nil {
		s.releaseConn() // it does nothing if the client broke and released it already
		return nil, err
	}
	select {
	case <-s.ready:
	case <-ctx.Done():
		s.mu.Lock()
		s.closed = true // data that arrives meanwhile is discarded
		s.mu.Unlock()
		s.abandon(sigkill)
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.up {
		return nil, s.err
	}
	return s, nil
}

// handle is called by the goroutine that reads the channel.
func (s *conn) handle(f agentprotocol.Frame) (last bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change.Broadcast()
	if !s.up && f.Kind != agentprotocol.Ready && f.Kind != agentprotocol.Failed {
		return false, fmt.Errorf("%w: unexpected frame of kind %d for a connection that is not established",
			agentprotocol.ErrBroken, f.Kind)
	}
	switch f.Kind {
	case agentprotocol.Ready:
		if s.up {
			return false, fmt.Errorf("%w: a connection was established twice", agentprotocol.ErrBroken)
		}
		s.up = true
		close(s.ready)
		return false, nil
	case agentprotocol.Stdout:
		return false, s.receive(f.Body)
	case agentprotocol.Credit:
		g, err := agentprotocol.ParseGrant(f.Body)
		if s.left += int(g.Bytes); err == nil && (g.Stream != agentprotocol.Stdin || s.left > agentprotocol.Window) {
			err = fmt.Errorf("%w: a grant of bytes that were not sent", agentprotocol.ErrBroken)
		}
		return false, err
	case agentprotocol.Exit:
		if _, err := agentprotocol.ParseExitStatus(f.Body); err != nil {
			return false, err
		}
		s.finishConn(net.ErrClosed)
		return true, nil
	case agentprotocol.Failed:
		why, err := agentprotocol.ParseFailure(f.Body)
		if err != nil {
			return false, err
		}
		s.finishConn(why)
		return true, nil
	}
	return false, fmt.Errorf("%w: unexpected frame of kind %d for a connection", agentprotocol.ErrBroken, f.Kind)
}

// receive buffers data. The caller holds mu, as for the functions below.
func (s *conn) receive(b []byte) error {
	switch {
	case s.closed: // the data is discarded
		return nil
	case s.ended:
		return fmt.Errorf("%w: data on a connection that ended", agentprotocol.ErrBroken)
	case len(b) == 0:
		s.ended = true
		return nil
	case s.size+len(b) > agentprotocol.Window:
		return fmt.Errorf("%w: more data on a connection than was granted", agentprotocol.ErrBroken)
	}
	s.size += len(b)
	const small = 1 << 10 // smaller pieces are gathered up to this many bytes
	if last := len(s.got) - 1; last >= 0 && len(s.got[last])+len(b) <= small {
		s.got[last] = append(s.got[last], b...)
	} else {
		s.got = append(s.got, b)
	}
	return nil
}

func (s *conn) finishConn(why error) {
	s.err, s.shut = why, true
	if !s.up {
		close(s.ready)
	}
	close(s.over)
	s.releaseConn()
}

// releaseConn returns the connection's element of the semaphore.
func (s *conn) releaseConn() { s.gone.Do(func() { <-s.place }) }

func (s *conn) broken(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finishConn(err)
	s.change.Broadcast()
}

// Read implements net.Conn.
func (s *conn) Read(b []byte) (int, error) {
	s.mu.Lock()
	n, grant, err := s.readBytes(b)
	s.mu.Unlock()
	if grant > 0 {
		s.client.sendFrame(agentprotocol.Credit, s.id,
			agentprotocol.Grant{Stream: agentprotocol.Stdout, Bytes: grant}.Body())
	}
	return n, err
}

func (s *conn) readBytes(b []byte) (n int, grant uint32, err error) {
	for {
		switch {
		case s.closed:
			return 0, 0, s.opError("read", net.ErrClosed)
		case s.reading.passed():
			return 0, 0, s.opError("read", os.ErrDeadlineExceeded)
		case len(b) == 0:
			return 0, 0, nil
		case len(s.got) > 0:
			n = copy(b, s.got[0])
			if s.got[0] = s.got[0][n:]; len(s.got[0]) == 0 {
				s.got = s.got[1:]
			}
			s.size -= n
			return n, s.debt.Add(n), nil
		case s.ended:
			return 0, 0, io.EOF
		case s.err != nil:
			return 0, 0, s.opError("read", s.err)
		}
		s.change.Wait()
	}
}

// Write sends data as the agent grants it.
func (s *conn) Write(b []byte) (sent int, err error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	for {
		n, err := s.mayWrite(len(b) - sent)
		if err != nil || sent == len(b) {
			return sent, err
		}
		if err := s.client.sendFrame(agentprotocol.Stdin, s.id, b[sent:sent+n]); err != nil {
			return sent, s.opError("write", err)
		}
		sent += n
	}
}

// mayWrite waits until some of most bytes may be sent, and returns how many.
func (s *conn) mayWrite(most int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.closed:
			return 0, s.opError("write", net.ErrClosed)
		case s.err != nil && !errors.Is(s.err, net.ErrClosed):
			return 0, s.opError("write", s.err)
		case s.shut:
			return 0, s.opError("write", syscall.EPIPE)
		case s.writing.passed():
			return 0, s.opError("write", os.ErrDeadlineExceeded)
		case most == 0:
			return 0, nil
		case s.paused():
		case s.left > 0:
			n := min(most, s.left, agentprotocol.MaxBody)
			s.left -= n
			return n, nil
		}
		s.change.Wait()
	}
}

// paused reports whether the client is suspended. If so, change is signalled when it resumes. The caller holds
// mu.
func (s *conn) paused() bool {
	let := s.client.clock.paused()
	if let != nil && !s.wakes {
		s.wakes = true
		go func() {
			select {
			case <-let:
			case <-s.over:
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.wakes = false
			s.change.Broadcast()
		}()
	}
	return let != nil
}

func (s *conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: s.from, Addr: s.to, Err: err}
}

// CloseWrite sends the end of the data. Incoming data can still be read.
func (s *conn) CloseWrite() error {
	s.turn.Lock() // waits for a write in progress
	defer s.turn.Unlock()
	s.mu.Lock()
	shut := s.shut
	s.shut = true
	s.change.Broadcast()
	s.mu.Unlock()
	if shut {
		return nil
	}
	return s.client.sendFrame(agentprotocol.Stdin, s.id, nil)
}

// Close closes the connection. Data that was written still arrives, if the peer reads it.
func (s *conn) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed, s.got, s.size = true, nil, 0
	s.change.Broadcast()
	s.mu.Unlock()
	if closed {
		return s.opError("close", net.ErrClosed)
	}
	s.deadlines(time.Time{}) // stops the timers
	go func() {
		s.CloseWrite()
		s.abandon(sigterm)
	}()
	return nil
}

// abandon makes the agent end the connection. If it does not, the sandbox is given up.
func (s *conn) abandon(signal byte) {
	select {
	case <-s.over:
		return
	default:
	}
	go func() {
		s.client.sendFrame(agentprotocol.Signal, s.id, []byte{signal})
		late := s.client.clock.after(closeWait)
		defer late.stopTimers()
		select {
		case <-s.over:
		case <-late.up:
			s.client.failWith(errors.New("the agent did not end a connection that was closed"))
		}
	}()
}

// LocalAddr returns a placeholder: the host's end has no address.
func (s *conn) LocalAddr() net.Addr { return s.from }

// RemoteAddr returns the address of the port in the sandbox.
func (s *conn) RemoteAddr() net.Addr { return s.to }

// SetDeadline implements net.Conn.
func (s *conn) SetDeadline(t time.Time) error { return s.setDeadline(t, &s.reading, &s.writing) }

// SetReadDeadline implements net.Conn.
func (s *conn) SetReadDeadline(t time.Time) error { return s.setDeadline(t, &s.reading) }

// SetWriteDeadline implements net.Conn.
func (s *conn) SetWriteDeadline(t time.Time) error { return s.setDeadline(t, &s.writing) }

func (s *conn) setDeadline(t time.Time, which ...*deadline) error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return s.opError("set", net.ErrClosed)
	}
	s.deadlines(t, which...)
	return nil
}

// deadlines sets the given deadlines, or both if none is given.
func (s *conn) deadlines(t time.Time, which ...*deadline) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if which == nil {
		which = []*deadline{&s.reading, &s.writing}
	}
	for _, d := range which {
		if d.timer != nil {
			d.timer.Stop()
			d.timer = nil
		}
		if d.at = t; !t.IsZero() {
			d.timer = time.AfterFunc(time.Until(t), func() {
				s.mu.Lock()
				//lint:ignore SA2001 a goroutine that has just checked the deadline waits on change before this locks
				s.mu.Unlock()
				s.change.Broadcast()
			})
		}
	}
	s.change.Broadcast()
}

// loopback returns an address in the sandbox.
func loopback(port uint16) net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(port)}
}

// Dial implements sandbox.Dialer.
func (l *Client) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if port == 0 {
		return nil, fmt.Errorf("port 0 does not exist: %w", syscall.EINVAL)
	}
	if ctx.Err() != nil {
		return nil, dialError(port, context.Cause(ctx))
	}
	select {
	case l.dialled <- struct{}{}:
	default:
		return nil, dialError(port, fmt.Errorf("%d connections are open, which is the most: %w", mostStreams,
			syscall.EMFILE))
	}
	s, err := l.openConn(ctx, agentprotocol.Dial, agentprotocol.Port(port).Body(), l.dialled, &net.TCPAddr{},
		loopback(port))
	if err != nil {
		return nil, dialError(port, err)
	}
	return s, nil
}

func dialError(port uint16, err error) error {
	if errors.Is(err, sandbox.ErrClosed) || errors.Is(err, sandbox.ErrPaused) {
		return err
	}
	return &net.OpError{Op: "dial", Net: "tcp", Addr: loopback(port), Err: err}
}
