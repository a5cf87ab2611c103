package edit

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// cluster is the smallest part of a line that is compared: what is written
// and what it counts as. Two texts that count as the same may be cut into
// clusters differently ("..." and one ellipsis).
type cluster struct{ raw, key string }

// lookalikes are the characters that are taken for plain ones. Models, word
// processors and web pages put them in the place of what was typed.
var lookalikes = map[rune]string{
	'\u2018': "'", '\u2019': "'", '\u201A': "'", '\u201B': "'", '\u2032': "'", '\u00B4': "'", '\u02BC': "'",
	'\u201C': `"`, '\u201D': `"`, '\u201E': `"`, '\u201F': `"`, '\u2033': `"`,
	'\u2010': "-", '\u2011': "-", '\u2012': "-", '\u2013': "-", '\u2014': "-", '\u2015': "-", '\u2212': "-", '\u00AD': "",
	'\u2026': "...", '\u00D7': "x", '\u2044': "/", '\u2215': "/", '\u2217': "*",
	'\u200B': "", '\u200C': "", '\u200D': "", '\u2060': "", '\uFEFF': "", '\u200E': "", '\u200F': "",
}

// plain is what a character counts as.
func plain(r rune) string {
	if s, ok := lookalikes[r]; ok {
		return s
	}
	if r >= '\uFF01' && r <= '\uFF5E' { // the wide forms of ASCII
		return string(r - '\uFF01' + '!')
	}
	return string(r)
}

// foldMost is the longest body, in bytes, that is compared tolerantly. A longer
// one counts as itself.
const maxFold = 64 << 10

// fold is what a body counts as: with plain characters, composed letters and
// single spaces.
func fold(body string) string {
	if isPlain(body) {
		return body
	}
	var b strings.Builder
	b.Grow(len(body))
	for i := 0; i < len(body); {
		n, key := next(body[i:])
		b.WriteString(key)
		i += n
	}
	return strings.Trim(b.String(), " ")
}

// isPlain reports whether a body counts as itself.
func isPlain(body string) bool {
	if len(body) > maxFold {
		return true
	}
	for i := range len(body) {
		switch c := body[i]; {
		case c >= utf8.RuneSelf, c == '\t', c == ' ' && i > 0 && body[i-1] == ' ':
			return false
		}
	}
	return true
}

// clusters cuts a text. The keys put together are what it counts as.
func clusters(s string) []cluster {
	all := make([]cluster, 0, len(s))
	for i := 0; i < len(s); {
		n, key := next(s[i:])
		if key == "" && len(all) > 0 { // what does not show belongs to what is before it
			all[len(all)-1].raw += s[i : i+n]
		} else {
			all = append(all, cluster{s[i : i+n], key})
		}
		i += n
	}
	return all
}

func next(s string) (n int, key string) {
	if c := s[0]; c != ' ' && c != '\t' && c < utf8.RuneSelf && (len(s) == 1 || s[1] < utf8.RuneSelf) {
		return 1, s[:1]
	}
	rest := strings.TrimLeftFunc(s, isBlank)
	if n := len(s) - len(rest); n > 0 {
		if strings.Trim(s[:n], "\uFEFF\u200B") == "" {
			return n, ""
		}
		return n, " "
	}
	n = norm.NFC.NextBoundaryInString(s, true)
	if n <= 0 {
		n = 1
	}
	if _, size := utf8.DecodeRuneInString(s); size == 1 && s[0] >= utf8.RuneSelf {
		return 1, s[:1] // not UTF-8
	}
	var b strings.Builder
	for _, r := range norm.NFC.String(s[:n]) {
		b.WriteString(plain(r))
	}
	return n, b.String()
}

// pair is a part of two texts that counts as the same in both.
type pair struct{ a, b string }

// align cuts two texts that count as the same into the smallest parts that
// do. ok is false if they do not.
func align(a, b []cluster) (pairs []pair, ok bool) {
	for i, j := 0, 0; i < len(a) || j < len(b); {
		var p pair
		ka, kb := "", ""
		for first := true; first || ka != kb; first = false {
			switch {
			case i < len(a) && (len(ka) <= len(kb) || j >= len(b)):
				p.a += a[i].raw
				ka += a[i].key
				i++
			case j < len(b):
				p.b += b[j].raw
				kb += b[j].key
				j++
			default:
				return nil, false
			}
			if !strings.HasPrefix(ka, kb) && !strings.HasPrefix(kb, ka) {
				return nil, false
			}
		}
		pairs = append(pairs, p)
	}
	return pairs, true
}

// difference is the level at which two bodies that count as the same are
// taken for the same; ok is false if they are not at any.
func difference(a, b string) (l Level, ok bool) {
	if a == b {
		return Exact, true
	}
	if max(len(a), len(b)) > maxFold {
		return 0, false
	}
	pairs, ok := align(clusters(a), clusters(b))
	if !ok {
		return 0, false
	}
	for _, p := range pairs {
		switch {
		case p.a == p.b:
		case allBlank(p.a) && allBlank(p.b):
			switch {
			case plainBlanks(p.a) == plainBlanks(p.b):
				l = max(l, Lookalikes)
			case strings.Contains(p.a+p.b, "\t"):
				l = max(l, Indent)
			default:
				return 0, false // how many spaces there are is not a matter of looks
			}
		default:
			l = max(l, Lookalikes)
		}
	}
	return l, true
}

func allBlank(s string) bool { return strings.TrimLeftFunc(s, isBlank) == "" }

// plainBlanks makes spaces of all blanks but tabs, and drops those without
// width.
func plainBlanks(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\uFEFF' || r == '\u200B':
			return -1
		case r >= utf8.RuneSelf && unicode.Is(unicode.Zs, r):
			return ' '
		}
		return r
	}, s)
}
