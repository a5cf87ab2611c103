package mcpversion

import (
	"slices"
	"strings"
	"testing"
)

// The features of the revisions, listed independently of the code: a 2024-11-05, b 2025-03-26, c
// 2025-06-18, d 2025-11-25, e 2026-07-28.
var table = map[Feature]string{
	Batches: "b", ProgressNotes: "bcde", ToolAnnotations: "bcde", Audio: "bcde", CompletionsFlag: "bcde",
	Titles: "cde", Structured: "cde", StructuredAny: "e", ResourceLinks: "cde", Elicitation: "cde",
	ElicitationURL: "de", Icons: "de", SamplingTools: "de", CoreTasks: "d",
	ToolErrorsForInput: "abcde", ResourceErrorLegacy: "abcd",
}

func TestFeatures(t *testing.T) {
	if len(table) != int(features) {
		t.Errorf("%d features of %d", len(table), features)
	}
	for f, revisions := range table {
		for r := V20241105; r <= Latest; r++ {
			want := slices.Contains([]byte(revisions), byte('a'+r-V20241105))
			if got := r.Has(f); got != want {
				t.Errorf("%v has feature %d: %t, want %t", r, f, got, want)
			}
		}
		if None.Has(f) {
			t.Errorf("no revision has feature %d", f)
		}
	}
}

func TestNames(t *testing.T) {
	names := Names()
	if len(names) != 5 || names[0] != "2026-07-28" || names[4] != "2024-11-05" ||
		!slices.IsSortedFunc(names, func(a, b string) int { return strings.Compare(b, a) }) {
		t.Errorf("got %v", names)
	}
	for _, n := range names {
		r, ok := Parse(n)
		if !ok || r.String() != n || r.Modern() != (n >= "2026") || ModernName(n) != r.Modern() {
			t.Errorf("%s: got %v, %t", n, r, ok)
		}
	}
	for _, none := range []string{"", "2024-10-07", "2026-07-29", "2025-6-18", " 2025-06-18", "latest",
		"DRAFT-2026-v1"} {
		if r, ok := Parse(none); ok || r != None {
			t.Errorf("%q is %v", none, r)
		}
	}
	for name, want := range map[string]bool{"2099-01-01": true, "v999.0.0": true, "2026-07-27": false, "": false,
		"1.0": false} {
		if ModernName(name) != want {
			t.Errorf("%q is modern: %t", name, !want)
		}
	}
}
