package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// pipes are the streams of bytes between this node and others.
type pipes struct {
	n *Node

	mu       sync.Mutex
	open     map[string]*pipe
	services map[string]*pipeListener
	closed   bool
}

// Kinds of messages of a stream. Each has a kind, a number that counts them, and a payload. The messages that end a
// stream say the number of the last message that was read, so the other end knows whether its request was.
const (
	pipeData   = 'd'
	pipeCredit = 'c' // the payload is how many bytes have been read
	pipeEnd    = 'e' // no more data; the payload is that number
	pipeReset  = 'r' // the payload is that number, and why

	pipeHead   = 1 + 8
	pipeChunk  = 64 << 10 // of data in one message
	pipeWindow = 1 << 20  // of data that the reader has not read
	maxPipes   = 100_000
)

func (p *pipes) start(n *Node) error {
	p.n, p.open, p.services = n, map[string]*pipe{}, map[string]*pipeListener{}
	sub, err := n.conn.Subscribe(n.subject("pipe", n.id, "*"), p.receive)
	if err != nil {
		return err
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil { // the windows of the streams bound it
		return err
	}
	_, err = n.Handle("pipe", p.accept)
	return err
}

func (p *pipes) close() {
	p.mu.Lock()
	p.closed = true
	var all []*pipe
	for _, c := range p.open {
		all = append(all, c)
	}
	listeners := make([]*pipeListener, 0, len(p.services))
	for _, l := range p.services {
		listeners = append(listeners, l)
	}
	p.mu.Unlock()
	for _, c := range all {
		c.reset(errors.New("the node stops"), true)
	}
	for _, l := range listeners {
		l.Close()
	}
}

// Dial opens a stream to a service of another node. The error wraps ErrNotRun if the node did not accept it.
func (n *Node) Dial(ctx context.Context, node, service string) (net.Conn, error) {
	p := &n.pipes
	if l := n.direct.to(node); l != nil {
		c, err := l.dial(ctx, service)
		if err == nil {
			return c, nil
		}
		if n.direct.to(node) == l {
			return nil, err
		} // otherwise the link has failed, and nothing was sent
	}
	c := p.addPipe(node, nil, "")
	if c == nil {
		return nil, fmt.Errorf("node %s: too many streams: %w", node, ErrNotRun)
	}
	remote, err := n.Request(ctx, node, "pipe", []byte(service+" "+c.id))
	if err != nil {
		c.reset(err, false)
		return nil, fmt.Errorf("%w: %w", ErrNotRun, err) // nothing was sent through it
	}
	if err := c.connect(string(remote)); err != nil {
		return nil, fmt.Errorf("node %s: %w: %w", node, ErrNotRun, err)
	}
	return c, nil
}

// addPipe returns a new stream, over NATS if there is no link; nil if there are too many. An id is that which the other
// end of a link has chosen.
func (p *pipes) addPipe(node string, l *link, id string) *pipe {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.open) >= maxPipes || p.open[id] != nil || l != nil && l.pipes.Load() >= maxLinkPipes {
		return nil
	}
	if l != nil {
		l.pipes.Add(1)
	}
	c := &pipe{p: p, id: cmp.Or(id, rand.Text()), node: node, link: l, credit: pipeWindow}
	p.open[c.id] = c
	return c
}

// accept answers another node that opens a stream.
func (p *pipes) accept(_ context.Context, from string, data []byte) ([]byte, error) {
	service, remote, ok := strings.Cut(string(data), " ")
	p.mu.Lock()
	l := p.services[service]
	p.mu.Unlock()
	if !ok || l == nil || !ValidID(from) || strings.ContainsAny(remote, ".*> \t") {
		return nil, fmt.Errorf("there is no service %q", service)
	}
	c := p.addPipe(from, nil, "")
	if c == nil {
		return nil, errors.New("too many streams")
	}
	if err := c.connect(remote); err != nil {
		return nil, err
	}
	if err := l.offer(c); err != nil {
		c.reset(err, false)
		return nil, err
	}
	return []byte(c.id), nil
}

