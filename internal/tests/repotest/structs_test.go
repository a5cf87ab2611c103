package repotest

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// productStructs calls f with each named struct outside tests.
func productStructs(t *testing.T, f func(s source, name string, doc string, fields []*ast.Field)) {
	for _, s := range sources(t) {
		if s.isTest() || strings.HasPrefix(s.path, "bench/") || strings.HasPrefix(s.path, "internal/tests/") {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			d, ok := n.(*ast.GenDecl)
			if !ok || d.Tok != token.TYPE {
				return true
			}
			for _, spec := range d.Specs {
				spec := spec.(*ast.TypeSpec)
				if st, ok := spec.Type.(*ast.StructType); ok {
					f(s, spec.Name.Name, d.Doc.Text()+spec.Doc.Text(), st.Fields.List)
				}
			}
			return true
		})
	}
}

// typeName returns the name of a type of another package, such as sync.Mutex; "" if it is not one.
func typeName(e ast.Expr) string {
	if sel, ok := e.(*ast.SelectorExpr); ok {
		if pkg, ok := sel.X.(*ast.Ident); ok {
			return pkg.Name + "." + sel.Sel.Name
		}
	}
	return ""
}

func commented(f *ast.Field) bool { return f.Doc.Text()+f.Comment.Text() != "" }

func TestContextsInStructsHaveAReason(t *testing.T) {
	productStructs(t, func(s source, name, _ string, fields []*ast.Field) {
		for _, f := range fields {
			if typeName(f.Type) == "context.Context" && !commented(f) {
				t.Errorf(
					"%s:%d: %s holds a context: hand it down as a parameter, or say in a comment why it cannot be one",
					s.path,
					s.line(f),
					name,
				)
			}
		}
	})
}

func TestSeveralLocksInAStructHaveAReason(t *testing.T) {
	productStructs(t, func(s source, name, _ string, fields []*ast.Field) {
		var locks []*ast.Field
		for _, f := range fields {
			if n := typeName(f.Type); n == "sync.Mutex" || n == "sync.RWMutex" {
				locks = append(locks, f)
			}
		}
		for _, f := range locks {
			if len(locks) > 1 && !commented(f) {
				t.Errorf(
					"%s:%d: %s has %d locks, and this one does not say what it guards",
					s.path,
					s.line(f),
					name,
					len(locks),
				)
			}
		}
	})
}

const mostFields = 30

func TestLargeStructsHaveAReason(t *testing.T) {
	productStructs(t, func(s source, name, doc string, fields []*ast.Field) {
		n := 0
		for _, f := range fields {
			n += max(1, len(f.Names))
		}
		if n > mostFields && !strings.Contains(doc, "One struct") {
			t.Errorf(
				"%s: %s has %d fields, want at most %d, or a sentence \"One struct, because ...\" in its comment",
				s.path,
				name,
				n,
				mostFields,
			)
		}
	})
}

// An exported method that only calls a lower-case one of the same name, with the
// same arguments, is one method with two names.
func TestNoMethodHasTwoNames(t *testing.T) {
	for _, s := range sources(t) {
		if strings.HasPrefix(s.path, "internal/tests/") {
			continue
		}
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil && f.Body != nil && len(f.Body.List) == 1 && isTwin(f) {
				t.Errorf(
					"%s:%d: %s only calls %s: export that one",
					s.path,
					s.line(f),
					f.Name.Name,
					lowerCase(f.Name.Name),
				)
			}
		}
	}
}

func lowerCase(name string) string { return strings.ToLower(name[:1]) + name[1:] }

func isTwin(f *ast.FuncDecl) bool {
	var call ast.Expr
	switch s := f.Body.List[0].(type) {
	case *ast.ExprStmt:
		call = s.X
	case *ast.ReturnStmt:
		if len(s.Results) == 1 {
			call = s.Results[0]
		}
	}
	c, ok := call.(*ast.CallExpr)
	if !ok || !f.Name.IsExported() {
		return false
	}
	sel, ok := c.Fun.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != lowerCase(f.Name.Name) || len(f.Recv.List[0].Names) == 0 {
		return false
	}
	if self, ok := sel.X.(*ast.Ident); !ok || self.Name != f.Recv.List[0].Names[0].Name {
		return false
	}
	var parameters []string
	for _, p := range f.Type.Params.List {
		for _, n := range p.Names {
			parameters = append(parameters, n.Name)
		}
	}
	if len(parameters) != len(c.Args) {
		return false
	}
	for i, a := range c.Args {
		if id, ok := a.(*ast.Ident); !ok || id.Name != parameters[i] {
			return false
		}
	}
	return true
}
