//go:build !linux

package sandboxtest

import (
	"os"
	"testing"
)

// RunAsOrdinary skips the test: only Linux has ranges of subordinate ids.
func RunAsOrdinary(t *testing.T, _ string, _ ...string) {
	t.Skip("only Linux has ranges of subordinate ids")
}

// OwnerOf returns the user of this process.
func OwnerOf(*testing.T, string) int { return os.Getuid() }
