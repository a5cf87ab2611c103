package sandbox_test

import (
	"testing"

	"gatehouse/internal/sandbox"
)

func TestADriverElsewhereSaysWhereItWorks(t *testing.T) {
	var d sandbox.Driver = sandbox.Unsupported{
		Driver: "glass",
		Needs:  "glass needs sand",
		Check:  "an oven",
		Remedy: "go to the beach",
	}
	if _, err := d.Create(t.Context(), sandbox.Spec{}); err == nil || err.Error() != "glass needs sand" {
		t.Errorf("create: %v", err)
	}
	f := d.Doctor(t.Context())
	if want := (sandbox.Finding{
		Name:   "an oven",
		Needed: true,
		Detail: "glass needs sand",
		Remedy: "go to the beach",
	}); len(f) != 1 || f[0] != want {
		t.Errorf("doctor: %+v", f)
	}
	if d.Name() != "glass" || d.Capabilities() != (sandbox.Capabilities{}) || d.Close() != nil {
		t.Errorf("%s: %+v", d.Name(), d.Capabilities())
	}
}
