package repotest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOtherSystemsCompile checks the types of the programs and of what they import as the compiler does for other
// systems and another processor. It generates no code and links nothing, which takes a tenth of the processor time;
// make verify-cross does.
func TestOtherSystemsCompile(t *testing.T) {
	files := &parsedFiles{set: token.NewFileSet(), parsed: map[string]*ast.File{}}
	for _, platform := range []string{"darwin/arm64", "windows/amd64", "linux/arm64"} {
		t.Run(platform, func(t *testing.T) { checkTypes(t, files, platform) })
	}
}

// listed is a package as go list prints it.
type listed struct {
	ImportPath, Dir string
	GoFiles, SFiles []string
	ImportMap       map[string]string
	Module          *struct {
		Main      bool
		GoVersion string
	}
	Error *struct{ Err string }
}

// checkTypes checks the packages of a platform in the order in which they import each other.
func checkTypes(t *testing.T, files *parsedFiles, platform string) {
	system, processor, _ := strings.Cut(platform, "/")
	list := exec.CommandContext(t.Context(), "go", "list", "-e", "-deps",
		"-json=ImportPath,Dir,GoFiles,SFiles,ImportMap,Module,Error", "./cmd/...")
	list.Dir = filepath.Join("..", "..", "..")
	list.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+processor, "CGO_ENABLED=0")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]*types.Package{"unsafe": types.Unsafe}
	for lines := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := lines.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.Error != nil {
			t.Errorf("%s: %s", p.ImportPath, p.Error.Err)
		} else if p.ImportPath != "unsafe" {
			known[p.ImportPath] = files.check(t, p, processor, known)
		}
	}
	if len(known) < 100 {
		t.Errorf("only %d packages are listed", len(known))
	}
}

// parsedFiles has the files that were parsed for one platform or more.
type parsedFiles struct {
	set    *token.FileSet
	parsed map[string]*ast.File
}

// check returns a package without the bodies of functions that are not of this module.
func (s *parsedFiles) check(t *testing.T, p listed, processor string, known map[string]*types.Package) *types.Package {
	t.Helper()
	ours, version := p.Module != nil && p.Module.Main, ""
	if p.Module != nil && p.Module.GoVersion != "" {
		version = "go" + p.Module.GoVersion
	}
	var parsed []*ast.File
	for _, name := range p.GoFiles {
		f, err := s.parse(filepath.Join(p.Dir, name), ours)
		if err != nil {
			t.Error(err)
			return nil
		}
		parsed = append(parsed, f)
		if ours && len(p.SFiles) == 0 {
			s.wantBodies(t, f)
		}
	}
	config := types.Config{
		Importer:         imports{known, p.ImportMap},
		Sizes:            types.SizesFor("gc", processor),
		GoVersion:        version,
		IgnoreFuncBodies: !ours,
		Error:            func(err error) { t.Error(err) },
	}
	made, _ := config.Check(p.ImportPath, s.set, parsed, nil)
	return made
}

func (s *parsedFiles) parse(path string, ours bool) (*ast.File, error) {
	if f := s.parsed[path]; f != nil {
		return f, nil
	}
	f, err := parser.ParseFile(s.set, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && !ours && fn.Body != nil {
			fn.Body = &ast.BlockStmt{} // it is not checked, and is most of the memory
		}
	}
	s.parsed[path] = f
	return f, nil
}

// wantBodies reports functions without a body in a package without assembly, which the compiler refuses.
func (s *parsedFiles) wantBodies(t *testing.T, f *ast.File) {
	t.Helper()
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body == nil {
			t.Errorf("%s: %s has no body for this platform", s.set.Position(fn.Pos()), fn.Name.Name)
		}
	}
}

// imports finds packages that were checked before, by the names that a package uses for them.
type imports struct {
	known map[string]*types.Package
	names map[string]string
}

func (i imports) Import(path string) (*types.Package, error) {
	if name := i.names[path]; name != "" {
		path = name
	}
	if p := i.known[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%s could not be checked", path)
}
