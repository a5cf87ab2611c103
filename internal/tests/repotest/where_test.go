package repotest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/config"
	"gatehouse/internal/tests/repotest/catalog"
)

// whereToLook maps the rows of the table "Where to look" to what must be found
// in the folders of the row.
var whereToLook = map[string]func(t *testing.T, folders []string){
	"a tool":                       findTools,
	"a setting":                    findSettings,
	"a command or a flag":          findCommands,
	"an error code of JSON-RPC":    findCodes,
	"a metric of Prometheus":       findMetrics,
	"an entry below `/public`":     findPublic,
	"the code of a tool's refusal": findRefusals,
	"the files of an MCP client":   findClients,
}

// TestTheTableLeadsToTheCode follows every row of the table in docs/design.md.
func TestTheTableLeadsToTheCode(t *testing.T) {
	followed := map[string]bool{}
	for _, row := range tableRows(t, "docs/design.md") {
		if row.section != "Where to look" {
			continue
		}
		follow := whereToLook[row.cells[0]]
		if follow == nil {
			t.Errorf("docs/design.md:%d: no test follows the row %q", row.line, row.cells[0])
			continue
		}
		followed[row.cells[0]] = true
		var folders []string
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row.cells[1], -1) {
			folders = append(folders, m[1])
		}
		t.Run(row.cells[0], func(t *testing.T) { follow(t, folders) })
	}
	if len(followed) != len(whereToLook) {
		t.Errorf(
			"docs/design.md has the rows %q, want %q",
			slices.Sorted(maps.Keys(followed)),
			slices.Sorted(maps.Keys(whereToLook)),
		)
	}
}

// findIn fails unless a product file in one of the folders contains each text.
func findIn(t *testing.T, folders []string, texts ...string) {
	t.Helper()
	if len(texts) == 0 {
		t.Fatal("there is nothing to look for")
	}
	missing := map[string]bool{}
	for _, text := range texts {
		missing[text] = true
	}
	for _, s := range sources(t) {
		if s.isTest() || !anyWithin(s.folder(), folders) {
			continue
		}
		for text := range missing {
			if strings.Contains(s.text, text) {
				delete(missing, text)
			}
		}
	}
	for _, text := range slices.Sorted(maps.Keys(missing)) {
		t.Errorf("%s is not in %s", text, strings.Join(folders, ", "))
	}
}

func findTools(t *testing.T, folders []string) {
	modules, err := catalog.Standard(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range modules {
		for _, one := range m.Tools {
			name := one.Def.Name
			if m.Name == "filesystem" { // it has the names of the server that it stands in for, after its own
				name = strings.TrimPrefix(name, "filesystem_")
			}
			names = append(names, fmt.Sprintf("%q", name))
		}
	}
	findIn(t, folders, names...)
}

// findClients looks for the clients that docs/connect.md lists.
func findClients(t *testing.T, folders []string) {
	var names []string
	for _, row := range tableRows(t, "docs/connect.md") {
		if row.section == "Clients" {
			name, _, _ := strings.Cut(strings.TrimPrefix(row.cells[1], "`"), "`")
			names = append(names, fmt.Sprintf("%q", name))
		}
	}
	findIn(t, folders, names...)
}

// findSettings checks that each struct of the configuration is declared in one
// of the folders.
func findSettings(t *testing.T, folders []string) {
	seen := map[reflect.Type]bool{}
	var visit func(reflect.Type)
	visit = func(rt reflect.Type) {
		switch rt.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			visit(rt.Elem())
		case reflect.Struct:
			if seen[rt] || !strings.HasPrefix(rt.PkgPath(), ours+"/") {
				return
			}
			seen[rt] = true
			if !slices.ContainsFunc(reflect.VisibleFields(rt), reflect.StructField.IsExported) {
				return // a value, such as a secret
			}
			folder := strings.TrimPrefix(rt.PkgPath(), ours+"/")
			if !anyWithin(folder, folders) {
				t.Errorf("%s is declared in %s, which the table does not name", rt, folder)
			}
			for f := range rt.Fields() {
				visit(f.Type)
			}
		}
	}
	visit(reflect.TypeFor[config.Config]())
	if len(seen) < 10 {
		t.Errorf("found %d structs of settings", len(seen))
	}
}

// findCommands looks for the commands and flags that README.md and the pages
// of documents use.
func findCommands(t *testing.T, folders []string) {
	files, err := filepath.Glob(filepath.Join(top(t), "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]bool{}
	command := regexp.MustCompile(`(?m)^    (?:bin/)?gatehouse ([a-z]+)`)
	for _, file := range append(files, filepath.Join(top(t), "README.md")) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range command.FindAllSubmatch(b, -1) {
			texts[`"`+string(m[1])] = true
		}
	}
	findIn(t, folders, append(slices.Collect(maps.Keys(texts)), `"read-only"`, `"require-auth"`, `"insecure"`,
		`"allow"`)...)
}

func findCodes(t *testing.T, folders []string) {
	findIn(t, folders, "-32700", "-32600", "-32601", "-32602", "-32603", "-32002", "-32020", "-32021", "-32042")
}

func findMetrics(t *testing.T, folders []string) {
	findIn(t, folders, `"gatehouse_call_duration_seconds"`, `"gatehouse_events_total"`, `"gatehouse_" + name`)
}

func findPublic(t *testing.T, folders []string) {
	var names []string
	for _, row := range tableRows(t, "docs/state.md") {
		if name, ok := strings.CutPrefix(strings.Trim(row.cells[0], "`"), "/public/"); ok &&
			!strings.Contains(name, "{") {
			names = append(names, name)
		}
	}
	findIn(t, folders, names...)
}

func findRefusals(t *testing.T, folders []string) {
	findIn(t, folders, "type Refusal struct", "func Refuse(")
}
