package cluster

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// linked reports whether the hosts of all pairs of nodes are connected.
func linked(nodes ...*Node) bool {
	for _, a := range nodes {
		for _, b := range nodes {
			if a != b && a.direct.to(b.id) == nil {
				return false
			}
		}
	}
	return true
}

// cutLinks ends the links between nodes for good.
func cutLinks(t *testing.T, nodes ...*Node) {
	t.Helper()
	for _, n := range nodes {
		for _, p := range n.Nodes() {
			n.direct.mu.Lock()
			l := n.direct.links[p.ID]
			n.direct.tried[p.ID] = dialed{boot: p.Boot, next: time.Now().Add(time.Hour)}
			n.direct.mu.Unlock()
			if l != nil {
				l.fail(errors.New("the test ends it"))
			}
		}
	}
	eventually(t, "the links have ended", func() bool {
		for _, n := range nodes {
			n.direct.mu.Lock()
			left := len(n.direct.links)
			n.direct.mu.Unlock()
			if left > 0 {
				return false
			}
		}
		return true
	})
}

// testLinks refuses what is no node, and frames that are too long.
func testLinks(t *testing.T, a, b *Node) {
	refused := func(what string, own *ownKey) {
		t.Helper()
		conn, err := net.Dial("tcp", a.direct.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(time.Minute))
		secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
		if own != nil {
			secure = tls.Client(conn, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{own.pair}})
		}
		err = secure.Handshake()
		if err == nil {
			_, err = readFrame(secure)
		}
		if err == nil {
			t.Errorf("%s was let in", what)
		}
	}
	var stranger direct
	stranger.n = &Node{id: b.id}
	if err := stranger.loadKey(); err != nil {
		t.Fatal(err)
	}
	refused("a connection without a certificate", nil)
	refused("a certificate of another key with a node's id", stranger.own.Load())

	// Of the two ends b has the certificate that a accepts, and ends the stream with a frame that none may send.
	conn, err := net.Dial("tcp", a.direct.address)
	if err != nil {
		t.Fatal(err)
	}
	secure := tls.Client(conn, b.direct.config(func(string) (string, error) { return a.id, nil }))
	if _, err := b.direct.handshake(t.Context(), secure, ping); err != nil {
		t.Fatal(err)
	}
	secure.SetDeadline(time.Now().Add(time.Minute))
	secure.Write([]byte{0xff, 0xff, 0xff, 0xff})
	for err == nil {
		_, err = readFrame(secure)
	}
	if errors.Is(err, errSilent) || strings.Contains(err.Error(), "timeout") {
		t.Errorf("a frame of 4 GiB: %v", err)
	}
	eventually(t, "the nodes are connected again", func() bool { return linked(a, b) })

	l := &link{d: &a.direct, node: b.id, queued: 100, begun: 100}
	for at, want := range map[uint64]error{40: ErrMayHaveRun, 100: ErrNotRun} {
		c := a.pipes.addPipe(b.id, l, "")
		c.request, c.requestAt = 1, at
		l.err = nil
		l.conn = secure
		l.room = newLink(l.d, b.id, secure).room
		l.fail(errSilent)
		if !errors.Is(c.err, want) {
			t.Errorf("a request at byte %d of a link of which 100 were sent: %v", at, c.err)
		}
	}
}

