package app

import (
	"gatehouse/internal/access/secret"
	"gatehouse/internal/modules/pubkey"
)

// pubkeyConfig gives the module that tells the host's public key where it is.
// A private host has none, for it would have to keep it.
func (a *App) pubkeyConfig(c *pubkey.Config) {
	if !a.opts.Private && a.cfg.Folders.Config != "" {
		c.Recipient = secret.In(a.cfg.Folders.Config, a.cfg.Secrets.KeyFile).Recipient
	}
}
