package walk

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Globs select entries by their paths. The zero value selects everything.
type Globs struct {
	with, without []glob
}

type glob struct {
	path bool // matched against the path, else against the name
	pattern
}

// maxAlternatives is how many patterns one with braces may expand to.
const maxAlternatives = 100

// ParseGlobs parses patterns with * (not across a slash), ? and [a-z] for one character, ** for any directories,
// and {a,b} for alternatives. A pattern without a slash is matched against the name, one with a slash against the
// path from the start of the walk; one that begins with ! excludes. An entry is selected if a pattern matches it,
// or if all patterns exclude, and no pattern excludes it.
func ParseGlobs(patterns []string) (g Globs, err error) {
	for _, p := range patterns {
		rest, not := strings.CutPrefix(p, "!")
		rest = strings.TrimPrefix(rest, "./")
		if rest == "" {
			return g, fmt.Errorf("the glob %q is empty", p)
		}
		several, err := expand(rest)
		if err != nil {
			return g, fmt.Errorf("the glob %q: %w", p, err)
		}
		for _, one := range several {
			compiled := parseGlob(one)
			if not {
				g.without = append(g.without, compiled)
			} else {
				g.with = append(g.with, compiled)
			}
		}
	}
	return g, nil
}

// SplitGlobs splits a list of patterns at the commas outside braces.
func SplitGlobs(list string) (globs []string) {
	depth, from := 0, 0
	for i := range len(list) {
		switch list[i] {
		case '{':
			depth++
		case '}':
			depth--
		case ',':
			if depth <= 0 {
				globs = append(globs, strings.TrimSpace(list[from:i]))
				from = i + 1
			}
		}
	}
	if last := strings.TrimSpace(list[from:]); last != "" {
		globs = append(globs, last)
	}
	return globs
}

func parseGlob(p string) glob {
	if strings.HasSuffix(p, "/") {
		p += "**" // a directory means its content
	}
	if strings.Contains(p, "/") {
		return glob{true, compilePath(strings.TrimPrefix(p, "/"))}
	}
	return glob{false, compilePart(p)}
}

// Any reports whether the globs select everything.
func (g Globs) Any() bool { return len(g.with)+len(g.without) == 0 }

// Match reports whether an entry is selected.
func (g Globs) Match(path, name string) bool {
	for i := range g.without {
		if g.without[i].matches(path, name) {
			return false
		}
	}
	for i := range g.with {
		if g.with[i].matches(path, name) {
			return true
		}
	}
	return len(g.with) == 0
}

func (g *glob) matches(path, name string) bool {
	if g.path {
		return g.match(path)
	}
	return g.match(name)
}

// expand expands the braces of a pattern.
func expand(p string) ([]string, error) {
	open := -1
	depth := 0
	var commas []int
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '\\':
			i++
		case '{':
			if depth++; depth == 1 {
				open, commas = i, nil
			}
		case ',':
			if depth == 1 {
				commas = append(commas, i)
			}
		case '}':
			if depth == 0 {
				continue
			}
			if depth--; depth == 0 {
				return alternatives(p, open, i, commas)
			}
		}
	}
	if depth > 0 {
		return nil, errors.New("a { has no }")
	}
	return []string{p}, nil
}

func alternatives(p string, open, end int, commas []int) (all []string, err error) {
	from := open + 1
	for _, to := range append(commas, end) {
		several, err := expand(p[:open] + p[from:to] + p[end+1:])
		if err != nil {
			return nil, err
		}
		if all = append(all, several...); len(all) > maxAlternatives {
			return nil, fmt.Errorf("it stands for more than %d patterns", maxAlternatives)
		}
		from = to + 1
	}
	return all, nil
}

// pattern is a compiled glob. Most patterns are of a kind with a fast comparison.
type pattern struct {
	kind  kind
	text  string   // of the fast kinds
	parts []string // of a path, "**" for any number of them
}

type kind uint8

const (
	whole  kind = iota // exactly text
	suffix             // * and text
	prefix             // text and *
	one                // one part with wildcards: text
	parted             // parts
)

