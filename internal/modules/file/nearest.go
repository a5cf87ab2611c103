package file

import (
	"fmt"
	"strings"
)

const (
	nearestMost = 4 << 20 // bytes of a file that are searched for a near miss
	nearestWide = 200     // bytes of a line that are compared
)

// nearest says where a text that is not in the file nearly is, to be appended
// to a message; it says nothing where nothing is near.
func nearest(content []byte, old string) string {
	if len(content) > nearestMost {
		return ""
	}
	lines := strings.Split(unixed(string(content)), "\n")
	want := strings.Split(unixed(old), "\n")
	if s := differing(lines, want); s != "" {
		return s
	}
	best, line := similar(lines, longest(want))
	if best < 0.5 {
		return ""
	}
	return fmt.Sprintf("; the nearest is line %d: %s", line+1, snippet(lines[line]))
}

// differing finds the place where the lines of want are there but for white
// space or for what follows, and tells the first difference.
func differing(lines, want []string) string {
	skip := 0
	for skip < len(want)-1 && strings.TrimSpace(want[skip]) == "" {
		skip++
	}
	first := strings.TrimSpace(want[skip])
	if first == "" {
		return ""
	}
	run, start := 0, -1
	for i, l := range lines {
		if strings.TrimSpace(l) != first || i < skip {
			continue
		}
		if n := alike(lines[i-skip:], want); n > run {
			run, start = n, i-skip
		}
	}
	if start < 0 {
		return ""
	}
	for k, w := range want {
		at := start + k
		if at >= len(lines) {
			return fmt.Sprintf("; it matches from line %d, but the file ends before %s", start+1, snippet(w))
		}
		if !same(lines[at], w, k == 0, k == len(want)-1) {
			return fmt.Sprintf("; the nearest is line %d, where the file has %s and old_string %s", at+1, snippet(lines[at]), snippet(w))
		}
	}
	return ""
}

// alike counts the lines that agree but for white space.
func alike(lines, want []string) int {
	n := 0
	for n < len(want) && n < len(lines) && strings.TrimSpace(lines[n]) == strings.TrimSpace(want[n]) {
		n++
	}
	return n
}

// same compares one line exactly; the first and the last of old_string may be
// parts of a line.
func same(line, want string, first, last bool) bool {
	switch {
	case first && last:
		return strings.Contains(line, want)
	case first:
		return strings.HasSuffix(line, want)
	case last:
		return strings.HasPrefix(line, want)
	}
	return line == want
}

func longest(lines []string) string {
	best := ""
	for _, l := range lines {
		if l = strings.TrimSpace(l); len(l) > len(best) {
			best = l
		}
	}
	return best
}

// similar finds the line that shares most pairs of neighbouring bytes with
// want. The score goes from 0 to 1.
func similar(lines []string, want string) (best float64, line int) {
	want = want[:min(len(want), nearestWide)]
	if len(want) < 2 {
		return 0, 0
	}
	var pairs [1 << 16]bool
	for i := range len(want) - 1 {
		pairs[int(want[i])<<8|int(want[i+1])] = true
	}
	for n, l := range lines {
		l = strings.TrimSpace(l)
		l = l[:min(len(l), nearestWide)]
		if len(l) < 2 {
			continue
		}
		hits := 0
		for i := range len(l) - 1 {
			if pairs[int(l[i])<<8|int(l[i+1])] {
				hits++
			}
		}
		score := 2 * float64(min(hits, len(want)-1)) / float64(len(want)+len(l)-2)
		if score > best {
			best, line = score, n
		}
	}
	return best, line
}

func snippet(s string) string {
	const most = 80
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return fmt.Sprintf("%q", s)
}
