package cluster

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is a connection between the hosts of two nodes. It carries frames: the length of the rest in four bytes, the
// name of a stream, and what a message of a stream has, see pipe. The reader of a link waits for no stream, so that one
// that is not read does not hold up others; the window of each stream bounds what is kept for it.
type link struct {
	d    *direct
	node string
	conn net.Conn

	ended chan struct{} // closed when its only stream has ended; nil if it carries more than one
	in    []byte        // of that stream: what was read from the connection; its reader uses it

	frames atomic.Uint64 // that were read
	pipes  atomic.Int64

	mu      sync.Mutex // guards what follows; no other lock is taken while it is held
	room    *sync.Cond // changed when the queue became shorter
	queue   []byte
	spare   []byte // for the next queue
	queued  uint64 // bytes that were ever put into the queue
	begun   uint64 // of these, those whose writing has begun
	writing bool
	err     error // after which nothing is sent
}

// Kinds of frames that messages over NATS do not have. They carry no number.
const (
	linkPing   = 'p'
	pipeOpen   = 'o' // the payload is the service
	pipeAccept = 'a'
)

const (
	pipeName     = 26 // length of the name of a stream
	linkHead     = pipeName + pipeHead
	maxFrame     = linkHead + pipeChunk + 4<<10
	maxQueue     = 1 << 20 // bytes that wait to be sent; more senders wait
	maxLinkPipes = 20_000
	flushRounds  = 4 // in which a sender writes what others have queued, before another goroutine does
	acceptTime   = 5 * time.Second
)

var noPipe = string(make([]byte, pipeName))

// frame is one message of a link.
type frame struct {
	pipe    string
	kind    byte
	number  uint64
	payload []byte
}

func appendFrame(b []byte, pipe string, kind byte, number uint64, payload []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(linkHead+len(payload)))
	b = append(append(b, pipe...), kind)
	return append(binary.BigEndian.AppendUint64(b, number), payload...)
}

func readFrame(r io.Reader) (f frame, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return f, err
	}
	_, size, err := cutFrame(head[:])
	if err != nil {
		return f, err
	}
	b := make([]byte, size)
	copy(b, head[:])
	if _, err := io.ReadFull(r, b[len(head):]); err != nil {
		return f, err
	}
	f, _, err = cutFrame(b)
	return f, err
}

// cutFrame returns the frame at the beginning of b, of which it is a part, and its size. If b is too short for the
// frame it returns the size alone, or 0.
func cutFrame(b []byte) (f frame, size int, err error) {
	if len(b) < 4 {
		return f, 0, nil
	}
	n := binary.BigEndian.Uint32(b)
	if n < linkHead || n > maxFrame {
		return f, 0, fmt.Errorf("a frame of %d bytes, which must have %d to %d", n, linkHead, maxFrame)
	}
	size = 4 + int(n)
	if len(b) < size {
		return f, size, nil
	}
	b = b[4:size]
	return frame{string(b[:pipeName]), b[pipeName], binary.BigEndian.Uint64(b[pipeName+1:]), b[linkHead:]}, size, nil
}

func newLink(d *direct, node string, conn net.Conn) *link {
	l := &link{d: d, node: node, conn: conn}
	l.room = sync.NewCond(&l.mu)
	return l
}

// run reads the link until it ends, and returns why. It ends when nothing came for two leases: the other end tells
// that it is there five times in each.
func (l *link) run(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { l.fail(errors.New("the node stops")) })()
	var pinging sync.WaitGroup
	defer pinging.Wait()
	ended := make(chan struct{})
	defer close(ended)
	pinging.Go(func() {
		tick := time.NewTicker(l.d.n.opts.Lease / beatsPerLease)
		defer tick.Stop()
		for seen, silent := l.frames.Load(), 0; ; {
			select {
			case <-tick.C:
			case <-ended:
				return
			}
			if now := l.frames.Load(); now != seen {
				seen, silent = now, 0
			} else if silent++; silent > 2*beatsPerLease {
				l.fail(errSilent)
			}
			go l.send(noPipe, linkPing, 0, nil, false)
		}
	})
	in := bufio.NewReaderSize(l.conn, 64<<10)
	for {
		f, err := readFrame(in)
		if err != nil {
			l.fail(err)
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.err
		}
		l.frames.Add(1)
		l.d.n.pipes.receiveFrame(l, f)
	}
}

// send queues a frame and writes the queue unless another goroutine does. at is its position among the bytes of the
// link; the error wraps ErrNotRun. With wait it waits for room in the queue. The reader of the link must not send.
func (l *link) send(pipe string, kind byte, number uint64, payload []byte, wait bool) (at uint64, err error) {
	l.mu.Lock()
	for wait && len(l.queue) > maxQueue && l.err == nil {
		l.room.Wait()
	}
	if l.err != nil {
		defer l.mu.Unlock()
		return 0, fmt.Errorf("node %s: %w: %w", l.node, ErrNotRun, l.err)
	}
	at = l.queued
	before := len(l.queue)
	l.queue = appendFrame(l.queue, pipe, kind, number, payload)
	l.queued += uint64(len(l.queue) - before)
	if l.writing {
		l.mu.Unlock()
		return at, nil
	}
	l.writing = true
	l.mu.Unlock()
	if !l.flush(flushRounds) {
		go l.flush(0)
	}
	return at, nil
}

