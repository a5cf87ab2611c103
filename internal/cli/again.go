package cli

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"gatehouse/internal/config"
)

// restarts says how a host with these settings is started again when it was
// asked to; "" where it cannot be. A client that started a host over standard
// input and output would not know that it has another one.
func restarts(cfg config.Config) string {
	if runtime.GOOS == "windows" || cfg.Doors.Stdio {
		return ""
	}
	return "the program replaces itself, with the same arguments and process id, and opens its listeners again; sessions start again"
}

// again puts a fresh process of this program in the place of this one. It
// returns only with an error.
func again() error {
	program, err := os.Executable()
	if err == nil {
		err = syscall.Exec(program, os.Args, os.Environ())
	}
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w; was it moved or removed?", err)
	}
	return fmt.Errorf("cannot start again: %w", err)
}
