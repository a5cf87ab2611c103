package app

import (
	"cmp"

	"gatehouse/internal/modules/network"
)

// networkConfig gives the module of the network what it stands on.
func (a *App) networkConfig(c *network.Config) {
	c.Rules = a.rules
	t := a.cfg.Doors.HTTP.TLS
	if !a.cfg.Doors.HTTP.Open || !t.On || len(t.ACME.Domains) == 0 {
		return
	}
	from := a.authority(t)
	c.ACME = func() network.ACME {
		out := network.ACME{Directory: cmp.Or(from.Directory, "Let's Encrypt"), Email: from.Email, Domains: from.Domains}
		for _, k := range from.Kept() {
			out.Certificates = append(out.Certificates, network.Certificate(k))
		}
		return out
	}
}
