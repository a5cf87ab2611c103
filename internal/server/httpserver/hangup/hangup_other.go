//go:build !linux

package hangup

import "net"

// Watcher watches no connections on this system.
type Watcher struct{}

// Watch returns 0: conn cannot be watched.
func (*Watcher) Watch(_ net.Conn, _ func()) (token int32) { return 0 }

// Forget does nothing.
func (*Watcher) Forget(int32) {}
