//go:build !linux || !amd64

package qemu

import (
	"context"
	"errors"

	"gatehouse/internal/sandbox"
)

// The machine type these sandboxes are of exists for one kind of processor.
var errNotHere = errors.New("virtual machines of this driver need Linux on amd64")

// Driver makes no sandboxes on this platform.
type Driver struct{}

// New makes a driver that says so.
func New(Options) (*Driver, error) { return &Driver{}, nil }

// Name is that of the driver.
func (*Driver) Name() string { return Name }

// Capabilities are none.
func (*Driver) Capabilities() sandbox.Capabilities { return sandbox.Capabilities{} }

// Doctor says that the platform is another one.
func (*Driver) Doctor(context.Context) []sandbox.Finding {
	return []sandbox.Finding{{
		Name: "QEMU", Needed: true, Detail: errNotHere.Error(), Remedy: "use the driver namespaces or gvisor here",
	}}
}

// Create fails.
func (*Driver) Create(context.Context, sandbox.Spec) (sandbox.Sandbox, error) { return nil, errNotHere }

// Close has nothing to do.
func (*Driver) Close() error { return nil }
