package app

import (
	"gatehouse/internal/files/roots"
	"gatehouse/internal/modules/file"
)

// rootOptions are how every folder of this host is opened.
func (a *App) rootOptions() roots.Options {
	return roots.Options{Protect: a.cfg.Modules.File.Protect()}
}

// fileConfig is what the file module is told.
func (a *App) fileConfig(c *file.Config) {
	c.MaxEdit, c.MaxCopy = a.cfg.Modules.File.MaxEdit, a.cfg.Modules.File.MaxCopy
}
