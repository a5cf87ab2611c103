package main

import (
	"strings"
	"testing"
)

// Measuring one thing must not lose what was measured of the others.
func TestThePageKeepsWhatWasNotMeasured(t *testing.T) {
	const had = "# Benchmarks\n\n## One call\n\n| 1 |\n\n<!-- files -->\n## Files\n\nas it was\n<!-- /files -->\n\nlast words\n"
	files := &bench{sheet: newSheet(), lab: &lab{}, only: []string{"files"}}
	files.filesPart = &fileBench{b: files, sheet: newSheet(), edits: "all: right 1 of 1"}
	got := files.page(had)
	if !strings.HasPrefix(got, "# Benchmarks\n\n## One call\n\n| 1 |\n\n<!-- files -->\n") || !strings.HasSuffix(got, "<!-- /files -->\n\nlast words\n") {
		t.Errorf("files alone changed the rest:\n%s", got)
	}
	if strings.Contains(got, "as it was") || !strings.Contains(got, "all: right 1 of 1") {
		t.Errorf("files alone did not replace its section:\n%s", got)
	}
	if again := files.page(got); strings.Count(again, filesBegin) != 1 || !strings.HasSuffix(again, "<!-- /files -->\n\nlast words\n") {
		t.Errorf("writing it twice makes two of them:\n%s", again)
	}
	calls := &bench{sheet: newSheet(), lab: &lab{}, only: []string{"call"}}
	if got := calls.page(had); !strings.Contains(got, "## Files\n\nas it was\n<!-- /files -->\n") || strings.Contains(got, "| 1 |") {
		t.Errorf("calls alone lost the section about files, or kept its own:\n%s", got)
	}
	if got := files.page(""); !strings.HasPrefix(got, filesBegin) {
		t.Errorf("a new page begins with %.40q", got)
	}
}
