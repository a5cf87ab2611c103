package app

import (
	"errors"
	"slices"
	"testing"

	"gatehouse/internal/sandbox/manager"
	"gatehouse/internal/sandbox/process"
)

// Every driver that settings can name can be opened.
func TestTheDriversAreThoseOfTheSettings(t *testing.T) {
	names := append(manager.DriverNames(), process.Name, "magic")
	ladder := SandboxDrivers(names, manager.Settings{}, t.TempDir(), nil)
	for i, r := range ladder {
		if r.Name != names[i] {
			t.Errorf("%d: the driver is %s, want %s", i, r.Name, names[i])
		}
		d, err := r.Open()
		if r.Name == process.Name {
			if !errors.Is(err, process.ErrUnsafeNotSet) {
				t.Errorf("without being asked for: %v", err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
			continue
		}
		if d.Name() != r.Name {
			t.Errorf("%s opens %s", r.Name, d.Name())
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if len(ladder) != len(names)-1 {
		t.Errorf("there are %d drivers, want %d", len(ladder), len(names)-1)
	}
}

func TestTheLadderOfTheSettings(t *testing.T) {
	for _, c := range []struct {
		set  manager.Settings
		want []string
	}{
		{manager.Settings{}, manager.DriverNames()},
		{manager.Settings{Driver: "auto", Prefer: []string{"oci", "namespaces"}}, []string{"oci", "namespaces"}},
		{manager.Settings{Driver: "oci"}, []string{"oci"}},
		{manager.Settings{Driver: "namespaces", Drivers: []string{"oci"}}, []string{"namespaces", "oci"}},
		{manager.Settings{Drivers: []string{"process", "namespaces"}}, []string{"namespaces", "process"}},
	} {
		if got := c.set.Ladder(); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, want %v", c.set, got, c.want)
		}
	}
}
