package repotest

import (
	"go/ast"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// entry is one line of docs/coverage.md.
type entry struct {
	design, kind, name, status, note string
	line                             int
}

// parts are the parts of the program that a later line may wait for.
var parts = []string{"files", "gate", "live state", "host tools", "sandboxes", "packages", "services"}

// inventory is the number of each kind of thing in each design.
var inventory = map[string]map[string]int{
	"Design A": {"tool": 89, "resource": 4, "endpoint": 5},
	"Design B": {"tool": 3, "prompt": 1, "resource": 2, "endpoint": 5},
	"Design C": {"tool": 49, "variable": 5, "endpoint": 3},
	"Design D": {"tool": 8, "variable": 10, "endpoint": 4},
	"Design E": {"tool": 13, "sql tool": 4, "flag": 20, "endpoint": 4},
}

// groups is the distribution of design A's tools, so that none is overlooked.
var groups = map[string]int{
	"server": 21, "package": 18, "notification": 6, "ssh": 3, "backup": 8,
	"net": 17, "wifi": 7, "auth": 4, "db": 2, "disk": 2, "system": 1,
}

func coverage(t testing.TB) []entry {
	t.Helper()
	var all []entry
	for _, r := range tableRows(t, "docs/coverage.md") {
		if len(r.cells) != 4 {
			t.Errorf(
				"docs/coverage.md:%d has %d cells, want kind, name, status and what is ours or why not",
				r.line,
				len(r.cells),
			)
			continue
		}
		all = append(all, entry{r.section, r.cells[0], r.cells[1], r.cells[2], r.cells[3], r.line})
	}
	return all
}

var quoted = regexp.MustCompile("`([^`]+)`")

// ourNames returns the names in backquotes at the beginning of a note.
func (e entry) ourNames() []string {
	var names []string
	rest := e.note
	for {
		m := quoted.FindStringSubmatchIndex(rest)
		if m == nil || strings.TrimSpace(rest[:m[0]]) != "" {
			return names
		}
		names = append(names, rest[m[2]:m[3]])
		rest = rest[m[1]:]
	}
}

func TestCoverageIsComplete(t *testing.T) {
	counts := map[string]map[string]int{}
	statuses := map[string]int{}
	spread := map[string]int{}
	seen := map[string]int{}
	for _, e := range coverage(t) {
		if counts[e.design] == nil {
			counts[e.design] = map[string]int{}
		}
		counts[e.design][e.kind]++
		statuses[e.status]++
		if e.design == "Design A" && e.kind == "tool" {
			group, _, _ := strings.Cut(e.name, ".")
			spread[group]++
		}
		id := e.design + " " + e.kind + " " + e.name
		if seen[id] != 0 {
			t.Errorf("docs/coverage.md:%d: %s stands on line %d already", e.line, id, seen[id])
		}
		seen[id] = e.line
	}
	for design, kinds := range inventory {
		for kind, want := range kinds {
			if got := counts[design][kind]; got != want {
				t.Errorf("docs/coverage.md: %s has %d lines of kind %s, want %d", design, got, kind, want)
			}
		}
	}
	if !maps.Equal(spread, groups) {
		t.Errorf("docs/coverage.md: design A's tools are spread %v, want %v", spread, groups)
	}
	for _, design := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%s: %v", design, counts[design])
	}
	t.Logf("by status: %v", statuses)
}

func TestCoverageLinesSayEnough(t *testing.T) {
	kinds := []string{
		"tool",
		"sql tool",
		"flag",
		"variable",
		"endpoint",
		"resource",
		"prompt",
		"command",
		"header",
		"option",
		"behaviour",
		"addition",
	}
	for _, e := range coverage(t) {
		if !slices.Contains(kinds, e.kind) {
			t.Errorf("docs/coverage.md:%d: kind %q is none of %s", e.line, e.kind, strings.Join(kinds, ", "))
		}
		switch e.status {
		case "present":
			if len(e.ourNames()) == 0 {
				t.Errorf(
					"docs/coverage.md:%d: %s is present, but the line does not begin with our name for it in backquotes",
					e.line,
					e.name,
				)
			}
		case "later":
			part, what, _ := strings.Cut(e.note, ":")
			if !slices.Contains(parts, part) || strings.TrimSpace(what) == "" {
				t.Errorf(
					"docs/coverage.md:%d: %s comes later, want one of %s, a colon and what it will be",
					e.line,
					e.name,
					strings.Join(parts, ", "),
				)
			}
		case "refused":
			if len(e.note) < len("flags of the SQL server") {
				t.Errorf("docs/coverage.md:%d: %s is refused without a reason", e.line, e.name)
			}
		default:
			t.Errorf(
				"docs/coverage.md:%d: status %q of %s is none of present, later, refused",
				e.line,
				e.status,
				e.name,
			)
		}
	}
}

