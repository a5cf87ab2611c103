package lsp_test

import (
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/modules/file"
	"gatehouse/internal/modules/lsp"
	"gatehouse/internal/tests/editors"
)

// project is a small project in one language, and what its language server says about it.
type project struct {
	language string
	files    map[string]string
	use      map[string]any // where a function of another file is used
	defined  string         // its definition
	hover    string
	renamed  []string // files that a rename changes
	broken   string   // a content of the file of use with an error
	says     string   // the error
}

var projects = []project{
	{
		language: "go",
		files: map[string]string{
			"go.mod":  "module example.com/shop\n\ngo 1.25\n",
			"shop.go": "package shop\n\n// Price returns the price in cents.\nfunc Price(n int) int { return n * 3 }\n",
			"use.go":  "package shop\n\nvar größe = Price(1) + Price(2)\n",
		},
		use: map[string]any{
			"path":   "use.go",
			"line":   3,
			"symbol": "Price",
		}, defined: "shop.go:4:6: func Price(n int) int",
		hover: "Price returns the price in cents", renamed: []string{"shop.go", "use.go"},
		broken: "package shop\n\nvar größe = Price(\"x\")\n", says: "use.go:3:19: error IncompatibleAssign: cannot use",
	},
	{
		language: "typescript",
		files: map[string]string{
			"tsconfig.json": `{"compilerOptions":{"strict":true,"module":"commonjs"},"include":["*.ts"]}`,
			"shop.ts": "/** The price in cents. */\nexport function price(n: number): number {\n" +
				"  return n * 3;\n}\n",
			"use.ts": "import { price } from './shop';\nconst s = '😀', a = price(1) + price(2);\nexport { s, a };\n",
		},
		use: map[string]any{
			"path":   "use.ts",
			"line":   2,
			"symbol": "price",
		}, defined: "shop.ts:2:17: export function price",
		hover: "The price in cents", renamed: []string{"shop.ts", "use.ts"},
		broken: "import { price } from './shop';\nconst s = '😀', a = price('x');\nexport { s, a };\n",
		says:   "use.ts:2:26: error 2345: Argument of type",
	},
	{
		language: "python",
		files: map[string]string{
			"pyproject.toml": "[tool.pyright]\n",
			"shop.py":        "def price(n: int) -> int:\n    \"\"\"The price in cents.\"\"\"\n    return n * 3\n",
			"use.py":         "from shop import price\n\ns, a = '😀', price(1) + price(2)\n",
		},
		use: map[string]any{"path": "use.py", "line": 3, "symbol": "price"}, defined: "shop.py:1:5: def price",
		hover: "The price in cents", renamed: []string{"shop.py", "use.py"},
		broken: "from shop import price\n\ns, a = '😀', price('x')\n", says: "use.py:3:19: error reportArgumentType:",
	},
}

func TestRealServers(t *testing.T) {
	tools := editors.Open(t)
	for _, p := range projects {
		t.Run(p.language, func(t *testing.T) {
			h := newHost(t, write(t, p.files), lsp.Config{Settings: lsp.Settings{Servers: tools.Servers()}},
				file.Config{})
			p.try(t, h)
		})
	}
}

func (p project) args(more map[string]any) map[string]any {
	all := map[string]any{}
	maps.Copy(all, p.use)
	maps.Copy(all, more)
	return all
}

func (p project) try(t *testing.T, h *host) {
	path := p.use["path"].(string)
	mustHave(t, "definition", h.text("lsp_definition", p.args(nil)), p.defined)
	mustHave(t, "references", h.text("lsp_references", p.args(nil)), p.renamed[0]+":", path+":", "references: ")
	mustHave(t, "hover", h.text("lsp_hover", p.args(nil)), p.hover)
	symbol := p.use["symbol"].(string)
	mustHave(t, "outline", h.text("lsp_symbols", map[string]any{"path": p.renamed[0]}), "function "+symbol)
	mustHave(t, "search", h.text("lsp_symbols", map[string]any{"path": path, "query": symbol}), p.renamed[0]+":")
	mustHave(t, "no errors", h.text("lsp_diagnostics", map[string]any{"path": path}), "errors: 0")

	before := map[string]string{}
	for _, f := range p.renamed {
		before[f] = read(t, filepath.Join(h.dir, f))
	}
	mustHave(t, "rename", h.text("lsp_rename", p.args(map[string]any{"new_name": "costOf"})), "costOf", "files=2")
	for _, f := range p.renamed {
		got := read(t, filepath.Join(h.dir, f))
		if want := strings.ReplaceAll(before[f], symbol, "costOf"); strings.ReplaceAll(got, "costOf",
			symbol) != before[f] ||
			!strings.Contains(want, "costOf") {
			t.Errorf("%s is now\n%s", f, got)
		}
	}
	mustHave(t, "undo", h.text("file_undo", nil), p.renamed[0], p.renamed[1])
	for f, want := range before {
		if got := read(t, filepath.Join(h.dir, f)); got != want {
			t.Errorf("after file_undo %s is\n%s", f, got)
		}
	}

	put(t, filepath.Join(h.dir, path), p.broken) // by another program: the server must learn of it
	mustHave(t, "errors", h.text("lsp_diagnostics", map[string]any{"path": path}), p.says)
	put(t, filepath.Join(h.dir, path), before[path])
	mustHave(t, "errors", h.text("lsp_diagnostics", map[string]any{"path": path}), "errors: 0")
}

// An edit returns the diagnostics of the edited file when they are asked for.
func TestAnEditReturnsDiagnostics(t *testing.T) {
	tools := editors.Open(t)
	h := newHost(t, write(t, projects[0].files), lsp.Config{Settings: lsp.Settings{Servers: tools.Servers()}},
		file.Config{})
	edit := map[string]any{"path": "use.go", "old_string": "Price(1)", "new_string": "Prize(1)", "diagnostics": true}
	mustHave(t, "edit", h.text("file_edit", edit), "diagnostics:",
		"use.go:3:13: error UndeclaredName: undefined: Prize")
	edit["old_string"], edit["new_string"] = "Prize", "Price"
	mustHave(t, "edit", h.text("file_edit", edit), "errors: 0")
	put(t, filepath.Join(h.dir, "a.txt"), "one")
	mustHave(t, "text", h.text("file_edit", map[string]any{"path": "a.txt", "old_string": "one", "new_string": "two",
		"diagnostics": true}), "diagnostics: not available: unsupported: no language server is known for")
}

func TestActionsOfGopls(t *testing.T) {
	tools := editors.Open(t)
	dir := write(t, map[string]string{
		"go.mod": "module example.com/a\n\ngo 1.25\n",
		"a.go":   "package a\n\nimport \"os\"\n\nfunc F() string { return strings.ToUpper(\"x\") }\n",
	})
	h := newHost(t, dir, lsp.Config{Settings: lsp.Settings{Servers: tools.Servers()}}, file.Config{})
	list := h.text("lsp_action", map[string]any{"path": "a.go", "kind": "source.organizeImports"})
	mustHave(t, "list", list, "source.organizeImports: Organize Imports")
	h.text("lsp_action", map[string]any{"path": "a.go", "kind": "source.organizeImports", "apply": "Organize Imports"})
	mustHave(t, "file", read(t, filepath.Join(dir, "a.go")), `import "strings"`)
	mustHave(t, "errors", h.text("lsp_diagnostics", map[string]any{"path": "a.go"}), "errors: 0")
}
