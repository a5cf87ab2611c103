// Package killtest kills a program before one of its system calls, for tests of
// what a crash leaves. Only tests import it.
package killtest

import (
	"errors"
	"os/exec"
)

// ErrUnsupported means that no program can be traced here.
var ErrUnsupported = errors.New("no program can be traced here")

// Before runs a program and kills it before it makes call number n, from 1, of
// those that change files. It returns true if the program made fewer calls and
// ended with success. The program must not have been started. While it runs, no
// other child of this process may end, because Before waits for all of them.
func Before(cmd *exec.Cmd, n int) (ended bool, err error) { return before(cmd, n) }
