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

// dial connects to a port of the sandbox's loopback, and to nothing else.
func (r *request) dial(port agentprotocol.Port) error {
	c, err := connect(r, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}}, unix.AF_INET)
	if errors.Is(err, unix.ECONNREFUSED) {
		six, err6 := connect(r, &unix.SockaddrInet6{Port: int(port), Addr: [16]byte{15: 1}}, unix.AF_INET6)
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
	return fd, call("socket", "SOCK_STREAM", err)
}

func connect(r *request, to unix.Sockaddr, family int) (*os.File, error) {
	fd, err := socket(family)
	if err != nil {
		return nil, err
	}
	err = unix.Connect(fd, to)
	c := os.NewFile(uintptr(fd), "connection")
	if errors.Is(err, unix.EINPROGRESS) {
		r.command(func(uint8) { c.Close() }, nil)
		err = connected(c)
		r.command(nil, nil)
	}
	if err != nil {
		c.Close()
		return nil, call("connect", "a port of the sandbox", err)
	}
	return c, nil
}

// connected waits until it is known whether it is.
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

// listener is a socket that a Listen is under way for.
type listener struct {
	*os.File
	came chan *os.File // connections, each to whoever accepts it
	end  chan struct{} // closed when nobody listens any more
	once sync.Once
}

func (l *listener) close() {
	l.once.Do(func() {
		close(l.end)
		l.Close()
	})
}

// listen listens at a port of the sandbox's loopback until it is told to end.
func (r *request) listen(port agentprotocol.Port) error {
	fd, err := listenAt(int(port))
	if err != nil {
		return err
	}
	l := &listener{File: os.NewFile(uintptr(fd), "listener"), came: make(chan *os.File), end: make(chan struct{})}
	defer l.close()
	r.command(func(uint8) { l.close() }, nil)
	defer r.command(nil, nil)
	r.mu.Lock()
	r.listens = l
	r.mu.Unlock()
	if err := r.send(agentprotocol.Ready, nil); err != nil {
		return err
	}
	return l.take()
}

// take takes one connection at a time, so that all but one of those that
// nobody accepted yet wait in the kernel.
func (l *listener) take() error {
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
			return call("accept4", "a port of the sandbox", failed)
		}
		c := os.NewFile(uintptr(fd), "connection")
		select {
		case l.came <- c:
		case <-l.end:
			c.Close()
			return ended{}
		}
	}
}

// accept takes a connection of a Listen that is under way.
func (r *request) accept(of agentprotocol.Number) error {
	l := r.desk.listener(uint32(of))
	if l == nil {
		return fmt.Errorf("nothing listens by the number %d: %w", of, unix.EBADF)
	}
	off := make(chan struct{})
	once := sync.OnceFunc(func() { close(off) })
	r.command(func(uint8) { once() }, nil)
	select {
	case c := <-l.came:
		return r.stream(c)
	case <-l.end:
	case <-off:
	}
	r.command(nil, nil)
	return fmt.Errorf("nobody listens any more: %w", unix.ECANCELED)
}

func (d *desk) listener(id uint32) *listener {
	d.mu.Lock()
	of := d.open[id]
	d.mu.Unlock()
	if of == nil {
		return nil
	}
	of.mu.Lock()
	defer of.mu.Unlock()
	return of.listens
}

// stream passes bytes both ways until both ends have said that no more will
// come. SIGKILL breaks it off; with any other signal the host hears no more of
// it, and what it has sent still goes out.
func (r *request) stream(c *os.File) error {
	defer c.Close()
	r.command(func(number uint8) {
		r.stdout.End()
		if unix.Signal(number) != unix.SIGKILL {
			c.SetReadDeadline(time.Unix(1, 0))
			c.SetWriteDeadline(time.Now().Add(lastWords))
			return
		}
		r.stdin.Drop()
		setsockopt(c, func(fd int) error { // so that the other end hears that it was broken off
			return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		})
		c.Close()
	}, nil)
	defer r.command(nil, nil)
	setsockopt(c, func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) })
	if err := r.send(agentprotocol.Ready, nil); err != nil {
		return err
	}
	var in error
	var both sync.WaitGroup
	both.Go(func() {
		in = r.receiveAll(c)
		setsockopt(c, func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) })
	})
	out := r.tell(c)
	both.Wait()
	if err := errors.Join(out, in); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return ended{}
}

// tell passes on what a connection brings. Unlike a program's output it may
// break off, which is not to look like its end.
func (r *request) tell(from *os.File) error {
	buf := make([]byte, chunk)
	for {
		most := r.stdout.Take(chunk)
		if most == 0 {
			return nil
		}
		n, err := from.Read(buf[:most])
		r.stdout.Add(most - n)
		if n > 0 {
			if err := r.send(agentprotocol.Stdout, buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return r.send(agentprotocol.Stdout, nil)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil // nobody listens any more, but what was sent still goes out
		}
		if err != nil {
			r.stdin.Drop()
			return err
		}
	}
}

// setsockopt changes a connection that is not closed.
func setsockopt(c *os.File, change func(fd int) error) {
	if raw, err := c.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { change(int(fd)) })
	}
}
