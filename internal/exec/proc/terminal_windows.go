package proc

import (
	"errors"
	"os/exec"
)

var errNoTerminal = errors.New("terminals are not supported on Windows")

func (p *pipes) openTerminal(*exec.Cmd, Spec, *input) error { return errNoTerminal }

func leadSession(*exec.Cmd) {}

// Resize is not supported on Windows.
func (p *Process) Resize(Size) error { return errNoTerminal }
