//go:build !linux

package httpserver

import "net"

// hangups watches no connections on this system: a keep-alive finds those that clients have closed.
type hangups struct{}

func (*hangups) watch(*wire, net.Conn) (token int32) { return 0 }

func (*hangups) forget(int32) {}
