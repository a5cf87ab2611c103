//go:build !linux

package hangup

import (
	"syscall"
	"time"
)

// AfterUnacknowledged returns a Control function that sets nothing: the kernel's own limit holds.
func AfterUnacknowledged(time.Duration) func(network, address string, raw syscall.RawConn) error {
	return func(string, string, syscall.RawConn) error { return nil }
}
