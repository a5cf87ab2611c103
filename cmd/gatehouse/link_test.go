package main

import (
	"bufio"
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnusedMethodsAreNotLinked keeps the linker free to drop the methods that
// nothing calls. It may not if the program can reach one function that finds
// methods by a name known only when it runs, as text/template does to execute a
// template: then every exported method stays, which was 5 MB of 44.
func TestUnusedMethodsAreNotLinked(t *testing.T) {
	if testing.Short() {
		t.Skip("links the program once more")
	}
	link := exec.Command("go", "build", "-ldflags=-dumpdep", "-o", filepath.Join(t.TempDir(), "gatehouse"), ".")
	var graph bytes.Buffer
	link.Stderr = &graph
	if err := link.Run(); err != nil {
		t.Fatalf("%v\n%.2000s", err, graph.String())
	}
	const mark = " <ReflectMethod>"
	caller, found := map[string]string{}, ""
	lines := bufio.NewScanner(&graph)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		from, to, arrow := strings.Cut(lines.Text(), " -> ")
		if !arrow {
			continue
		}
		name, _, _ := strings.Cut(to, " <")
		if from, _, _ = strings.Cut(from, " <"); caller[name] == "" {
			caller[name] = from
		}
		if found == "" && strings.Contains(to, mark) {
			found = name
		}
	}
	if err := lines.Err(); err != nil || len(caller) < 1000 {
		t.Fatalf("the linker printed only %d functions: %v", len(caller), err)
	}
	if found == "" {
		return
	}
	path := []string{found}
	for at := caller[found]; at != "" && len(path) < 30; at = caller[at] {
		path = append(path, at)
	}
	t.Errorf("%s finds methods by name, reached from\n%s", found, strings.Join(path[1:], "\n"))
}