// standard_test.go compares tools with the standard modules, and endpoints_test.go requests endpoints; everything
// else is searched here.
func TestWhatIsPresentExists(t *testing.T) {
	h := sourceTree{
		t:       t,
		sources: sources(t),
		help:    answer(t, "--help"),
		serve: answer(
			t,
			"serve",
			"--help",
		) + answer(
			t,
			"context",
			"create",
			"--help",
		) + answer(
			t,
			"daemon",
			"start",
			"--help",
		),
	}
	for _, e := range coverage(t) {
		if e.status != "present" {
			continue
		}
		for _, name := range e.ourNames() {
			if !h.contains(e.kind, name) {
				t.Errorf(
					"docs/coverage.md:%d: %s %s is listed as present, but there is no %s",
					e.line,
					e.kind,
					e.name,
					name,
				)
			}
		}
	}
}

// sourceTree is the source of this repository, with the help texts of the program.
type sourceTree struct {
	t           *testing.T
	sources     []source
	help, serve string // what the binary says of itself; "" before there is one
}

// contains reports whether something of a kind exists under a name.
func (h sourceTree) contains(kind, name string) bool {
	switch kind {
	case "flag":
		return h.serve == "" || hasWord(h.serve, name)
	case "addition":
		if strings.Contains(name, "_") { // a tool
			return h.mentions([]string{"internal/modules"}, `"`+name+`"`)
		}
		return h.help == "" || hasWord(h.help, name)
	case "command":
		return h.help == "" || hasWord(h.help, name)
	case "variable":
		return h.mentions([]string{"internal/config", "internal/cli"}, `"`+name+`"`)
	case "header":
		return h.mentions(
			[]string{"internal/server/httpserver", "internal/mcp/protocol", "internal/access/identity"},
			name,
		)
	case "option":
		return h.exports(name)
	case "behaviour":
		_, err := os.Stat(filepath.Join(top(h.t), filepath.FromSlash(name)))
		return err == nil
	}
	return true
}

// hasWord reports whether a help text names a command or flag: no letter or dash follows the name.
func hasWord(text, name string) bool {
	return regexp.MustCompile(`(^|[\s,])` + regexp.QuoteMeta(name) + `($|[\s,=\[])`).MatchString(text)
}

// mentions reports whether the product's source in some folders contains a text. It returns true if none of the
// folders exists yet.
func (h sourceTree) mentions(folders []string, text string) bool {
	built := false
	for _, s := range h.sources {
		if s.isTest() || !anyWithin(s.folder(), folders) {
			continue
		}
		built = true
		if strings.Contains(s.text, text) {
			return true
		}
	}
	return !built
}

// exports reports whether the public package declares a function or method.
func (h sourceTree) exports(name string) bool {
	built := false
	for _, s := range h.sources {
		if s.isTest() || s.folder() != "." {
			continue
		}
		built = true
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == name {
				return true
			}
		}
	}
	return !built
}

// answer returns the standard output of the program, or "" if the command does not exist yet.
func answer(t *testing.T, args ...string) string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(top(t), "cmd", "gatehouse")); err != nil {
		t.Log("cmd/gatehouse is not built yet: commands and flags are not looked for")
		return ""
	}
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"run", "./cmd/gatehouse"}, args...)...)
	cmd.Dir = top(t)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("gatehouse %s: %v\n%s", strings.Join(args, " "), err, out)
		return ""
	}
	return string(out)
}
