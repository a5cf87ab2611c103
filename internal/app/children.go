package app

import (
	"context"
	"path/filepath"

	"gatehouse/internal/config"
	"gatehouse/internal/exec/proc"
	"gatehouse/internal/exec/shield"
)

// closeFiles denies the child processes of this host access to the host's own files. It runs before anything that
// could start a child process.
func (a *App) closeFiles(context.Context) error {
	if !a.opts.Private {
		proc.Sweep()
	}
	if a.cfg.Children.HostFiles {
		return nil
	}
	release := shield.Close(OwnFiles(a.cfg, a.opts.Settings))
	a.closing("closed files", func(context.Context) error {
		release()
		return nil
	})
	return nil
}

// OwnFiles returns the folders and files that children of a host with these settings cannot access. settings is
// the file that the settings came from. Folders in open are inside of those folders, but the settings give the
// tools access to them.
func OwnFiles(cfg config.Config, settings string) (folders, files, open []string) {
	f, tls := cfg.Folders, cfg.Listen.HTTP.TLS
	for _, dir := range []string{f.Config, f.Data, f.State, f.Cache, f.Runtime} {
		if filepath.IsAbs(dir) {
			folders = append(folders, dir)
		}
	}
	if cfg.Audit.Archive != "" {
		folders = append(folders, cfg.Audit.Archive)
	}
	for _, file := range []string{settings, cfg.Secrets.KeyFile, tls.Key, cfg.Listen.Unix, cfg.Daemon.PID(f)} {
		if file != "" {
			files = append(files, file)
		}
	}
	open = append(open, cfg.Roots.Folders...)
	for _, c := range cfg.Contexts {
		open = append(open, c.Roots...)
	}
	return folders, files, open
}
