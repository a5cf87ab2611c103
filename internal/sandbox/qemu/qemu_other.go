//go:build !linux || !amd64

package qemu

import "gatehouse/internal/sandbox"

// Driver makes no sandboxes on this platform.
type Driver struct{ sandbox.Unsupported }

// New returns a driver that reports that the platform is not supported.
func New(Options) (*Driver, error) {
	// The machine type "microvm" exists for amd64 only.
	return &Driver{sandbox.Unsupported{
		Driver: Name, Needs: "virtual machines of this driver need Linux on amd64", Check: "QEMU",
		Remedy: "use the driver namespaces or gvisor here",
	}}, nil
}
