//go:build !linux

package proxy

import "net/netip"

// listensHere returns true, because listeners are only known on Linux, so that no address of this machine is
// reached. No driver of another system gives a sandbox network access.
func listensHere(netip.AddrPort) (bool, error) { return true, nil }
