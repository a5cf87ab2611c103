package search

import (
	"bytes"
	"regexp/syntax"
	"slices"
	"strings"
)

// maxLiterals is how many alternatives are searched one by one. Searching for more is slower than the automaton.
const maxLiterals = 6

// literals are strings of which each match contains at least one; in lower case if fold. The zero value means that
// none are known.
type literals struct {
	any  []string
	fold bool
}

// score rates a set of literals by the length of the shortest.
func (l literals) score() int {
	if len(l.any) == 0 || len(l.any) > maxLiterals {
		return 0
	}
	least := len(l.any[0])
	for _, s := range l.any {
		least = min(least, len(s))
	}
	return least
}

func better(a, b literals) literals {
	if b.score() > a.score() || b.score() == a.score() && len(b.any) < len(a.any) {
		return b
	}
	return a
}

// required returns the best literals of an expression.
func required(re *syntax.Regexp) literals {
	switch re.Op {
	case syntax.OpLiteral:
		return ofRunes(re.Rune, re.Flags&syntax.FoldCase != 0)
	case syntax.OpCapture, syntax.OpPlus:
		return required(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return required(re.Sub[0])
		}
	case syntax.OpConcat:
		var best literals
		for _, sub := range re.Sub {
			best = better(best, required(sub))
		}
		return best
	case syntax.OpAlternate:
		return ofAlternatives(re.Sub)
	}
	return literals{}
}

// ofAlternatives returns literals of all branches.
func ofAlternatives(subs []*syntax.Regexp) (all literals) {
	for i, sub := range subs {
		one := required(sub)
		if one.score() == 0 {
			return literals{}
		}
		if i > 0 && one.fold != all.fold {
			one, all = one.folded(), all.folded()
		}
		all.fold = one.fold
		for _, s := range one.any {
			if !slices.Contains(all.any, s) {
				all.any = append(all.any, s)
			}
		}
	}
	if all.score() == 0 {
		return literals{}
	}
	return all
}

// folded returns the same set for a search that ignores case.
func (l literals) folded() literals {
	if l.fold {
		return l
	}
	f := literals{fold: true}
	for _, s := range l.any {
		one := ofRunes([]rune(s), true)
		if one.score() == 0 {
			return literals{}
		}
		f.any = append(f.any, one.any...)
	}
	return f
}

func ofRunes(runes []rune, fold bool) literals {
	if !fold {
		if slices.Contains(runes, '\uFFFD') {
			return literals{} // it also stands for bytes that are no character
		}
		return literals{any: []string{string(runes)}}
	}
	// Case is folded by the tables of Unicode. Only ASCII letters are simple, except k and s, to which the Kelvin
	// sign and the long s fold.
	longest, from := "", 0
	for i := 0; i <= len(runes); i++ {
		if i < len(runes) && runes[i] < 0x80 && !strings.ContainsRune("kKsS", runes[i]) {
			continue
		}
		if i-from > len(longest) {
			longest = strings.ToLower(string(runes[from:i]))
		}
		from = i + 1
	}
	if longest == "" {
		return literals{}
	}
	return literals{any: []string{longest}, fold: true}
}

// finder finds the next of some literals. It is not safe for concurrent use.
type finder struct {
	needles []needle
	next    []int // the next position of each; -1 for none, -2 if unknown
}

type needle struct {
	text []byte
	fold bool
	rare int // the byte of the text that is searched first
}

func (l literals) finder() *finder {
	f := &finder{next: make([]int, len(l.any))}
	for _, s := range l.any {
		f.needles = append(f.needles, needle{[]byte(s), l.fold, rarest(s)})
	}
	return f
}

// reset starts a new text.
func (f *finder) reset() {
	for i := range f.next {
		f.next[i] = -2
	}
}

// findFrom returns the position of the next literal in b, or -1. Positions must not decrease.
func (f *finder) findFrom(b []byte, from int) int {
	best := -1
	for i := range f.needles {
		if f.next[i] == -2 || f.next[i] >= 0 && f.next[i] < from {
			f.next[i] = f.needles[i].index(b, from)
		}
		if at := f.next[i]; at >= 0 && (best < 0 || at < best) {
			best = at
		}
	}
	return best
}

// index searches for the rarest byte first, because memchr is faster the less it finds.
func (n *needle) index(b []byte, from int) int {
	if !n.fold && len(n.text) == 1 {
		return at(bytes.IndexByte(b[from:], n.text[0]), from)
	}
	if n.fold {
		return n.indexFold(b, from)
	}
	c := n.text[n.rare]
	misses := 0
	for i := from + n.rare; i < len(b); i++ {
		j := bytes.IndexByte(b[i:], c)
		if j < 0 {
			return -1
		}
		i += j
		start := i - n.rare
		if start+len(n.text) <= len(b) && string(b[start:start+len(n.text)]) == string(n.text) {
			return start
		}
		if misses++; misses > 16 && misses > (i-from)/32 {
			start = max(start+1, from)
			return at(bytes.Index(b[start:], n.text), start)
		}
	}
	return -1
}

func at(i, from int) int {
	if i < 0 {
		return -1
	}
	return from + i
}

func (n *needle) indexFold(b []byte, from int) int {
	low := n.text[n.rare]
	high := low
	if low >= 'a' && low <= 'z' {
		high = low - 'a' + 'A'
	}
	i, j := -2, -2 // the next lower and upper case one
	for pos := from + n.rare; ; pos++ {
		if i != -1 && i < pos {
			i = at(bytes.IndexByte(b[min(pos, len(b)):], low), pos)
		}
		if high == low {
			j = -1
		} else if j != -1 && j < pos {
			j = at(bytes.IndexByte(b[min(pos, len(b)):], high), pos)
		}
		switch {
		case i < 0 && j < 0:
			return -1
		case i < 0 || j >= 0 && j < i:
			pos = j
		default:
			pos = i
		}
		if start := pos - n.rare; start+len(n.text) <= len(b) && equalFold(b[start:], n.text) {
			return start
		}
	}
}

// equalFold reports whether b begins with the lower case ASCII text.
func equalFold(b, text []byte) bool {
	for i, c := range text {
		d := b[i]
		if d >= 'A' && d <= 'Z' {
			d += 'a' - 'A'
		}
		if c != d {
			return false
		}
	}
	return true
}

// often are bytes in the order of their frequency in source text.
const often = " etaonirslcdupm\n\thfgbyv0w1.,x(){}_-\"=/;:2k*3'T5S468IEC97R<>AN[]DOPFLMjzB#GqU&UVHW!$XY+K|\\J@QZ%?^~`"

// isRare reports whether a search for single bytes is worth it because most lines contain none.
func (l literals) isRare() bool {
	for _, s := range l.any {
		if i := strings.IndexByte(often, s[0]); len(s) == 1 && i >= 0 && i < strings.IndexByte(often, '_') {
			return false
		}
	}
	return l.score() > 0
}

func rarest(s string) int {
	best, rank := 0, -1
	for i := range len(s) {
		r := strings.IndexByte(often, s[i])
		if r < 0 {
			r = len(often)
		}
		if r > rank {
			best, rank = i, r
		}
	}
	return best
}
