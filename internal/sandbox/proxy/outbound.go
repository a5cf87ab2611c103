package proxy

import (
	"context"
	"net"
	"net/netip"
)

// DialBy returns what connects by one network interface, and fails while there is none of that name.
func DialBy(name string) func(context.Context, netip.AddrPort) (net.Conn, error) {
	return func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
		var d net.Dialer
		if err := BindTo(&d, name); err != nil {
			return nil, err
		}
		return d.DialContext(ctx, "tcp", a.String())
	}
}
