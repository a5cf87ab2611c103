//go:build linux

// Package egress gives one sandbox network access through a proxy of the host that accepts connections on a
// listener inside the sandbox.
//
// If the sandbox shares the host's kernel, the agent passes the listener to the host, and connections from
// inside are file descriptors of the host itself. Otherwise the connections are relayed through the channel to
// the agent. Either way the sandbox's network needs no route, and closing the Server leaves no listener
// inside.
package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/proxy"

	"golang.org/x/sys/unix"
)

// Port is the proxy's port on 127.0.0.1 in the sandbox.
const Port = 3128

// listenerWait is how long a listener may take that the agent says it has sent.
const listenerWait = 10 * time.Second

// Environment returns the variables that tell programs where the proxy is. ALL_PROXY names HTTP too, because
// some programs do not start if it names SOCKS and they lack a library for it; the proxy accepts SOCKS5 on the
// same port.
func Environment() []string {
	at := fmt.Sprintf("http://127.0.0.1:%d", Port)
	const not = "localhost,127.0.0.1,::1"
	return []string{
		"HTTP_PROXY=" + at, "http_proxy=" + at, "HTTPS_PROXY=" + at, "https_proxy=" + at, "ALL_PROXY=" + at,
		"all_proxy=" + at,
		"NO_PROXY=" + not, "no_proxy=" + not, "NODE_USE_ENV_PROXY=1",
	}
}

// Server serves the proxy inside one sandbox. It is closed until Set opens it. It is safe for concurrent use.
type Server struct {
	options proxy.Options
	side    *net.UnixConn // receives listeners from the agent; nil if listen is set
	listen  Listen        // makes the agent listen; nil if side is set

	mu       sync.Mutex
	closed   bool
	proxy    *proxy.Proxy // nil while nothing may be reached
	listener net.Listener
	served   chan struct{}

	routed  *proxy.Proxy // of the route; nil if there is none
	route   []io.Closer
	serving sync.WaitGroup
}

// New returns a Server that receives listeners over the host's end of a socket pair, which it owns from then
// on. The caller must call Close.
func New(side *os.File, o proxy.Options) (*Server, error) {
	defer side.Close()
	c, err := net.FileConn(side)
	if err != nil {
		return nil, fmt.Errorf("listener socket of a sandbox: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("the listener socket of a sandbox is not a Unix socket")
	}
	return &Server{side: u, options: o}, nil
}

// Listen makes the agent listen on a port inside and returns a listener for the connections.
type Listen func(ctx context.Context, port uint16) (net.Listener, error)

// NewOver returns a Server for sandboxes whose agent cannot pass files to the host.
func NewOver(listen Listen, o proxy.Options) *Server { return &Server{listen: listen, options: o} }

// Sockets returns a socket pair: the host's end, and the end that the agent inherits.
func Sockets() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair(AF_UNIX): %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "side"), os.NewFile(uintptr(fds[1]), "side"), nil
}

// Set replaces what may be reached. If that is nothing, the listener is closed. adjust makes the agent give
// programs the environment for a proxy on a port, or with 0 that for none; it also requests the listener from
// an agent that can send it.
func (d *Server) Set(n sandbox.Network, notify func(port int64) error) error {
	if err := proxy.Check(n); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return sandbox.ErrClosed
	case len(n.Allow) > 0 && d.proxy == nil:
		return d.openNetwork(n, notify)
	case d.proxy == nil:
		return nil
	case len(n.Allow) == 0:
		d.shut()
		return notify(0)
	}
	return d.proxy.Set(n)
}

func (d *Server) openNetwork(n sandbox.Network, notify func(port int64) error) error {
	l, err := d.makeListener(notify)
	if err != nil {
		return err
	}
	p := proxy.New(d.options)
	if err := p.Set(n); err != nil {
		return errors.Join(err, p.Close(), l.Close(), notify(0))
	}
	d.proxy, d.listener, d.served = p, l, make(chan struct{})
	go func() {
		defer close(d.served)
		p.Serve(l)
	}()
	return nil
}

// makeListener creates a listener inside the sandbox.
func (d *Server) makeListener(notify func(port int64) error) (net.Listener, error) {
	if d.listen != nil {
		ctx, cancel := context.WithTimeout(context.Background(), listenerWait)
		defer cancel()
		l, err := d.listen(ctx, Port)
		if err != nil {
			return nil, err
		}
		if err := notify(Port); err != nil {
			return nil, errors.Join(err, l.Close())
		}
		return l, nil
	}
	d.drain()
	if err := notify(Port); err != nil {
		return nil, err
	}
	l, err := d.receive()
	if err != nil {
		return nil, errors.Join(err, notify(0))
	}
	return l, nil
}

// drain discards listeners that arrived after their call had failed.
func (d *Server) drain() {
	d.side.SetReadDeadline(time.Time{})
	raw, err := d.side.SyscallConn()
	if err != nil {
		return
	}
	raw.Read(func(fd uintptr) bool {
		oob := make([]byte, unix.CmsgSpace(4*4))
		for {
			n, size, _, _, err := unix.Recvmsg(int(fd), make([]byte, 1), oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
			if err != nil || n == 0 {
				return true
			}
			files, _ := filesIn(oob[:size])
			for _, f := range files {
				f.Close()
			}
		}
	})
}

// filesIn returns the files of a message. The caller owns them, even if there is an error.
func filesIn(oob []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	for _, m := range messages {
		fds, e := unix.ParseUnixRights(&m)
		err = errors.Join(err, e)
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "listener"))
		}
	}
	return files, err
}

// receive receives one listener from the agent, and checks that it is one.
func (d *Server) receive() (net.Listener, error) {
	d.side.SetReadDeadline(time.Now().Add(listenerWait))
	oob := make([]byte, unix.CmsgSpace(4*4))
	_, n, _, _, err := d.side.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, fmt.Errorf("the agent sent no listener: %w", err)
	}
	files, err := filesIn(oob[:n])
	for _, f := range files {
		defer f.Close()
	}
	if err != nil || len(files) != 1 {
		return nil, errors.Join(fmt.Errorf("the agent sent %d files; expected one listener", len(files)), err)
	}
	return listener(files[0])
}

func listener(f *os.File) (net.Listener, error) {
	listens, err := unix.GetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err == nil && listens != 1 {
		err = errors.New("the socket does not listen")
	}
	if err != nil {
		return nil, fmt.Errorf("the agent sent a file that is not a listener: %w", err)
	}
	l, err := net.FileListener(f) // it duplicates the file
	if err != nil {
		return nil, fmt.Errorf("the agent sent a file that is not a listener: %w", err)
	}
	return l, nil
}

// shut ends open connections and closes the listener.
func (d *Server) shut() {
	if d.proxy == nil {
		return
	}
	d.listener.Close()
	d.proxy.Close()
	<-d.served
	d.proxy, d.listener, d.served = nil, nil, nil
}

// Close closes the Server for good. It may be called more than once.
func (d *Server) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	d.shut()
	d.endRoute()
	if d.side == nil {
		return nil
	}
	return d.side.Close()
}
