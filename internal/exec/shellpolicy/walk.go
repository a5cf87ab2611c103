package shellpolicy

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// walker judges the parts of a parsed line.
type walker struct {
	*judging
	lang   syntax.LangVariant
	depth  int
	source string
}

func (w *walker) visit(n syntax.Node) bool {
	switch n := n.(type) {
	case *syntax.CallExpr:
		w.command(w.words(n.Args), false, w.lang, w.depth)
	case *syntax.DeclClause:
		w.declaration(n)
	case *syntax.Redirect:
		if n.N != nil && strings.HasPrefix(n.N.Value, "{") {
			w.assigned(strings.Trim(n.N.Value, "{}"))
		}
		w.redirect(n)
		return w.document(n)
	case *syntax.ExtGlob:
		w.raw(n.Pattern.Value)
	case *syntax.Assign:
		if n.Name != nil {
			w.assigned(n.Name.Value)
		}
		w.arithmetic(n.Index)
	case *syntax.ArrayElem:
		w.arithmetic(n.Index)
	case *syntax.ArithmExp:
		w.arithmetic(n.X)
	case *syntax.ArithmCmd:
		w.arithmetic(n.X)
	case *syntax.CStyleLoop:
		w.arithmetic(n.Init)
		w.arithmetic(n.Cond)
		w.arithmetic(n.Post)
	case *syntax.LetClause:
		for _, x := range n.Exprs {
			w.arithmetic(x)
		}
	case *syntax.CoprocClause:
		if n.Name != nil {
			if name := n.Name.Lit(); name == "" {
				w.unclear("coproc", "which variable coproc changes comes from an expansion")
			} else {
				w.assigned(name)
			}
		}
	case *syntax.BinaryTest:
		w.compared(n)
	case *syntax.UnaryTest:
		if n.Op == syntax.TsVarSet || n.Op == syntax.TsRefVar {
			if x, ok := n.X.(*syntax.Word); !ok || !plainVariable().MatchString(x.Lit()) {
				w.unclear("[[ "+n.Op.String(), "a test of a variable may run what its subscript holds")
			}
		}
	case *syntax.WordIter:
		w.assigned(n.Name.Value)
	case *syntax.ParamExp:
		w.parameter(n)
	case *syntax.Lit:
		w.raw(n.Value)
		w.addText(n.Value)
	case *syntax.SglQuoted:
		w.addText(n.Value)
	}
	return true
}

func (w *walker) words(list []*syntax.Word) (all []word) {
	for _, one := range list {
		if len(all) > mostWords {
			break // command says that there are too many
		}
		all = append(all, words(one, w.lang)...)
	}
	return all
}

// declaration judges export, declare and similar commands, for which the parser has a type of its own.
func (w *walker) declaration(d *syntax.DeclClause) {
	all := []word{literal(d.Variant.Value)}
	for _, a := range d.Args {
		switch {
		case a.Name == nil:
			all = append(all, words(a.Value, w.lang)...)
		case a.Naked:
			all = append(all, literal(a.Name.Value))
		default:
			all = append(all, word{text: a.Name.Value + "=" + string(anything)})
		}
	}
	w.command(all, false, w.lang, w.depth)
}

// redirect treats writing to a file as a command named ">".
func (w *walker) redirect(r *syntax.Redirect) {
	target := unknown
	if all := words(r.Word, w.lang); len(all) == 1 {
		target = all[0]
	}
	network := strings.HasPrefix(target.text, "/dev/tcp/") || strings.HasPrefix(target.text, "/dev/udp/")
	switch r.Op {
	case syntax.RdrIn, syntax.DplIn, syntax.Hdoc, syntax.DashHdoc, syntax.WordHdoc:
		if !network {
			return
		}
	case syntax.DplOut:
		if text, ok := target.known(); ok && strings.Trim(text, "0123456789-") == "" {
			return
		}
	}
	if text, ok := target.known(); ok && (text == "/dev/null" || text == "/dev/stdout" || text == "/dev/stderr") {
		return
	}
	w.command([]word{literal(">"), target}, false, w.lang, w.depth)
}

// document judges a here-document, about whose end shells may disagree. It reports whether the body must be walked:
// a quoted one runs nothing.
func (w *walker) document(r *syntax.Redirect) bool {
	if r.Hdoc == nil {
		return true
	}
	end, quoted := delimiter(r.Word)
	if !plainEnd().MatchString(end) || strings.Contains(w.source, "\\\n") {
		w.unclear("<<"+end, "where a here-document ends is not sure")
		return true
	}
	for _, p := range r.Hdoc.Parts {
		l, ok := p.(*syntax.Lit)
		if !ok {
			continue
		}
		for line := range strings.Lines(l.Value) {
			if strings.HasPrefix(strings.TrimLeft(line, "\t "), end) {
				w.unclear("<<"+end, "where a here-document ends is not sure")
			}
		}
		w.addText(l.Value)
	}
	return !quoted
}

var plainEnd = lazily(`^[A-Za-z0-9_.-]+$`)

