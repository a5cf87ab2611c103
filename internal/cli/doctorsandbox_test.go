package cli

import (
	"strings"
	"testing"

	"gatehouse/internal/config"
)

// TestDoctorTellsOfSandboxes checks that each line names what to do, whatever this machine lacks, and that none is
// a failure, because a host serves without sandboxes.
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
		t.Errorf("whether one can be made is not reported: %v", found)
	}
}
