package app

import (
	"gatehouse/internal/files/roots"
)

// rootOptions are how every folder of this host is opened.
func (a *App) rootOptions() roots.Options {
	return roots.Options{Protect: a.cfg.Modules.File.Protect()}
}
