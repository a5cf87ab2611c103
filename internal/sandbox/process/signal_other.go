//go:build !unix

package process

import (
	"fmt"

	"gatehouse/internal/exec/proc"
)

// signal cannot be had on this platform.
func signal(_ *proc.Process, n int) error {
	return fmt.Errorf("signal %d cannot be sent on this platform; 9 ends the program", n)
}
