//go:build linux && (amd64 || arm64)

package agent

import (
	"errors"
	"fmt"
	"math"

	"gatehouse/internal/sandbox/wire"

	"golang.org/x/sys/unix"
)

// waiting is how many connections may wait for the host to take them.
const waiting = 128

// handOver makes a listener on loopback in here and gives it to the host, which
// takes the connections itself: nothing in the sandbox stands in between, and
// when the host closes it there is no listener any more.
func handOver(p wire.Plan) error {
	if p.Side == 0 || p.Proxy < 1 || p.Proxy > math.MaxUint16 {
		return fmt.Errorf("%w: no listener can be handed over", wire.ErrBroken)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return call("socket", "AF_INET", err)
	}
	defer unix.Close(fd)
	// What was closed a moment ago does not keep the port.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return call("setsockopt", "SO_REUSEADDR", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(p.Proxy), Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		if errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("a program in the sandbox listens at port %d, which the way out needs: %w", p.Proxy, err)
		}
		return call("bind", fmt.Sprint("127.0.0.1:", p.Proxy), err)
	}
	if err := unix.Listen(fd, waiting); err != nil {
		return call("listen", fmt.Sprint(p.Proxy), err)
	}
	err = unix.Sendmsg(int(p.Side), []byte{0}, unix.UnixRights(fd), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	return call("sendmsg", "a listener", err)
}
