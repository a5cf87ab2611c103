package hangup

import (
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// AfterUnacknowledged returns a Control function of a net.Dialer that has the kernel end a TCP
// connection whose data are not acknowledged for d. Keep-alive probes are not sent while data wait,
// and retransmissions alone go on for a quarter of an hour.
func AfterUnacknowledged(d time.Duration) func(network, address string, raw syscall.RawConn) error {
	return func(network, _ string, raw syscall.RawConn) error {
		if !strings.HasPrefix(network, "tcp") {
			return nil
		}
		var failed error
		err := raw.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
		})
		if err != nil {
			return err
		}
		return failed
	}
}