func (p *pipes) receive(m *nats.Msg) {
	id := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	p.mu.Lock()
	c := p.open[id]
	p.mu.Unlock()
	switch {
	case len(m.Data) < pipeHead:
	case c != nil:
		c.receive(m.Data[0], binary.BigEndian.Uint64(m.Data[1:]), m.Data[pipeHead:])
	case m.Data[0] == pipeData && m.Reply != "": // this end was closed; the other must not wait for it
		head := append([]byte{pipeReset}, make([]byte, pipeHead-1)...)
		head = binary.BigEndian.AppendUint64(head, binary.BigEndian.Uint64(m.Data[1:])-1)
		p.n.conn.Publish(m.Reply, append(head, "the other end was closed"...))
	}
}

// pipe is one end of a stream. It implements net.Conn. Messages carry numbers: when one is lost the stream fails
// instead of leaving something out.
type pipe struct {
	p    *pipes
	id   string
	node string // at the other end
	link *link  // nil over NATS

	writing sync.Mutex // guards the order of the numbers while messages are sent; taken before mu

	mu       sync.Mutex    // guards what follows
	remote   string        // subject of the other end
	changed  chan struct{} // closed by the next change; nil if no goroutine waits for it
	sent     uint64
	received uint64
	request  uint64 // number of the first data that was sent since data was received
	accepted bool   // by the other end of the link
	credit   int    // how much may be sent
	data     []pipeFrame
	unread   int
	read     int // since credit was last given
	ended    bool
	err      error // after which nothing works
	stop     func()
	until    [2]time.Time // deadlines of reading and writing

	requestAt uint64 // position of that request in the link

	reading   bool      // a goroutine reads the connection that is the stream's own
	connUntil time.Time // deadline of reading that was set there
}

// pipeFrame is data that was received and not read.
type pipeFrame struct {
	number uint64
	data   []byte
	begun  bool // some of it was read
}

// lastRead returns the number of the last message of which anything was read. c.mu is held.
func (c *pipe) lastRead() uint64 {
	switch {
	case len(c.data) == 0:
		return c.received
	case c.data[0].begun:
		return c.data[0].number
	}
	return c.data[0].number - 1
}

// unanswered returns what is known of a request, by what the other end has read of it: ErrNotRun if it is nothing.
// c.mu is held.
func (c *pipe) unanswered(payload []byte) error {
	if len(payload) >= 8 && c.request > binary.BigEndian.Uint64(payload) {
		return ErrNotRun
	}
	return ErrMayHaveRun
}

// connect begins to send to the other end. It fails, and ends the stream, if its node is not heard.
func (c *pipe) connect(remote string) error {
	ctx, cancel, alive := c.p.n.peers.whileAlive(context.Background(), c.node)
	if !alive {
		c.reset(errSilent, false)
		return errSilent
	}
	stop := context.AfterFunc(ctx, func() {
		c.reset(fmt.Errorf("node %s: %w: %w", c.node, ErrMayHaveRun, context.Cause(ctx)), false)
	})
	c.mu.Lock()
	c.remote = c.p.n.subject("pipe", c.node, remote)
	c.stop = func() { stop(); cancel() }
	c.mu.Unlock()
	return nil
}

// signal wakes the goroutines that wait for a change. c.mu is held.
func (c *pipe) signal() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
	if c.reading {
		c.connUntil = time.Unix(1, 0)
		c.link.conn.SetReadDeadline(c.connUntil)
	}
}

func (c *pipe) sendFrame(kind byte, payload []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	if kind == pipeData && c.ended { // the other end was closed, and reads nothing more
		defer c.mu.Unlock()
		err := ErrMayHaveRun
		if c.request == 0 {
			err = ErrNotRun
		}
		return fmt.Errorf("node %s: the other end was closed: %w", c.node, err)
	}
	c.sent++
	number, remote := c.sent, c.remote
	switch {
	case kind == pipeData && c.request == 0:
		c.request = number
	case kind == pipeEnd || kind == pipeReset:
		payload = append(binary.BigEndian.AppendUint64(nil, c.lastRead()), payload...)
	}
	c.mu.Unlock()
	if c.link != nil {
		at, err := c.link.send(c.id, kind, number, payload, true)
		c.mu.Lock()
		if c.request == number {
			c.requestAt = at
		}
		c.mu.Unlock()
		return err
	}
	if remote == "" {
		return nil
	}
	message := make([]byte, pipeHead, pipeHead+len(payload))
	message[0] = kind
	binary.BigEndian.PutUint64(message[1:], number)
	return c.p.n.conn.PublishRequest(remote, c.p.n.subject("pipe", c.p.n.id, c.id), append(message, payload...))
}

