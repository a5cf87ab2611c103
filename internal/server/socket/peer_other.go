//go:build !linux && !darwin

package socket

import "net"

// peerUID returns known false, because this system does not report the peer.
func peerUID(*net.UnixConn) (uid uint32, known bool, err error) { return 0, false, nil }

// peerIsChild returns false, because this system does not report the peer process.
func peerIsChild(*net.UnixConn) bool { return false }
