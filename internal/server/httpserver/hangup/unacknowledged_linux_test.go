package hangup

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel ends a connection whose peer is gone while data wait for it.
func TestTheKernelLimitsUnacknowledgedData(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := net.Dialer{Control: AfterUnacknowledged(35 * time.Second)}
	conn, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	err = raw.Control(
		func(fd uintptr) { got, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) },
	)
	if err != nil || got != 35_000 {
		t.Errorf("the limit is %d ms; %v", got, err)
	}
}
