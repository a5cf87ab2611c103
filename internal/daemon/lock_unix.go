//go:build unix

package daemon

import (
	"os"

	"gatehouse/internal/proc"
)

// lock takes a file for this process, or fails at once.
func lock(f *os.File) error { return proc.Claim(f) }
