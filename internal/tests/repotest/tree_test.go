package repotest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ours is the path of this repository's Go module.
const ours = "gatehouse"

// source is one Go file of the tree.
type source struct {
	path string // slashes, relative to the top of the tree
	text string
	ast  *ast.File
	fset *token.FileSet
}

func (s source) folder() string { return path.Dir(s.path) }
func (s source) isTest() bool   { return strings.HasSuffix(s.path, "_test.go") }

// line returns the position at which a node begins.
func (s source) line(n ast.Node) int { return s.fset.Position(n.Pos()).Line }

// top returns the folder of go.mod.
func top(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above this folder")
		}
		dir = up
	}
}

// sources returns the parsed Go files of this Go module, without testdata and without folders that are Go modules
// of their own.
func sources(t testing.TB) []source {
	t.Helper()
	root := top(t)
	var all []source
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if file != root && foreign(file, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, ".go") {
			return nil
		}
		all = append(all, parse(t, root, file))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// foreign reports whether a folder is not part of this Go module's source.
func foreign(dir, name string) bool {
	if strings.HasPrefix(name, ".") || slices.Contains([]string{"testdata", "node_modules", "bin", "out"}, name) {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func parse(t testing.TB, root, file string) source {
	t.Helper()
	rel, err := filepath.Rel(root, file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, rel, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return source{filepath.ToSlash(rel), string(text), f, fset}
}

// tracked returns the paths that git knows or would add, relative to the top. It returns nil for a copy of the tree
// without a git history.
func tracked(t testing.TB) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = top(t)
	out, err := cmd.Output()
	if err != nil {
		t.Logf("git ls-files: %v", err)
		return nil
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
}
