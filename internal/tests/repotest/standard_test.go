package repotest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/tests/repotest/catalog"
	"gatehouse/internal/tests/repotest/pages"
)

func catalogModules(t *testing.T) []catalog.Module {
	t.Helper()
	all, err := catalog.Standard(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestToolsAreWellDefined(t *testing.T) {
	for _, m := range catalogModules(t) {
		for _, one := range m.Tools {
			for _, fault := range faults(m.Name, one) {
				t.Errorf("%s: %s", one.Def.Name, fault)
			}
		}
	}
}

func TestToolsLookAsTheyDid(t *testing.T) {
	kept := map[string]bool{}
	for _, m := range catalogModules(t) {
		for _, one := range m.Tools {
			text, err := snap(one)
			if err != nil {
				t.Errorf("%s: %v", one.Def.Name, err)
				continue
			}
			file := filepath.Join("testdata", "tools", one.Def.Name+".json")
			kept[file] = true
			keep(t, file, text)
		}
	}
	dropLeft(t, filepath.Join("testdata", "tools", "*.json"), kept, "go test ./internal/tests/repotest -update")
}

// dropLeft finds files of things that no longer exist.
func dropLeft(t *testing.T, pattern string, kept map[string]bool, remedy string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		switch {
		case kept[file]:
		case *update:
			if err := os.Remove(file); err != nil {
				t.Error(err)
			}
		default:
			t.Errorf("%s is of something that is no longer there; run %s", file, remedy)
		}
	}
}

func TestToolsListedAsPresentAreOffered(t *testing.T) {
	var offered []string
	for _, m := range catalogModules(t) {
		for _, one := range m.Tools {
			offered = append(offered, one.Def.Name)
		}
	}
	for _, e := range coverage(t) {
		if e.kind != "tool" || e.status != "present" {
			continue
		}
		for _, name := range e.ourNames() {
			if !slices.Contains(offered, name) {
				t.Errorf(
					"docs/coverage.md:%d: tool %s is listed as present, but no standard module offers %s",
					e.line,
					e.name,
					name,
				)
			}
		}
	}
}

func TestGeneratedDocsAreCurrent(t *testing.T) {
	const remedy = "go generate ./internal/tests/repotest/gen"
	dir := filepath.Join(top(t), "docs", "modules")
	kept := map[string]bool{}
	for _, m := range catalogModules(t) {
		want, err := pages.Page(m)
		if err != nil {
			t.Errorf("page of module %s: %v", m.Name, err)
			continue
		}
		file := filepath.Join(dir, m.Name+".md")
		kept[file] = true
		got, err := os.ReadFile(file)
		if err != nil {
			t.Errorf("module %s has no page; run %s: %v", m.Name, remedy, err)
			continue
		}
		if string(got) != want {
			t.Errorf(
				"docs/modules/%s.md does not say what the module says now; run %s\nfirst difference: %s",
				m.Name,
				remedy,
				firstDifference(string(got), want),
			)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !kept[file] {
			t.Errorf("%s is the page of a module that is no longer there; run %s", file, remedy)
		}
	}
}

// firstDifference returns the first line of want that differs in got.
func firstDifference(got, want string) string {
	was := strings.Split(got, "\n")
	for i, line := range strings.Split(want, "\n") {
		if i >= len(was) || was[i] != line {
			return line
		}
	}
	return "the page goes on after its end"
}

// Clients show titles to users, some model APIs refuse an input schema without properties, and some clients refuse
// an output schema that may be null or is empty.
func TestToolsCanBeListedEverywhere(t *testing.T) {
	for _, m := range catalogModules(t) {
		for _, one := range m.Tools {
			if one.Def.Title == "" {
				t.Errorf("%s has no title", one.Def.Name)
			}
			if v, ok := rawjson.Get(one.Input, "properties"); !ok || rawjson.Kind(v) != '{' {
				t.Errorf("%s: the input schema has no properties", one.Def.Name)
			}
			for _, bad := range []string{`["array","null"]`, `["object","null"]`, `:{}`} {
				if strings.Contains(string(one.Output), bad) {
					t.Errorf("%s: the output schema holds %s: %s", one.Def.Name, bad, one.Output)
				}
			}
		}
	}
}
