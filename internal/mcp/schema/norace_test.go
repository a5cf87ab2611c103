//go:build !race

package schema

import (
	"maps"
	"slices"
	"testing"
)

// TestEngines measures what each engine contributes on real schemas: the walker decides most values
// alone, with errors that name the position; the full engine decides the rest. The engines never
// contradict each other on a value of a real schema. go test -v prints the table of docs/benchmarks.md.
func TestEngines(t *testing.T) {
	sources := realSchemas(t)
	for _, from := range slices.Sorted(maps.Keys(sources)) {
		alone, right, wrong, walked, named := 0, 0, 0, 0, 0
		for _, x := range sources[from] {
			if x.schema.full == nil {
				alone++
			}
			right, wrong = right+len(x.right), wrong+len(x.wrong)
			for _, v := range x.right {
				if p := x.full.validateRaw(v); p != nil {
					t.Errorf("%s: the full engine refuses %s: %v", x.name, v, p)
				}
			}
			for _, v := range x.wrong {
				if p := x.full.validateRaw(v); p == nil {
					t.Errorf("%s: only the walker refuses %s: %v", x.name, v, x.schema.Check(v))
				} else if p.Path != "" {
					named++
				}
				if x.schema.walk(v) != nil {
					walked++
				}
			}
		}
		n := len(sources[from])
		t.Logf("| %s | %d | %d | %d | %d | %d | %d |", from, n, alone, right, wrong, walked, wrong-walked)
		t.Logf("the full engine alone names the place of %d", named)
		if right < n/2 || wrong < n {
			t.Errorf("%s: %d schemas, but %d right values and %d wrong ones", from, n, right, wrong)
		}
		if from != "our tools" && walked == wrong {
			t.Errorf("%s: the full engine wins nothing", from)
		}
		if from != "MCP 2025-11-25" && (alone == 0 || walked == 0) {
			t.Errorf("%s: the walker wins nothing", from)
		}
	}
}
