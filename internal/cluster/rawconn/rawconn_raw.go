//go:build linux && !race

package rawconn

import (
	"io"
	"net"
	"syscall"
	"unsafe"
)

// conn is a TCP connection. It has the methods of that, but for reading and writing.
type conn struct {
	*net.TCPConn
	raw syscall.RawConn
}

// Of returns a connection for the same socket, if it is a TCP connection, and others as they are.
func Of(c net.Conn) net.Conn {
	if tcp, ok := c.(*net.TCPConn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			return &conn{tcp, raw}
		}
	}
	return c
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (n int, err error) {
	if len(b) == 0 {
		return 0, nil
	}
	wait := c.raw.Read(func(fd uintptr) (done bool) {
		n, err, done = call(syscall.SYS_READ, fd, b)
		return done
	})
	switch {
	case wait != nil:
		return 0, wait
	case err != nil:
		return 0, &net.OpError{Op: "read", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (written int, err error) {
	wait := c.raw.Write(func(fd uintptr) (done bool) {
		for written < len(b) {
			var n int
			if n, err, done = call(syscall.SYS_WRITE, fd, b[written:]); !done || err != nil {
				return done
			}
			written += n
		}
		return true
	})
	switch {
	case wait != nil:
		return written, wait
	case err != nil:
		return written, &net.OpError{Op: "write", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
	}
	return written, nil
}

// call reads or writes a socket. done is false if that has to wait. b must not be empty.
func call(which, fd uintptr, b []byte) (n int, err error, done bool) {
	for {
		n, _, e := syscall.RawSyscall(which, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch e {
		case 0:
			return int(n), nil, true
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, nil, false
		default:
			return 0, e, true
		}
	}
}
