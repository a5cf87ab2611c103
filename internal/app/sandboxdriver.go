package app

import (
	"fmt"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/namespaces"
	"gatehouse/internal/sandbox/oci"
	"gatehouse/internal/sandbox/process"
)

// sandboxDriver makes what makes sandboxes, as the settings say.
func (a *App) sandboxDriver() (sandbox.Driver, error) {
	switch s := a.cfg.Modules.Sandbox; s.Driver {
	case "", namespaces.Name:
		return namespaces.New(namespaces.Options{Boots: s.Pool.MaxBoots, Log: a.log})
	case oci.Name:
		return oci.New(oci.Options{Runtime: s.Runtime, Log: a.log})
	case process.Name:
		return process.New(process.Options{Unsafe: s.Unsafe, Log: a.log})
	default:
		return nil, fmt.Errorf("modules.sandbox.driver is %q; expected namespaces, oci or process", s.Driver)
	}
}
