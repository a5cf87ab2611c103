package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestCount counts a tree that contains one of each thing that is counted.
func TestCount(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var shared strings.Builder
	for i := range sharedLimit + 1 {
		shared.WriteString("type T" + string(rune('a'+i)) + " struct{}\n")
		shared.WriteString(
			"func (T" + string(rune('a'+i)) + ") add() {}\nfunc (T" + string(rune('a'+i)) + ") put() {}\n",
		)
	}
	write("internal/one/one.go", "// Package one is for nobody.\npackage one\n\n"+
		"import (\n\t\"context\"\n\t\"sync\"\n)\n\n"+
		"type putter interface{ put() }\n\n"+
		"type both struct {\n\tctx context.Context\n\ta, b sync.Mutex\n}\n\n"+
		"var long = `"+strings.Repeat("x", longLine)+"`\n\n"+shared.String())
	for i := range sharedLimit + 1 {
		write("cmd/"+string(rune('a'+i))+"/main.go", "package main\n\nfunc main() { run() }\n\nfunc run() {}\n")
	}
	write("internal/two/two_test.go", "package two\n\n// Everybody is tested.\nfunc helper() {}\n")
	write("internal/two/testdata/three.go", "package broken {\n")

	f, err := read(dir)
	if err != nil {
		t.Fatal(err)
	}
	const programs = sharedLimit + 1
	if len(f.folders) != 2 || len(f.packages) != 2+programs || f.files != 2+programs {
		t.Errorf("folders %d, packages %d, files %d; want 2, 13 and 13", len(f.folders), len(f.packages), f.files)
	}
	if f.banned != 2 || f.comments != 2 || f.long != 1 || f.contexts != 1 || f.mutexes != 1 {
		t.Errorf("banned %d, comments %d, long %d, contexts %d, mutexes %d; want 2, 2, 1, 1, 1",
			f.banned, f.comments, f.long, f.contexts, f.mutexes)
	}
	if got := f.sharedNames(); !slices.Equal(got, []string{"add (11)"}) {
		t.Errorf("shared names %q, want add alone: put implements an interface, and main calls run", got)
	}
	if out := table([]*figures{f, f}); strings.Count(out, "\n") != len(f.rows())+1 {
		t.Errorf("table has the wrong number of lines:\n%s", out)
	}
}
