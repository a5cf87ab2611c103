package symbols

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
	"sync"

	"gatehouse/internal/access/displaytext"
)

// Symbol is one definition.
type Symbol struct {
	Line  int    // from 1
	End   int    // last line, 0 if not known
	Depth int    // how many others it lies in
	Text  string // its first line, without what follows: func (s *Server) Close() error
}

const (
	// Most is how many bytes of a text are looked at.
	Most        = 4 << 20
	mostSymbols = 5000
	longestText = 160 // bytes of a symbol's text
)

// Of lists the definitions of a text in a language, which is an id as package
// language has them. Go is parsed; of other languages the lines that look like
// definitions are taken, their depth from how they are indented.
func Of(language string, text []byte) []Symbol {
	text = text[:min(len(text), Most)]
	if language == "go" {
		if all := ofGo(text); len(all) > 0 {
			return all
		}
	}
	return ofLines(language, text)
}

// ofGo parses as much as there is; a mistake further down does not hide what is
// above it.
func ofGo(text []byte) (all []Symbol) {
	files := token.NewFileSet()
	file, _ := parser.ParseFile(files, "", withoutBodies(text), parser.SkipObjectResolution)
	if file == nil {
		return nil
	}
	line := func(p token.Pos) int { return files.Position(p).Line }
	add := func(n ast.Node, depth int, from, to token.Pos) {
		a, b := files.Position(from).Offset, files.Position(to).Offset
		if a < 0 || b > len(text) || a >= b || len(all) >= mostSymbols {
			return
		}
		all = append(all, Symbol{Line: line(n.Pos()), End: line(n.End()), Depth: depth, Text: oneLine(text[a:b])})
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			add(d, 0, d.Pos(), d.Type.End())
		case *ast.GenDecl:
			if d.Tok == token.IMPORT {
				continue
			}
			for _, s := range d.Specs {
				ofSpec(d.Tok, s, add)
			}
		}
	}
	if len(all) == 0 && file.Name != nil {
		return []Symbol{{Line: line(file.Package), Text: "package " + file.Name.Name}}
	}
	for i := range all {
		if all[i].End == all[i].Line {
			all[i].End = 0
		}
	}
	return all
}

// ofSpec adds a type with its methods or fields, or the names of a constant or
// variable.
func ofSpec(kind token.Token, s ast.Spec, add func(n ast.Node, depth int, from, to token.Pos)) {
	switch s := s.(type) {
	case *ast.TypeSpec:
		to, fields := s.Type.End(), (*ast.FieldList)(nil)
		switch t := s.Type.(type) {
		case *ast.StructType:
			to, fields = t.Struct+token.Pos(len("struct")), t.Fields
		case *ast.InterfaceType:
			to, fields = t.Interface+token.Pos(len("interface")), t.Methods
		}
		add(s, 0, s.Pos(), to)
		if fields != nil {
			for _, f := range fields.List {
				add(f, 1, f.Pos(), f.Type.End())
			}
		}
	case *ast.ValueSpec:
		to := s.Names[len(s.Names)-1].End()
		if s.Type != nil {
			to = s.Type.End()
		}
		add(s, 0, s.Pos(), to)
	}
}

// oneLine is a text on one line, not too long.
func oneLine(b []byte) string {
	s := strings.Join(strings.Fields(string(bytes.ToValidUTF8(b[:min(len(b), 4*longestText)], []byte("?")))), " ")
	return displaytext.Cut(s, longestText, "...")
}

