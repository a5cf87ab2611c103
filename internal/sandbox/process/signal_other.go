//go:build !unix

package process

import (
	"fmt"

	"gatehouse/internal/exec/proc"
)

// signal returns an error, because this platform has no signals.
func signal(_ *proc.Process, n int) error {
	return fmt.Errorf("signal %d cannot be sent on this platform; use 9 to end the program", n)
}
