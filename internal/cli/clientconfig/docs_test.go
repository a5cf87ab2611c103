package clientconfig

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The table in docs/connect.md is what the definitions say.
func TestTableOfTheDocuments(t *testing.T) {
	path := filepath.Join("..", "..", "..", "docs", "connect.md")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const open, end = "-update -->\n", "<!-- end of clients -->"
	before, rest, ok := strings.Cut(string(b), open)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("docs/connect.md has no place for the table")
	}
	want := before + open + "\n" + table() + "\n" + end + after
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(b) {
		t.Error("docs/connect.md is not what the definitions say; run the test with -update")
	}
}

// README.md says how many clients there are.
func TestNumberInTheReadme(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("lists the %d clients", len(Clients)); !strings.Contains(string(b), want) {
		t.Errorf("README.md does not say %q", want)
	}
}

func table() string {
	var b strings.Builder
	b.WriteString("| client | name | files | addresses | variables | links | after a change | documented in |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|\n")
	for _, c := range Clients {
		var files []string
		for _, f := range c.Files {
			for _, goos := range []string{"", "linux", "darwin", "windows"} {
				if p, ok := f.Paths[goos]; ok {
					files = append(files, shown(p, goos))
				}
			}
			if f.Env != "" {
				files = append(files, "in `$"+f.Env+"` if that is set")
			}
		}
		if c.Paste != "" {
			files = append(files, "user: pasted into "+c.Paste)
		}
		names := "`" + strings.Join(append([]string{c.ID}, c.Aliases...), "`, `") + "`"
		http, variables, links := "", "", ""
		if c.http.url != "" {
			http = "yes"
		}
		if c.EnvRef != "" || c.http.bearer != "" {
			variables = "yes"
		}
		if c.Link != 0 {
			links = "yes"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", c.Title, names, strings.Join(files, "<br>"),
			http, variables, links, c.Reload, c.Source)
	}
	return b.String()
}

func shown(path, goos string) string {
	config := "<config>"
	switch goos {
	case "darwin":
		config = "~/Library/Application Support"
	case "windows":
		config = "%APPDATA%"
	}
	text := strings.NewReplacer("{home}", "~", "{xdg}", "~/.config", "{project}", ".", "{config}", config).Replace(path)
	if goos == "" {
		return "`" + text + "`"
	}
	return "`" + text + "` (" + map[string]string{"darwin": "macOS", "windows": "Windows", "linux": "Linux"}[goos] + ")"
}
