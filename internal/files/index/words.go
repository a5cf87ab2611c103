package index

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxTerms is the number of different words of a query that are searched for.
const maxTerms = 64

// words calls f with each word of a text in lower case: runs of letters and digits. A word of more than maxWord bytes
// is skipped, because it is data.
func words(text string, f func(word string)) {
	runs(text, func(run string) {
		if len(run) <= maxWord {
			f(strings.ToLower(run))
		}
	})
}

const maxWord = 40 // bytes

// runs calls f with each run of letters and digits of a text.
func runs(text string, f func(run string)) {
	start := -1
	for i := 0; i < len(text); {
		is, size := false, 1
		if c := text[i]; c < utf8.RuneSelf {
			is = asciiWord[c]
		} else {
			var r rune
			r, size = utf8.DecodeRuneInString(text[i:])
			is = isWord(r)
		}
		switch {
		case is && start < 0:
			start = i
		case !is && start >= 0:
			f(text[start:i])
			start = -1
		}
		i += size
	}
	if start >= 0 {
		f(text[start:])
	}
}

// asciiWord says which bytes of ASCII are part of a word.
var asciiWord = func() (is [utf8.RuneSelf]bool) {
	for c := range is {
		is[c] = 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9'
	}
	return is
}()

// isWord reports whether a rune is part of a word.
func isWord(r rune) bool {
	if r < utf8.RuneSelf {
		return asciiWord[r]
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

// names returns the parts of all names of a text that have several, each once, at most mostParts.
func names(text string) string { return newNamer().names(text) }

const (
	mostParts = 200
	maxName   = 60 // bytes
)

// namer finds the parts of names. It remembers them, because the texts of a collection have the same names. It is for
// one goroutine.
type namer struct {
	known map[string][]*part // by name; nil if it has one part
	parts map[string]*part
	texts int // that were read
	out   []byte
}

// part is a part of names.
type part struct {
	text string
	last int // the text that had it last, from 1
}

func newNamer() *namer { return &namer{known: map[string][]*part{}, parts: map[string]*part{}} }

// names is as the function.
func (n *namer) names(text string) string {
	if len(n.known) > mostKnown {
		clear(n.known)
		clear(n.parts)
	}
	n.texts++
	n.out = n.out[:0]
	count := 0
	runs(text, func(name string) {
		if len(name) > maxName || !hasUpper(name) {
			return
		}
		list, ok := n.known[name]
		if !ok {
			list = n.learn(name)
		}
		for _, p := range list {
			if p.last != n.texts && count < mostParts {
				p.last = n.texts
				count++
				n.out = append(append(n.out, p.text...), ' ')
			}
		}
	})
	return string(n.out)
}

func (n *namer) learn(name string) (list []*part) {
	parts(name, func(text string) {
		p := n.parts[text]
		if p == nil {
			p = &part{text: text}
			n.parts[text] = p
		}
		list = append(list, p)
	})
	n.known[strings.Clone(name)] = list
	return list
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