// testUnreadStream fills the window of a stream that is not read, beside which another one is used.
func testUnreadStream(t *testing.T, a, b *Node) {
	l, err := b.Listen("unread")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	open := func() (near, far net.Conn) {
		t.Helper()
		if near, err = a.Dial(t.Context(), b.ID(), "unread"); err == nil {
			far, err = l.Accept()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { near.Close(); far.Close() })
		return near, far
	}
	full, unread := open()
	full.SetWriteDeadline(time.Now().Add(time.Minute))
	chunk := make([]byte, pipeWindow)
	if n, err := full.Write(chunk); n != pipeWindow || err != nil {
		t.Fatalf("%d bytes of the window were written, %v", n, err)
	}
	full.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := full.Write(chunk); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes more than the window were written, %v", n, err)
	}
	near, far := open()
	near.SetDeadline(time.Now().Add(time.Minute))
	far.SetDeadline(time.Now().Add(time.Minute))
	for range 3 {
		go near.Write(chunk)
		if _, err := io.ReadFull(far, make([]byte, len(chunk))); err != nil {
			t.Fatalf("beside a stream that is not read: %v", err)
		}
	}
	unread.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(unread, make([]byte, len(chunk))); err != nil {
		t.Error(err)
	}
	full.SetWriteDeadline(time.Now().Add(time.Minute))
	if n, err := full.Write([]byte("more")); n != 4 || err != nil {
		t.Errorf("after the window was read %d bytes were written, %v", n, err)
	}
}

// testOwnConnections uses streams with connections of their own.
func testOwnConnections(t *testing.T, a, b *Node) {
	l, err := b.Listen("own")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	open := func() (near, far *pipe) {
		t.Helper()
		eventually(t, "a connection is ready", func() bool {
			c := a.DialOwn(b.ID(), "own")
			if c == nil {
				return false
			}
			near = c.(*pipe)
			return true
		})
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		far = c.(*pipe)
		t.Cleanup(func() { near.Close(); far.Close() })
		for _, c := range []*pipe{near, far} {
			if c.link == a.direct.to(b.id) || c.link == b.direct.to(a.id) || c.link == nil {
				t.Error("the stream has no connection of its own")
			}
			c.SetDeadline(time.Now().Add(time.Minute))
		}
		return near, far
	}
	near, far := open()
	chunk := make([]byte, 3*pipeWindow)
	go near.Write(chunk) // waits for what is read, and reads the connection for that
	if _, err := io.ReadFull(far, chunk); err != nil {
		t.Fatal(err)
	}
	go far.Write([]byte("answer"))
	if _, err := io.ReadFull(near, chunk[:6]); err != nil || string(chunk[:6]) != "answer" {
		t.Errorf("%q, %v", chunk[:6], err)
	}
	ended := make(chan error)
	go func() { _, err := far.Read(chunk); ended <- err }()
	time.Sleep(10 * time.Millisecond)
	far.SetReadDeadline(time.Unix(1, 0))
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a deadline passed while another goroutine read: %v", err)
	}
	far.SetReadDeadline(time.Now().Add(time.Minute))
	go near.Write([]byte("more"))
	if _, err := io.ReadFull(far, chunk[:4]); err != nil {
		t.Errorf("after a deadline: %v", err)
	}
	near.Close()
	if _, err := far.Read(chunk); err != io.EOF {
		t.Errorf("the other end was closed: %v", err)
	}

	near, far = open()
	far.Close()
	near.Write([]byte("request"))
	if _, err := near.Read(chunk); !errors.Is(err, ErrNotRun) {
		t.Errorf("a request that was not read: %v", err)
	}
	near, far = open()
	near.Write([]byte("request"))
	io.ReadFull(far, chunk[:7])
	far.Close()
	if _, err := near.Read(chunk); err != io.EOF { // HTTP and calls tell that it may have run
		t.Errorf("a request that was read: %v", err)
	}
	near, far = open()
	a.direct.to(b.id).fail(errors.New("the test ends it"))
	if _, err := far.Read(chunk); !errors.Is(err, ErrMayHaveRun) {
		t.Errorf("the link failed: %v", err)
	}
	if _, err := near.Read(chunk); !errors.Is(err, ErrMayHaveRun) {
		t.Errorf("the link failed, at the end that connected: %v", err)
	}
	eventually(t, "the nodes are connected again", func() bool { return linked(a, b) })
	eventually(t, "the connections have ended", func() bool {
		for _, n := range []*Node{a, b} {
			n.direct.mu.Lock()
			left := 0
			for _, s := range n.direct.singles {
				left += len(s.all) - len(s.ready)
			}
			n.direct.mu.Unlock()
			if left > 0 {
				return false
			}
		}
		return true
	})
}
