package filesystem

import (
	"fmt"
	"strings"

	"github.com/aymanbagabas/go-udiff/lcs"
)

const around = 4 // lines shown before and after a change

// unified returns a diff in the form of the original server. It does not show
// changes of line endings, because an edit keeps them.
func unified(path string, before, after []byte) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Index: %s\n%s\n--- %s\toriginal\n+++ %s\tmodified\n", path, strings.Repeat("=", 67), path, path)
	old, now := cut(before), cut(after)
	all := lcs.DiffLines(old, now)
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].Start-all[n-1].End <= 2*around {
			n++
		}
		hunk(&b, all[:n], old, now)
		all = all[n:]
	}
	return b.String()
}

// cut returns the lines of a text with their newlines; the last may have none.
func cut(b []byte) []string {
	all := strings.SplitAfter(string(crlfToLF(b)), "\n")
	if all[len(all)-1] == "" {
		all = all[:len(all)-1]
	}
	return all
}

// hunk writes changes that lie near each other, with the lines around them.
func hunk(w *strings.Builder, all []lcs.Diff, old, now []string) {
	first, last := all[0], all[len(all)-1]
	from, to := max(first.Start-around, 0), min(last.End+around, len(old))
	shift := first.ReplStart - first.Start
	added := last.ReplEnd - last.End - shift
	fmt.Fprintf(w, "@@ -%s +%s @@\n", span(from, to-from), span(from+shift, to-from+added))
	at := from
	for _, e := range all {
		put(w, " ", old[at:e.Start])
		put(w, "-", old[e.Start:e.End])
		put(w, "+", now[e.ReplStart:e.ReplEnd])
		at = e.End
	}
	put(w, " ", old[at:to])
}

func span(from, n int) string {
	if n == 0 {
		return fmt.Sprintf("%d,0", from)
	}
	return fmt.Sprintf("%d,%d", from+1, n)
}

func put(w *strings.Builder, sign string, lines []string) {
	for _, l := range lines {
		w.WriteString(sign)
		w.WriteString(l)
		if !strings.HasSuffix(l, "\n") {
			w.WriteString("\n\\ No newline at end of file\n")
		}
	}
}
