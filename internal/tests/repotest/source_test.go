package repotest

import (
	"go/ast"
	"go/build/constraint"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// packages groups the files of the tree by folder, without external tests.
func packages(t testing.TB) map[string][]source {
	all := map[string][]source{}
	for _, s := range sources(t) {
		if !strings.HasSuffix(s.ast.Name.Name, "_test") {
			all[s.folder()] = append(all[s.folder()], s)
		}
	}
	return all
}

// opening is how a package's comment must begin, and the files in which it may be.
func opening(folder, name string) (begin string, files []string) {
	last := path.Base(folder)
	if name == "main" {
		return "Command " + last + " ", []string{"doc.go", "main.go", last + ".go"}
	}
	return "Package " + name + " ", []string{"doc.go", name + ".go"}
}

// firstSentence returns a comment up to its first full stop before a space.
func firstSentence(comment string) string {
	line := strings.Join(strings.Fields(comment), " ")
	if i := strings.Index(line, ". "); i >= 0 {
		return line[:i+1]
	}
	return line
}

const longestFirstSentence = 260 // characters; what a newcomer can repeat

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	said := map[string]string{}
	for folder, files := range packages(t) {
		name := files[0].ast.Name.Name
		begin, allowed := opening(folder, name)
		var comments []source
		for _, s := range files {
			if s.ast.Doc != nil {
				comments = append(comments, s)
			}
		}
		if len(comments) != 1 {
			t.Errorf(
				"%s: %d package comments, want one, in %s: two of them drift apart and none leaves a newcomer at the door",
				folder,
				len(comments),
				strings.Join(allowed, " or "),
			)
			continue
		}
		s := comments[0]
		if !slices.Contains(allowed, path.Base(s.path)) {
			t.Errorf(
				"%s holds the package comment, want it in %s: that is where a reader starts",
				s.path,
				strings.Join(allowed, " or "),
			)
		}
		first := firstSentence(s.ast.Doc.Text())
		switch {
		case !strings.HasPrefix(first, begin):
			t.Errorf("%s: the package comment begins %.40q, want %q", s.path, first, begin)
		case !strings.HasSuffix(first, ".") && !strings.HasSuffix(first, ":"):
			t.Errorf("%s: the package comment's first sentence has no end: %.60q", s.path, first)
		case len([]rune(first)) > longestFirstSentence:
			t.Errorf(
				"%s: the package comment's first sentence has %d characters, want at most %d",
				s.path,
				len([]rune(first)),
				longestFirstSentence,
			)
		}
		rest := strings.TrimPrefix(first, begin)
		if other, twice := said[rest]; twice {
			t.Errorf(
				"%s and %s say the same of themselves: two rooms with one purpose want to be one room",
				folder,
				other,
			)
		}
		said[rest] = folder
	}
}

var drawers = []string{"util", "utils", "common", "helper", "helpers", "misc", "shared", "base", "testutil"}

func TestNoPackageHasAMeaninglessName(t *testing.T) {
	for folder, files := range packages(t) {
		for _, name := range []string{path.Base(folder), files[0].ast.Name.Name} {
			if slices.Contains(drawers, name) {
				t.Errorf(
					"%s: a room called %q has no purpose a reader could guess; name it for what it does",
					folder,
					name,
				)
			}
		}
	}
}

const longestFile = 900 // lines

func TestNoFileIsEndless(t *testing.T) {
	for _, s := range sources(t) {
		if n := strings.Count(s.text, "\n"); n > longestFile && !generated(s) {
			t.Errorf("%s has %d lines, want at most %d: it holds more than one thing", s.path, n, longestFile)
		}
	}
}

func generated(s source) bool { return ast.IsGenerated(s.ast) }

// platformFolders are the folders whose code may differ between platforms.
var platformFolders = []string{
	"internal/files/filelock", "internal/files/fusemount", "internal/files/merged", "internal/files/stage",
	"internal/exec", "internal/sandbox", "internal/cluster/rawconn",
	"internal/access/identity", "internal/server/daemon", "internal/server/socket",
	"internal/server/httpserver/hangup", "internal/modules/system/swap", "internal/modules/system/wireguard",
	"internal/tests/machinetest", "cmd/gatehouse",
}

var platformFile = regexp.MustCompile(
	`_(linux|darwin|windows|freebsd|openbsd|netbsd|solaris|plan9|js|wasip1|amd64|arm64|386|arm|wasm)(_test)?\.go$`,
)

func TestPlatformsDifferInFewFolders(t *testing.T) {
	const why = "a difference between platforms belongs behind filelock, fusemount, merged, stage, exec, sandbox, rawconn, identity, " +
		"daemon, socket, hangup, swap or wireguard, so that the rest is the same everywhere"
	for _, s := range sources(t) {
		if anyWithin(s.folder(), platformFolders) {
			continue
		}
		if platformFile.MatchString(s.path) {
			t.Errorf("%s is built on one platform only: %s", s.path, why)
		}
		for _, group := range s.ast.Comments {
			for _, c := range group.List {
				race := c.Text == "//go:build !race" && strings.HasSuffix(s.path, "norace_test.go")
				if constraint.IsGoBuild(c.Text) && c.Pos() < s.ast.Package && !race {
					t.Errorf("%s:%d has %q: %s", s.path, s.line(c), c.Text, why)
				}
			}
		}
	}
}

// stdoutFolders may use standard output: the commands that print their result, and the public package, whose
// ServeStdio passes it to the protocol.
var stdoutFolders = []string{"cmd", "internal/cli", "internal/tests/conformance", "internal/tests/repotest/count", "."}

// On stdio, standard output belongs to the protocol: one stray line ends the
// conversation.
//
//redteam:attack Nothing but protocol reaches standard output: code of the host prints
func TestNobodyElseWritesToStdout(t *testing.T) {
	for _, s := range sources(t) {
		if s.isTest() || anyWithin(s.folder(), stdoutFolders) {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, ok := sel.X.(*ast.Ident)
			if !ok {
				return true
			}
			switch pkg.Name + "." + sel.Sel.Name {
			case "os.Stdout", "fmt.Print", "fmt.Println", "fmt.Printf":
				t.Errorf(
					"%s:%d uses %s.%s: on stdio nothing but protocol may reach standard output; "+
						"log through the logger or take an io.Writer",
					s.path,
					s.line(sel),
					pkg.Name,
					sel.Sel.Name,
				)
			}
			return true
		})
	}
}
