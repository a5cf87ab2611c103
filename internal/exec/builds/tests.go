package builds

import (
	"slices"
	"strings"
)

// Test is a test, or a group of tests. A group has failed if one of its tests has.
type Test struct {
	Name   string  `json:"name"`
	Status string  `json:"status"` // passed, failed or skipped
	Tests  []*Test `json:"tests,omitempty"`
}

// maxTests is how many tests of one output are kept.
const maxTests = 5000

var (
	goResult     = lazy(`^\s*--- (PASS|FAIL|SKIP): (\S+)`)
	pytestResult = lazy(`^(\S+::\S.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b`)
	cargoResult  = lazy(`^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored)`)
	marked       = lazy(`^(\s*)(✓|✔|√|✕|✖|×|○|﹣)\s+(.*?)(?: \(\d+(?:\.\d+)? ?m?s\))?$`)
	mochaFailed  = lazy(`^(\s+)\d+\) (\S.*)$`)
	tap          = lazy(`^\s*(ok|not ok) \d+ - (.*?)(?: # (SKIP|TODO).*)?$`)
	surefire     = lazy(
		`^\[(?:INFO|ERROR|WARNING)\] Tests run: \d+, Failures: (\d+), Errors: (\d+), .* (?:--|-) in (\S+)$`,
	)
	surefireTest = lazy(
		`^\[ERROR\] ([\w.$]+)\.(\w+)(?:\(.*\))? (?:--|-) Time elapsed.*(?:FAILURE|ERROR)!`,
	)
	gradleTest = lazy(`^(\S+) > (.+?) (PASSED|FAILED|SKIPPED)$`)
)

// ParseTests returns the tests in the output of a test runner as a tree, failed ones first.
func ParseTests(output string) []*Test {
	root, n := &Test{}, 0
	for line := range strings.Lines(output) {
		path, status := testOf(strings.TrimRight(ansi().ReplaceAllString(line, ""), "\r\n"))
		if len(path) > 0 && n < maxTests {
			n++
			root.addCase(path, status)
		}
	}
	root.order()
	return root.Tests
}

// testOf returns the groups and the name of a test on a line, and how it ended.
func testOf(s string) (path []string, status string) {
	if m := goResult().FindStringSubmatch(s); m != nil {
		return strings.Split(m[2], "/"), statusOf(m[1])
	}
	if m := pytestResult().FindStringSubmatch(s); m != nil {
		return strings.Split(m[1], "::"), statusOf(m[2])
	}
	if m := cargoResult().FindStringSubmatch(s); m != nil {
		return strings.Split(m[1], "::"), statusOf(m[2])
	}
	if m := gradleTest().FindStringSubmatch(s); m != nil {
		return []string{m[1], m[2]}, statusOf(m[3])
	}
	if m := surefire().FindStringSubmatch(s); m != nil {
		if m[1] != "0" || m[2] != "0" {
			return []string{m[3]}, "failed"
		}
		return []string{m[3]}, "passed"
	}
	if m := surefireTest().FindStringSubmatch(s); m != nil {
		return []string{m[1], m[2]}, "failed"
	}
	if m := marked().FindStringSubmatch(s); m != nil && !strings.Contains(m[3], " problem") && m[3] != "failing tests:" {
		return []string{m[3]}, statusOf(m[2])
	}
	if m := tap().FindStringSubmatch(s); m != nil {
		if m[3] != "" {
			return []string{m[2]}, "skipped"
		}
		return []string{m[2]}, statusOf(m[1])
	}
	if m := mochaFailed().FindStringSubmatch(s); m != nil && len(m[1]) > 3 {
		return []string{m[2]}, "failed"
	}
	return nil, ""
}

func statusOf(word string) string {
	switch word {
	case "PASS", "PASSED", "ok", "✓", "✔", "√", "XFAIL":
		return "passed"
	case "SKIP", "SKIPPED", "ignored", "○", "﹣":
		return "skipped"
	}
	return "failed"
}

func (t *Test) addCase(path []string, status string) {
	i := slices.IndexFunc(t.Tests, func(x *Test) bool { return x.Name == path[0] })
	if i < 0 {
		t.Tests, i = append(t.Tests, &Test{Name: path[0], Status: status}), len(t.Tests)
	}
	one := t.Tests[i]
	if one.Status != "failed" { // a group has failed if one of its tests has
		one.Status = status
	}
	if len(path) > 1 {
		one.addCase(path[1:], status)
	}
}

// order puts failed tests first and skipped ones last.
func (t *Test) order() {
	rank := map[string]int{"failed": 0, "passed": 1, "skipped": 2}
	slices.SortStableFunc(t.Tests, func(a, b *Test) int { return rank[a.Status] - rank[b.Status] })
	for _, x := range t.Tests {
		x.order()
	}
}

// Count returns the number of tests, without groups, by status.
func Count(all []*Test) map[string]int {
	n := map[string]int{}
	for _, t := range all {
		if len(t.Tests) == 0 {
			n[t.Status]++
		}
		for status, k := range Count(t.Tests) {
			n[status] += k
		}
	}
	return n
}
