//go:build !linux || !(amd64 || arm64)

package oci

import "gatehouse/internal/sandbox"

// Driver makes no sandboxes on this platform.
type Driver struct{ sandbox.Unsupported }

// New returns a driver that reports that the platform is not supported.
func New(Options) (*Driver, error) {
	return &Driver{sandbox.Unsupported{
		Driver: Name, Needs: "containers need Linux on amd64 or arm64", Check: "a container runtime",
		Remedy: "run gatehouse in a Linux virtual machine or on a Linux host",
	}}, nil
}
