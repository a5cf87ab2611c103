package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Suite is one run of an official suite.
type Suite struct {
	Name      string // the column's heading
	Package   string // the npm package, by the name it is pinned under
	Args      []string
	Scenarios int // how many there are; fewer means that some did not run
}

// Suites are the runs of the official suites.
func Suites() []Suite {
	return []Suite{
		{"2025-11-25", "conformance-0.2", []string{"--requirements", "2025-11-25"}, 33},
		{"2026-07-28", "conformance-0.2", []string{"--requirements", "2026-07-28"}, 50},
		{"0.1.16 all", "conformance-0.1", []string{"--suite", "all"}, 32},
	}
}

// Check is one finding of a scenario.
type Check struct {
	ID      string          `json:"id"`
	Name    string          `json:"name"`
	Status  string          `json:"status"` // SUCCESS, FAILURE, WARNING, SKIPPED or INFO
	Message string          `json:"errorMessage"`
	Details json.RawMessage `json:"details"`
}

// Scenario is the result of one scenario.
type Scenario struct {
	Name   string
	Checks []Check
}

// Count returns how many checks of the scenario ended in a status.
func (s Scenario) Count(status string) int {
	n := 0
	for _, c := range s.Checks {
		if c.Status == status {
			n++
		}
	}
	return n
}

// mayBeSkipped are the checks that the suites do not implement yet.
var mayBeSkipped = []string{"tasks-status-notifications"}

// Wrong returns the checks that must not occur in a clean run: failures, warnings, and those that were skipped
// without permission.
func (s Scenario) Wrong() []Check {
	var wrong []Check
	for _, c := range s.Checks {
		if c.Status == "FAILURE" || c.Status == "WARNING" ||
			c.Status == "SKIPPED" && !slices.Contains(mayBeSkipped, c.ID) {
			wrong = append(wrong, c)
		}
	}
	return wrong
}

// Run runs the suite against url and reads its findings. It ignores the suite's own verdict, which leaves out
// warnings and the tasks extension. out is an empty folder for its files.
func (s Suite) Run(ctx context.Context, t Tools, url, out string) ([]Scenario, error) {
	return s.runSuite(ctx, t, url, out, s.Args...)
}

// RunOne is Run for one scenario. Without a revision the suite chooses one.
func (s Suite) RunOne(ctx context.Context, t Tools, url, out, scenario, revision string) (Scenario, error) {
	args := []string{"--scenario", scenario}
	if s.Package == "conformance-0.2" {
		args = append(args, "--spec-version", revision, "--force")
	}
	found, err := s.runSuite(ctx, t, url, out, args...)
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("scenario %s left %d results, want 1", scenario, len(found))
	}
	if err != nil {
		return Scenario{}, err
	}
	return found[0], nil
}

func (s Suite) runSuite(ctx context.Context, t Tools, url, out string, args ...string) ([]Scenario, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	script := t.Script("node_modules", s.Package, "dist", "index.js")
	cmd := t.Command(ctx, out, script, append([]string{"server", "--url", url, "-o", out}, args...)...)
	said, err := cmd.CombinedOutput()
	found, readErr := results(out)
	switch {
	case readErr != nil:
		return nil, readErr
	case len(found) == 0:
		return nil, fmt.Errorf("suite %s found nothing (%v): %s", s.Name, err, tail(said))
	case ctx.Err() != nil:
		return nil, fmt.Errorf("suite %s: %w: %s", s.Name, ctx.Err(), tail(said))
	}
	return found, nil
}

func tail(b []byte) []byte {
	b = bytes.TrimSpace(b)
	return b[max(0, len(b)-2000):]
}

var resultDir = regexp.MustCompile(`^server-(.+)-\d{4}-\d{2}-\d{2}T[\d-]+Z$`)

// results reads every checks.json below out.
func results(out string) ([]Scenario, error) {
	files, err := filepath.Glob(filepath.Join(out, "*", "checks.json"))
	if err != nil {
		return nil, err
	}
	var all []Scenario
	for _, file := range files {
		m := resultDir.FindStringSubmatch(filepath.Base(filepath.Dir(file)))
		if m == nil {
			return nil, fmt.Errorf("%s is in a folder of unknown form", file)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		s := Scenario{Name: m[1]}
		if err := json.Unmarshal(b, &s.Checks); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Scenario) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}
