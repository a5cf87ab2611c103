package httpserver

import (
	"crypto/tls"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// hangups notices that clients close connections that were taken over from net/http, from which nothing is read: one
// epoll instance and one goroutine for all of them, while there are any. A connection that is lost without a word is
// found by a keep-alive. Its zero value is ready. It is safe for concurrent use.
type hangups struct {
	mu    sync.Mutex
	epoll *os.File // nil while no connection is watched
	next  int32
	wires map[int32]*wire
}

// watch has a wire end when its client closes conn. token is for forget; it is 0 if conn cannot be watched.
func (h *hangups) watch(w *wire, conn net.Conn) (token int32) {
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
	h.wires[token] = w
	return token
}

// forget ends the watching of a connection. The kernel forgets it when it is closed.
func (h *hangups) forget(token int32) {
	if token == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.wires, token)
	h.closeIfUnused()
}

// open begins to watch; h.mu is held.
func (h *hangups) open() bool {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return false
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that the runtime's poller waits for it
		unix.Close(fd)
		return false
	}
	h.epoll, h.wires = os.NewFile(uintptr(fd), "epoll"), map[int32]*wire{}
	go h.wait(h.epoll) // it ends when the file is closed
	return true
}

// closeIfUnused ends the watching when there is nothing to watch; h.mu is held.
func (h *hangups) closeIfUnused() {
	if len(h.wires) == 0 && h.epoll != nil {
		h.epoll.Close()
		h.epoll, h.wires = nil, nil
	}
}

// control runs f with the descriptor of the epoll instance; h.mu is held.
func (h *hangups) control(f func(fd int) error) error {
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

// wait ends the wires whose clients have closed their connections, until the epoll instance is closed.
func (h *hangups) wait(epoll *os.File) {
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
			w := h.wires[e.Fd]
			h.mu.Unlock()
			if w != nil {
				go w.failWith(errGone) // a write may hold the wire for as long as it may take
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
