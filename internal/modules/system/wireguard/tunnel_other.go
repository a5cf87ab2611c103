//go:build !linux

package wireguard

import (
	"context"
	"errors"
)

// Tunnel is a tunnel that is up; on this system there is none.
type Tunnel struct{}

// Available reports that tunnels cannot be made here.
func Available() bool { return false }

// Up returns an error.
func Up(context.Context, int, *Config, Options) (*Tunnel, error) {
	return nil, errors.ErrUnsupported
}

// Close does nothing.
func (*Tunnel) Close() {}

// State returns nothing.
func (*Tunnel) State() State { return State{} }

// Free returns an error.
func Free(int) (int, error) { return 0, errors.ErrUnsupported }
