package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// The link is the protocol between a daemon and the thin clients of its own socket, in lines that are
// not JSON, between the lines of MCP:
//
//	gatehouse-link 1 {"build":"...","talk":true,"work":{"folders":["/p"]}}   the client's first line
//	gatehouse-link 1 {"pid":..., "accepted":true}  the daemon's answer: About
//	gatehouse-link stopping                        the client must send nothing more
//	gatehouse-link bye {"lines":7}                 the last line: seven of the client's lines were received
//
// A client whose first line is a message receives none of these lines.
const (
	linkWord     = "gatehouse-link "
	linkGreeting = linkWord + "1 "
	linkStopping = linkWord + "stopping"
	linkBye      = linkWord + "bye "
)

const (
	longestGreeting = 64 << 10
	longestAbout    = 256 << 10
	byeTime         = time.Second // for the last lines to a client that does not read
)

// greeting is a client's first line. With Talk messages follow, if the daemon has the same build;
// without, the client only wants the daemon's description.
type greeting struct {
	Build string `json:"build"`
	Talk  bool   `json:"talk"`
	Plain bool   `json:"plain,omitempty"` // with Talk: for any build, and without further lines of the link
	Work  Work   `json:"work"`
}

// Work holds the folders in which a client works. The paths are absolute.
type Work struct {
	Folders []string `json:"folders,omitempty"`
	// Named means that the client's user named the folders; otherwise they are the client's working
	// directory.
	Named bool `json:"named,omitempty"`
}

type closingMessage struct {
	Lines uint64 `json:"lines"`
}

// Listener is a daemon's own socket. Connections that begin with a greeting are answered. When they
// end, the client is sent the number of lines that were received.
type Listener struct {
	net.Listener
	about func() About

	mu       sync.Mutex
	stopping bool
	open     map[*conn]struct{} // greeted and accepted
}

// Link returns the listener of a daemon's own socket on top of ln. about is called for each greeting,
// from any goroutine.
func Link(ln net.Listener, about func() About) *Listener {
	return &Listener{Listener: ln, about: about, open: map[*conn]struct{}{}}
}

// Accept waits for a connection. It does not wait for the greeting.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, l: l}, nil
}

// Stopping announces to all linked clients, also to later ones, that they must send nothing more. It
// returns when all have received it, or after a second.
func (l *Listener) Stopping() {
	l.mu.Lock()
	l.stopping = true
	var all []*conn
	for c := range l.open {
		all = append(all, c)
	}
	l.mu.Unlock()
	var sends sync.WaitGroup
	for _, c := range all {
		sends.Go(func() { c.writeLine(linkStopping) })
	}
	done := make(chan struct{})
	go func() {
		sends.Wait() // a client that does not read is cut off by its writer
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(byeTime): // a client that does not read delays no other client
	}
}

func (l *Listener) addConn(c *conn) (stopping bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[c] = struct{}{}
	return l.stopping
}

func (l *Listener) removeConn(c *conn) {
	l.mu.Lock()
	delete(l.open, c)
	l.mu.Unlock()
}

// conn is one connection of the daemon's own socket.
type conn struct {
	net.Conn
	l        *Listener
	begun    bool                 // the first bytes have been read; used by the reader only
	rest     []byte               // bytes that were read after the greeting
	work     atomic.Pointer[Work] // from the greeting; nil until then
	linked   atomic.Bool
	received atomic.Uint64 // whole lines that were passed to the reader
	broken   atomic.Bool   // a write failed, perhaps after a part of the line
	bye      sync.Once
}

// NetConn returns the underlying connection, from which the peer can be determined.
func (c *conn) NetConn() net.Conn { return c.Conn }

// ClientWork returns the folders in which the client works. It is complete
// when the first message has been read; a client that has sent no greeting
// names none.
func (c *conn) ClientWork() (folders []string, named bool) {
	if w := c.work.Load(); w != nil {
		return w.Folders, w.Named
	}
	return nil, false
}

func (c *conn) Read(p []byte) (int, error) {
	if !c.begun {
		if n, err := c.readGreeting(p); n > 0 || err != nil {
			return n, err
		}
	}
	if len(c.rest) > 0 {
		n := copy(p, c.rest)
		c.rest = c.rest[n:]
		return c.countBytes(p[:n], nil)
	}
	n, err := c.Conn.Read(p)
	return c.countBytes(p[:n], err)
}

