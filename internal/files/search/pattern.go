package search

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
)

// How determines how a pattern is read.
type How struct {
	Literal    bool // not an expression: the text itself
	IgnoreCase bool
	Multiline  bool // a match may span lines; ^ and $ still mean those of a line
}

// Pattern is a compiled pattern. It is immutable and safe for concurrent use.
type Pattern struct {
	re        *regexp.Regexp
	literals  literals
	plain     bool // re matches exactly at the literals
	multiline bool
	returns   bool     // it contains carriage returns, so lines keep theirs
	program   *program // nil: use re
}

// maxPattern is the length of the longest pattern, in bytes.
const maxPattern = 16 << 10

// Compile compiles a pattern: a regular expression of Go, which are those of RE2, or a literal text. The error is
// for the author of the pattern and says what to write instead.
func Compile(text string, how How) (*Pattern, error) {
	if len(text) > maxPattern {
		return nil, fmt.Errorf("the pattern has %d bytes, the most is %d", len(text), maxPattern)
	}
	source := text
	if how.Literal {
		source = regexp.QuoteMeta(text)
	}
	flags := ""
	if how.IgnoreCase {
		flags = "i"
	}
	if how.Multiline {
		flags += "m"
	}
	if flags != "" {
		source = "(?" + flags + ")" + source
	}
	re, err := regexp.Compile(source)
	if err != nil {
		return nil, explain(err)
	}
	tree, err := parsePattern(source)
	if err != nil {
		return nil, explain(err)
	}
	if !how.Multiline && wantsNewline(tree) {
		return nil, errors.New("the pattern holds a newline, and lines are matched one by one; set multiline")
	}
	p := &Pattern{re: re, multiline: how.Multiline, returns: asksForReturn(tree)}
	if l := required(tree); l.score() > 1 || how.Literal || l.isRare() {
		p.literals = l
	}
	p.plain = tree.Op == syntax.OpLiteral && !slices.Contains(tree.Rune, '\r') && p.literals.score() > 0 &&
		len(p.literals.any[0]) == len(string(tree.Rune))
	if !p.plain && !how.Multiline && !p.returns {
		if prog, err := syntax.Compile(tree); err == nil {
			p.program, _ = newProgram(prog) // without one, lines are tried one by one
		}
	}
	return p, nil
}

func parsePattern(source string) (*syntax.Regexp, error) {
	tree, err := syntax.Parse(source, syntax.Perl)
	if err != nil {
		return nil, err
	}
	return tree.Simplify(), nil
}

// wantsNewline reports whether each match of the expression contains a newline that is written in it.
func wantsNewline(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpLiteral:
		return slices.Contains(re.Rune, '\n')
	case syntax.OpCapture, syntax.OpPlus:
		return wantsNewline(re.Sub[0])
	case syntax.OpRepeat:
		return re.Min > 0 && wantsNewline(re.Sub[0])
	case syntax.OpConcat:
		return slices.ContainsFunc(re.Sub, wantsNewline)
	}
	return false
}

// asksForReturn reports whether the expression contains a carriage return, alone or in a class. \s and the like do
// not count.
func asksForReturn(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpLiteral:
		return slices.Contains(re.Rune, '\r')
	case syntax.OpCharClass:
		for i := 0; i+1 < len(re.Rune); i += 2 {
			if re.Rune[i] == '\r' && re.Rune[i+1] == '\r' {
				return true
			}
		}
	}
	return slices.ContainsFunc(re.Sub, asksForReturn)
}

// explain turns a compiler's error into advice.
func explain(err error) error {
	var se *syntax.Error
	if !errors.As(err, &se) {
		return err
	}
	switch e := se.Expr; {
	case se.Code == syntax.ErrInvalidPerlOp && (strings.HasPrefix(e, "(?=") || strings.HasPrefix(e, "(?!")):
		return errors.New(
			"lookahead " + e + "...) is not supported (RE2); search for what comes before it, " +
				"and filter or write the rest out",
		)
	case strings.HasPrefix(e, "(?<=") || strings.HasPrefix(e, "(?<!"):
		return errors.New("lookbehind " + e + "...) is not supported (RE2); include what comes before in the pattern")
	case se.Code == syntax.ErrInvalidEscape && len(e) == 2 && e[1] >= '1' && e[1] <= '9':
		return errors.New("the backreference " + e + " is not supported (RE2)")
	case se.Code == syntax.ErrMissingRepeatArgument:
		return fmt.Errorf("nothing stands before %q; escape it with a backslash, or set literal", e)
	case se.Code == syntax.ErrMissingParen || se.Code == syntax.ErrUnexpectedParen ||
		se.Code == syntax.ErrMissingBracket:
		return fmt.Errorf("%s in %q; escape it with a backslash, or set literal", se.Code, e)
	}
	return fmt.Errorf("%s: %q", se.Code, se.Expr)
}

// matcher finds matching lines. It belongs to one worker and is not safe for concurrent use.
type matcher struct {
	p    *Pattern
	find *finder    // nil without literals
	auto *automaton // nil without a program, or after it gave up
}

func (p *Pattern) matcher() *matcher {
	m := &matcher{p: p}
	if p.literals.score() > 0 {
		m.find = p.literals.finder()
	}
	if p.program != nil {
		m.auto = newAutomaton(p.program)
	}
	m.reset()
	return m
}

// reset starts a new text.
func (m *matcher) reset() {
	if m.find != nil {
		m.find.reset()
	}
}
