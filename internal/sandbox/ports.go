package sandbox

import (
	"context"
	"net"
)

// Ported is what a Sandbox offers whose servers can be reached from the host.
type Ported interface {
	// Dial connects to a TCP port on the sandbox's loopback. ctx bounds the
	// connecting only. The connection ends with the sandbox.
	Dial(ctx context.Context, port uint16) (net.Conn, error)
}
