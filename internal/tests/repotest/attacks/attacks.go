// Package attacks finds the tests of the tree that attack a promise of
// docs/security.md, runs them and writes what came of each as a table.
//
// A test says what it attacks in its doc comment, once or more often:
//
//	//redteam:attack Files stay inside the roots: a folder becomes a link during the call
//
// Before the first colon stands the promise, as docs/security.md writes it in
// bold, without the mark at its end; after it, what the attacker does.
package attacks

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// An Attack is a test of the tree and what it tries.
type Attack struct {
	Promise string // as in docs/security.md, without the mark at its end
	Tries   string // what the attacker does
	Package string // folder below the top of the tree, with slashes; "." is the top
	Test    string // name of the function
}

// Name is how the table calls the test.
func (a Attack) Name() string { return a.Package + " " + a.Test }

const directive = "//redteam:attack "

// ListAttacks returns the attacks below top, ordered by promise, package and test. The
// error names every directive that is malformed or at no test.
func ListAttacks(top string) (all []Attack, err error) {
	var wrong []string
	err = filepath.WalkDir(top, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != top && outside(file):
			return fs.SkipDir
		case !d.Type().IsRegular() || !strings.HasSuffix(file, "_test.go"):
			return nil
		}
		found, bad, err := inFile(top, file)
		all, wrong = append(all, found...), append(wrong, bad...)
		return err
	})
	if err == nil && len(wrong) > 0 {
		err = fmt.Errorf("%s", strings.Join(wrong, "\n"))
	}
	slices.SortFunc(all, func(a, b Attack) int {
		return cmp.Or(cmp.Compare(a.Promise, b.Promise), cmp.Compare(a.Name(), b.Name()), cmp.Compare(a.Tries, b.Tries))
	})
	return all, err
}

// outside reports whether a folder holds no tests of this Go module.
func outside(dir string) bool {
	base := filepath.Base(dir)
	if base == "testdata" || base == "node_modules" || strings.HasPrefix(base, ".") {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func inFile(top, file string) (all []Attack, wrong []string, err error) {
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), directive) {
		return nil, nil, err
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, text, parser.ParseComments)
	if err != nil {
		return nil, nil, err
	}
	folder, err := filepath.Rel(top, filepath.Dir(file))
	if err != nil {
		return nil, nil, err
	}
	tests := map[*ast.CommentGroup]string{}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Doc != nil && isTest(fn.Name.Name) {
			tests[fn.Doc] = fn.Name.Name
		}
	}
	for _, group := range f.Comments {
		for _, c := range group.List {
			rest, ok := strings.CutPrefix(c.Text, directive)
			if !ok {
				continue
			}
			promise, tries, ok := strings.Cut(rest, ": ")
			if test := tests[group]; ok && test != "" && !strings.Contains(rest, "|") {
				all = append(
					all,
					Attack{strings.TrimSpace(promise), strings.TrimSpace(tries), filepath.ToSlash(folder), test},
				)
				continue
			}
			wrong = append(
				wrong,
				fmt.Sprintf(
					"%s: expected %q without | above a test, as \"promise: what the attacker does\"",
					fset.Position(c.Pos()),
					directive,
				),
			)
		}
	}
	return all, wrong, nil
}

func isTest(name string) bool {
	return strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz")
}

var bold = regexp.MustCompile(`(?m)^- \*\*([^*]+)\*\*`)

// Promises returns the promises of docs/security.md, in its order.
func Promises(security string) (all []string) {
	_, rest, _ := strings.Cut(security, "\n## Promises\n")
	section, _, _ := strings.Cut(rest, "\n## ")
	for _, m := range bold.FindAllStringSubmatch(section, -1) {
		all = append(all, strings.TrimRight(strings.Join(strings.Fields(m[1]), " "), ".,:"))
	}
	return all
}
