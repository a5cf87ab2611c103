//go:build !linux

package machinetest

import "testing"

// Main runs the tests of a package.
func Main(m *testing.M) int { return m.Run() }

// Inside reports whether this program runs in a machine.
func Inside() bool { return false }

// Need skips a test, because only Linux has the machine that it needs.
func Need(t *testing.T) {
	t.Helper()
	t.Skip("not run: only Linux has such a machine")
}
