//go:build unix

package process

import (
	"errors"
	"fmt"
	"syscall"
)

// signal reaches the group that pid leads.
func signal(pid, n int) error {
	if err := syscall.Kill(-pid, syscall.Signal(n)); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill(%d): %w", n, err)
	}
	return nil
}
