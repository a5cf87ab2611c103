//go:build unix

package process

import (
	"fmt"
	"syscall"

	"gatehouse/internal/exec/proc"
)

// signal sends a signal to the process group of a program.
func signal(p *proc.Process, n int) error {
	if err := p.Signal(syscall.Signal(n)); err != nil {
		return fmt.Errorf("kill(%d): %w", n, err)
	}
	return nil
}
