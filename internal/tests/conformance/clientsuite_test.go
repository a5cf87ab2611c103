package conformance

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// clientScenarios are the official scenarios of clients that need no authorization.
var clientScenarios = []string{
	"initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry", "request-metadata",
	"sep-2322-client-request-state", "http-standard-headers", "http-custom-headers", "http-invalid-tool-headers",
	"json-schema-ref-no-deref", "json-schema-2020-12-preservation",
}

// The client engine passes the official scenarios of clients: no check fails, and none warns.
func TestClientScenarios(t *testing.T) {
	h := needFixture(t)
	bin := filepath.Join(t.TempDir(), "fixtureclient")
	if out, err := exec.Command("go", "build", "-o", bin, "../conformance/fixtureclient").CombinedOutput(); err != nil {
		t.Fatalf("build fixtureclient: %v: %s", err, out)
	}
	for _, name := range clientScenarios {
		t.Run(name, func(t *testing.T) {
			s, said := runClientScenario(t, h.tools, bin, name)
			if s.Count("SUCCESS") == 0 {
				t.Errorf("no check has succeeded: %s", said)
			}
			for _, c := range s.Checks {
				if c.Status == "FAILURE" || c.Status == "WARNING" {
					t.Errorf("%s %s: %s", c.Status, c.ID, c.Message)
				}
			}
			if t.Failed() {
				t.Logf("the suite said: %s", said)
			}
		})
	}
}

// runClientScenario has a suite run our client through one scenario.
func runClientScenario(t *testing.T, tools Tools, client, name string) (s Scenario, said []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out := t.TempDir()
	cmd := tools.Command(ctx, out, tools.Script("node_modules", "conformance-0.2", "dist", "index.js"),
		"client", "--command", client, "--scenario", name, "-o", out, "--timeout", "90000")
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("the suite: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(out, "*", "checks.json"))
	if nested, _ := filepath.Glob(filepath.Join(out, "*", "*", "checks.json")); len(files) == 0 {
		files = nested // a scenario with a slash in its name
	}
	if err != nil || len(files) != 1 {
		t.Fatalf("%d results, %v: %s", len(files), err, tail(said))
	}
	b, err := os.ReadFile(files[0])
	if err == nil {
		err = json.Unmarshal(b, &s.Checks)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.Name = name
	return s, tail(said)
}
