//go:build !linux || !(amd64 || arm64)

package gvisor

import (
	"context"
	"errors"

	"gatehouse/internal/sandbox"
)

var errNotHere = errors.New("gVisor needs Linux on amd64 or arm64")

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
		Name: "gVisor's runsc", Needed: true, Detail: errNotHere.Error(),
		Remedy: "run gatehouse in a Linux virtual machine or on a Linux host",
	}}
}

// Create fails.
func (*Driver) Create(context.Context, sandbox.Spec) (sandbox.Sandbox, error) { return nil, errNotHere }

// Close has nothing to do.
func (*Driver) Close() error { return nil }
