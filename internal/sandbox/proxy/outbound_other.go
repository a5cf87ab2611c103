//go:build !linux

package proxy

import (
	"fmt"
	"net"
)

// BindTo has a dialer connect from the first address of a network interface.
func BindTo(d *net.Dialer, name string) error {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	all, err := i.Addrs()
	if err != nil {
		return err
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
			d.LocalAddr = &net.TCPAddr{IP: n.IP}
			return nil
		}
	}
	return fmt.Errorf("interface %s has no address to connect from", name)
}
