package app

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/dispatch/views"
)

// The example of docs/contexts.md, in a context of the store and in one of the settings.
func TestDocumentedShape(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "contexts.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(doc), "## What it changes in tools")
	_, part, _ = strings.Cut(part, "```json\n")
	example, _, ok := strings.Cut(part, "```")
	var d contextstore.Definition
	if err := d.ReadJSON([]byte(example)); err != nil || !ok {
		t.Fatalf("%s: %v", example, err)
	}
	d.Modules = []string{"file"}
	cfg := settings(t)
	dir := cfg.Roots.Folders[0]
	for name, text := range map[string]string{"a.md": "needle\n", "b.txt": "needle\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Contexts = []config.Context{
		{Name: "fixed", Modules: d.Modules, Rename: d.Rename, Describe: d.Describe, Shape: d.Shape},
	}
	a, client := liveOn(t, cfg, Options{})
	if _, err := a.contextStore.Create(contextstore.Record{Name: "stored", Definition: d}, "ann"); err != nil {
		t.Fatal(err)
	}
	ann := client("ann")
	for _, in := range []string{"fixed", "stored"} {
		eventually(t, "the context is there", func() bool { return len(ann.names(in)) > 0 })
		listed := ann.say(in, "tools/list", ``)
		_, listed, _ = strings.Cut(listed, `"name":"find_notes"`)
		listed, _, _ = strings.Cut(listed, `"name":"file_`)
		if !strings.Contains(listed, "notes of the team") || !strings.Contains(listed, `"default":20`) ||
			strings.Contains(listed, "glob") {
			t.Errorf("%s lists %s", in, listed)
		}
		if got := ann.call(in, "find_notes", `{"pattern":"needle"}`); !strings.Contains(got, "a.md") ||
			strings.Contains(got, "b.txt") {
			t.Errorf("%s finds %s", in, got)
		}
		if got := ann.call(in, "find_notes", `{"pattern":"needle","glob":"*"}`); !strings.Contains(got,
			"leave it out") {
			t.Errorf("%s accepts a fixed argument: %s", in, got)
		}
		if got := ann.call(in, "file_stat", `{"path":"a.md"}`); !strings.Contains(got, `"size":7`) ||
			strings.Contains(got, "modified") {
			t.Errorf("%s returns %s", in, got)
		}
	}
}

// A shape that does not fit a tool of a module is a mistake in the settings, with its place.
func TestCheckShapeSettings(t *testing.T) {
	cfg := settings(t)
	for want, s := range map[string]views.Shape{
		"fixed.globe": {Tool: "file_search", Fixed: map[string]string{"globe": "*.md"}},
		"limit":       {Tool: "file_search", Defaults: map[string]string{"limit": "5000"}},
	} {
		cfg.Contexts = []config.Context{{Name: "x", Modules: []string{"file"}, Shape: []views.Shape{s}}}
		err := CheckSettings(cfg)
		problem, ok := errors.AsType[*config.SettingProblem](err)
		if !ok || problem.Path != "contexts[0].shape[0]" || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	cfg.Contexts[0].Shape = []views.Shape{{Tool: "github_search", Fixed: map[string]string{"owner": "acme"}}}
	if err := CheckSettings(cfg); err != nil {
		t.Errorf("a tool of a package, which the settings do not know: %v", err)
	}
}
