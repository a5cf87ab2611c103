package cli

import (
	"strings"
	"testing"

	"gatehouse/internal/config"
)

// Whatever this machine lacks, each line says so and names what to do; none is
// a failure, since a host serves without sandboxes.
func TestDoctorTellsOfSandboxes(t *testing.T) {
	found := map[string]bool{}
	for _, f := range checkSandboxes(t.Context(), config.Default().Modules.Sandbox, t.TempDir()) {
		if f.grade == "fail" || f.grade == "warn" && f.fix == "" || f.grade == "ok" && f.fix != "" {
			t.Errorf("%+v", f)
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(f.what, "sandboxes of the driver namespaces: "), ":")
		found[name] = true
	}
	if !found["a sandbox is made and runs a program"] {
		t.Errorf("whether one can be made is not told: %v", found)
	}
}