// extra are, by language, what defines something without a word that says so.
var extra = sync.OnceValue(func() map[string]*regexp.Regexp {
	const call = `(?:[\w:<>\[\],.&*?~]+[ \t*&]+)+~?[\w:<>]+\s*\([^;={}]*\)?\s*(?:const|noexcept|override|async\*?|throws [\w., ]+)?\s*` +
		`(?:\{.*)?$`
	shell := `^\s*(?:function\s+)?[\w.:-]+\s*\(\)`
	script := `^(?:export\s+)?(?:default\s+)?(?:const|let|var)\s+\w+\s*(?::[^=]+)?=\s*(?:async\s*)?(?:\(.*\)?|\w+)\s*(?:=>.*|function.*)?$|` +
		`^\s+(?:(?:static|async|get|set|public|private|protected|readonly|override)\s+)*[\w$#]+\s*(?:<[^>]*>)?\([^;]*\)\s*(?::[^={]+)?\{\s*$|^\s*type\s+\w+`
	all := map[string]string{
		"markdown": `^#{1,6}\s+\S`, "restructuredtext": `^[=~^-]{4,}$`,
		"makefile": `^[A-Za-z0-9_.%/$()-]+(?:\s+[\w.%/$()-]+)*\s*::?(?:[^=]|$)`,
		"c":        `^#\s*define\s+\w|^` + call, "cpp": `^#\s*define\s+\w|^\s*` + call,
		"objective-c": `^[-+]\s*\(|^@(?:interface|implementation|protocol)\b`, "java": `^\s+` + call,
		"csharp": `^\s+` + call,
		"shell":  shell, "javascript": script, "typescript": script,
		"css":  `^[^\s@}/*][^{;]*\{|^@(?:media|keyframes|supports|font-face)\b`,
		"scss": `^\s*[^\s}/*][^{;]*\{\s*$|^\s*@(?:mixin|function|media)\b`,
		"ini":  `^\[[^\]]+\]`, "toml": `^\[{1,2}[^\]]+\]`, "yaml": `^[\w."'-]+\s*:(?:\s|$)`,
		"json":       `^ {0,4}"[^"]+"\s*:\s*[\[{]`,
		"sql":        `(?i)^\s*create\s+(?:or\s+replace\s+)?(?:temp(?:orary)?\s+)?(?:unique\s+)?(?:table|view|index|function|procedure|trigger|type|schema)\b`,
		"dockerfile": `(?i)^(?:from|entrypoint|cmd)\s`, "html": `(?i)<h[1-6][ >]|<(?:title|form|section|template)\b`,
		"hcl":  `^\w+(?:\s+"[^"]+")*\s*\{`,
		"ruby": `^\s*(?:attr_\w+|scope|has_many|belongs_to)\b`, "lua": `^\s*(?:local\s+)?function\b`,
		"dart":    `^\s*` + call + `|^[\w<>?]+\s+\w+\(.*\)\s*=>|^\s*(?:mixin|extension)\s+\w`,
		"scala":   `^\s*case\s+(?:class|object)\s+\w`,
		"swift":   `^\s*(?:(?:public|private|internal|fileprivate|open|required|convenience|override)\s+)*(?:init[?!]?\s*\(|extension\s+\w|actor\s+\w|subscript\s*\()`,
		"r":       `^\s*[\w.]+\s*(?:<-|=)\s*function\s*\(|^set(?:Class|Method|Generic|RefClass)\(`,
		"zig":     `^\s*(?:pub\s+)?const\s+\w+\s*=\s*(?:extern\s+|packed\s+)?(?:struct|enum|union|error)\b`,
		"haskell": `^(?:data|newtype|class|instance|type)\s+\S|^[a-z_][\w']*(?:\s*,\s*[a-z_][\w']*)*\s*::`,
		"elixir":  `^\s*def\w*\s`, "perl": `^\s*package\s`, "unix-assembly": `^[A-Za-z_][\w.$]*:|^TEXT\s`,
		"graphql": `^(?:type|input|enum|interface|union|scalar|query|mutation|fragment)\s`,
		"proto":   `^\s*(?:message|service|rpc|enum|oneof)\s`,
	}
	compiled := make(map[string]*regexp.Regexp)
	for id, source := range all {
		compiled[id] = regexp.MustCompile(source)
	}
	return compiled
})

// statements begin lines that look like a definition and are none.
var statements = wordSet(
	`if for while switch return else catch do try throw new delete await yield case import from with foreach using lock sizeof typeof super assert elif`,
)

func ofLines(language string, text []byte) (all []Symbol) {
	more := extra()[language]
	var open []int // how far those are indented that the next one may lie in
	n, fence := 0, false
	for line := range bytes.Lines(text) {
		n++
		line = bytes.TrimRight(line, " \t\r\n")
		trimmed := bytes.TrimLeft(line, " \t")
		if language == "markdown" && bytes.HasPrefix(trimmed, []byte("```")) {
			fence = !fence
		}
		if fence || len(trimmed) == 0 || len(line) > 1000 || len(all) >= mostSymbols ||
			!defines(language, line, trimmed, more) {
			continue
		}
		indent := indentOf(line, language)
		for len(open) > 0 && open[len(open)-1] >= indent {
			open = open[:len(open)-1]
		}
		all = append(all, Symbol{Line: n, Depth: len(open), Text: symbolText(trimmed)})
		open = append(open, indent)
	}
	return all
}

// commented are the languages in which what begins like a comment may define something.
var commented = wordSet(`markdown css c cpp`)

// plain are the languages in which the usual words define nothing.
var plain = wordSet(`markdown plaintext json yaml toml ini css scss html xml makefile dockerfile restructuredtext csv`)

func defines(language string, line, trimmed []byte, more *regexp.Regexp) bool {
	private := trimmed[0] == '#' && (language == "javascript" || language == "typescript") // a method of a class
	if isComment(trimmed) && !private && !commented[language] {
		return false
	}
	if language == "scala" && more.Match(line) { // "case" begins statements, too
		return true
	}
	first, _, _ := bytes.Cut(trimmed, []byte(" "))
	if i := bytes.IndexAny(first, "(:"); i > 0 {
		first = first[:i]
	}
	if !plain[language] && statements[string(first)] {
		return false
	}
	return more != nil && more.Match(line) || !plain[language] && Defines(line, len(line)-len(trimmed))
}

func isComment(trimmed []byte) bool {
	for _, sign := range []string{"//", "#", "/*", "*", "--", "\"\"\"", ";"} {
		if bytes.HasPrefix(trimmed, []byte(sign)) {
			return true
		}
	}
	return false
}

// indentOf is how far a line is indented; of a heading, its level.
func indentOf(line []byte, language string) (n int) {
	if language == "markdown" {
		return len(line) - len(bytes.TrimLeft(line, "#"))
	}
	for _, c := range line {
		switch c {
		case ' ':
			n++
		case '\t':
			n += 4
		default:
			return n
		}
	}
	return n
}

func symbolText(trimmed []byte) string {
	s := oneLine(trimmed)
	s = strings.TrimSpace(strings.TrimSuffix(s, "{"))
	return strings.TrimSuffix(s, ":")
}

// Write writes symbols one per line: the lines they span and their text, those
// inside others indented.
func Write(all []Symbol) string {
	var b strings.Builder
	for _, s := range all {
		span := fmt.Sprint(s.Line)
		if s.End > s.Line {
			span = fmt.Sprintf("%d-%d", s.Line, s.End)
		}
		fmt.Fprintf(&b, "%s%s: %s\n", strings.Repeat("  ", min(s.Depth, 20)), span, s.Text)
	}
	return b.String()
}
