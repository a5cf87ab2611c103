package repotest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/tests/repotest/attacks"
)

// A promise that no test attacks may be untrue without any failure.
func TestEveryPromiseIsAttacked(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(top(t), "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	promises := attacks.Promises(read("security.md"))
	if len(promises) < 20 {
		t.Fatalf("docs/security.md has %d promises, want at least 20: %q", len(promises), promises)
	}
	all, err := attacks.ListAttacks(top(t))
	if err != nil {
		t.Fatal(err)
	}
	attacked := map[string]bool{}
	names := map[string]bool{}
	for _, a := range all {
		attacked[a.Promise], names["`"+a.Name()+"`"] = true, true
		if !slices.Contains(promises, a.Promise) {
			t.Errorf("%s attacks %q, which docs/security.md does not promise", a.Name(), a.Promise)
		}
	}
	for _, p := range promises {
		if !attacked[p] {
			t.Errorf(
				"no test attacks %q of docs/security.md: name one with //redteam:attack; see "+
					"internal/tests/repotest/attacks",
				p,
			)
		}
	}
	verdicts := map[string]string{}
	for _, row := range tableRows(t, "docs/security-tests.md") {
		test := row.cells[2]
		verdicts[strings.Trim(test, "`")] = row.cells[3]
		if !names[test] && !*update {
			t.Errorf(
				"docs/security-tests.md:%d names %s, which is no attack of the tree: run make redteam, "+
					"or this test with -update",
				row.line,
				test,
			)
		}
	}
	if *update {
		table := attacks.Table(promises, all, verdicts)
		if err := os.WriteFile(filepath.Join(top(t), "docs", "security-tests.md"), table, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
