// Package namespaces makes sandboxes of what the Linux kernel itself offers:
// users, files, processes and a network of their own, control groups, and
// filters, with nothing to install and with or without root.
//
// The kernel is the host's. Code that breaks the kernel breaks out; where that
// must not be risked, a driver of a higher tier is needed.
package namespaces

import "log/slog"

// Name is what the driver is called.
const Name = "namespaces"

// Options are for New. The zero value serves.
type Options struct {
	Log *slog.Logger // nil means nothing is logged
	// Boots is how many sandboxes are made at the same time; 0 means twice the
	// number of processors, above which each only takes longer.
	Boots int
	// NoCgroups does without control groups even where they can be made.
	// Tests set it, for the way of machines without them.
	NoCgroups bool
}
