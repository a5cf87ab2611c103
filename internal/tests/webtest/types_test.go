package webtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/tests/conformance"
)

func tools(t *testing.T) conformance.Tools {
	t.Helper()
	got, err := Open()
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return got
}

// compile runs the compiler over a folder of modules and returns what it says.
func compile(t *testing.T, js string) string {
	t.Helper()
	with := tools(t)
	settings, err := files.ReadFile("npm/tsconfig.json")
	check(t, err)
	text := strings.ReplaceAll(string(settings), `"JS"`, `"`+js+`"`)
	text = strings.ReplaceAll(text, "./node_modules", filepath.Join(with.Dir, "node_modules"))
	project := filepath.Join(t.TempDir(), "tsconfig.json")
	check(t, os.WriteFile(project, []byte(text), 0o600))
	cmd := exec.CommandContext(t.Context(), with.Node,
		filepath.Join(with.Dir, "node_modules", "typescript", "bin", "tsc"), "-p", project)
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 {
		t.Fatal(err)
	}
	return string(out)
}

// The modules of the pages have the types that their comments say.
func TestTypes(t *testing.T) {
	top, err := conformance.Top()
	check(t, err)
	if out := compile(t, filepath.Join(top, "internal", "server", "web", "static")); out != "" {
		t.Error(out)
	}
	wrong := t.TempDir()
	check(
		t,
		os.WriteFile(
			filepath.Join(wrong, "a.js"),
			[]byte("/** @type {number} */\nexport const a = \"text\";\n"),
			0o600,
		),
	)
	if out := compile(t, wrong); !strings.Contains(out, "TS2322") {
		t.Errorf("a wrong type passes: %s", out)
	}
}
