//go:build !race

package edit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// What each level adds to those before it: edits of the matrix and of the
// further kinds that become right or wrong with it. A level that adds nothing
// right is one too many. go test -v prints the table of docs/benchmarks.md.
func TestLevels(t *testing.T) {
	kinds := maps.Clone(disturbances)
	maps.Copy(kinds, furtherKinds)
	results := make([]map[string]tally, len(levels)) // with the levels up to this one, by kind
	for l := range results {
		results[l] = map[string]tally{}
	}
	for seed := range uint64(seedsOf(t, 4)) {
		dialects := []dialect{braces}
		if seed%2 == 1 {
			dialects = []dialect{spaced4, spaced2, prose}
		}
		for kind, trials := range trialsOf(kinds, 1001+2*seed, 40, dialects...) {
			for _, x := range trials {
				for l := range results {
					v := tried(t, kind, x, Level(l))
					v.add(results[l][kind])
					results[l][kind] = v
				}
			}
		}
	}
	var before tally
	for l, byKind := range results {
		var sum tally
		var won []string
		for _, kind := range slices.Sorted(maps.Keys(byKind)) {
			v := byKind[kind]
			sum.add(v)
			if l > 0 {
				v.right -= results[l-1][kind].right
			}
			if v.right != 0 {
				won = append(won, fmt.Sprintf("%s %d", kind, v.right))
			}
		}
		t.Logf(
			"| %s | %+d | %+d | %s |",
			Level(l),
			sum.right-before.right,
			sum.wrong-before.wrong,
			strings.Join(won, ", "),
		)
		if sum.right <= before.right {
			t.Errorf("the level %q wins nothing", Level(l))
		}
		before = sum
	}
	t.Logf("all: right %d, refused %d, wrong %d", before.right, before.refused, before.wrong)
	if before.wrong > 0 {
		t.Errorf("%d edits are wrong", before.wrong)
	}
}

// These seeds once gave wrong edits: a changed line kept or lost blanks at its
// end, and blank lines were doubled beside lines too unlike to be paired.
func TestMatrixOfSeedsThatFailed(t *testing.T) {
	matrixOf(t, 149, 40, braces)
	for _, seed := range []uint64{89, 103, 325, 377, 347, 365, 465, 521, 587, 741, 751} {
		matrixOf(t, seed, 40, spaced4, spaced2, prose)
	}
}
