//go:build !linux || !(amd64 || arm64)

package oci

import "gatehouse/internal/sandbox"

// Driver makes no sandboxes on this platform.
type Driver struct{ sandbox.Elsewhere }

// New makes a driver that says so.
func New(Options) (*Driver, error) {
	return &Driver{sandbox.Elsewhere{
		Driver: Name, Needs: "containers need Linux on amd64 or arm64", Part: "a container runtime",
		Remedy: "run gatehouse in a Linux virtual machine or on a Linux host",
	}}, nil
}
