package hangup

import (
	"crypto/tls"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Watcher notices that peers close connections from which nothing is read: one epoll instance and one goroutine for all
// of them, while there are any. A connection that is lost without a word it does not notice. Its
// zero value is ready. It is safe for concurrent use.
type Watcher struct {
	mu    sync.Mutex
	epoll *os.File // nil while no connection is watched
	next  int32
	gone  map[int32]func()
}

// Watch calls gone once, on a goroutine of its own, when the peer has closed conn. token is for Forget, which must be
// called after conn is closed; it is 0 if conn cannot be watched.
func (h *Watcher) Watch(conn net.Conn, gone func()) (token int32) {
	socket := socketOf(conn)
	if socket == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.epoll == nil && !h.open() {
		return 0
	}
	if h.next++; h.next <= 0 {
		h.next = 1
	}
	token = h.next
	err := h.control(func(epoll int) error {
		failed := error(unix.EBADF)
		err := socket.Control(func(fd uintptr) {
			e := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: token}
			failed = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, int(fd), &e)
		})
		if err != nil {
			return err
		}
		return failed
	})
	if err != nil {
		h.closeIfUnused()
		return 0
	}
	h.gone[token] = gone
	return token
}

// Forget ends the watching of a connection that was closed. With token 0 it does nothing.
func (h *Watcher) Forget(token int32) {
	if token == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.gone, token)
	h.closeIfUnused()
}

// open begins to watch; h.mu is held.
func (h *Watcher) open() bool {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return false
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that the runtime's poller waits for it
		unix.Close(fd)
		return false
	}
	h.epoll, h.gone = os.NewFile(uintptr(fd), "epoll"), map[int32]func(){}
	go h.waitForEvents(h.epoll) // it ends when the file is closed
	return true
}

// closeIfUnused ends the watching when there is nothing to watch; h.mu is held.
func (h *Watcher) closeIfUnused() {
	if len(h.gone) == 0 && h.epoll != nil {
		h.epoll.Close()
		h.epoll, h.gone = nil, nil
	}
}

// control runs f with the descriptor of the epoll instance; h.mu is held.
func (h *Watcher) control(f func(fd int) error) error {
	raw, err := h.epoll.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// waitForEvents reports the connections that their peers have closed, until the epoll instance is closed.
func (h *Watcher) waitForEvents(epoll *os.File) {
	raw, err := epoll.SyscallConn()
	if err != nil {
		return
	}
	events := make([]unix.EpollEvent, 64)
	for {
		n := 0
		err := raw.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events, 0)
			return n > 0
		})
		if err != nil {
			return
		}
		for _, e := range events[:n] {
			h.mu.Lock()
			gone := h.gone[e.Fd]
			h.mu.Unlock()
			if gone != nil {
				go gone()
			}
		}
	}
}

// socketOf returns the socket below a connection; nil if there is none.
func socketOf(conn net.Conn) syscall.RawConn {
	for {
		switch c := conn.(type) {
		case *tls.Conn:
			conn = c.NetConn()
			continue
		case syscall.Conn:
			raw, err := c.SyscallConn()
			if err != nil {
				return nil
			}
			return raw
		case interface{ NetConn() net.Conn }:
			conn = c.NetConn()
			continue
		}
		return nil
	}
}
