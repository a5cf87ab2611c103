// Package namespaces makes sandboxes with the Linux kernel's own means: namespaces for users, files, processes
// and network, control groups, and filters. It requires nothing to be installed and works with or without
// root.
//
// The kernel is the host's. Code that exploits a bug of the kernel breaks out; if that must not be risked, use
// a driver of a higher tier.
package namespaces

import (
	"log/slog"

	"gatehouse/internal/sandbox/proxy"
)

// Name is the driver's name.
const Name = "namespaces"

// Options are for New. The zero value is ready to use.
type Options struct {
	Log *slog.Logger // nil means nothing is logged
	// Boots is how many sandboxes are made concurrently; 0 means twice the number of processors, above which
	// each only takes longer.
	Boots int
	// NoCgroups disables control groups even if they are available. Tests set it, to test hosts without
	// them.
	NoCgroups bool
	// Proxy is for the proxies through which sandboxes reach the network. Tests set its members.
	Proxy proxy.Options
}
