package conformance

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// clientScenarios are the official scenarios of clients: those that the two sets require, and
// client credentials of the extensions. Not among them are the extensions that this program
// does not have: DPoP, enterprise-managed authorization and workload identity.
var clientScenarios = []string{
	"initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry", "request-metadata",
	"sep-2322-client-request-state", "http-standard-headers", "http-custom-headers", "http-invalid-tool-headers",
	"json-schema-ref-no-deref", "json-schema-2020-12-preservation",
	"auth/metadata-default", "auth/metadata-var1", "auth/metadata-var2", "auth/metadata-var3", "auth/basic-cimd",
	"auth/scope-from-www-authenticate", "auth/scope-from-scopes-supported", "auth/scope-omitted-when-undefined",
	"auth/scope-step-up", "auth/token-endpoint-auth-basic", "auth/token-endpoint-auth-post",
	"auth/token-endpoint-auth-none", "auth/pre-registration", "auth/offline-access-scope",
	"auth/offline-access-not-supported", "auth/authorization-server-migration", "auth/iss-supported",
	"auth/iss-not-advertised", "auth/2025-03-26-oauth-metadata-backcompat", "auth/2025-03-26-oauth-endpoint-fallback",
	"auth/client-credentials-jwt", "auth/client-credentials-basic",
}

// refusedScenarios are those in which a client has to refuse what it finds, so that it fails.
var refusedScenarios = []string{
	"auth/resource-mismatch", "auth/iss-supported-missing", "auth/iss-wrong-issuer", "auth/iss-unexpected",
	"auth/iss-normalized", "auth/metadata-issuer-mismatch", "auth/scope-retry-limit",
}

// The client engine passes the official scenarios of clients: no check fails, and none warns.
func TestClientScenarios(t *testing.T) {
	h := needFixture(t)
	bin := filepath.Join(t.TempDir(), "fixtureclient")
	if out, err := exec.Command("go", "build", "-o", bin, "../conformance/fixtureclient").CombinedOutput(); err != nil {
		t.Fatalf("build fixtureclient: %v: %s", err, out)
	}
	for _, name := range slices.Concat(clientScenarios, refusedScenarios) {
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
	if err != nil && !slices.Contains(refusedScenarios, name) {
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
