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
	mostStreams = 64               // that may be open each way; fewer than the agent takes of requests
	closeWait   = 30 * time.Second // for the last bytes of a connection that was closed
)

// conn is a connection in the sandbox. It is a net.Conn.
type conn struct {
	link *Link
	id   uint32
	from net.Addr
	to   net.Addr

	place chan struct{} // has an element for it while it is not over
	gone  sync.Once     // of its giving that back

	ready chan struct{} // it is connected, or over
	over  chan struct{} // the last frame came, or the link broke

	// mu guards what follows, up to turn.
	mu     sync.Mutex
	change *sync.Cond // of anything below
	up     bool       // it was connected
	got    [][]byte   // what came and was not read yet
	size   int        // bytes of it
	ended  bool       // nothing more comes
	debt   agentprotocol.Debt
	left   int   // what may be sent
	shut   bool  // nothing more is sent
	closed bool  // by us
	err    error // why it is over
	wakes  bool  // somebody sees to it that writers hear of the link's going on

	reading, writing deadline

	// turn lets one Write at a time send. It is taken before mu.
	turn sync.Mutex
}

// deadline is a moment after which waiting ends. The stream's mu guards it.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

// open asks for a connection and waits until it is made. It has taken a place
// among others, and gives it back when it is over.
func (l *Link) open(ctx context.Context, k agentprotocol.Kind, body []byte, place chan struct{}, from, to net.Addr) (*conn, error) {
	s := &conn{link: l, place: place, from: from, to: to, left: agentprotocol.Window, ready: make(chan struct{}), over: make(chan struct{})}
	s.change = sync.NewCond(&s.mu)
	id, err := l.add(s)
	if err == nil {
		s.id = id
		err = l.request(k, id, body)
	}
	if err != nil {
		s.leave() // unless the link broke, and did so already
		return nil, err
	}
	select {
	case <-s.ready:
	case <-ctx.Done():
		s.mu.Lock()
		s.closed = true // what comes meanwhile is for nobody
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

// take is called by the goroutine that reads the link.
func (s *conn) take(f agentprotocol.Frame) (last bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change.Broadcast()
	if !s.up && f.Kind != agentprotocol.Ready && f.Kind != agentprotocol.Failed {
		return false, fmt.Errorf("%w: a frame of kind %d for a connection that is not made", agentprotocol.ErrBroken, f.Kind)
	}
	switch f.Kind {
	case agentprotocol.Ready:
		if s.up {
			return false, fmt.Errorf("%w: a connection that is made twice", agentprotocol.ErrBroken)
		}
		s.up = true
		close(s.ready)
		return false, nil
	case agentprotocol.Stdout:
		return false, s.keep(f.Body)
	case agentprotocol.Credit:
		g, err := agentprotocol.ParseGrant(f.Body)
		if s.left += int(g.Bytes); err == nil && (g.Stream != agentprotocol.Stdin || s.left > agentprotocol.Window) {
			err = fmt.Errorf("%w: a grant of what was not sent", agentprotocol.ErrBroken)
		}
		return false, err
	case agentprotocol.Exit:
		if _, err := agentprotocol.ParseEnded(f.Body); err != nil {
			return false, err
		}
		s.finish(net.ErrClosed)
		return true, nil
	case agentprotocol.Failed:
		why, err := agentprotocol.ParseFailure(f.Body)
		if err != nil {
			return false, err
		}
		s.finish(why)
		return true, nil
	}
	return false, fmt.Errorf("%w: a frame of kind %d for a connection", agentprotocol.ErrBroken, f.Kind)
}

// keep takes bytes that came. The caller holds mu, as below.
func (s *conn) keep(b []byte) error {
	switch {
	case s.closed: // nobody wants them
		return nil
	case s.ended:
		return fmt.Errorf("%w: more of a connection that ended", agentprotocol.ErrBroken)
	case len(b) == 0:
		s.ended = true
		return nil
	case s.size+len(b) > agentprotocol.Window:
		return fmt.Errorf("%w: more of a connection than was granted", agentprotocol.ErrBroken)
	}
	s.size += len(b)
	const small = 1 << 10 // bytes gathered of what comes in less
	if last := len(s.got) - 1; last >= 0 && len(s.got[last])+len(b) <= small {
		s.got[last] = append(s.got[last], b...)
	} else {
		s.got = append(s.got, b)
	}
	return nil
}

func (s *conn) finish(why error) {
	s.err, s.shut = why, true
	if !s.up {
		close(s.ready)
	}
	close(s.over)
	s.leave()
}

// leave gives its place back.
func (s *conn) leave() { s.gone.Do(func() { <-s.place }) }

func (s *conn) broken(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish(err)
	s.change.Broadcast()
}

// Read takes what came. It is io.EOF once the other side has said that no more
// will.
func (s *conn) Read(b []byte) (int, error) {
	s.mu.Lock()
	n, grant, err := s.read(b)
	s.mu.Unlock()
	if grant > 0 {
		s.link.send(agentprotocol.Credit, s.id, agentprotocol.Grant{Stream: agentprotocol.Stdout, Bytes: grant}.Body())
	}
	return n, err
}

func (s *conn) read(b []byte) (n int, grant uint32, err error) {
	for {
		switch {
		case s.closed:
			return 0, 0, s.wrong("read", net.ErrClosed)
		case s.reading.passed():
			return 0, 0, s.wrong("read", os.ErrDeadlineExceeded)
		case len(b) == 0:
			return 0, 0, nil
		case len(s.got) > 0:
			n = copy(b, s.got[0])
			if s.got[0] = s.got[0][n:]; len(s.got[0]) == 0 {
				s.got = s.got[1:]
			}
			s.size -= n
			return n, s.debt.Took(n), nil
		case s.ended:
			return 0, 0, io.EOF
		case s.err != nil:
			return 0, 0, s.wrong("read", s.err)
		}
		s.change.Wait()
	}
}

// Write sends, as the other side grants it.
func (s *conn) Write(b []byte) (sent int, err error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	for {
		n, err := s.mayWrite(len(b) - sent)
		if err != nil || sent == len(b) {
			return sent, err
		}
		if err := s.link.send(agentprotocol.Stdin, s.id, b[sent:sent+n]); err != nil {
			return sent, s.wrong("write", err)
		}
		sent += n
	}
}

// mayWrite waits until some of so many bytes may be sent.
func (s *conn) mayWrite(most int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.closed:
			return 0, s.wrong("write", net.ErrClosed)
		case s.err != nil && !errors.Is(s.err, net.ErrClosed):
			return 0, s.wrong("write", s.err)
		case s.shut:
			return 0, s.wrong("write", syscall.EPIPE)
		case s.writing.passed():
			return 0, s.wrong("write", os.ErrDeadlineExceeded)
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

// paused reports whether the link is held. Who waits for its end waits for a
// change. The caller holds mu.
func (s *conn) paused() bool {
	let := s.link.pace.held()
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

func (s *conn) wrong(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: s.from, Addr: s.to, Err: err}
}

// CloseWrite says that no more will be sent. What comes can still be read.
func (s *conn) CloseWrite() error {
	s.turn.Lock() // after what is being written
	defer s.turn.Unlock()
	s.mu.Lock()
	shut := s.shut
	s.shut = true
	s.change.Broadcast()
	s.mu.Unlock()
	if shut {
		return nil
	}
	return s.link.send(agentprotocol.Stdin, s.id, nil)
}

// Close ends it. What was written still arrives, if the other side reads it.
func (s *conn) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed, s.got, s.size = true, nil, 0
	s.change.Broadcast()
	s.mu.Unlock()
	if closed {
		return s.wrong("close", net.ErrClosed)
	}
	s.deadlines(time.Time{}) // its timers are not needed any more
	go func() {
		s.CloseWrite()
		s.abandon(sigterm)
	}()
	return nil
}

// abandon has the agent end it. One that does not is given up.
func (s *conn) abandon(signal byte) {
	select {
	case <-s.over:
		return
	default:
	}
	go func() {
		s.link.send(agentprotocol.Signal, s.id, []byte{signal})
		late := s.link.pace.after(closeWait)
		defer late.stop()
		select {
		case <-s.over:
		case <-late.up:
			s.link.fail(errors.New("the agent did not end a connection that was closed"))
		}
	}()
}

// LocalAddr is made up: the host's end has no address.
func (s *conn) LocalAddr() net.Addr { return s.from }

// RemoteAddr is that of the port in the sandbox.
func (s *conn) RemoteAddr() net.Addr { return s.to }

// SetDeadline is that of net.Conn.
func (s *conn) SetDeadline(t time.Time) error { return s.set(t, &s.reading, &s.writing) }

// SetReadDeadline is that of net.Conn.
func (s *conn) SetReadDeadline(t time.Time) error { return s.set(t, &s.reading) }

// SetWriteDeadline is that of net.Conn.
func (s *conn) SetWriteDeadline(t time.Time) error { return s.set(t, &s.writing) }

func (s *conn) set(t time.Time, which ...*deadline) error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return s.wrong("set", net.ErrClosed)
	}
	s.deadlines(t, which...)
	return nil
}

