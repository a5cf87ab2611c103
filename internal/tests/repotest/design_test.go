package repotest

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool(
	"update",
	false,
	"accept what has changed: tool schemas, the layers in docs/design.md, and the rows of docs/security-tests.md",
)

const (
	layersBegin = "<!-- layers: written by go test ./internal/tests/repotest -update -->\n"
	layersEnd   = "<!-- end of layers -->"
)

// drawLayers draws the layers from the top down.
func drawLayers() string {
	var b strings.Builder
	for _, layer := range slices.Backward(layers) {
		b.WriteString("    ")
		for i, r := range layer {
			if i > 0 {
				b.WriteString("  ")
			}
			b.WriteString(strings.TrimPrefix(r.path, "internal/"))
		}
		b.WriteString("\n")
	}
	return strings.Replace(b.String(), "    .\n", "    gatehouse.go\n", 1)
}

func TestDesignShowsTheLayers(t *testing.T) {
	replaceGenerated(t, filepath.Join("docs", "design.md"), layersBegin, layersEnd, "\n"+drawLayers()+"\n")
}

// The table of the packages shows which exist and which are planned.
func TestDesignListsTheFolders(t *testing.T) {
	listed := map[string]bool{}
	for _, row := range tableRows(t, "docs/design.md") {
		if row.section != "The folders" {
			continue
		}
		name := strings.Trim(row.cells[0], "`")
		listed[name] = true
		_, err := os.Stat(filepath.Join(top(t), filepath.FromSlash(name)))
		switch state := row.cells[len(row.cells)-1]; state {
		case "here":
			if err != nil {
				t.Errorf("docs/design.md:%d says that %s is here, but it is not", row.line, name)
			}
		case "later":
			if err == nil {
				t.Errorf("docs/design.md:%d says that %s comes later, but it is here", row.line, name)
			}
		default:
			t.Errorf("docs/design.md:%d: state %q of %s is neither here nor later", row.line, state, name)
		}
	}
	for _, s := range sources(t) {
		parts := strings.Split(s.folder(), "/")
		if parts[0] != "internal" {
			continue
		}
		if folder := strings.Join(parts[:2], "/"); !listed[folder] {
			listed[folder] = true
			t.Errorf("docs/design.md has no row for %s", folder)
		}
	}
}

// The folders directly below internal are the subsystems, and each has a file that describes it.
func TestFoldersAreFewAndDescribed(t *testing.T) {
	entries, err := os.ReadDir(filepath.Join(top(t), "internal"))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) > mostFolders {
		t.Errorf("internal has %d folders, want at most %d", len(entries), mostFolders)
	}
	for _, e := range entries {
		doc := filepath.Join(top(t), "internal", e.Name(), "doc.go")
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Errorf("internal/%s has no doc.go that says what it is for", e.Name())
			continue
		}
		for _, want := range []string{"Package " + e.Name() + " ", "import", "Begin with "} {
			if !strings.Contains(strings.ReplaceAll(string(text), "\n// ", " "), want) {
				t.Errorf("internal/%s/doc.go does not contain %q", e.Name(), want)
			}
		}
	}
}

const longestDesign = 250 // lines: a map that does not fit one sitting is no map

func TestDesignIsAMap(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top(t), "docs", "design.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > longestDesign {
		t.Errorf("docs/design.md has %d lines, want at most %d", n, longestDesign)
	}
}