// delimiter returns the word that ends a here-document, with unusual parts unchanged.
func delimiter(w *syntax.Word) (text string, quoted bool) {
	if len(w.Parts) != 1 {
		return "\"", true
	}
	switch p := w.Parts[0].(type) {
	case *syntax.Lit:
		return p.Value, false
	case *syntax.SglQuoted:
		if !p.Dollar {
			return p.Value, true
		}
	case *syntax.DblQuoted:
		if len(p.Parts) == 1 && !p.Dollar {
			l, _ := p.Parts[0].(*syntax.Lit)
			if l != nil {
				return l.Value, true
			}
		}
	}
	return "\"", true
}

// raw finds substitutions in text that the parser does not analyze, such as an extended pattern.
func (w *walker) raw(s string) {
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\':
			i++
		case s[i] == '`',
			s[i] == '$' && i+1 < len(s) && strings.IndexByte("({[`", s[i+1]) >= 0,
			strings.IndexByte("<>", s[i]) >= 0 && i+1 < len(s) && s[i+1] == '(':
			w.unclear(s[i:], "a substitution stands where none is expected")
			return
		}
	}
}

// assigned judges the name of a variable that is assigned.
func (w *walker) assigned(name string) {
	if Steers(name) {
		w.unclear(name+"=…", "the variable %s changes what other commands do", name)
	}
}

// parameter judges expansions that do more than return a value.
func (w *walker) parameter(p *syntax.ParamExp) {
	if !all(p.Index) {
		w.arithmetic(p.Index)
	}
	if p.Slice != nil {
		w.arithmetic(p.Slice.Offset)
		w.arithmetic(p.Slice.Length)
	}
	if p.Excl && p.Names == 0 && !all(p.Index) {
		w.unclear("${!…}", "an expansion by a variable's name may run what the variable holds")
	}
	if p.Exp == nil {
		return
	}
	switch p.Exp.Op {
	case syntax.AssignUnset, syntax.AssignUnsetOrNull:
		if p.Param != nil {
			w.assigned(p.Param.Value)
		}
	case syntax.OtherParamOps:
		if p.Exp.Word == nil || p.Exp.Word.Lit() != "Q" {
			w.unclear("", "an expansion with @ may run what the variable holds")
		}
	}
}

// subscript judges an array index that runs a command. Bash evaluates it wherever a text is used as a number or as
// the name of a variable, even if it is quoted.
var subscript = lazily("[A-Za-z_][A-Za-z0-9_]*\\[[^\\]]*(\\$\\(|`|\\$\\{)")

func (w *walker) addText(s string) {
	if w.lang == syntax.LangPOSIX || !strings.Contains(s, "[") {
		return
	}
	if m := subscript().FindString(s); m != "" {
		w.unclear(m, "a text such as %s… runs a command where it is used as a number", m)
	}
}

var plainVariable = lazily("^[A-Za-z_][A-Za-z0-9_]*$")

// all reports whether a subscript is @ or *.
func all(x syntax.ArithmExpr) bool {
	w, ok := x.(*syntax.Word)
	return ok && (w.Lit() == "@" || w.Lit() == "*")
}

// arithmetic refuses expressions of anything but numbers, because bash evaluates the value of a variable as an
// expression too, and runs the commands in its subscripts. An assignment can change any variable. expr may be nil.
func (w *walker) arithmetic(x syntax.ArithmExpr) {
	if x == nil || isNil(x) {
		return
	}
	syntax.Walk(x, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Word:
			if !isNumber(n) {
				w.unclear("$((…))",
					"arithmetic over a variable or an expansion may run what that holds; only numbers can be judged")
			}
			return false
		case *syntax.FlagsArithm:
			w.unclear("$((…))", "what the flags of a subscript do is not known here")
		}
		return true
	})
}

// isNil reports whether an interface holds a nil pointer, which the parser uses for missing parts.
func isNil(x syntax.ArithmExpr) bool {
	switch x := x.(type) {
	case *syntax.Word:
		return x == nil
	case *syntax.BinaryArithm:
		return x == nil
	case *syntax.UnaryArithm:
		return x == nil
	case *syntax.ParenArithm:
		return x == nil
	}
	return false
}

// isNumber reports whether a word is a number in any base.
func isNumber(w *syntax.Word) bool { return plainNumber().MatchString(w.Lit()) }

var plainNumber = lazily("^[0-9][0-9A-Za-z]*(#[0-9A-Za-z@_]+)?$")

// compared judges a comparison in [[ ]], whose operands bash evaluates if they are compared as numbers.
func (w *walker) compared(b *syntax.BinaryTest) {
	switch b.Op {
	case syntax.TsEql, syntax.TsNeq, syntax.TsLeq, syntax.TsGeq, syntax.TsLss, syntax.TsGtr:
		for _, side := range []syntax.TestExpr{b.X, b.Y} {
			if x, ok := side.(*syntax.Word); !ok || !isNumber(x) && !negative(x) {
				w.unclear(
					"[[ … "+b.Op.String(),
					"a comparison of numbers may run what a variable holds; only numbers can be judged, or use [ ]",
				)
			}
		}
	}
}

func negative(w *syntax.Word) bool {
	digits, ok := strings.CutPrefix(w.Lit(), "-")
	return ok && plainNumber().MatchString(digits)
}
