package app

import (
	"time"

	"gatehouse/internal/modules/shell"
)

// shellConfig is what the shell module is told.
func (a *App) shellConfig(c *shell.Config) {
	s := a.cfg.Modules.Shell
	*c = shell.Config{
		Timeout: int(s.Timeout / time.Second), Allow: s.Allow, Deny: s.Deny, Shell: s.Shell, WorkingDir: s.WorkingDir,
		NoStderr: s.NoStderr, Output: s.Output, Processes: s.Processes, Confine: s.Confine,
		Env: a.contexts.environment,
	}
}
