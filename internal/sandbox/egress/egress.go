//go:build linux

// Package egress is the way out of one sandbox: a proxy of the host's on a
// listener inside.
//
// Where the sandbox shares the host's kernel the agent hands its listener over.
// Between it and the proxy is nothing then: connections from inside are the
// host's own file descriptors. Elsewhere the connections come through the
// channel to the agent. Either way the sandbox's network needs no route, and
// closing the door leaves no listener in there.
package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/proxy"

	"golang.org/x/sys/unix"
)

// Port is where the proxy is found inside, on 127.0.0.1.
const Port = 3128

// handing is how long a listener may take that the agent says it handed over.
const handing = 10 * time.Second

// Environment tells programs where the proxy is. ALL_PROXY names HTTP too,
// since some programs do not start at all when it names SOCKS and they lack a
// library for it; the proxy speaks SOCKS5 at the same port.
func Environment() []string {
	at := fmt.Sprintf("http://127.0.0.1:%d", Port)
	const not = "localhost,127.0.0.1,::1"
	return []string{
		"HTTP_PROXY=" + at, "http_proxy=" + at, "HTTPS_PROXY=" + at, "https_proxy=" + at, "ALL_PROXY=" + at, "all_proxy=" + at,
		"NO_PROXY=" + not, "no_proxy=" + not, "NODE_USE_ENV_PROXY=1",
	}
}

// Door is shut until Set opens it. It is safe for concurrent use.
type Door struct {
	options proxy.Options
	side    *net.UnixConn // where listeners come; nil where they do not
	listen  Listen        // nil where listeners come by the side

	mu       sync.Mutex
	closed   bool
	proxy    *proxy.Proxy // nil while the door is shut
	listener net.Listener
	served   chan struct{}
}

// New takes the host's end of the side socket, which is the door's from here
// on. Whoever makes a door calls Close.
func New(side *os.File, o proxy.Options) (*Door, error) {
	defer side.Close()
	c, err := net.FileConn(side)
	if err != nil {
		return nil, fmt.Errorf("the side socket of a sandbox: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("the side socket of a sandbox is no Unix socket")
	}
	return &Door{side: u, options: o}, nil
}

// Listen has the agent listen at a port inside, and gives the connections.
type Listen func(ctx context.Context, port uint16) (net.Listener, error)

// Over is a door where nothing can be handed over.
func Over(listen Listen, o proxy.Options) *Door { return &Door{listen: listen, options: o} }

// Sockets are a side socket's two ends: the host's, and the one that the agent
// inherits.
func Sockets() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair(AF_UNIX): %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "side"), os.NewFile(uintptr(fds[1]), "side"), nil
}

// Set replaces what may be reached. Where that is nothing the door is shut.
// tell has the agent give programs the environment of a proxy at a port, or
// with 0 that of none; of an agent that can it also asks for the listener.
func (d *Door) Set(n sandbox.Network, tell func(port int64) error) error {
	if err := proxy.Check(n); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return sandbox.ErrClosed
	case len(n.Allow) > 0 && d.proxy == nil:
		return d.open(n, tell)
	case d.proxy == nil:
		return nil
	case len(n.Allow) == 0:
		d.shut()
		return tell(0)
	}
	return d.proxy.Set(n)
}

func (d *Door) open(n sandbox.Network, tell func(port int64) error) error {
	l, err := d.make(tell)
	if err != nil {
		return err
	}
	p := proxy.New(d.options)
	if err := p.Set(n); err != nil {
		return errors.Join(err, p.Close(), l.Close(), tell(0))
	}
	d.proxy, d.listener, d.served = p, l, make(chan struct{})
	go func() {
		defer close(d.served)
		p.Serve(l)
	}()
	return nil
}

// make has a listener made inside.
func (d *Door) make(tell func(port int64) error) (net.Listener, error) {
	if d.listen != nil {
		ctx, cancel := context.WithTimeout(context.Background(), handing)
		defer cancel()
		l, err := d.listen(ctx, Port)
		if err != nil {
			return nil, err
		}
		if err := tell(Port); err != nil {
			return nil, errors.Join(err, l.Close())
		}
		return l, nil
	}
	d.drain()
	if err := tell(Port); err != nil {
		return nil, err
	}
	l, err := d.receive()
	if err != nil {
		return nil, errors.Join(err, tell(0))
	}
	return l, nil
}

// drain throws away what came of an agent that was given up on.
func (d *Door) drain() {
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

// filesIn are the files that came with a message. They are the caller's, also
// when there is an error.
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

// receive takes one listener of the agent's. That it is one is not taken for
// granted.
func (d *Door) receive() (net.Listener, error) {
	d.side.SetReadDeadline(time.Now().Add(handing))
	oob := make([]byte, unix.CmsgSpace(4*4))
	_, n, _, _, err := d.side.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, fmt.Errorf("the agent handed over no listener: %w", err)
	}
	files, err := filesIn(oob[:n])
	for _, f := range files {
		defer f.Close()
	}
	if err != nil || len(files) != 1 {
		return nil, errors.Join(fmt.Errorf("the agent handed over %d files and not one listener", len(files)), err)
	}
	return listener(files[0])
}

func listener(f *os.File) (net.Listener, error) {
	listens, err := unix.GetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err == nil && listens != 1 {
		err = errors.New("it does not listen")
	}
	if err != nil {
		return nil, fmt.Errorf("the agent handed over what is no listener: %w", err)
	}
	l, err := net.FileListener(f) // a copy
	if err != nil {
		return nil, fmt.Errorf("the agent handed over what is no listener: %w", err)
	}
	return l, nil
}

// shut ends what goes through and closes the listener.
func (d *Door) shut() {
	if d.proxy == nil {
		return
	}
	d.listener.Close()
	d.proxy.Close()
	<-d.served
	d.proxy, d.listener, d.served = nil, nil, nil
}

// Close shuts the door for good. It may be called more than once.
func (d *Door) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	d.shut()
	if d.side == nil {
		return nil
	}
	return d.side.Close()
}
