package packages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"gatehouse/tool"
)

// MaxShellTime is the longest that a command of Shell may run.
const MaxShellTime = 5 * time.Minute

// ShellResult is the end of a command of Shell.
type ShellResult struct {
	Exit     int
	TimedOut bool
}

// Shell runs a command line by /bin/sh as the server of a package is run: with its variables and secrets, in its
// data folder, and with the same access to files, processes and the network. It ends with ctx, with the host, and
// after limit. Secrets of the package are masked in the output.
func (h *Manager) Shell(
	ctx context.Context, id, command string, limit time.Duration, stdout, stderr io.Writer,
) (ShellResult, error) {
	return h.runCommand(ctx, id, command, nil, limit, stdout, stderr)
}

// runCommand is Shell with further variables.
func (h *Manager) runCommand(
	ctx context.Context, id, command string, env []string, limit time.Duration, stdout, stderr io.Writer,
) (r ShellResult, err error) {
	leave, err := h.addWork()
	if err != nil {
		return r, err
	}
	defer leave()
	p, err := h.findPackage(id)
	if err != nil {
		return r, err
	}
	p.mu.Lock()
	rec, activity := p.rec, p.activity
	p.mu.Unlock()
	switch {
	case rec.Source.IsRemote():
		return r, &tool.Refusal{
			Code:    tool.CodeUnsupported,
			Message: fmt.Sprintf("package %s is a server at an address; it has no program here", id),
			Next:    "Log in to the machine that runs it.",
		}
	case rec.State != Installed || activity != "":
		return r, tool.Refuse(tool.CodeBusy, "package %s is busy; nothing was run", id)
	}
	ctx, cancel := context.WithTimeout(ctx, min(max(limit, time.Second), MaxShellTime))
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()
	vars, hider, err := p.launchEnvironment(&rec)
	if err != nil {
		return r, err
	}
	child, err := p.startProgram(&rec, "/bin/sh", []string{"-c", command}, append(vars, env...), hider.Writer(stdout),
		hider.Writer(stderr))
	if err != nil {
		return r, fmt.Errorf("start /bin/sh: %w", err)
	}
	defer context.AfterFunc(ctx, func() {
		ended, done := context.WithTimeout(context.Background(), stopGrace)
		defer done()
		child.Stop(ended)
	})()
	if err := child.CloseInput(ctx); err != nil && ctx.Err() == nil {
		h.log.Debug("the input of a command cannot be closed", "package", id, "err", err)
	}
	state, err := child.Wait()
	if err != nil {
		return r, err
	}
	r.Exit = state.Code
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		r.TimedOut = true
	case ctx.Err() != nil:
		return r, context.Cause(ctx)
	case state.Stopped != nil:
		return r, state.Stopped
	}
	return r, nil
}
