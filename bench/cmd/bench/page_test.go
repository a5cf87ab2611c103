package main

import (
	"io"
	"strings"
	"testing"
)

// Measuring one thing must not lose what was measured of the others.
func TestThePageKeepsWhatWasNotMeasured(t *testing.T) {
	const had = "# Benchmarks\n\n## One call\n\n| 1 |\n\n<!-- files -->\n## Files\n\nas it was\n<!-- /files -->\n\n" +
		"last words\n"
	files := &bench{sheet: newSheet(), lab: &lab{}, only: []string{"files"}}
	part := &fileBench{b: files, sheet: newSheet(), edits: "all: right 1 of 1"}
	files.asides = map[string]func(io.Writer){"files": part.report}
	got := files.page(had)
	if !strings.HasPrefix(got, "# Benchmarks\n\n## One call\n\n| 1 |\n\n<!-- files -->\n") ||
		!strings.HasSuffix(got, "<!-- /files -->\n\nlast words\n") {
		t.Errorf("files alone changed the rest:\n%s", got)
	}
	if strings.Contains(got, "as it was") || !strings.Contains(got, "all: right 1 of 1") {
		t.Errorf("files alone did not replace its section:\n%s", got)
	}
	if again := files.page(got); strings.Count(again, beginMark("files")) != 1 ||
		!strings.HasSuffix(again, "<!-- /files -->\n\nlast words\n") {
		t.Errorf("writing it twice makes two of them:\n%s", again)
	}
	calls := &bench{sheet: newSheet(), lab: &lab{}, only: []string{"call"}}
	if got := calls.page(had); !strings.Contains(got, "## Files\n\nas it was\n<!-- /files -->\n") ||
		strings.Contains(got, "| 1 |") {
		t.Errorf("calls alone lost the section about files, or kept its own:\n%s", got)
	}
	beside := &bench{sheet: newSheet(), lab: &lab{}, only: []string{"neighbours"}}
	beside.asides = map[string]func(io.Writer){
		"neighbours": func(w io.Writer) { io.WriteString(w, "## Neighbours\n\nnew\n") },
	}
	for _, page := range []string{beside.page(had), beside.page(beside.page(had))} {
		if want := "| 1 |\n\n<!-- neighbours -->\n## Neighbours\n\nnew\n<!-- /neighbours -->\n\n<!-- files -->\n" +
			"## Files\n\nas it was\n<!-- /files -->\n\nlast words\n"; !strings.HasSuffix(
			page,
			want,
		) {
			t.Errorf("neighbours alone made of it:\n%s", page)
		}
	}
	if got := files.page(""); !strings.HasPrefix(got, beginMark("files")) {
		t.Errorf("a new page begins with %.40q", got)
	}
}
