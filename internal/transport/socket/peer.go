package socket

import (
	"fmt"
	"net"
	"os"
)

// PeerUID tells which user's process is at the other end of a Unix socket.
// known is false where the system does not say, and for other connections.
func PeerUID(conn net.Conn) (uid uint32, known bool) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, false
	}
	uid, known, err := peerUID(u)
	return uid, known && err == nil
}

// checkPeer turns away processes of other users on a Unix socket. Where the
// system does not tell who a peer is (neither Linux nor macOS), the modes of
// the socket and of its folder have to do.
func checkPeer(conn net.Conn) error {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return nil
	}
	uid, known, err := peerUID(u)
	if err != nil {
		return fmt.Errorf("cannot tell which user is connecting: %w", err)
	}
	if known && !allowed(uid, os.Getuid()) {
		return fmt.Errorf("user %d may not connect; this server belongs to user %d", uid, os.Getuid())
	}
	return nil
}

// allowed reports whether a peer may use a server of user own.
func allowed(peer uint32, own int) bool { return peer == 0 || int64(peer) == int64(own) }
