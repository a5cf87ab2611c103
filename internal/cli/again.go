package cli

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"gatehouse/internal/config"
)

// restarts describes how a host with these settings is restarted on request; it returns "" if it cannot be. A host
// on standard input and output cannot be restarted, because its client would not learn that another host answers.
func restarts(cfg config.Config) string {
	if runtime.GOOS == "windows" || cfg.Listen.Stdio {
		return ""
	}
	return "the program replaces itself, with the same arguments and process id, and opens its listeners again; " +
		"sessions start anew"
}

// again replaces this process with a new one of the same program. It returns only with an error.
func again() error {
	program, err := os.Executable()
	if err == nil {
		err = syscall.Exec(program, os.Args, os.Environ())
	}
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w; was it moved or removed?", err)
	}
	return fmt.Errorf("cannot restart the program: %w", err)
}