// flush writes the queue until it is empty. After a number of rounds it returns false, and the caller has to call it
// again; 0 means no limit.
func (l *link) flush(rounds int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := 0; len(l.queue) > 0 && l.err == nil; n++ {
		if n > 0 && n == rounds {
			return false
		}
		out := l.queue
		l.queue, l.begun = l.spare[:0], l.begun+uint64(len(out))
		l.mu.Unlock()
		_, err := l.conn.Write(out)
		if err != nil {
			l.fail(err)
		}
		l.mu.Lock()
		l.spare = nil
		if cap(out) <= maxQueue {
			l.spare = out
		}
		l.room.Broadcast()
	}
	l.writing = false
	l.room.Broadcast()
	return true
}

// awaitWritten returns when the queue has been written, or after a second.
func (l *link) awaitWritten() {
	defer time.AfterFunc(time.Second, func() { l.fail(errors.New("it is not read")) }).Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.writing && l.err == nil {
		l.room.Wait()
	}
}

// raw returns the connection below TLS, whose close waits for a write that is stuck.
func (l *link) raw() net.Conn {
	if secure, ok := l.conn.(*tls.Conn); ok {
		return secure.NetConn()
	}
	return l.conn
}

// fail ends the link and its streams. A request whose writing had not begun was not run.
func (l *link) fail(err error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	begun := l.begun
	l.room.Broadcast()
	l.mu.Unlock()
	l.raw().Close()
	for _, c := range l.d.n.pipes.of(l) {
		c.mu.Lock()
		told := ErrMayHaveRun
		if c.request > 0 && c.requestAt >= begun {
			told = ErrNotRun
		}
		c.mu.Unlock()
		c.reset(fmt.Errorf("node %s: %w: %w", l.node, told, err), false)
	}
}

// dial opens a stream to a service over the link. The error wraps ErrNotRun.
func (l *link) dial(ctx context.Context, service string) (*pipe, error) {
	c := l.d.n.pipes.addPipe(l.node, l, "")
	if c == nil {
		return nil, fmt.Errorf("node %s: too many streams: %w", l.node, ErrNotRun)
	}
	err := c.connect("")
	if err == nil {
		_, err = l.send(c.id, pipeOpen, 0, []byte(service), true)
	}
	if err == nil {
		err = c.awaitAccepted(ctx)
	}
	if err != nil {
		c.reset(err, false)
		return nil, fmt.Errorf("%w: %w", ErrNotRun, err) // nothing was sent through it
	}
	return c, nil
}

// awaitAccepted returns when the other end has accepted the stream. If ctx is done first the stream has ended.
func (c *pipe) awaitAccepted(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, acceptTime, fmt.Errorf("the node accepted no stream within %v", acceptTime))
	defer cancel()
	defer context.AfterFunc(ctx, func() { c.reset(context.Cause(ctx), true) })()
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.accepted && c.err == nil {
		c.wait(0)
	}
	return c.err
}

// accept answers a frame that opens a stream, and reports whether the stream is open.
func (l *link) accept(id, service string) bool {
	p := &l.d.n.pipes
	refuse := func(err error) {
		l.send(id, pipeReset, 0, append(make([]byte, 8), err.Error()...), true)
	}
	p.mu.Lock()
	s := p.services[service]
	p.mu.Unlock()
	if s == nil {
		refuse(fmt.Errorf("there is no service %q", service))
		return false
	}
	c := p.addPipe(l.node, l, id)
	if c == nil {
		refuse(errors.New("too many streams"))
		return false
	}
	err := c.connect("")
	if err == nil {
		_, err = l.send(id, pipeAccept, 0, nil, true)
	}
	if err == nil {
		err = s.offer(c)
	}
	if err != nil {
		c.reset(err, false)
		refuse(err)
	}
	return err == nil
}

// receiveFrame gives a frame to its stream. It must not wait.
func (p *pipes) receiveFrame(l *link, f frame) {
	p.mu.Lock()
	c := p.open[f.pipe]
	p.mu.Unlock()
	switch {
	case f.kind == linkPing:
	case c != nil && c.link == l:
		c.receive(f.kind, f.number, f.payload)
	case f.kind == pipeOpen && c == nil:
		go l.accept(f.pipe, string(f.payload))
	case f.kind == pipeData: // this end was closed; the other must not wait for it
		go l.send(f.pipe, pipeReset, 0, append(binary.BigEndian.AppendUint64(nil, f.number-1),
			"the other end was closed"...), true)
	}
}

// of returns the streams of a link.
func (p *pipes) of(l *link) (all []*pipe) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.open {
		if c.link == l {
			all = append(all, c)
		}
	}
	return all
}
