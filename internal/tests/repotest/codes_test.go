package repotest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const (
	codesBegin = "<!-- codes: written by go test ./internal/tests/repotest -update -->\n"
	codesEnd   = "<!-- end of codes -->"
)

// refusalCodes returns the codes that tool/code.go defines, with their meaning.
func refusalCodes(t *testing.T) (rows [][2]string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(top(t), "tool", "code.go"), nil,
		parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		code, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil || spec.Comment == nil {
			t.Fatalf("tool/code.go: %s needs a text and a comment that gives its meaning", spec.Names[0].Name)
		}
		rows = append(rows, [2]string{code, strings.TrimSpace(spec.Comment.Text())})
		return true
	})
	return rows
}

// docs/protocol.md lists every code, and no package outside tool writes a code
// as a literal, so that tool/code.go stays the one definition.
func TestCodesHaveOneDefinition(t *testing.T) {
	rows := refusalCodes(t)
	var b strings.Builder
	b.WriteString("\n| code | meaning |\n|---|---|\n")
	for _, r := range rows {
		b.WriteString("| `" + r[0] + "` | " + r[1] + " |\n")
	}
	b.WriteString("\n")
	replaceGenerated(t, filepath.Join("docs", "protocol.md"), codesBegin, codesEnd, b.String())

	for _, s := range sources(t) {
		if s.isTest() {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			var code ast.Expr
			switch n := n.(type) {
			case *ast.CallExpr:
				if isSelector(n.Fun, "tool", "Refuse") && len(n.Args) > 0 {
					code = n.Args[0]
				}
			case *ast.CompositeLit:
				if !isSelector(n.Type, "tool", "Refusal") {
					break
				}
				for _, e := range n.Elts {
					if kv, ok := e.(*ast.KeyValueExpr); ok && kv.Key.(*ast.Ident).Name == "Code" {
						code = kv.Value
					}
				}
			}
			if l, ok := code.(*ast.BasicLit); ok && l.Value != `""` {
				t.Errorf("%s:%d: the code %s is a literal; use a constant of tool/code.go", s.path, s.line(l), l.Value)
			}
			return true
		})
	}
}

func isSelector(e ast.Expr, pkg, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	id, ok := s.X.(*ast.Ident)
	return ok && id.Name == pkg
}

// replaceGenerated compares the part of a document between two marks with text.
// With -update it writes the text there.
func replaceGenerated(t *testing.T, name, begin, end, text string) {
	t.Helper()
	file := filepath.Join(top(t), name)
	all, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(all), begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place between %q and %q", name, begin, end)
	}
	if old == text {
		return
	}
	if !*update {
		t.Fatalf("%s is out of date; run go test ./internal/tests/repotest -update", name)
	}
	if err := os.WriteFile(file, []byte(before+begin+text+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
