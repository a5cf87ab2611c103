// Package oci makes sandboxes with a container runtime that the system has:
// crun, runc, or another program with that command line.
//
// The runtime makes the walls as it does for containers everywhere, with a
// filter of system calls that is ours; what runs inside is the same agent as in
// other drivers, so calls, files and limits are the same. It is no stronger
// than the driver namespaces, whose kernel it shares. It is for hosts where
// containers have to come from a runtime that somebody looks after.
package oci

import "log/slog"

// Name is what the driver is called.
const Name = "oci"

// Options are for New. The zero value serves.
type Options struct {
	Runtime string // a program's path or name; "" means the first there is of crun and runc
	// Folder is for bundles and the runtime's state; "" means the system's place for temporary
	// files. Tests set it, to see what is left there.
	Folder string
	Log    *slog.Logger // nil means nothing is logged
}

// runtimes are looked for in this order.
var runtimes = []string{"crun", "runc"}

const remedyMissing = "install one: apt-get install crun (Debian, Ubuntu), dnf install crun (Fedora), apk add crun (Alpine)"