// deadlines moves these, and with none given both.
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
				//lint:ignore SA2001 whoever has looked waits before this gets the lock
				s.mu.Unlock()
				s.change.Broadcast()
			})
		}
	}
	s.change.Broadcast()
}

// loopback is an address in the sandbox.
func loopback(port uint16) net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(port)}
}

// Dial is that of sandbox.Ported.
func (l *Link) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if port == 0 {
		return nil, fmt.Errorf("there is no port 0: %w", syscall.EINVAL)
	}
	if ctx.Err() != nil {
		return nil, dialing(port, context.Cause(ctx))
	}
	select {
	case l.dialled <- struct{}{}:
	default:
		return nil, dialing(port, fmt.Errorf("%d connections are open, which is the most: %w", mostStreams, syscall.EMFILE))
	}
	s, err := l.open(ctx, agentprotocol.Dial, agentprotocol.Port(port).Body(), l.dialled, &net.TCPAddr{}, loopback(port))
	if err != nil {
		return nil, dialing(port, err)
	}
	return s, nil
}

func dialing(port uint16, err error) error {
	if errors.Is(err, sandbox.ErrClosed) || errors.Is(err, sandbox.ErrPaused) {
		return err
	}
	return &net.OpError{Op: "dial", Net: "tcp", Addr: loopback(port), Err: err}
}
