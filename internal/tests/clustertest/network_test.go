package clustertest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// network carries every TCP connection between machines, so that a test can delay, lose and cut what they send. Each
// direction between two machines is a link of its own.
type network struct {
	mu      sync.Mutex
	links   map[[2]string]*link
	names   map[string]string // of machines, by the name with which their engine announces itself
	healed  chan struct{}     // closed and replaced when links change
	closed  bool
	conns   map[net.Conn]bool
	running sync.WaitGroup
}

// link is what happens to the bytes of one direction.
type link struct {
	cut   bool          // nothing arrives, until it is healed or one end gives the connection up
	delay time.Duration // of what was read at once
	loss  float64       // probability with which what was read at once resets the connection instead
}

func newNetwork(t *testing.T) *network {
	n := &network{
		links: map[[2]string]*link{}, names: map[string]string{}, healed: make(chan struct{}),
		conns: map[net.Conn]bool{},
	}
	t.Cleanup(n.close)
	return n
}

func (n *network) close() {
	n.mu.Lock()
	n.closed = true
	close(n.healed)
	for c := range n.conns {
		c.Close()
	}
	n.mu.Unlock()
	n.running.Wait()
}

// change changes the link from one machine to another.
func (n *network) change(from, to string, f func(*link)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.links[[2]string{from, to}]
	if l == nil {
		l = &link{}
		n.links[[2]string{from, to}] = l
	}
	f(l)
	n.signal()
}

// heal makes all links whole.
func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.links)
	n.signal()
}

func (n *network) signal() {
	if !n.closed {
		close(n.healed)
		n.healed = make(chan struct{})
	}
}

// listen returns the address at which a machine is reached from another one; "" means from any: then the first bytes
// of the engine that connects say from which.
func (n *network) listen(t *testing.T, from, to, address string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	n.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.running.Go(func() { n.carry(c, from, to, address) })
		}
	})
	return l.Addr().String()
}

func (n *network) add(c net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		c.Close()
		return false
	}
	n.conns[c] = true
	return true
}

// carry carries one connection.
func (n *network) carry(near net.Conn, from, to, address string) {
	far, err := net.Dial("tcp", address)
	if err != nil {
		near.Close()
		return
	}
	if !n.add(near) || !n.add(far) {
		near.Close()
		far.Close()
		return
	}
	end := sync.OnceFunc(func() {
		near.Close()
		far.Close()
		n.mu.Lock()
		delete(n.conns, near)
		delete(n.conns, far)
		n.mu.Unlock()
	})
	defer end()
	known := make(chan struct{})
	name := from
	if from != "" {
		close(known)
	}
	n.running.Go(func() {
		// An engine that accepts a route speaks first, before it is known from which machine the route is.
		n.pump(near, far, end, func() string { return to }, func() string {
			select {
			case <-known:
				return name
			default:
				return ""
			}
		})
	})
	in := bufio.NewReaderSize(near, 64<<10)
	if from == "" {
		var head []byte
		if name, head = n.announced(in); name == "" {
			return
		}
		close(known)
		n.pump(far, io.MultiReader(bytes.NewReader(head), in), end, func() string { return name },
			func() string { return to })
		return
	}
	n.pump(far, in, end, func() string { return from }, func() string { return to })
}

// announced reads until an engine has said its name, and returns the machine that has it and what was read.
func (n *network) announced(in *bufio.Reader) (machine string, head []byte) {
	for len(head) < 64<<10 {
		line, err := in.ReadBytes('\n')
		if head = append(head, line...); err != nil {
			return "", head
		}
		var info struct {
			Name string `json:"server_name"`
		}
		if text, ok := bytes.CutPrefix(line, []byte("INFO ")); ok && json.Unmarshal(text, &info) == nil {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.names[info.Name], head
		}
	}
	return "", head
}

// pump carries one direction of a connection, until it ends or is reset.
func (n *network) pump(to io.Writer, from io.Reader, end func(), source, target func() string) {
	defer end()
	buffer := make([]byte, 256<<10)
	for {
		size, err := from.Read(buffer)
		for { // what is under way when a link is cut arrives when it is healed, as TCP sends it again
			n.mu.Lock()
			l, healed, closed := n.links[[2]string{source(), target()}], n.healed, n.closed
			var now link
			if l != nil {
				now = *l
			}
			n.mu.Unlock()
			if closed {
				return
			}
			if !now.cut {
				if now.loss > 0 && rand.Float64() < now.loss {
					return
				}
				time.Sleep(now.delay)
				break
			}
			select {
			case <-healed:
			case <-time.After(20 * time.Second):
				return // as TCP gives up
			}
		}
		if size > 0 {
			if _, err := to.Write(buffer[:size]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// TestTheNetwork cuts one direction of a connection at a time.
func TestTheNetwork(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	n := newNetwork(t)
	n.names["engine-a"] = "a"
	served := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			c.Write([]byte("INFO {}\r\n"))
			served <- c
		}
	}()
	near, err := net.Dial("tcp", n.listen(t, "", "b", l.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	near.Write([]byte("CONNECT {}\r\nINFO {\"server_name\":\"engine-a\"}\r\n"))
	far := <-served
	defer far.Close()
	at, back := bufio.NewReader(far), bufio.NewReader(near)
	read := func(r *bufio.Reader, c net.Conn, limit time.Duration) string {
		c.SetReadDeadline(time.Now().Add(limit))
		line, _ := r.ReadString('\n')
		return line
	}
	for _, want := range []string{"CONNECT {}\r\n", "INFO {\"server_name\":\"engine-a\"}\r\n"} {
		if got := read(at, far, time.Minute); got != want {
			t.Errorf("b hears %q, expected %q", got, want)
		}
	}
	if got := read(back, near, time.Minute); got != "INFO {}\r\n" {
		t.Errorf("a hears %q", got)
	}
	n.change("a", "b", func(l *link) { l.cut = true })
	near.Write([]byte("lost\n"))
	far.Write([]byte("heard\n"))
	if got := read(back, near, time.Minute); got != "heard\n" {
		t.Errorf("in the direction that is not cut: %q", got)
	}
	if got := read(at, far, 100*time.Millisecond); got != "" {
		t.Errorf("through a cut: %q", got)
	}
	n.heal()
	if got := read(at, far, time.Minute); got != "lost\n" {
		t.Errorf("after the cut: %q", got)
	}
	n.change("b", "a", func(l *link) { l.loss = 1 })
	far.Write([]byte("x"))
	if got := read(back, near, time.Minute); got != "" {
		t.Errorf("of a connection that was reset: %q", got)
	}
}
