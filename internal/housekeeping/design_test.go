package housekeeping

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "accept what has changed: tool schemas, the floors in docs/design.md, and the rows of docs/security-tests.md")

const (
	floorsBegin = "<!-- floors: written by go test ./internal/housekeeping -update -->\n"
	floorsEnd   = "<!-- end of floors -->"
)

// drawFloors draws the floors from the top of the house to the ground.
func drawFloors() string {
	var b strings.Builder
	for _, floor := range slices.Backward(floors) {
		b.WriteString("    ")
		for i, r := range floor {
			if i > 0 {
				b.WriteString("  ")
			}
			b.WriteString(strings.TrimPrefix(r.path, "internal/"))
		}
		b.WriteString("\n")
	}
	return strings.Replace(b.String(), "    .\n", "    gatehouse.go\n", 1)
}

func TestDesignShowsTheFloors(t *testing.T) {
	file := filepath.Join(top(t), "docs", "design.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), floorsBegin)
	drawn, after, ok2 := strings.Cut(rest, floorsEnd)
	if !ok || !ok2 {
		t.Fatalf("docs/design.md has no place for the floors between %q and %q", floorsBegin, floorsEnd)
	}
	want := "\n" + drawFloors() + "\n"
	if drawn == want {
		return
	}
	if !*update {
		t.Fatalf("docs/design.md does not show the floors of rooms_test.go; run go test ./internal/housekeeping -update")
	}
	if err := os.WriteFile(file, []byte(before+floorsBegin+want+floorsEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// The table of rooms says which are built and which are planned.
func TestDesignKnowsTheRooms(t *testing.T) {
	listed := map[string]bool{}
	for _, row := range tableRows(t, "docs/design.md") {
		if row.section != "The rooms" {
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
		if room := strings.Join(parts[:2], "/"); !listed[room] {
			listed[room] = true
			t.Errorf("docs/design.md has no line for the room %s", room)
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
