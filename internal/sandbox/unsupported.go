package sandbox

import (
	"context"
	"errors"
)

// Unsupported is the Driver of a platform that the driver does not support. It makes no sandboxes and says
// which platform is required.
type Unsupported struct {
	Driver string // its name
	Needs  string // the required platform, as a sentence
	Check  string // the name of the first Finding that the driver's Doctor reports on a supported platform
	Remedy string // what to do on this platform
}

// Name returns the driver's name.
func (e Unsupported) Name() string { return e.Driver }

// Capabilities returns the zero value.
func (Unsupported) Capabilities() Capabilities { return Capabilities{} }

// Doctor reports that the platform is not supported.
func (e Unsupported) Doctor(context.Context) []Finding {
	return []Finding{{Name: e.Check, Needed: true, Detail: e.Needs, Remedy: e.Remedy}}
}

// Create returns an error that names the required platform.
func (e Unsupported) Create(context.Context, Spec) (Sandbox, error) { return nil, errors.New(e.Needs) }

// Close does nothing.
func (Unsupported) Close() error { return nil }
