package sandbox

import (
	"context"
	"net"
)

// Dialer is implemented by a Sandbox whose servers can be reached from the host.
type Dialer interface {
	// Dial connects to a TCP port on the sandbox's loopback interface. ctx bounds the connecting only. The
	// connection ends with the sandbox.
	Dial(ctx context.Context, port uint16) (net.Conn, error)
}
