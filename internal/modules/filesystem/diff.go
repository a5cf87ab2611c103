package filesystem

import (
	"fmt"
	"strings"

	"github.com/aymanbagabas/go-udiff/lcs"
)

const contextLines = 4 // lines of context before and after a change

// unified returns a diff in the format of the original. It does not show
// changes of line endings, because an edit keeps them.
func unified(path string, before, after []byte) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Index: %s\n%s\n--- %s\toriginal\n+++ %s\tmodified\n", path, strings.Repeat("=", 67), path, path)
	old, now := splitLines(before), splitLines(after)
	all := lcs.DiffLines(old, now)
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].Start-all[n-1].End <= 2*contextLines {
			n++
		}
		writeHunk(&b, all[:n], old, now)
		all = all[n:]
	}
	return b.String()
}

// splitLines returns the lines of a text with their newlines; the last may have none.
func splitLines(b []byte) []string {
	all := strings.SplitAfter(string(crlfToLF(b)), "\n")
	if all[len(all)-1] == "" {
		all = all[:len(all)-1]
	}
	return all
}

// writeHunk writes changes that are near each other, with the context around them.
func writeHunk(w *strings.Builder, all []lcs.Diff, old, now []string) {
	first, last := all[0], all[len(all)-1]
	from, to := max(first.Start-contextLines, 0), min(last.End+contextLines, len(old))
	shift := first.ReplStart - first.Start
	added := last.ReplEnd - last.End - shift
	fmt.Fprintf(w, "@@ -%s +%s @@\n", hunkRange(from, to-from), hunkRange(from+shift, to-from+added))
	at := from
	for _, e := range all {
		writeLines(w, " ", old[at:e.Start])
		writeLines(w, "-", old[e.Start:e.End])
		writeLines(w, "+", now[e.ReplStart:e.ReplEnd])
		at = e.End
	}
	writeLines(w, " ", old[at:to])
}

func hunkRange(from, n int) string {
	if n == 0 {
		return fmt.Sprintf("%d,0", from)
	}
	return fmt.Sprintf("%d,%d", from+1, n)
}

func writeLines(w *strings.Builder, sign string, lines []string) {
	for _, l := range lines {
		w.WriteString(sign)
		w.WriteString(l)
		if !strings.HasSuffix(l, "\n") {
			w.WriteString("\n\\ No newline at end of file\n")
		}
	}
}
