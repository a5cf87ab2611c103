package edit

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"gatehouse/tool"
)

const (
	maxListed    = 10 // places whose lines a refusal lists
	maxDescribed = 3  // places that it describes
	maxVotes     = 1 << 18
)

// ambiguous returns the refusal of an edit that has several places.
func (t *text) ambiguous(level Level, places []place) error {
	r := &tool.Refusal{
		Code:    tool.CodeAmbiguous,
		Message: fmt.Sprintf("old_string occurs %d times in %s, on %s", len(places), t.name, t.linesOf(places)),
		Next:    "Add the lines before or after it until it occurs once, or set near_line or replace_all.",
	}
	if level > Exact {
		r.Message = fmt.Sprintf(
			"old_string is not in %s as it is; ignoring %s it occurs %d times, on %s",
			t.name,
			level,
			len(places),
			t.linesOf(places),
		)
	}
	for _, p := range places[:min(len(places), maxDescribed)] {
		n := t.lineAt(p.start)
		if n > 1 {
			r.Message += fmt.Sprintf("\n  line %d, after %s", n, visible(t.lineText(n-1), 0))
		}
	}
	return r
}

// linesOf lists the line numbers of places.
func (t *text) linesOf(places []place) string {
	var s []string
	for _, p := range places[:min(len(places), maxListed)] {
		s = append(s, fmt.Sprint(t.lineAt(p.start)))
	}
	text := "lines " + strings.Join(s, ", ")
	if len(places) > maxListed {
		text += " and more"
	}
	return text
}

// lineText returns a line by its number, without its newline, cut to 4,096
// bytes.
func (t *text) lineText(n int) string {
	t.lineAt(0)
	from, to := 0, len(t.content)
	if n > 1 {
		from = t.newlines[n-2] + 1
	}
	if n <= len(t.newlines) {
		to = t.newlines[n-1]
	}
	return strings.TrimSuffix(string(t.content[from:min(to, from+4096)]), "\r")
}

// notFound returns the refusal of an old text that occurs nowhere. It shows the
// places that are nearly equal and what differs there first.
func (t *text) notFound(e Edit) error {
	r := &tool.Refusal{
		Code:    tool.CodeNotFound,
		Message: "old_string is not in " + t.name,
		Next:    "Read that part of the file and copy the text exactly.",
	}
	if len(t.content) <= maxTolerant && len(e.Old) <= maxTolerant {
		t.splitOnce()
		r.Message += t.nearest(e.Old)
	}
	return r
}

// nearest describes the places that have most of an old text.
func (t *text) nearest(old string) string {
	lines := split(strings.TrimPrefix(old, bom))
	lines = slices.DeleteFunc(lines, line.blank)
	if len(lines) == 0 {
		return ""
	}
	at := t.likelyPlaces(lines)
	if len(at) == 0 {
		if i := t.likeliestLine(lines); i >= 0 {
			n := t.lineAt(t.lines[t.full[i]].at)
			return fmt.Sprintf("\n  nearest is line %d: %s", n, visible(t.lineText(n), 0))
		}
		return ""
	}
	var b strings.Builder
	for _, a := range at {
		b.WriteString(t.firstDifference(a, lines))
	}
	return b.String()
}

// likelyPlaces returns the places, as indexes of full, that have the most bytes
// of lines in common with an old text, and those with at least three quarters as
// many.
func (t *text) likelyPlaces(lines []line) []int {
	where := map[string][]int{}
	for j, l := range lines[:min(len(lines), 200)] {
		if k := fold(l.body); len(k) > 3 || len(lines) == 1 {
			where[k] = append(where[k], j)
		}
	}
	votes := map[int]int{}
	steps := 0
	for i := range t.starts {
		k := t.keyOf(i)
		for _, j := range where[k] {
			if steps++; i >= j && steps < maxVotes {
				votes[i-j] += len(k)
			}
		}
	}
	var at []int
	for a := range votes {
		at = append(at, a)
	}
	slices.SortFunc(at, func(a, b int) int {
		if d := votes[b] - votes[a]; d != 0 {
			return d
		}
		return a - b
	})
	for i, a := range at {
		if i == maxDescribed || votes[a] < votes[at[0]]*3/4 {
			return at[:i]
		}
	}
	return at
}

// likeliestLine returns the line most like the longest line of an old text, -1
// if none is.
func (t *text) likeliestLine(lines []line) int {
	long := slices.MaxFunc(lines, func(a, b line) int { return len(a.body) - len(b.body) })
	key := fold(long.body)
	if len(key) < 2 || len(key) > 4096 {
		return -1
	}
	best, at := 0.5, -1
	for i, score := range t.resemblance(key, 1) {
		if score > best {
			best, at = score, i
		}
	}
	return at
}

// firstDifference describes what differs first if old begins at a line.
func (t *text) firstDifference(a int, lines []line) string {
	for j, l := range lines {
		if a+j >= len(t.full) {
			return fmt.Sprintf("\n  line %d matches, but the file ends before %s", t.full[a]+1,
				visible(l.lineText(), 0))
		}
		there := t.lines[t.full[a+j]]
		if there.lineText() == l.lineText() {
			continue
		}
		if (j == 0 && strings.HasSuffix(there.lineText(), l.lineText())) ||
			(j == len(lines)-1 && strings.HasPrefix(there.lineText(), l.lineText())) {
			continue
		}
		col, _ := common(there.lineText(), l.lineText())
		for col > 0 && col < len(l.lineText()) && !utf8.RuneStart(l.lineText()[col]) {
			col--
		}
		return fmt.Sprintf(
			"\n  line %d differs at column %d: file %s, old_string %s",
			t.full[a+j]+1,
			utf8.RuneCountInString(there.lineText()[:col])+1,
			visible(there.lineText(), col),
			visible(l.lineText(), col),
		)
	}
	return fmt.Sprintf("\n  line %d matches but for blank lines", t.full[a]+1)
}

// glyphs makes blanks and other invisible characters visible.
var glyphs = strings.NewReplacer(
	" ",
	"·",
	"\t",
	"→",
	"\r",
	"␍",
	"\n",
	"␊",
	"\u00A0",
	"⍽",
	"\u200B",
	"<U+200B>",
	"\uFEFF",
	"<U+FEFF>",
	"\x00",
	"␀",
)

// visible quotes the part of a line around a byte, with its blanks made visible.
func visible(s string, at int) string {
	const before, most = 30, 70
	from := max(min(at, len(s))-before, 0)
	for from > 0 && from < len(s) && !utf8.RuneStart(s[from]) {
		from--
	}
	cut := s[from:]
	if len(cut) > most {
		cut = strings.ToValidUTF8(cut[:most], "") + "…"
	}
	if from > 0 {
		cut = "…" + cut
	}
	return `"` + glyphs.Replace(strings.ToValidUTF8(cut, "\uFFFD")) + `"`
}
