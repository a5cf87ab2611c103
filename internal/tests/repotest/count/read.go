package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

// figures are the sums over one tree. Product stands for what is outside
// files of tests.
type figures struct {
	name                               string
	lines, code, comments, files, long int
	productLines, productCode          int
	productComments                    int
	banned, contexts, mutexes          int
	functions, fileLengths             []int
	packages, folders                  map[string]bool
	functionNames                      []functionName
	interfaces                         map[string]bool // methods of interfaces, see methodKey
	large                              []string        // structs with 30 or more fields
}

// functionName is the name of a function or method outside tests.
type functionName struct {
	name, folder string
	method       bool
	program      bool // in a package main
}

// methodKey identifies a method that types may share because an interface asks
// for it. Only types of the same package can implement an unexported method.
func methodKey(name, folder string) string {
	if ast.IsExported(name) {
		return name
	}
	return folder + "." + name
}

// bannedWords are words for persons in general. The text should say the
// caller, the user, the client or the administrator.
var bannedWords = regexp.MustCompile(`(?i)\b(whoever|nobody|somebody|everybody|anybody)\b`)

const (
	longLine    = 120 // columns
	tabColumns  = 4
	largeStruct = 30 // fields
)

// read sums up the Go files below dir.
func read(dir string) (*figures, error) {
	name, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	f := &figures{
		name:       filepath.Base(name),
		packages:   map[string]bool{},
		folders:    map[string]bool{},
		interfaces: map[string]bool{},
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			skip := strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules"
			if path != dir && skip {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return f.countFile(path, filepath.ToSlash(rel))
	})
	return f, err
}

// countFile counts one file.
func (f *figures) countFile(path, rel string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	if ast.IsGenerated(parsed) {
		return nil
	}
	f.files++
	parts := strings.Split(rel, "/")
	if parts[0] == "internal" && len(parts) > 2 {
		f.folders[parts[1]] = true
	}
	f.packages[filepath.Dir(rel)] = true
	test := strings.HasSuffix(rel, "_test.go")
	f.countLines(string(text), fset, parsed, test)
	f.countDeclarations(fset, parsed, rel, test)
	return nil
}

// countLines counts lines of code, of comments, and long ones.
func (f *figures) countLines(text string, fset *token.FileSet, parsed *ast.File, test bool) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	comment := make([]bool, len(lines)+1)
	for _, group := range parsed.Comments {
		for _, c := range group.List {
			f.banned += len(bannedWords.FindAllString(c.Text, -1))
			for n := fset.Position(c.Pos()).Line; n <= fset.Position(c.End()).Line && n <= len(lines); n++ {
				comment[n] = true
			}
		}
	}
	code, comments := 0, 0
	for i, line := range lines {
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "":
		case comment[i+1] && (strings.HasPrefix(trimmed, "//") || strings.HasPrefix(trimmed, "/*") ||
			strings.HasPrefix(trimmed, "*")):
			comments++
		case comment[i+1]:
			comments++
			code++
		default:
			code++
		}
		if utf8.RuneCountInString(strings.ReplaceAll(line, "\t", strings.Repeat(" ", tabColumns))) > longLine {
			f.long++
		}
	}
	f.lines += len(lines)
	f.code += code
	f.comments += comments
	f.fileLengths = append(f.fileLengths, len(lines))
	if !test {
		f.productLines += len(lines)
		f.productCode += code
		f.productComments += comments
	}
}

// countDeclarations counts functions, their names, interfaces and structs.
func (f *figures) countDeclarations(fset *token.FileSet, parsed *ast.File, rel string, test bool) {
	if test {
		return
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			f.functionNames = append(f.functionNames, functionName{
				name: n.Name.Name, folder: filepath.Dir(rel), method: n.Recv != nil, program: parsed.Name.Name == "main",
			})
			if n.Body != nil {
				f.functions = append(f.functions, fset.Position(n.End()).Line-fset.Position(n.Pos()).Line+1)
			}
		case *ast.InterfaceType:
			for _, m := range n.Methods.List {
				for _, name := range m.Names {
					f.interfaces[methodKey(name.Name, filepath.Dir(rel))] = true
				}
			}
		case *ast.TypeSpec:
			if s, ok := n.Type.(*ast.StructType); ok {
				f.countStruct(n.Name.Name, s, rel)
			}
		}
		return true
	})
}

func (f *figures) countStruct(name string, s *ast.StructType, rel string) {
	fields, mutexes, context := 0, 0, false
	for _, field := range s.Fields.List {
		n := max(len(field.Names), 1)
		fields += n
		switch typeName(field.Type) {
		case "sync.Mutex", "sync.RWMutex":
			mutexes += n
		case "context.Context":
			context = true
		}
	}
	if context {
		f.contexts++
	}
	if mutexes > 1 {
		f.mutexes++
	}
	if fields >= largeStruct {
		f.large = append(f.large, filepath.Dir(rel)+"."+name)
	}
}

// typeName returns the name of a type of another package, or "".
func typeName(e ast.Expr) string {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	pkg, ok := sel.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return pkg.Name + "." + sel.Sel.Name
}
