package repotest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tableRow is one row of a Markdown table.
type tableRow struct {
	section string // the heading of second level above it
	line    int
	cells   []string
}

// tableRows reads the rows of all tables in a Markdown file, without their
// headings.
func tableRows(t testing.TB, name string) []tableRow {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top(t), name))
	if err != nil {
		t.Fatal(err)
	}
	var rows []tableRow
	var section string
	n, body := 0, false
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSpace(line)
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			section = heading
		}
		if !strings.HasPrefix(line, "|") {
			body = false
			continue
		}
		if strings.Trim(line, "|-: ") == "" {
			body = true
			continue
		}
		if body {
			rows = append(rows, tableRow{section, n, cells(line)})
		}
	}
	return rows
}

func cells(line string) []string {
	line = strings.TrimSuffix(strings.TrimPrefix(line, "|"), "|")
	parts := strings.Split(line, "|")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}
