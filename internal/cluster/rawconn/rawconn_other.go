//go:build !linux

package rawconn

import "net"

// Of returns the connection.
func Of(c net.Conn) net.Conn { return c }
