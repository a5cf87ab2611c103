//go:build linux && (amd64 || arm64)

package agent

import (
	"errors"
	"fmt"
	"math"

	"gatehouse/internal/sandbox/agentprotocol"

	"golang.org/x/sys/unix"
)

// backlog is how many connections may wait to be accepted.
const backlog = 128

// sendListener creates a listener on the sandbox's loopback interface and passes it to the host, which accepts the
// connections itself. So no process of the sandbox relays them, and when the host closes the listener, none is
// left. A host that cannot receive files sends a Listen request instead.
func sendListener(p agentprotocol.Plan) error {
	if p.Proxy < 1 || p.Proxy > math.MaxUint16 {
		return fmt.Errorf("%w: the plan names no valid port for the proxy", agentprotocol.ErrBroken)
	}
	fd, err := listenLoopback(int(p.Proxy))
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = unix.Sendmsg(int(p.ListenerSocket), []byte{0}, unix.UnixRights(fd), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	return sysErr("sendmsg", "a listener", err)
}

// listenLoopback creates a socket that listens on 127.0.0.1.
func listenLoopback(port int) (fd int, err error) {
	if fd, err = socket(unix.AF_INET); err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	// A port whose connections were closed a moment ago can be reused.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return -1, sysErr("setsockopt", "SO_REUSEADDR", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		if errors.Is(err, unix.EADDRINUSE) {
			return -1, fmt.Errorf("a program in the sandbox listens on port %d, which the host requires: %w", port, err)
		}
		return -1, sysErr("bind", fmt.Sprint("127.0.0.1:", port), err)
	}
	return fd, sysErr("listen", fmt.Sprint(port), unix.Listen(fd, backlog))
}
