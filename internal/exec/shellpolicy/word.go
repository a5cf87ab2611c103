package shellpolicy

import (
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// anything represents text that only an expansion knows. It cannot occur in a line.
const anything = '\x00'

// mostBraces is the number of words above which the result of a brace expansion counts as unknown.
const mostBraces = 64

// word is what is known of a word before its expansion.
type word struct {
	text   string // with anything for the unknown parts
	many   bool   // it may become no word, or several
	splits bool   // of those, each may be any text
	quoted bool   // a part of it was, so that it stays when it is empty
}

var unknown = word{text: string(anything), many: true, splits: true}

// known returns the text if all of it is known.
func (w word) known() (string, bool) {
	return w.text, !w.many && strings.IndexByte(w.text, anything) < 0
}

// base returns the program's name: the part after the last slash.
func (w word) base() (string, bool) {
	last := w.text[strings.LastIndexByte(w.text, '/')+1:]
	return last, !w.many && strings.IndexByte(last, anything) < 0
}

// mayBeOption reports whether the word may begin with a dash after its expansion.
func (w word) mayBeOption() bool { return w.many || strings.HasPrefix(w.text, string(anything)) }

// mayBe reports whether the word may be a text after its expansion.
func (w word) mayBe(text string) bool {
	if _, ok := w.known(); ok {
		return false
	}
	g := glob{}
	for _, r := range w.text {
		g.tokens = append(g.tokens, token{star: r == anything, exact: r})
	}
	return g.match(text, false)
}

func (w word) formatWord() string { return strings.ReplaceAll(w.text, string(anything), "…") }

// literal returns a word without expansions.
func literal(s string) word { return word{text: s} }

// words returns what a word of the line expands to: several words by brace expansion, if the shell has that.
func words(w *syntax.Word, lang syntax.LangVariant) (all []word) {
	lists := [][]syntax.WordPart{w.Parts}
	if lang != syntax.LangPOSIX {
		cut := &syntax.Word{Parts: w.Parts}
		if syntax.SplitBraces(cut) {
			var ok bool
			if lists, ok = braces(cut.Parts); !ok {
				return []word{unknown}
			}
		}
	}
	for _, parts := range lists {
		if one := evaluate(parts, lang); one.text != "" || one.quoted {
			all = append(all, one)
		}
	}
	return all
}

// braces performs brace expansion. It gives up if the result is too large.
func braces(parts []syntax.WordPart) (all [][]syntax.WordPart, ok bool) {
	all = [][]syntax.WordPart{nil}
	for _, p := range parts {
		b, isBraces := p.(*syntax.BraceExp)
		if !isBraces {
			for i := range all {
				all[i] = append(all[i], p)
			}
			continue
		}
		if b.Sequence {
			return nil, false
		}
		var next [][]syntax.WordPart
		for _, before := range all {
			for _, elem := range b.Elems {
				ends, ok := braces(elem.Parts)
				if !ok || len(next)+len(ends) > mostBraces {
					return nil, false
				}
				for _, end := range ends {
					next = append(next, append(before[:len(before):len(before)], end...))
				}
			}
		}
		all = next
	}
	return all, true
}

// builder builds a word.
type builder struct {
	word
	b    strings.Builder
	lang syntax.LangVariant
}

func evaluate(parts []syntax.WordPart, lang syntax.LangVariant) word {
	b := builder{lang: lang}
	for i, p := range parts {
		b.part(p, i == 0, i+1 < len(parts))
	}
	b.text = b.b.String()
	return b.word
}

func (b *builder) expansion(several bool) {
	b.b.WriteByte(anything)
	b.many, b.splits = b.many || several, b.splits || several
}

// files adds a part of a file name pattern, which may expand to several names or, with some settings of the shell,
// to none.
func (b *builder) files() {
	b.b.WriteByte(anything)
	b.many = true
}

// part adds a part that stands outside of double quotes.
func (b *builder) part(p syntax.WordPart, first, more bool) {
	switch p := p.(type) {
	case *syntax.Lit:
		b.bare(p.Value, first, more)
	case *syntax.SglQuoted:
		b.quoted = true
		if !p.Dollar {
			b.b.WriteString(p.Value)
		} else if s, ok := ansi(p.Value); ok {
			b.b.WriteString(s)
		} else {
			b.expansion(false)
		}
	case *syntax.DblQuoted:
		b.quoted = true
		if p.Dollar { // a message that may be translated
			b.expansion(false)
			return
		}
		for _, q := range p.Parts {
			b.within(q)
		}
	case *syntax.ProcSubst:
		b.expansion(false)
	default:
		b.expansion(true)
	}
}

// within adds a part of double quotes.
func (b *builder) within(p syntax.WordPart) {
	switch p := p.(type) {
	case *syntax.Lit:
		for i := 0; i < len(p.Value); i++ {
			if p.Value[i] == '\\' && i+1 < len(p.Value) && strings.IndexByte("$`\"\\\n", p.Value[i+1]) >= 0 {
				if i++; p.Value[i] == '\n' {
					continue
				}
			}
			b.b.WriteByte(p.Value[i])
		}
	case *syntax.ParamExp:
		b.expansion(severalWords(p))
	case *syntax.CmdSubst, *syntax.ArithmExp:
		b.expansion(false)
	default:
		b.expansion(true)
	}
}

// severalWords reports whether an expansion in double quotes may become no
// word, or several: "$@", "${a[@]}" and their kin.
func severalWords(p *syntax.ParamExp) bool {
	return p.Param == nil || p.Param.Value == "@" || p.Index != nil || p.Names != 0 || p.Excl || p.NestedParam != nil ||
		p.Flags != nil
}

// bare adds text outside of quotes: backslashes quote the next character, file
// name patterns and a leading ~ are expansions.
func (b *builder) bare(s string, first, more bool) {
	if first && strings.HasPrefix(s, "~") {
		s = s[1:]
		if i := strings.IndexByte(s, '/'); i >= 0 {
			s = s[i:]
		} else {
			s = ""
		}
		b.expansion(false)
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s):
			i++
			b.quoted = true
			if s[i] != '\n' {
				b.b.WriteByte(s[i])
			}
		case c == '*', c == '?', c == '[' && (more || strings.IndexByte(s[i:], ']') > 0):
			b.files()
		case c == '{' && b.lang != syntax.LangPOSIX && (strings.Contains(s, ",") || strings.Contains(s, "..")):
			b.expansion(true) // braces that were not understood
		default:
			b.b.WriteByte(c)
		}
	}
}

