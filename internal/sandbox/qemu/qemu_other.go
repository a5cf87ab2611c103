//go:build !linux || !amd64

package qemu

import "gatehouse/internal/sandbox"

// Driver makes no sandboxes on this platform.
type Driver struct{ sandbox.Elsewhere }

// New makes a driver that says so.
func New(Options) (*Driver, error) {
	// The machine type these sandboxes are of exists for one kind of processor.
	return &Driver{sandbox.Elsewhere{
		Driver: Name, Needs: "virtual machines of this driver need Linux on amd64", Part: "QEMU",
		Remedy: "use the driver namespaces or gvisor here",
	}}, nil
}
