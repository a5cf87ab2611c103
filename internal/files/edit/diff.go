package edit

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	contextLines  = 2   // lines shown around a change
	maxShownWidth = 200 // bytes of a line that are shown at most
)

// hunk is a run of changed lines: now replaces the lines [from, to).
type hunk struct {
	from, to int // lines, from 0
	now      []string
}

// Diff returns the changes as a unified diff of at most most lines. If the diff
// is longer, its last line says how many lines were left out.
func (r *Result) Diff(most int) string {
	hunks := r.hunks(most)
	var out []string
	shift := 0
	for len(hunks) > 0 {
		n := 1
		for n < len(hunks) && hunks[n].from-hunks[n-1].to <= 2*contextLines {
			n++
		}
		group := hunks[:n]
		hunks = hunks[n:]
		from := max(group[0].from-contextLines, 0)
		to := min(group[n-1].to+contextLines, r.lines.lineCount())
		body, added := r.group(group, from, to)
		out = append(out, fmt.Sprintf("@@ -%s +%s @@", span(from, to-from), span(from+shift, to-from+added)))
		out = append(out, body...)
		shift += added
	}
	if len(out) > most {
		more := ""
		if left := len(out) - most + 1; left < 1000 {
			more = fmt.Sprint(left, " ")
		}
		out = append(out[:most-1], fmt.Sprintf("… %smore lines", more))
	}
	return strings.Join(out, "\n")
}

// span formats a range of lines as the header of a unified diff does.
func span(from, n int) string {
	if n == 1 {
		return fmt.Sprint(from + 1)
	}
	if n == 0 {
		return fmt.Sprintf("%d,0", from)
	}
	return fmt.Sprintf("%d,%d", from+1, n)
}

// group formats hunks that share one header, and counts the lines they add.
func (r *Result) group(group []hunk, from, to int) (out []string, added int) {
	at := from
	same := func(end int) {
		for ; at < end; at++ {
			out = append(out, " "+diffLine(r.lines.lineText(at)))
		}
	}
	for _, h := range group {
		same(h.from)
		for ; at < h.to; at++ {
			out = append(out, "-"+diffLine(r.lines.lineText(at)))
		}
		for _, s := range h.now {
			out = append(out, "+"+diffLine(s))
		}
		added += len(h.now) - (h.to - h.from)
	}
	same(to)
	return out, added
}

// diffLine formats a line for a diff: without its line ending, cut to
// maxShownWidth, and as valid UTF-8.
func diffLine(s string) string {
	s = strings.TrimSuffix(s, "\n")
	s = strings.TrimSuffix(s, "\r")
	if len(s) > maxShownWidth {
		s = s[:maxShownWidth] + "…"
	}
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	return s
}

// hunks returns the changes as whole lines. It stops after 1,000 hunks more than
// Diff shows, which bounds its time.
func (r *Result) hunks(most int) (hunks []hunk) {
	for i := 0; i < len(r.changes) && len(hunks) <= most+1000; {
		from := r.lines.lineNumber(r.changes[i].from)
		to, j := from, i
		var b strings.Builder
		at := r.lines.lineStart(from)
		for {
			for ; j < len(r.changes) && (j == i || r.lines.lineNumber(r.changes[j].from) < to); j++ {
				c := r.changes[j]
				b.Write(r.before[at:c.from])
				b.WriteString(c.with)
				at = c.to
				to = max(to, r.lines.after(c))
			}
			if end := r.lines.lineStart(to); end > at {
				b.Write(r.before[at:end])
				at = end
			}
			if s := b.String(); s == "" || s[len(s)-1] == '\n' || to == r.lines.lineCount() {
				break
			}
			to++ // The change removed a line ending, so the next line joins.
		}
		hunks = append(hunks, r.trimHunk(from, to, b.String())...)
		i = j
	}
	return hunks
}

// trimHunk splits a changed run where lines are equal before and after, and
// drops these lines.
func (r *Result) trimHunk(from, to int, now string) (hunks []hunk) {
	var was []string
	for i := from; i < to; i++ {
		was = append(was, r.lines.lineText(i))
	}
	is := strings.SplitAfter(now, "\n")
	if is[len(is)-1] == "" {
		is = is[:len(is)-1]
	}
	of := pairSequences(len(was), len(is), func(i, j int) int {
		if was[i] != is[j] {
			return 0
		}
		return 1
	})
	o, n := 0, 0
	flush := func(o2, n2 int) {
		if o < o2 || n < n2 {
			hunks = append(hunks, hunk{from + o, from + o2, is[n:n2]})
		}
		o, n = o2+1, n2+1
	}
	for j, i := range of {
		if i >= 0 {
			flush(i, j)
		}
	}
	flush(len(was), len(is))
	return hunks
}

// index finds lines in a content by number and by byte.
type index struct {
	b        []byte
	newlines []int
}

// lineCount returns the number of lines. An empty content has none.
func (x *index) lineCount() int {
	n := len(x.newlines)
	if len(x.b) > 0 && x.b[len(x.b)-1] != '\n' {
		n++
	}
	return n
}

// lineNumber returns the line that a byte lies on, from 0.
func (x *index) lineNumber(at int) int {
	n, _ := slices.BinarySearch(x.newlines, at)
	return n
}

// lineStart returns the byte that a line begins at. For the number after the last
// line it returns the length of the content.
func (x *index) lineStart(n int) int {
	switch {
	case n == 0:
		return 0
	case n > len(x.newlines):
		return len(x.b)
	}
	return x.newlines[n-1] + 1
}

// lineText returns a line with its line ending.
func (x *index) lineText(n int) string { return string(x.b[x.lineStart(n):x.lineStart(n+1)]) }

// after returns the first line that a change leaves alone.
func (x *index) after(c splice) int {
	n := x.lineNumber(c.to)
	if c.to == x.lineStart(n) && (strings.HasSuffix(c.with, "\n") || c.with == "" &&
		c.from == x.lineStart(x.lineNumber(c.from))) {
		return n
	}
	return min(n+1, x.lineCount())
}
