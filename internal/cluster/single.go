package cluster

import (
	"crypto/rand"
	"errors"
	"io"
	"net"
	"time"
)

// A stream can have a connection of its own beside the link of two nodes. The goroutine that reads the stream then
// reads the connection, and the one that writes it writes the connection, so that a short request wakes no other
// goroutine of either host. Each such connection begins as a link does, but for the first frame of the end that
// connected, which opens the stream. It fails when the link does, which alone notices that the other end is silent.

const (
	maxSingle   = 64 // connections of single streams between two nodes
	singlePause = 30 * time.Second
	lingerTime  = time.Second // in which the other end reads what was sent last
)

// singles are the connections of single streams between this node and another one. direct.mu guards them.
type singles struct {
	all        map[*link]bool
	ready      map[string]*pipe // by service: connected, and not used yet
	connecting bool
	next       time.Time // after an attempt that failed
}

// DialOwn returns a stream to a service of a node with a connection of its own. It does not wait: if none is ready it
// returns nil, and connects one for a later call unless there are enough.
func (n *Node) DialOwn(node, service string) net.Conn {
	d := &n.direct
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.links[node] == nil {
		return nil
	}
	s := d.singlesOf(node)
	if c := s.ready[service]; c != nil {
		delete(s.ready, service)
		return c
	}
	if s.connecting || len(s.all) >= maxSingle || time.Now().Before(s.next) {
		return nil
	}
	s.connecting = true
	d.running.Go(func() { d.connectSingle(node, service) }) // the link to the node runs, so that close still waits
	return nil
}

func (d *direct) singlesOf(node string) *singles {
	s := d.singles[node]
	if s == nil {
		s = &singles{all: map[*link]bool{}, ready: map[string]*pipe{}}
		d.singles[node] = s
	}
	return s
}

// connectSingle makes a stream ready that has a connection of its own, and returns when the stream has ended.
func (d *direct) connectSingle(node, service string) {
	l, c, err := d.dialSingle(node, service)
	d.mu.Lock()
	s := d.singlesOf(node)
	s.connecting = false
	if err == nil {
		s.ready[service] = c
	} else {
		s.next = time.Now().Add(singlePause)
	}
	d.mu.Unlock()
	if err != nil {
		d.n.log.Debug("a call to a node has no connection of its own", "node", node, "err", err)
		return
	}
	<-l.ended
	d.mu.Lock()
	if s.ready[service] == c {
		delete(s.ready, service)
	}
	d.mu.Unlock()
	d.removeSingle(l)
}

func (d *direct) dialSingle(node, service string) (*link, *pipe, error) {
	p := d.n.peers
	p.mu.Lock()
	h := p.heard[node]
	var peer Peer
	if h != nil {
		peer = h.beat.Peer
	}
	p.mu.Unlock()
	if !peer.Single || peer.Direct == "" {
		return nil, nil, errors.New("the node accepts none")
	}
	id := rand.Text()
	conn, err := d.dial(d.ctx, peer, appendFrame(nil, id, pipeOpen, 0, []byte(service)))
	if err != nil {
		return nil, nil, err
	}
	l, err := d.addSingle(node, conn)
	if err != nil {
		return nil, nil, err
	}
	c := d.n.pipes.addPipe(node, l, id)
	if c == nil {
		err = errors.New("too many streams")
	} else if err = c.connect(""); err == nil {
		err = c.awaitAccepted(d.ctx)
	}
	if err != nil {
		l.fail(err)
		d.removeSingle(l)
		return nil, nil, err
	}
	return l, c, nil
}

// acceptSingle serves a connection with which another node opens a stream until that has ended.
func (d *direct) acceptSingle(node string, conn net.Conn, open frame) {
	l, err := d.addSingle(node, conn)
	if err != nil {
		return
	}
	defer d.removeSingle(l)
	if l.accept(open.pipe, string(open.payload)) {
		<-l.ended
	}
}

// addSingle returns the link of a new connection. If there may be none it closes the connection.
func (d *direct) addSingle(node string, conn net.Conn) (*link, error) {
	l := newLink(d, node, conn)
	l.ended = make(chan struct{})
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.singlesOf(node); d.links[node] != nil && len(s.all) < maxSingle {
		s.all[l] = true
		return l, nil
	}
	conn.Close()
	return nil, errors.New("too many connections, or none to the host of the node")
}

// removeSingle closes a connection whose stream has ended, once the other end has read what was sent last.
func (d *direct) removeSingle(l *link) {
	d.mu.Lock()
	delete(d.singlesOf(l.node).all, l)
	d.mu.Unlock()
	raw := l.raw()
	raw.SetDeadline(time.Now().Add(lingerTime))
	if half, ok := raw.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		io.Copy(io.Discard, raw) // to close with bytes that were not read could discard those that were sent
	}
	raw.Close()
}

// failSingles ends the streams with connections of their own when the link to their node has failed. A stream with an
// open request gets a moment in which its reader learns from the other end whether the request was read.
func (d *direct) failSingles(node string, err error) {
	d.mu.Lock()
	all := make([]*link, 0, maxSingle)
	for l := range d.singlesOf(node).all {
		all = append(all, l)
	}
	delete(d.singles, node)
	d.mu.Unlock()
	for _, l := range all {
		waits := false
		for _, c := range d.n.pipes.of(l) {
			c.mu.Lock()
			waits = waits || c.request > 0
			c.mu.Unlock()
		}
		if !waits {
			l.fail(err)
			continue
		}
		time.AfterFunc(d.n.opts.Lease/beatsPerLease, func() { l.fail(err) })
	}
}

// next reads the next frame of a connection that has one stream. If the deadline of reading passes, the next call goes
// on where it was.
func (l *link) next() (frame, error) {
	for {
		f, size, err := cutFrame(l.in)
		if err != nil {
			return f, err
		}
		if size > 0 && size <= len(l.in) {
			f.payload = append([]byte(nil), f.payload...) // the stream keeps it
			left := copy(l.in, l.in[size:])
			if l.in = l.in[:left]; cap(l.in) > 4*firstRead && left == 0 {
				l.in = nil
			}
			return f, nil
		}
		if need := max(size, firstRead); need > cap(l.in) {
			l.in = append(make([]byte, 0, need), l.in...)
		}
		n, err := l.conn.Read(l.in[len(l.in):cap(l.in)])
		l.in = l.in[:len(l.in)+n]
		if err != nil && n == 0 {
			return frame{}, err
		}
	}
}

const firstRead = 4 << 10 // the least that is read at once
