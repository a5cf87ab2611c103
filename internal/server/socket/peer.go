package socket

import (
	"fmt"
	"net"
	"os"
)

// PeerUID returns the user ID of the peer process of a Unix socket. known is
// false if the system does not report it, and for other connections.
func PeerUID(conn net.Conn) (uid uint32, known bool) {
	u, ok := below(conn).(*net.UnixConn)
	if !ok {
		return 0, false
	}
	uid, known, err := peerUID(u)
	return uid, known && err == nil
}

// PeerIsChild reports whether the process at the other end of a Unix socket descends from a child of
// this host, or of another host. It returns true if that process has ended, because then its origin is
// unknown, and false if the system does not report the process.
func PeerIsChild(conn net.Conn) bool {
	u, ok := below(conn).(*net.UnixConn)
	return ok && peerIsChild(u)
}

// checkPeer refuses processes of other users on a Unix socket. If the system does not report the peer
// (neither Linux nor macOS), the modes of the socket and of its folder are the only protection.
func checkPeer(conn net.Conn) error {
	u, ok := below(conn).(*net.UnixConn)
	if !ok {
		return nil
	}
	uid, known, err := peerUID(u)
	if err != nil {
		return fmt.Errorf("cannot determine which user is connecting: %w", err)
	}
	if known && !allowed(uid, os.Getuid()) {
		return fmt.Errorf("user %d may not connect; this server belongs to user %d", uid, os.Getuid())
	}
	return nil
}

// below returns the connection inside wrappers.
func below(conn net.Conn) net.Conn {
	for {
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return conn
		}
		conn = outer.NetConn()
	}
}

// allowed reports whether a peer may use a server of the user own.
func allowed(peer uint32, own int) bool { return peer == 0 || int64(peer) == int64(own) }
