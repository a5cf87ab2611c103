package edit

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// cluster is the smallest part of a line that is compared: its bytes, and the
// key it is compared by. Equal texts may have different clusters (three dots and
// one ellipsis).
type cluster struct{ raw, key string }

// lookalikes maps characters to the plain text that they are compared as.
// Models, word processors and web pages write them for the plain text.
var lookalikes = map[rune]string{
	'\u2018': "'", '\u2019': "'", '\u201A': "'", '\u201B': "'", '\u2032': "'", '\u00B4': "'", '\u02BC': "'",
	'\u201C': `"`, '\u201D': `"`, '\u201E': `"`, '\u201F': `"`, '\u2033': `"`,
	'\u2010': "-", '\u2011': "-", '\u2012': "-", '\u2013': "-", '\u2014': "-", '\u2015': "-", '\u2212': "-",
	'\u00AD': "",
	'\u2026': "...", '\u00D7': "x", '\u2044': "/", '\u2215': "/", '\u2217': "*",
	'\u200B': "", '\u200C': "", '\u200D': "", '\u2060': "", '\uFEFF': "", '\u200E': "", '\u200F': "",
}

// plain returns the text that a character is compared as.
func plain(r rune) string {
	if s, ok := lookalikes[r]; ok {
		return s
	}
	if r >= '\uFF01' && r <= '\uFF5E' { // full-width forms of ASCII
		return string(r - '\uFF01' + '!')
	}
	return string(r)
}

// maxFold is the longest body, in bytes, whose characters are compared by their
// looks. A longer one is compared byte for byte, which bounds the time for files
// without line breaks.
const maxFold = 64 << 10

// fold returns the key of a body: with plain characters, composed letters and
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

// isPlain reports whether a body is its own key.
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

// clusters splits a text. The keys joined are the key of the text.
func clusters(s string) []cluster {
	all := make([]cluster, 0, len(s))
	for i := 0; i < len(s); {
		n, key := next(s[i:])
		if key == "" && len(all) > 0 { // An invisible character belongs to the cluster before it.
			all[len(all)-1].raw += s[i : i+n]
		} else {
			all = append(all, cluster{s[i : i+n], key})
		}
		i += n
	}
	return all
}

// next returns the length of the first cluster of s, and its key.
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
		return 1, s[:1] // not valid UTF-8
	}
	var b strings.Builder
	for _, r := range norm.NFC.String(s[:n]) {
		b.WriteString(plain(r))
	}
	return n, b.String()
}

// pair is a part of two texts that is equal in both but for its bytes.
type pair struct{ a, b string }

// align splits two texts with equal keys into the smallest parts with equal
// keys. It returns false if the keys differ.
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

// difference returns the level at which two bodies are equal. It returns false
// if they are equal at none.
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
				return 0, false // the number of spaces counts
			}
		default:
			l = max(l, Lookalikes)
		}
	}
	return l, true
}

// allBlank reports whether a text has blanks only.
func allBlank(s string) bool { return strings.TrimLeftFunc(s, isBlank) == "" }

// plainBlanks replaces all blanks except tabs by spaces, and drops those without
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
