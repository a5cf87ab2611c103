package app

import (
	"errors"
	"testing"

	"gatehouse/internal/config"
	"gatehouse/internal/sandbox/process"
)

func TestTheDriverIsTheOneOfTheSettings(t *testing.T) {
	for _, c := range []struct {
		set  config.Sandboxes
		name string
		err  error
	}{
		{config.Sandboxes{}, "namespaces", nil},
		{config.Sandboxes{Driver: "namespaces"}, "namespaces", nil},
		{config.Sandboxes{Driver: "oci"}, "oci", nil},
		{config.Sandboxes{Driver: "process", Unsafe: true}, "process", nil},
		{config.Sandboxes{Driver: "process"}, "", process.ErrNotAsked},
	} {
		a := &App{}
		a.cfg.Modules.Sandbox = c.set
		d, err := a.sandboxDriver()
		if !errors.Is(err, c.err) {
			t.Errorf("%+v: %v, want %v", c.set, err, c.err)
		}
		if err != nil {
			continue
		}
		if d.Name() != c.name {
			t.Errorf("%+v: the driver is %s", c.set, d.Name())
		}
		d.Close()
	}
	a := &App{}
	a.cfg.Modules.Sandbox.Driver = "magic"
	if _, err := a.sandboxDriver(); err == nil {
		t.Error("there is a driver magic")
	}
}
