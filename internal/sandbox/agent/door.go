//go:build linux && (amd64 || arm64)

package agent

import (
	"errors"
	"fmt"
	"math"

	"gatehouse/internal/sandbox/agentprotocol"

	"golang.org/x/sys/unix"
)

// waiting is how many connections may wait for the host to take them.
const waiting = 128

// handOver makes a listener on loopback in here and gives it to the host, which
// takes the connections itself: nothing in the sandbox stands in between, and
// when the host closes it there is no listener any more. Where nothing can be
// handed over the host asks for a Listen instead.
func handOver(p agentprotocol.Plan) error {
	if p.Proxy < 1 || p.Proxy > math.MaxUint16 {
		return fmt.Errorf("%w: no listener can be handed over", agentprotocol.ErrBroken)
	}
	fd, err := listenAt(int(p.Proxy))
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = unix.Sendmsg(int(p.Side), []byte{0}, unix.UnixRights(fd), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	return call("sendmsg", "a listener", err)
}

// listenAt makes a socket that listens on loopback in here.
func listenAt(port int) (fd int, err error) {
	if fd, err = socket(unix.AF_INET); err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	// What was closed a moment ago does not keep the port.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return -1, call("setsockopt", "SO_REUSEADDR", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		if errors.Is(err, unix.EADDRINUSE) {
			return -1, fmt.Errorf("a program in the sandbox listens at port %d, which the host needs: %w", port, err)
		}
		return -1, call("bind", fmt.Sprint("127.0.0.1:", port), err)
	}
	return fd, call("listen", fmt.Sprint(port), unix.Listen(fd, waiting))
}