func (c *conn) countBytes(p []byte, err error) (int, error) {
	if c.linked.Load() {
		c.received.Add(uint64(bytes.Count(p, []byte{'\n'})))
	}
	return len(p), err
}

// readGreeting reads the first bytes. If they are a greeting it is answered and none of its bytes are
// returned.
func (c *conn) readGreeting(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n == 0 {
		return 0, err
	}
	c.begun = true
	if p[0] != linkWord[0] || err != nil {
		return n, err
	}
	line := bytes.Clone(p[:n])
	for bytes.IndexByte(line, '\n') < 0 {
		if len(line) > longestGreeting {
			return 0, io.EOF
		}
		n, err := c.Conn.Read(p)
		if err != nil {
			return 0, err
		}
		line = append(line, p[:n]...)
	}
	line, c.rest, _ = bytes.Cut(line, []byte{'\n'})
	return 0, c.greet(line)
}

// greet answers a greeting. The error ends the connection.
func (c *conn) greet(line []byte) error {
	var g greeting
	text, ok := bytes.CutPrefix(line, []byte(linkGreeting))
	if !ok || json.Unmarshal(text, &g) != nil {
		return io.EOF
	}
	about := c.l.about()
	about.Accepted = g.Talk && (g.Plain || g.Build == about.Build) && about.Ready
	answer, err := json.Marshal(about)
	if err != nil {
		return err
	}
	if err := c.writeLine(linkGreeting + string(answer)); err != nil {
		return err
	}
	if !about.Accepted {
		return io.EOF
	}
	c.work.Store(&g.Work)
	if g.Plain {
		return nil
	}
	c.linked.Store(true)
	if c.l.addConn(c) {
		go c.writeLine(linkStopping)
	}
	return nil
}

func (c *conn) writeLine(line string) error {
	_, err := c.Write([]byte(line + "\n"))
	return err
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		c.broken.Store(true)
	}
	return n, err
}

// Close sends the number of received lines, and closes the connection.
func (c *conn) Close() error {
	c.bye.Do(func() {
		if !c.linked.Load() {
			return
		}
		c.l.removeConn(c)
		c.SetWriteDeadline(time.Now().Add(byeTime))
		if last, err := json.Marshal(closingMessage{c.received.Load()}); err == nil && !c.broken.Load() {
			c.writeLine(linkBye + string(last))
		}
	})
	return c.Conn.Close()
}

// ErrRefused means that a daemon does not serve a client, because it is of another build, or stopping.
var ErrRefused = errors.New("the daemon does not serve this program")

// ErrUnfit means that the running daemon does not fit the client's options.
var ErrUnfit = errors.New("the running daemon has other options")

// Greet sends a greeting over a connection to a daemon's socket, within timeout, and returns the
// daemon's description of itself. With talk, messages may follow if the error is nil; it is ErrRefused
// if the daemon answered and refuses. Greet reads no byte after the answer.
func Greet(c net.Conn, build string, talk bool, work Work, timeout time.Duration) (About, error) {
	return greet(c, greeting{Build: build, Talk: talk, Work: work}, timeout)
}

func greet(c net.Conn, g greeting, timeout time.Duration) (About, error) {
	encoded, err := json.Marshal(g)
	if err != nil {
		return About{}, err
	}
	c.SetDeadline(time.Now().Add(timeout))
	defer c.SetDeadline(time.Time{})
	if _, err := c.Write([]byte(linkGreeting + string(encoded) + "\n")); err != nil {
		return About{}, err
	}
	line, err := oneLine(c, longestAbout)
	if err != nil {
		return About{}, fmt.Errorf("greet the daemon: %w", err)
	}
	text, ok := bytes.CutPrefix(line, []byte(linkGreeting))
	var a About
	if !ok || json.Unmarshal(text, &a) != nil {
		return a, fmt.Errorf("greet the daemon: it answers %.200q", line)
	}
	if g.Talk && !a.Accepted {
		return a, ErrRefused
	}
	return a, nil
}

// oneLine reads a line byte by byte, so that no byte after it is read.
func oneLine(r io.Reader, limit int) ([]byte, error) {
	var line []byte
	one := make([]byte, 1)
	for len(line) < limit {
		if _, err := io.ReadFull(r, one); err != nil {
			return nil, err
		}
		if one[0] == '\n' {
			return line, nil
		}
		line = append(line, one[0])
	}
	return nil, errors.New("its answer is too long, or ended before the end of the line")
}
