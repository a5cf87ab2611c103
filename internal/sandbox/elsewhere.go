package sandbox

import (
	"context"
	"errors"
)

// Elsewhere is a Driver on a platform that it is not for. It makes no sandboxes
// and says where some are made.
type Elsewhere struct {
	Driver string // its name
	Needs  string // the platform, as a sentence
	Part   string // what a Doctor looks for first where the driver works
	Remedy string // what to do here
}

// Name is that of the driver.
func (e Elsewhere) Name() string { return e.Driver }

// Capabilities are none.
func (Elsewhere) Capabilities() Capabilities { return Capabilities{} }

// Doctor says that the platform is another one.
func (e Elsewhere) Doctor(context.Context) []Finding {
	return []Finding{{Name: e.Part, Needed: true, Detail: e.Needs, Remedy: e.Remedy}}
}

// Create fails.
func (e Elsewhere) Create(context.Context, Spec) (Sandbox, error) { return nil, errors.New(e.Needs) }

// Close has nothing to do.
func (Elsewhere) Close() error { return nil }
