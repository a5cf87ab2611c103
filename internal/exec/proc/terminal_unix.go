//go:build unix

package proc

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"

	"github.com/creack/pty"
)

// openTerminal gives the command a terminal as its three files.
func (p *pipes) openTerminal(cmd *exec.Cmd, spec Spec, in *input) error {
	p.over = make(chan struct{})
	ours, theirs, err := pty.Open()
	if err != nil {
		return err
	}
	p.theirs, p.ours = append(p.theirs, theirs), append(p.ours, ours)
	if err := pty.Setsize(ours, window(*spec.Terminal)); err != nil {
		p.started(false)
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	in.to, in.terminal = ours, true
	to := spec.Stdout
	if to == nil {
		to = io.Discard
	}
	p.out.Add(1)
	p.copies = append(p.copies, func() {
		defer p.out.Done()
		// A terminal returns EIO after its other end was closed.
		if err := pass(to, ours); err != nil && !errors.Is(err, syscall.EIO) && !errors.Is(err, os.ErrClosed) {
			p.fail(err)
		}
	})
	return nil
}

// leadSession makes the child the leader of a session, and so of a group, with its standard input as
// the controlling terminal.
func leadSession(cmd *exec.Cmd) {
	cmd.SysProcAttr.Setpgid = false
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty, cmd.SysProcAttr.Ctty = true, true, 0
}

// Resize changes the size of the child's terminal and notifies the child.
func (p *Process) Resize(s Size) error {
	if !p.input.terminal {
		return errors.New("it has no terminal")
	}
	return pty.Setsize(p.input.to, window(s))
}

func window(s Size) *pty.Winsize {
	return &pty.Winsize{Cols: uint16(min(max(s.Cols, 1), 1000)), Rows: uint16(min(max(s.Rows, 1), 1000))}
}
