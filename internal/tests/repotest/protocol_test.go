package repotest

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var namedTest = regexp.MustCompile("`([a-z/]+)\\.(Test[A-Za-z0-9]+)`")

// A test that a page names as proof of a promise exists.
func TestTestsThatTheProtocolNamesExist(t *testing.T) {
	const section = "Where we differ from the common implementation"
	named := 0
	for _, row := range tableRows(t, "docs/protocol.md") {
		if row.section != section {
			continue
		}
		tests := namedTest.FindAllStringSubmatch(row.cells[len(row.cells)-1], -1)
		if len(tests) == 0 {
			t.Errorf("docs/protocol.md:%d names no test", row.line)
		}
		for _, m := range tests {
			named++
			if !hasTest(t, m[1], m[2]) {
				t.Errorf("docs/protocol.md:%d names %s in internal/%s, which is not there", row.line, m[2], m[1])
			}
		}
	}
	if named < 16 {
		t.Errorf("%d tests are named, want one for each of the 16 rows", named)
	}
}

func hasTest(t *testing.T, room, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(top(t), "internal", room, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte("func "+name+"(t *testing.T)")) {
			return true
		}
	}
	return false
}