// ansi reads the text of $'…'. What it does not know, or what could end the
// text early, it does not read.
func ansi(s string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		if i++; i == len(s) {
			return "", false
		}
		if at := strings.IndexByte(`abeEfnrtv\'"?`, s[i]); at >= 0 {
			b.WriteByte("\a\b\x1b\x1b\f\n\r\t\v\\'\"?"[at])
			continue
		}
		n, ok := ansiNumber(&b, s[i:])
		if !ok {
			return "", false
		}
		i += n - 1
	}
	return b.String(), utf8.ValidString(b.String())
}

// ansiNumber reads what follows the backslash of \nnn, \xHH, \uHHHH and
// \UHHHHHHHH, and tells how long it is.
func ansiNumber(b *strings.Builder, s string) (n int, ok bool) {
	from, most, radix := 1, 0, 16
	switch c := s[0]; {
	case c >= '0' && c <= '7':
		from, most, radix = 0, 3, 8
	case c == 'x':
		most = 2
	case c == 'u':
		most = 4
	case c == 'U':
		most = 8
	default:
		return 0, false
	}
	end := from
	for end < len(s) && end < from+most &&
		strings.IndexByte("0123456789abcdefABCDEF"[:map[int]int{8: 8, 16: 22}[radix]], s[end]) >= 0 {
		end++
	}
	v, err := strconv.ParseUint(s[from:end], radix, 32)
	if err != nil || v == 0 || v > utf8.MaxRune {
		return 0, false
	}
	if most > 3 {
		b.WriteRune(rune(v))
	} else {
		b.WriteByte(byte(v))
	}
	return end, true
}

// plainName is a program's name without what tells its editions apart: case,
// .exe, and a version at its end.
func plainName(name string) string {
	name = strings.TrimSuffix(strings.ToLower(path.Base(name)), ".exe")
	if short := strings.TrimRight(name, "0123456789.-"); short != "" {
		return short
	}
	return name
}

// lazily compiles an expression when it is first used: most hosts judge
// nothing, and should not start slower for it.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
