package app

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/modules/standard"
)

// The context core replaces the server of design C: its names, complete structured results, and content that this
// program's own tools would split into pages comes whole.
func TestCoreStandsInForDesignC(t *testing.T) {
	cfg := settings(t)
	cfg.View.Modules = []string{"core"}
	dir := cfg.Roots.Folders[0]
	text := strings.Repeat("a line of text, and what is \"quoted\"\n", 200_000)
	if err := os.WriteFile(filepath.Join(dir, "big.txt"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%03d", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, ".gitignore"), []byte("f*\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, client := liveOn(t, cfg, Options{})
	if got := a.Modules(); !slices.Equal(got, []string{"core"}) {
		t.Errorf("it serves %v", got)
	}
	c := client("ann")
	names := c.names("core")
	slices.Sort(names)
	want := slices.Sorted(slices.Values(standard.Views()[0].Tools))
	if !slices.Equal(names, want) || len(names) != 28 {
		t.Errorf("lists %v, want %v", names, want)
	}
	for name, schema := range c.schemas("core") {
		if schema == nil {
			t.Errorf("%s has no output schema", name)
		}
	}
	result := func(name, args string, into any) {
		r := c.toolResult("core", name, args)
		if r.IsError || json.Unmarshal(r.StructuredContent, into) != nil {
			t.Errorf("%s: error %t, %.300s", name, r.IsError, r.StructuredContent)
		}
	}
	var read struct{ Content, Language, Path string }
	if result("file_read", `{"path":"big.txt"}`, &read); read.Content != text || read.Path != "big.txt" {
		t.Errorf("read %d of %d bytes of %s", len(read.Content), len(text), read.Path)
	}
	if result("file_read", `{"path":"big.txt","limit":1}`, &read); strings.Count(read.Content, "\n") != 1 {
		t.Errorf("a part that is asked for has %d bytes", len(read.Content))
	}
	var list struct{ Entries []struct{ Name string } }
	if result("dir_list", `{"path":"."}`, &list); len(list.Entries) != 302 {
		t.Errorf("lists %d entries", len(list.Entries))
	}
	var langs struct {
		Languages []struct{ ID string }
		Total     int
	}
	if result("lang_list", `{}`, &langs); len(langs.Languages) != langs.Total || langs.Total < 100 {
		t.Errorf("lists %d of %d languages", len(langs.Languages), langs.Total)
	}
	var began struct{ ID string }
	result(
		"process_start",
		`{"command":"/bin/sh","args":["-c","i=0; while [ $i -lt 5000 ]; do echo 'line of output'; i=$((i+1)); done"]}`,
		&began,
	)
	var printed struct{ Output string }
	eventually(t, "it has printed all", func() bool {
		result("process_output", fmt.Sprintf(`{"id":%q}`, began.ID), &printed)
		return strings.Count(printed.Output, "\n") == 5000
	})
	var processes struct {
		Processes []struct {
			Duration        int64   `json:"duration"`
			DurationSeconds float64 `json:"durationSeconds"`
		}
	}
	result("process_list", `{}`, &processes)
	if p := processes.Processes; len(p) != 1 || p[0].Duration <= 0 ||
		p[0].DurationSeconds != float64(p[0].Duration)/1e9 {
		t.Errorf("processes are %+v", p)
	}
}

// Naming core adds its modules to no other context, and does not move modules that were named themselves.
func TestModulesOfCoreAreApart(t *testing.T) {
	for named, want := range map[string]string{"core": "", "core file": "file_read"} {
		cfg := settings(t)
		cfg.View.Modules = strings.Fields(named)
		_, client := liveOn(t, cfg, Options{})
		names := client("ann").names("default")
		if slices.Contains(names, "process_start") || slices.Contains(names, "file_read") != (want != "") {
			t.Errorf("%s: the default context lists %v", named, names)
		}
	}
	cfg := settings(t)
	cfg.View.Modules, cfg.View.Tools = []string{"core"}, []string{"file_*", "!file_delete"}
	_, client := liveOn(t, cfg, Options{})
	if names := client("ann").names("core"); len(names) != 5 || slices.Contains(names, "file_delete") {
		t.Errorf("with patterns it lists %v", names)
	}
}
