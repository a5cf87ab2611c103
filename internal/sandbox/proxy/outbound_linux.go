package proxy

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// BindTo has a dialer connect by one network interface, and by no other. Since Linux 5.7 it needs no privilege.
func BindTo(d *net.Dialer, name string) error {
	d.Control = func(_, _ string, c syscall.RawConn) error {
		var bound error
		err := c.Control(func(fd uintptr) { bound = unix.BindToDevice(int(fd), name) })
		if err == nil {
			err = bound
		}
		return err
	}
	return nil
}
