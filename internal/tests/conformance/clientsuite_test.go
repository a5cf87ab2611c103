package conformance

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// moreClientScenarios are official scenarios of clients that neither requirement set has: those of revision 2025-03-26,
// of client credentials, and one that was added later. Not among them are the extensions that this program does not
// have: DPoP, enterprise-managed authorization and workload identity.
var moreClientScenarios = []string{
	"json-schema-2020-12-preservation", "auth/2025-03-26-oauth-metadata-backcompat",
	"auth/2025-03-26-oauth-endpoint-fallback", "auth/client-credentials-jwt", "auth/client-credentials-basic",
}

// refusedScenarios are those in which a client has to refuse what it finds, so that it fails.
var refusedScenarios = []string{
	"auth/resource-mismatch", "auth/iss-supported-missing", "auth/iss-wrong-issuer", "auth/iss-unexpected",
	"auth/iss-normalized", "auth/metadata-issuer-mismatch", "auth/scope-retry-limit",
}

// The client engine passes the official scenarios of clients in both requirement sets, each in its revision: no check
// fails, and none warns.
func TestClientScenarios(t *testing.T) {
	h := needFixture(t)
	bin := filepath.Join(t.TempDir(), "fixtureclient")
	if out, err := exec.Command("go", "build", "-o", bin, "../conformance/fixtureclient").CombinedOutput(); err != nil {
		t.Fatalf("build fixtureclient: %v: %s", err, out)
	}
	run := func(revision string, names []string) {
		for _, name := range names {
			t.Run(revision+"/"+name, func(t *testing.T) {
				s, said := runClientScenario(t, h.tools, bin, name, revision)
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
	for _, revision := range []string{"2025-11-25", modernRevision} {
		run(revision, requiredOfClients(t, h.tools, revision))
	}
	run("", moreClientScenarios)
}

// requiredOfClients returns the scenarios of clients in the requirement set of a revision.
func requiredOfClients(t *testing.T, tools Tools, revision string) (names []string) {
	t.Helper()
	b, err := os.ReadFile(tools.Script("node_modules", "conformance-0.2", "requirements", revision+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(b), "\nclient:\n")
	for line := range strings.Lines(list) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "- ")
		if !ok {
			break
		}
		names = append(names, name)
	}
	if len(names) < 18 {
		t.Fatalf("the requirement set of %s has the scenarios %q", revision, names)
	}
	return names
}

// runClientScenario has a suite run our client through one scenario, in a revision; with "" the suite chooses one.
func runClientScenario(t *testing.T, tools Tools, client, name, revision string) (s Scenario, said []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out := t.TempDir()
	args := []string{"client", "--command", client, "--scenario", name, "-o", out, "--timeout", "90000"}
	if revision != "" {
		args = append(args, "--spec-version", revision)
	}
	cmd := tools.Command(ctx, out, tools.Script("node_modules", "conformance-0.2", "dist", "index.js"), args...)
	said, err := cmd.CombinedOutput()
	if err != nil && !slices.Contains(refusedScenarios, name) {
		t.Errorf("the suite: %v", err)
	}
	s.Name, s.Checks = name, recordedChecks(t, out)
	return s, tail(said)
}

// recordedChecks returns the checks that a suite wrote below a folder.
func recordedChecks(t *testing.T, out string) (all []Check) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(out, "*", "checks.json"))
	if nested, _ := filepath.Glob(filepath.Join(out, "*", "*", "checks.json")); len(files) == 0 {
		files = nested // a scenario with a slash in its name
	}
	if err != nil || len(files) == 0 {
		t.Fatalf("%d results, %v", len(files), err)
	}
	for _, file := range files {
		var checks []Check
		b, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(b, &checks)
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, checks...)
	}
	return all
}
