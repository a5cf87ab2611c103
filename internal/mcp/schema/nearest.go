package schema

import (
	"fmt"
	"strings"
	"unicode"
)

// hintUnknown helps with an unknown name: it returns the one that was probably
// meant, else the known names.
func hintUnknown(name string, known []string) string {
	if hint := didYouMean(name, known); hint != "" {
		return hint
	}
	const most = 20
	switch {
	case len(known) == 0:
		return "there are none"
	case len(known) > most:
		return fmt.Sprintf("there are %s and %d others", strings.Join(known[:most], ", "), len(known)-most)
	case len(known) == 1:
		return "there is only " + known[0]
	}
	return "there are " + strings.Join(known, ", ")
}

func didYouMean(name string, known []string) string {
	if s, ok := Nearest(name, known); ok {
		return fmt.Sprintf("did you mean %q?", s)
	}
	return ""
}

// Nearest returns the known name that is closest to the one that was written. It
// compares by edit distance, and ignores case and how words are joined. It returns
// false if no name is close, or if it is not clear which one is meant.
func Nearest(name string, known []string) (best string, ok bool) {
	const longest, most = 64, 500 // limits of the time; longer names and lists are rare
	written := fold(name)
	if len(name) > longest || written == "" {
		return "", false
	}
	limit := 1 // one more than the allowed distance, which is 0 for one or two letters
	if len(written) > 2 {
		limit += max(1, min(3, len(written)/3))
	}
	for _, k := range known[:min(most, len(known))] {
		if len(k) > longest {
			continue
		}
		f := fold(k)
		if abs(len(written)-len(f)) >= 4*limit { // lengths in bytes; a letter has at most four
			continue
		}
		if d := distance(written, f); d < limit {
			best, limit = k, d
		}
	}
	if best != "" {
		return best, true
	}
	return containing(written, known)
}

// containing returns the only known name that contains written or is contained
// in it, such as file for file_path.
func containing(written string, known []string) (only string, ok bool) {
	for _, k := range known {
		f := fold(k)
		if min(len(f), len(written)) < 3 || !strings.Contains(f, written) && !strings.Contains(written, f) {
			continue
		}
		if only != "" {
			return "", false
		}
		only = k
	}
	return only, only != ""
}

// fold returns the same text for camelCase, snake_case and kebab-case of the
// same words.
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r == ' ' || r == '.' {
			return -1
		}
		return unicode.ToLower(r)
	}, s)
}

// distance returns how many letters to insert, delete, replace or swap with a
// neighbour to turn a into b.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	n := len(y) + 1
	rows := make([]int, 3*n)
	before, last, row := rows[:n], rows[n:2*n], rows[2*n:]
	for j := range last {
		last[j] = j
	}
	for i := range x {
		row[0] = i + 1
		for j := range y {
			change := last[j]
			if x[i] != y[j] {
				change++
			}
			row[j+1] = min(row[j]+1, last[j+1]+1, change)
			if i > 0 && j > 0 && x[i] == y[j-1] && x[i-1] == y[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(y)]
}

func abs(n int) int { return max(n, -n) }