const wild = `*?[\`

// compilePart compiles a pattern for one name.
func compilePart(p string) pattern {
	switch {
	case !strings.ContainsAny(p, wild):
		return pattern{kind: whole, text: p}
	case p[0] == '*' && !strings.ContainsAny(p[1:], wild):
		return pattern{kind: suffix, text: p[1:]}
	case p[len(p)-1] == '*' && !strings.ContainsAny(p[:len(p)-1], wild):
		return pattern{kind: prefix, text: p[:len(p)-1]}
	}
	return pattern{kind: one, text: p}
}

// compilePath compiles a pattern for a path.
func compilePath(p string) pattern {
	parts := strings.Split(p, "/")
	if len(parts) == 1 && parts[0] != "**" {
		return compilePart(p)
	}
	return pattern{kind: parted, parts: parts}
}

func (p *pattern) match(s string) bool {
	switch p.kind {
	case whole:
		return s == p.text
	case suffix:
		return strings.HasSuffix(s, p.text) && strings.IndexByte(s[:len(s)-len(p.text)], '/') < 0
	case prefix:
		return strings.HasPrefix(s, p.text) && strings.IndexByte(s[len(p.text):], '/') < 0
	case one:
		return strings.IndexByte(s, '/') < 0 && matchPart(p.text, s)
	}
	return matchParts(p.parts, s)
}

// matchParts matches part by part. Only the last ** is tried again, as with stars within a part.
func matchParts(parts []string, s string) bool {
	rest, ended := s, false // ended: no part is left
	var back []string       // the parts after the last **
	backRest := ""
	for {
		switch {
		case len(parts) > 0 && parts[0] == "**":
			if len(parts) == 1 {
				return !ended
			}
			parts = parts[1:]
			back, backRest = parts, rest
			continue
		case len(parts) == 0 && ended:
			return true
		case len(parts) > 0 && !ended:
			part, after, more := strings.Cut(rest, "/")
			if matchPart(parts[0], part) {
				parts, rest, ended = parts[1:], after, !more
				continue
			}
		}
		if back == nil {
			return false
		}
		_, after, more := strings.Cut(backRest, "/")
		if !more {
			return false
		}
		parts, backRest, rest, ended = back, after, after, false
	}
}

// matchPart matches one name with one pattern, in a time of at most the product of their lengths.
func matchPart(p, s string) bool {
	star, again := -1, 0
	i, j := 0, 0
	for j < len(s) || i < len(p) {
		if i < len(p) {
			if p[i] == '*' {
				star, again = i, j
				i++
				continue
			}
			if j < len(s) {
				if pn, sn, ok := matchOne(p[i:], s[j:]); ok {
					i, j = i+pn, j+sn
					continue
				}
			}
		}
		if star < 0 || again >= len(s) {
			return false
		}
		again++
		i, j = star+1, again
	}
	return true
}

// matchOne matches the first character of s with the first element of p, which is not a star, and returns the
// length of both.
func matchOne(p, s string) (pn, sn int, ok bool) {
	r, sn := utf8.DecodeRuneInString(s)
	switch p[0] {
	case '?':
		return 1, sn, true
	case '[':
		if n, in := matchSet(p, r); n > 0 {
			return n, sn, in
		}
	case '\\':
		if len(p) > 1 {
			return 2, 1, p[1] == s[0]
		}
	}
	return 1, 1, p[0] == s[0]
}

// matchSet matches a set such as [a-z] or [!0-9]; n is 0 if it has no end.
func matchSet(p string, r rune) (n int, in bool) {
	i := 1
	not := i < len(p) && (p[i] == '!' || p[i] == '^')
	if not {
		i++
	}
	for first := true; i < len(p); first = false {
		if p[i] == ']' && !first {
			return i + 1, in != not
		}
		low, size := setRune(p[i:])
		i += size
		high := low
		if i+1 < len(p) && p[i] == '-' && p[i+1] != ']' {
			high, size = setRune(p[i+1:])
			i += 1 + size
		}
		in = in || low <= r && r <= high
	}
	return 0, false
}

func setRune(p string) (rune, int) {
	if p[0] == '\\' && len(p) > 1 {
		r, n := utf8.DecodeRuneInString(p[1:])
		return r, n + 1
	}
	return utf8.DecodeRuneInString(p)
}
