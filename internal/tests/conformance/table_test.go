package conformance

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A column is clean only if all of its scenarios have a result, and nothing failed, warned or was skipped without
// permission.
func TestCleanSeesEverything(t *testing.T) {
	ok := Check{ID: "a", Status: "SUCCESS"}
	for _, c := range []struct {
		name   string
		want   int
		checks []Check
		clean  bool
	}{
		{"all well", 1, []Check{ok, {ID: "b", Status: "INFO"}}, true},
		{"a failure", 1, []Check{ok, {ID: "b", Status: "FAILURE"}}, false},
		{"a warning", 1, []Check{ok, {ID: "b", Status: "WARNING"}}, false},
		{"skipped", 1, []Check{ok, {ID: "b", Status: "SKIPPED"}}, false},
		{"skipped by the suite itself", 1, []Check{{ID: "tasks-status-notifications", Status: "SKIPPED"}}, true},
		{"checked nothing", 1, nil, false},
		{"a scenario is missing", 2, []Check{ok}, false},
	} {
		column := Column{Name: c.name, Want: c.want, Scenarios: []Scenario{{Name: "s", Checks: c.checks}}}
		if wrong := column.Clean(); (len(wrong) == 0) != c.clean {
			t.Errorf("%s: %v", c.name, wrong)
		}
	}
}

func TestResultsAreReadFromTheSuitesFiles(t *testing.T) {
	out := t.TempDir()
	dir := filepath.Join(out, "server-tools-call-error-2026-01-02T03-04-05-678Z")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const checks = `[{"id":"x","name":"X","status":"FAILURE","errorMessage":"why"}]`
	if err := os.WriteFile(filepath.Join(dir, "checks.json"), []byte(checks), 0o644); err != nil {
		t.Fatal(err)
	}
	found, err := results(out)
	if err != nil || len(found) != 1 || found[0].Name != "tools-call-error" || found[0].Checks[0].Message != "why" {
		t.Errorf("got %+v, %v", found, err)
	}
	var table strings.Builder
	if err := Print(&table, []Column{{Name: "one", Want: 1, Scenarios: found,
		Left: map[string]string{"other": "a reason"}}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"tools-call-error", "0/1", "other: a reason"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table has no %q:\n%s", want, table.String())
		}
	}
}

// What is left out over newline-framed connections exists in the suite, so that a change of the suite is noticed.
func TestWhatIsLeftOutIsNamed(t *testing.T) {
	column := Column{Want: 2, Scenarios: []Scenario{
		{Name: "dns-rebinding-protection", Checks: []Check{{ID: "x", Status: "FAILURE"}}},
		{Name: "server-stateless", Checks: []Check{
			{ID: "sep-2575-http-server-header-mismatch-400", Status: "FAILURE"},
			{ID: "kept", Status: "SUCCESS"},
		}},
	}}
	column.overLines()
	if column.Want != 1 || len(column.Clean()) != 0 || len(column.Left) != 2 || len(column.Scenarios[0].Checks) != 1 {
		t.Errorf("got %+v", column)
	}
}

func TestLockFileNamesNoRegistry(t *testing.T) {
	b, err := suites.ReadFile("npm/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	hosts := slices.DeleteFunc(
		strings.Split(string(b), "\n"),
		func(line string) bool { return !strings.Contains(line, `"resolved"`) },
	)
	if len(hosts) > 0 {
		t.Errorf("the lock file says where packages came from: %s", hosts[0])
	}
}
