//go:build !linux || !(amd64 || arm64)

package firecracker

import "gatehouse/internal/sandbox"

// Driver makes no sandboxes on this platform.
type Driver struct{ sandbox.Unsupported }

// New returns a driver that reports that the platform is not supported.
func New(Options) (*Driver, error) {
	return &Driver{sandbox.Unsupported{
		Driver: Name, Needs: "Firecracker needs Linux on amd64 or arm64", Check: "the program firecracker",
		Remedy: "run gatehouse on a Linux host with KVM",
	}}, nil
}
