package repotest

import (
	"go/ast"
	"regexp"
	"testing"
)

// describing matches the first two words of a comment that describes a name:
// the name and a verb.
var describing = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*) (?:is|are|[a-z]+s)\b`)

// notNames are words that begin a sentence without being a name.
var notNames = map[string]bool{
	"It": true, "This": true, "That": true, "There": true, "Each": true, "What": true, "One": true, "No": true,
	"Nothing": true, "The": true, "A": true, "Its": true, "Nor": true, "Whatever": true,
}

// TestCommentsNameWhatTheyDescribe finds the comments that a renaming left
// behind: they begin with a name that is no longer that of the declaration.
func TestCommentsNameWhatTheyDescribe(t *testing.T) {
	for _, s := range sources(t) {
		if s.isTest() {
			continue // comments of tests describe what must hold
		}
		for _, d := range s.ast.Decls {
			for name, doc := range described(d) {
				m := describing.FindStringSubmatch(doc.Text())
				if m == nil || m[1] == name || notNames[m[1]] || isWord(m[1], name) {
					continue
				}
				t.Errorf("%s:%d: the comment of %s begins with %q", s.path, s.line(doc), name, m[1])
			}
		}
	}
}

// isWord reports whether the first word of a comment is taken as a word and
// not as a name: an exported name is expected in the comment as it is, while
// an unexported one may follow an English noun ("Limits of ...").
func isWord(first, name string) bool {
	return !ast.IsExported(name) && first[0] >= 'A' && first[0] <= 'Z'
}

// described returns the names that a declaration gives, with their comments.
func described(d ast.Decl) map[string]*ast.CommentGroup {
	all := map[string]*ast.CommentGroup{}
	add := func(name string, doc *ast.CommentGroup) {
		if doc != nil {
			all[name] = doc
		}
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		add(d.Name.Name, d.Doc)
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			var name string
			var doc *ast.CommentGroup
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				name, doc = spec.Name.Name, spec.Doc
			case *ast.ValueSpec:
				if len(spec.Names) == 1 {
					name, doc = spec.Names[0].Name, spec.Doc
				}
			}
			if doc == nil && !d.Lparen.IsValid() {
				doc = d.Doc
			}
			if name != "" {
				add(name, doc)
			}
		}
	}
	return all
}