func (c *pipe) receive(kind byte, number uint64, payload []byte) {
	c.mu.Lock()
	if kind == pipeAccept {
		c.accepted = true
		c.signal()
		c.mu.Unlock()
		return
	}
	c.received++
	if number != c.received && kind != pipeReset {
		c.mu.Unlock()
		go c.reset(fmt.Errorf("node %s: a message was lost: %w", c.node, ErrMayHaveRun), true) // which waits
		return
	}
	switch kind {
	case pipeData:
		c.unread += len(payload)
		if c.unread > 2*pipeWindow {
			c.mu.Unlock()
			go c.reset(errors.New("the other node sends more than it may"), true)
			return
		}
		c.data = append(c.data, pipeFrame{number: number, data: payload})
		c.request = 0
	case pipeCredit:
		if len(payload) == 4 {
			c.credit += int(binary.BigEndian.Uint32(payload))
		}
	case pipeEnd:
		if err := c.unanswered(payload); c.request > 0 && err == ErrNotRun {
			c.mu.Unlock() // before it has ended, or a reader would be told io.EOF in between
			c.reset(fmt.Errorf("node %s: the other end was closed: %w", c.node, err), false)
			return
		}
		c.ended = true
	case pipeReset:
		err := c.unanswered(payload)
		c.mu.Unlock()
		c.reset(fmt.Errorf("node %s: %s: %w", c.node, payload[min(len(payload), 8):], err), false)
		return
	}
	c.signal()
	c.mu.Unlock()
}

// reset ends the stream with an error.
func (c *pipe) reset(err error, tell bool) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	stop := c.stop
	c.signal()
	c.mu.Unlock()
	if tell {
		c.sendFrame(pipeReset, []byte(err.Error()))
	}
	c.p.mu.Lock()
	delete(c.p.open, c.id)
	c.p.mu.Unlock()
	if c.link != nil {
		c.link.pipes.Add(-1)
		if c.link.ended != nil {
			close(c.link.ended)
		}
	}
	if stop != nil {
		stop()
	}
}

// wait waits for a change, or for the deadline of reading (0) or writing (1). c.mu must be held, and is again.
func (c *pipe) wait(which int) error {
	until := c.until[which]
	if c.link != nil && c.link.ended != nil && !c.reading {
		return c.readConn(until)
	}
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	changed := c.changed
	c.mu.Unlock()
	defer c.mu.Lock()
	if until.IsZero() {
		<-changed
		return nil
	}
	left := time.Until(until)
	if left <= 0 {
		return os.ErrDeadlineExceeded
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-changed:
		return nil
	case <-timer.C:
		return os.ErrDeadlineExceeded
	}
}

// readConn waits for a change as the one goroutine that reads the connection, which is the stream's own. c.mu must be
// held, and is again.
func (c *pipe) readConn(until time.Time) error {
	c.reading = true
	if c.connUntil != until {
		c.connUntil = until
		c.link.conn.SetReadDeadline(until)
	}
	c.mu.Unlock()
	f, err := c.link.next()
	c.mu.Lock()
	c.reading = false
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.signal() // another one may read now
		if !until.IsZero() && !time.Now().Before(until) {
			return err
		}
	case c.err != nil: // it has ended meanwhile
	case err != nil:
		c.mu.Unlock()
		c.link.fail(err)
		c.mu.Lock()
	case f.pipe == c.id:
		c.mu.Unlock()
		c.receive(f.kind, f.number, f.payload)
		c.mu.Lock()
	}
	return nil
}

