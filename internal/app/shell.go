package app

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"gatehouse/internal/config"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/modules/shell"
	"gatehouse/tool"
)

const shellModule = "shell"

// checkShell checks at the start what would make every command line fail: a shell that does not exist, and a
// folder outside of those of the host.
func (a *App) checkShell(context.Context) error {
	s := a.cfg.Modules.Shell
	if !slices.ContainsFunc(a.enabled, func(g enabledModule) bool { return g.Name == shellModule }) {
		return nil
	}
	if s.Shell != "" && !s.Confine { // a sandbox has its own programs
		if _, err := exec.LookPath(s.Shell); err != nil {
			cause := err
			if e, ok := errors.AsType[*exec.Error](err); ok {
				cause = e.Err
			}
			return &SettingError{&config.SettingProblem{Path: "modules.shell.shell",
				Err: fmt.Errorf(
					"the shell %s cannot be run: %w; name a program of this machine, such as /bin/sh",
					s.Shell,
					cause,
				)}}
		}
	}
	if s.WorkingDir == "" || a.opts.AnyFolder {
		return nil
	}
	where, err := roots.OpenWorkplace(a.roots, s.WorkingDir, "working_dir")
	if err != nil {
		if r, ok := errors.AsType[*tool.Refusal](err); ok {
			err = fmt.Errorf("working_dir: %s", strings.TrimPrefix(r.Message, "working_dir: "))
		}
		return &SettingError{&config.SettingProblem{Path: "modules.shell.working_dir",
			Err: fmt.Errorf("%w; name a folder inside of those of -d", err)}}
	}
	return where.Close()
}

func (a *App) shellDeps() (shell.Config, error) {
	return shell.Config{Settings: a.cfg.Modules.Shell, Env: a.environment, Turn: a.limits.Starts.Wait}, nil
}
