// Package oci makes sandboxes with an installed container runtime: crun, runc, or another program with the
// same command line.
//
// The runtime isolates the sandbox as it does any container, with a seccomp filter from package seccomp. The
// agent inside is the same as in other drivers, so calls, files and limits behave the same. It is no stronger
// than the driver namespaces, because both share the host's kernel. It is for hosts whose containers must come
// from a runtime that the administrator maintains.
package oci

import "log/slog"

// Name is the driver's name.
const Name = "oci"

// Options are for New. The zero value is ready to use.
type Options struct {
	Runtime string // a program's path or name; "" means crun, or else runc
	// Folder is for bundles and the runtime's state; "" means the system's folder for temporary files. Tests
	// set it, to see what is left there.
	Folder string
	Log    *slog.Logger // nil means nothing is logged
}

// runtimes are tried in this order.
var runtimes = []string{"crun", "runc"}

const remedyMissing = "install one: apt-get install crun (Debian, Ubuntu), dnf install crun (Fedora), apk add " +
	"crun (Alpine)"