// Read implements net.Conn.
func (c *pipe) Read(b []byte) (int, error) {
	c.mu.Lock()
	for len(c.data) == 0 {
		err := c.err
		if err == nil && c.ended {
			err = io.EOF
		}
		if err == nil {
			err = c.wait(0)
		}
		if err != nil {
			c.mu.Unlock()
			return 0, err
		}
	}
	first := &c.data[0]
	n := copy(b, first.data)
	first.data, first.begun = first.data[n:], true
	if len(first.data) == 0 {
		c.data = slices.Delete(c.data, 0, 1)
	}
	c.unread -= n
	c.read += n
	give := 0
	if c.read >= pipeWindow/4 {
		give, c.read = c.read, 0
	}
	c.mu.Unlock()
	if give > 0 {
		c.sendFrame(pipeCredit, binary.BigEndian.AppendUint32(nil, uint32(give)))
	}
	return n, nil
}

// Write implements net.Conn.
func (c *pipe) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		c.mu.Lock()
		for c.err == nil && c.credit <= 0 {
			if err := c.wait(1); err != nil {
				c.mu.Unlock()
				return n, err
			}
		}
		if c.err != nil {
			defer c.mu.Unlock()
			if n == 0 && c.request == 0 {
				return 0, fmt.Errorf("node %s: the stream had ended: %w", c.node, ErrNotRun)
			}
			return n, c.err
		}
		size := min(len(b), c.credit, pipeChunk)
		c.credit -= size
		c.mu.Unlock()
		if err := c.sendFrame(pipeData, b[:size]); err != nil {
			if !errors.Is(err, ErrNotRun) {
				err = fmt.Errorf("node %s: %w: %w", c.node, ErrMayHaveRun, err)
			}
			c.reset(err, false)
			return n, err
		}
		n, b = n+size, b[size:]
	}
	return n, nil
}

// Close implements net.Conn. What was written before arrives.
func (c *pipe) Close() error {
	c.mu.Lock()
	over := c.err != nil
	c.mu.Unlock()
	if !over {
		c.sendFrame(pipeEnd, nil)
		c.reset(net.ErrClosed, false)
	}
	return nil
}

// SetDeadline implements net.Conn.
func (c *pipe) SetDeadline(t time.Time) error { return c.setUntil(t, 0, 1) }

// SetReadDeadline implements net.Conn.
func (c *pipe) SetReadDeadline(t time.Time) error { return c.setUntil(t, 0) }

// SetWriteDeadline implements net.Conn.
func (c *pipe) SetWriteDeadline(t time.Time) error { return c.setUntil(t, 1) }

func (c *pipe) setUntil(t time.Time, which ...int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range which {
		c.until[w] = t
	}
	c.signal()
	return nil
}

// LocalAddr implements net.Conn.
func (c *pipe) LocalAddr() net.Addr { return nodeAddr(c.p.n.id) }

// RemoteAddr implements net.Conn.
func (c *pipe) RemoteAddr() net.Addr { return nodeAddr(c.node) }

// nodeAddr is a node as the address of a stream.
type nodeAddr string

func (nodeAddr) Network() string  { return "cluster" }
func (a nodeAddr) String() string { return "node-" + string(a) + ":0" }

// pipeListener is a service of this node. It implements net.Listener.
type pipeListener struct {
	p     *pipes
	name  string
	conns chan *pipe
	done  chan struct{}
	once  sync.Once
}

// Listen accepts the streams to a service of this node.
func (n *Node) Listen(service string) (net.Listener, error) {
	l := &pipeListener{p: &n.pipes, name: service, conns: make(chan *pipe, 128), done: make(chan struct{})}
	n.pipes.mu.Lock()
	defer n.pipes.mu.Unlock()
	if n.pipes.services[service] != nil {
		return nil, fmt.Errorf("the service %s is there already", service)
	}
	n.pipes.services[service] = l
	return l, nil
}

func (l *pipeListener) offer(c *pipe) error {
	select {
	case <-l.done:
		return net.ErrClosed
	default:
	}
	select {
	case l.conns <- c:
		return nil
	default:
		return errors.New("too many streams wait")
	}
}

// Accept implements net.Listener.
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *pipeListener) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.p.mu.Lock()
		if l.p.services[l.name] == l {
			delete(l.p.services, l.name)
		}
		l.p.mu.Unlock()
		for {
			select {
			case c := <-l.conns:
				c.Close()
			default:
				return
			}
		}
	})
	return nil
}

// Addr implements net.Listener.
func (l *pipeListener) Addr() net.Addr { return nodeAddr(l.p.n.id) }
