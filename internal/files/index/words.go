package index

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxTerms is the number of different words of a query that are searched for.
const maxTerms = 64

// words calls f with each word of a text in lower case: runs of letters and digits. A word of more than 40 bytes is
// skipped, because it is data.
func words(text string, f func(word string)) {
	start := -1
	flush := func(end int) {
		if start >= 0 && end-start <= 40 {
			f(strings.ToLower(text[start:end]))
		}
		start = -1
	}
	for i, r := range text {
		if isWord(r) {
			if start < 0 {
				start = i
			}
			continue
		}
		flush(i)
	}
	flush(len(text))
}

// isWord reports whether a rune is part of a word.
func isWord(r rune) bool {
	if r < utf8.RuneSelf {
		return 'a' <= r|0x20 && r|0x20 <= 'z' || '0' <= r && r <= '9'
	}
	return unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.Is(unicode.Mn, r)
}

// parts calls f with the parts of a name such as parseHTTPRequest: parse, http, request. It calls nothing for a word
// that has one part.
func parts(name string, f func(part string)) {
	runes := []rune(name)
	start, n := 0, 0
	for i := 1; i <= len(runes); i++ {
		if i < len(runes) && !begins(runes, i) {
			continue
		}
		if i == len(runes) && n == 0 {
			return
		}
		if i-start > 1 {
			f(strings.ToLower(string(runes[start:i])))
		}
		start, n = i, n+1
	}
}

// begins reports whether a part of a name begins at rune i.
func begins(r []rune, i int) bool {
	switch {
	case unicode.IsLower(r[i-1]) && unicode.IsUpper(r[i]):
		return true
	case unicode.IsUpper(r[i-1]) && unicode.IsUpper(r[i]):
		return i+1 < len(r) && unicode.IsLower(r[i+1])
	}
	return false
}

// names returns the parts of all names of a text that have several, each once, at most 200.
func names(text string) string {
	seen := map[string]bool{}
	var b strings.Builder
	start := -1
	flush := func(end int) {
		if start < 0 {
			return
		}
		name := text[start:end]
		start = -1
		if len(name) > 60 || !hasUpper(name) {
			return
		}
		parts(name, func(p string) {
			if !seen[p] && len(seen) < 200 {
				seen[p] = true
				b.WriteString(p)
				b.WriteByte(' ')
			}
		})
	}
	for i, r := range text {
		if isWord(r) {
			if start < 0 {
				start = i
			}
			continue
		}
		flush(i)
	}
	flush(len(text))
	return b.String()
}

// hasUpper reports whether a name has a letter in upper case.
func hasUpper(name string) bool {
	for _, r := range name {
		if 'A' <= r && r <= 'Z' || r >= utf8.RuneSelf && unicode.IsUpper(r) {
			return true
		}
	}
	return false
}

// stopwords are words that say nothing about what a text is about.
var stopwords = func() map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(`a about above after again all also am an and any are aren as at be because been
		before being below between both but by can could did do does doing don down during each few for from further
		had has have having he her here hers him his how i if in into is isn it its itself just me more most my no nor
		not now of off on once only or other our ours out over own same she should so some such than that the their
		theirs them then there these they this those through to too under until up very was we were what when where
		which while who whom why will with would you your yours`) {
		m[w] = true
	}
	return m
}()

// terms returns the different words of a question, without stop words unless it has no others.
func terms(question string) (all []string) {
	var stop []string
	seen := map[string]bool{}
	add := func(w string) {
		if seen[w] || len(all)+len(stop) >= maxTerms {
			return
		}
		seen[w] = true
		if stopwords[w] {
			stop = append(stop, w)
		} else {
			all = append(all, w)
		}
	}
	words(question, add)
	for _, field := range strings.FieldsFunc(question, func(r rune) bool { return !unicode.IsLetter(r) }) {
		parts(field, add)
	}
	if len(all) == 0 {
		return stop
	}
	return all
}

// match returns the FTS5 expression for any of some words.
func match(terms []string) string {
	var b strings.Builder
	for i, t := range terms {
		if i > 0 {
			b.WriteString(" OR ")
		}
		b.WriteByte('"')
		b.WriteString(t) // letters and digits alone, so that nothing need be quoted
		b.WriteByte('"')
	}
	return b.String()
}

// near returns the FTS5 expression for pairs of words of a list that follow each other in a question; "" if there are
// none.
func near(question string, list []string) string {
	var b strings.Builder
	last, n := "", 0
	words(question, func(w string) {
		if last != "" && slices.Contains(list, last) && slices.Contains(list, w) && n < maxTerms {
			if b.Len() > 0 {
				b.WriteString(" OR ")
			}
			b.WriteString(`NEAR("` + last + `" "` + w + `", 6)`)
			n++
		}
		last = w
	})
	return b.String()
}
