//go:build linux && (amd64 || arm64)

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"gatehouse/internal/sandbox/agentprotocol"

	"golang.org/x/sys/unix"
)

// dial connects to a port of the sandbox's loopback interface only.
func (r *request) dial(port agentprotocol.Port) error {
	c, err := dialAddress(r, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}}, unix.AF_INET)
	if errors.Is(err, unix.ECONNREFUSED) {
		six, err6 := dialAddress(r, &unix.SockaddrInet6{Port: int(port), Addr: [16]byte{15: 1}}, unix.AF_INET6)
		if err6 == nil {
			c, err = six, nil
		}
	}
	if err != nil {
		return err
	}
	return r.stream(c)
}

func socket(family int) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	return fd, sysErr("socket", "SOCK_STREAM", err)
}

func dialAddress(r *request, to unix.Sockaddr, family int) (*os.File, error) {
	fd, err := socket(family)
	if err != nil {
		return nil, err
	}
	err = unix.Connect(fd, to)
	c := os.NewFile(uintptr(fd), "connection")
	if errors.Is(err, unix.EINPROGRESS) {
		r.setHandlers(func(uint8) { c.Close() }, nil)
		err = connected(c)
		r.setHandlers(nil, nil)
	}
	if err != nil {
		c.Close()
		return nil, sysErr("connect", "a port of the sandbox", err)
	}
	return c, nil
}

// connected waits until the connection is established or has failed.
func connected(c *os.File) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		if errno, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); err != nil || errno != 0 {
			failed = cmp.Or(err, error(unix.Errno(errno)))
			return true
		}
		_, err := unix.Getpeername(int(fd))
		return err == nil
	})
	return errors.Join(failed, err)
}

// listener is the socket of a Listen request.
type listener struct {
	*os.File
	conns chan *os.File // accepted connections, one for each Accept request
	end   chan struct{} // closed when the listener is
	once  sync.Once
}

func (l *listener) closeListener() {
	l.once.Do(func() {
		close(l.end)
		l.Close()
	})
}

// listen listens on a port of the sandbox's loopback interface until it is signalled.
func (r *request) listen(port agentprotocol.Port) error {
	fd, err := listenLoopback(int(port))
	if err != nil {
		return err
	}
	l := &listener{File: os.NewFile(uintptr(fd), "listener"), conns: make(chan *os.File), end: make(chan struct{})}
	defer l.closeListener()
	r.setHandlers(func(uint8) { l.closeListener() }, nil)
	defer r.setHandlers(nil, nil)
	r.mu.Lock()
	r.listener = l
	r.mu.Unlock()
	if err := r.sendReply(agentprotocol.Ready, nil); err != nil {
		return err
	}
	return l.acceptLoop()
}

// acceptLoop accepts one connection at a time, so that all but one of those that no Accept request has claimed wait
// in the kernel.
func (l *listener) acceptLoop() error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var fd int
		var failed error
		err := raw.Read(func(listens uintptr) bool {
			fd, _, failed = unix.Accept4(int(listens), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			return !errors.Is(failed, unix.EAGAIN)
		})
		switch {
		case err != nil:
			return ended{}
		case errors.Is(failed, unix.ECONNABORTED), errors.Is(failed, unix.EINTR):
			continue
		case failed != nil:
			return sysErr("accept4", "a port of the sandbox", failed)
		}
		c := os.NewFile(uintptr(fd), "connection")
		select {
		case l.conns <- c:
		case <-l.end:
			c.Close()
			return ended{}
		}
	}
}

// accept claims a connection of a Listen request.
func (r *request) accept(of agentprotocol.RequestID) error {
	l := r.server.findListener(uint32(of))
	if l == nil {
		return fmt.Errorf("request %d does not listen: %w", of, unix.EBADF)
	}
	off := make(chan struct{})
	once := sync.OnceFunc(func() { close(off) })
	r.setHandlers(func(uint8) { once() }, nil)
	select {
	case c := <-l.conns:
		return r.stream(c)
	case <-l.end:
	case <-off:
	}
	r.setHandlers(nil, nil)
	return fmt.Errorf("the listener was closed: %w", unix.ECANCELED)
}

func (d *server) findListener(id uint32) *listener {
	d.mu.Lock()
	of := d.open[id]
	d.mu.Unlock()
	if of == nil {
		return nil
	}
	of.mu.Lock()
	defer of.mu.Unlock()
	return of.listener
}

// stream relays both directions of a connection until both have ended. SIGKILL resets the connection; after
// any other signal its data is no longer sent to the host, but what the host has sent is still written.
func (r *request) stream(c *os.File) error {
	defer c.Close()
	r.setHandlers(func(number uint8) {
		r.stdout.Close()
		if unix.Signal(number) != unix.SIGKILL {
			c.SetReadDeadline(time.Unix(1, 0))
			c.SetWriteDeadline(time.Now().Add(outputGrace))
			return
		}
		r.stdin.Discard()
		setsockopt(c, func(fd int) error { // so that the peer sees a reset
			return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		})
		c.Close()
	}, nil)
	defer r.setHandlers(nil, nil)
	setsockopt(c, func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) })
	if err := r.sendReply(agentprotocol.Ready, nil); err != nil {
		return err
	}
	var in error
	var both sync.WaitGroup
	both.Go(func() {
		in = r.receiveAll(c)
		setsockopt(c, func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) })
	})
	out := r.sendConnection(c)
	both.Wait()
	if err := errors.Join(out, in); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) &&
		!errors.Is(err, os.ErrClosed) {
		return err
	}
	return ended{}
}

// sendConnection sends the data of a connection. A reset connection must not look like its end, so in contrast to a
// program's output no empty frame follows an error.
func (r *request) sendConnection(from *os.File) error {
	buf := make([]byte, chunk)
	for {
		most := r.stdout.Acquire(chunk)
		if most == 0 {
			return nil
		}
		n, err := from.Read(buf[:most])
		r.stdout.Add(most - n)
		if n > 0 {
			if err := r.sendReply(agentprotocol.Stdout, buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return r.sendReply(agentprotocol.Stdout, nil)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil // the host reads no more, but what it has sent is still written
		}
		if err != nil {
			r.stdin.Discard()
			return err
		}
	}
}

// setsockopt calls change unless the connection is closed.
func setsockopt(c *os.File, change func(fd int) error) {
	if raw, err := c.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { change(int(fd)) })
	}
}
