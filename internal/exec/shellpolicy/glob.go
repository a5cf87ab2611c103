package shellpolicy

import "unicode"

// glob is a compiled pattern: each token is one character, a set of them, or
// any text.
type glob struct {
	tokens []token
	fold   bool // compare without case
}

type token struct {
	star  bool
	set   []span // of ?, every character
	not   bool   // every character but those of the set
	exact rune   // if there is no set
}

type span struct{ from, to rune }

var every = []span{{0, unicode.MaxRune}}

// newGlob compiles a pattern. A bracket that is not closed is a character.
func newGlob(s string, fold bool) glob {
	g := glob{fold: fold}
	runes := []rune(s)
	for i := 0; i < len(runes); i++ {
		switch r := runes[i]; r {
		case '*':
			if n := len(g.tokens); n == 0 || !g.tokens[n-1].star {
				g.tokens = append(g.tokens, token{star: true})
			}
		case '?':
			g.tokens = append(g.tokens, token{set: every})
		case '[':
			if t, n := bracket(runes[i:]); n > 0 {
				g.tokens = append(g.tokens, t)
				i += n - 1
				continue
			}
			fallthrough
		default:
			g.tokens = append(g.tokens, token{exact: g.folded(r)})
		}
	}
	return g
}

// bracket reads a set and returns its length, or 0 if there is none.
func bracket(s []rune) (t token, n int) {
	i := 1
	if i < len(s) && (s[i] == '!' || s[i] == '^') {
		t.not = true
		i++
	}
	for first := true; i < len(s); first = false {
		if s[i] == ']' && !first {
			return t, i + 1
		}
		x := span{s[i], s[i]}
		if i+2 < len(s) && s[i+1] == '-' && s[i+2] != ']' {
			x.to = s[i+2]
			i += 2
		}
		t.set = append(t.set, x)
		i++
	}
	return t, 0
}

func (g *glob) folded(r rune) rune {
	if g.fold {
		return unicode.ToLower(r)
	}
	return r
}

func (g *glob) matchesRune(t *token, r rune) bool {
	if t.star {
		return false
	}
	if t.set == nil {
		return t.exact == g.folded(r)
	}
	in := t.holds(r) || g.fold && (t.holds(unicode.ToLower(r)) || t.holds(unicode.ToUpper(r)))
	return in != t.not
}

func (t *token) holds(r rune) bool {
	for _, s := range t.set {
		if s.from <= r && r <= s.to {
			return true
		}
	}
	return false
}

// wild reports whether the pattern matches every text.
func (g *glob) wild() bool {
	for _, t := range g.tokens {
		if !t.star && (t.set == nil || t.not || len(t.set) != 1 || t.set[0] != every[0]) {
			return false
		}
	}
	return true
}

// moreWords represents any number of words in a text, each with a space before it. It cannot occur in a line.
const moreWords = '\x01'

// match reports whether a text matches the pattern. Unknown parts of the text must be matched by a star; with loose
// they may be any text.
//
// The time is proportional to the product of the lengths of text and pattern.
func (g *glob) match(text string, loose bool) bool {
	n := len(g.tokens)
	now, next, tmp := make([]bool, n+1), make([]bool, n+1), make([]bool, n+1)
	now[0] = true
	g.stars(now)
	for _, r := range text {
		switch {
		case r == anything && loose:
			reach(now, next)
		case r == moreWords && loose:
			g.step(now, tmp, ' ')
			reach(tmp, next)
			for i, ok := range now {
				next[i] = next[i] || ok
			}
		default:
			g.step(now, next, r)
		}
		now, next = next, now
	}
	return now[n]
}

// stars adds the states after stars that match nothing.
func (g *glob) stars(row []bool) {
	for i := range g.tokens {
		if g.tokens[i].star && row[i] {
			row[i+1] = true
		}
	}
}

// step matches one character. Only a star matches an unknown part.
func (g *glob) step(now, next []bool, r rune) {
	clear(next)
	for i := range g.tokens {
		if t := &g.tokens[i]; t.star && now[i+1] {
			next[i+1] = true
		} else if now[i] && r != anything && r != moreWords && g.matchesRune(t, r) {
			next[i+1] = true
		}
	}
	g.stars(next)
}

// reach matches any text: it adds all states after the present ones.
func reach(now, next []bool) {
	ok := false
	for i := range now {
		ok = ok || now[i]
		next[i] = ok
	}
}
