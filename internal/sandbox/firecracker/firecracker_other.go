//go:build !linux || !(amd64 || arm64)

package firecracker

import "gatehouse/internal/sandbox"

// Driver makes no sandboxes on this platform.
type Driver struct{ sandbox.Elsewhere }

// New makes a driver that says so.
func New(Options) (*Driver, error) {
	return &Driver{sandbox.Elsewhere{
		Driver: Name, Needs: "Firecracker needs Linux on amd64 or arm64", Part: "the program firecracker",
		Remedy: "run gatehouse on a Linux host with KVM",
	}}, nil
}
