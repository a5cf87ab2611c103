package webtest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"gatehouse/internal/tests/chromium"
)

// sayingVariable makes this test program an MCP server whose texts are all hostile.
const sayingVariable = "GATEHOUSE_TEST_HOSTILE_TEXTS"

// serveHostileTexts is a server with the tool weigh, until its input ends. Each of its lines of log is hostile.
func serveHostileTexts() {
	fmt.Fprintln(os.Stderr, hostile)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var r struct {
			ID     json.RawMessage
			Method string
		}
		if json.Unmarshal(lines.Bytes(), &r) != nil || r.ID == nil {
			continue
		}
		result := map[string]any{}
		switch r.Method {
		case "initialize":
			result = map[string]any{
				"protocolVersion": "2025-06-18", "instructions": hostile,
				"serverInfo":   map[string]any{"name": hostile, "title": hostile, "version": hostile},
				"capabilities": map[string]any{"tools": map[string]any{}},
			}
		case "tools/list":
			result["tools"] = []any{map[string]any{
				"name": "weigh", "title": hostile, "description": hostile,
				"inputSchema": map[string]any{"type": "object", "properties": map[string]any{
					"what": map[string]any{"type": "string", "title": hostile, "description": hostile, "default": hostile},
					"kind": map[string]any{"enum": []string{hostile, "b"}, "description": hostile},
				}},
			}}
		case "tools/call":
			fmt.Fprintln(os.Stderr, "called "+hostile)
			result = map[string]any{"isError": true, "content": []any{map[string]any{"type": "text", "text": hostile}}}
		}
		b, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": r.ID, "result": result})
		fmt.Println(string(b))
	}
}

// What a package says of itself, in its logs, its tools and its errors is text on every page that shows it, to an
// administrator too.
//
//redteam:attack Pages show what others say as text: names, versions, logs, tools, forms and errors in a real browser
func TestWhatAPackageSaysIsText(t *testing.T) {
	cfg := settings(t)
	cfg.View.Modules = append(cfg.View.Modules, "package")
	h := start(t, cfg)
	program, err := os.Executable()
	check(t, err)
	h.add("evil", program, []string{}, map[string]string{sayingVariable: "1", "GORACE": "atexit_sleep_ms=0"},
		"evil_weigh")
	p := h.administer(chromium.New(t), "#/packages")
	for _, page := range []struct{ name, steps string }{
		{"the list of packages", `await story.until("a package", () => document.querySelector("a.package"));`},
		{"a package", `await story.press(undefined, "a.package"); await story.text("What it may do");`},
		{"its tools", `await story.press("Tools", ".segments button"); await story.text("evil_weigh");`},
		{"its tool, called", `story.go("#/tools/evil_weigh"); await story.find("h2.tool-name", "evil_weigh");
			await story.press("Call"); await story.until("an error", () => document.querySelector(".notice.bad, .result"));`},
		{"its logs", `story.go("#/packages/evil"); await story.press("Logs", ".segments button"); await story.text("called");`},
		{"the tree", `story.go("#/state"); await story.text("serverInfo"); await story.fill("search", "evil");`},
		{"the ledger", `story.go("#/ledger"); await story.press(undefined, ".ledger-row"); await story.until("a line", () => document.querySelector("dialog"));`},
	} {
		// Raw characters that hide are looked for in the text of the page and in the attributes that show.
		got := play(p, page.steps+`
			await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
			const raw = /[\u0000-\u0008\u000e-\u001f\u202a-\u202e\u200b\u2066-\u2069]/;
			const said = document.body.innerText;
			const hides = [...document.querySelectorAll("body *")].filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && raw.test(n.data)) ||
				["title", "placeholder"].some((a) => raw.test(e.getAttribute(a) ?? "")));
			return JSON.stringify({
				ran: window.ran ?? 0, images: document.querySelectorAll("#app img").length, scripts: document.querySelectorAll("#app script").length,
				links: [...document.querySelectorAll("a")].filter((a) => /^javascript/i.test(a.href)).length,
				hides: hides.map((e) => e.outerHTML.slice(0, 120)), shows: said.includes("U+202E"),
			})`).(string)
		var seen struct {
			Ran, Images, Scripts, Links int
			Hides                       []string
			Shows                       bool
		}
		check(t, json.Unmarshal([]byte(got), &seen))
		if seen.Ran+seen.Images+seen.Scripts+seen.Links+len(seen.Hides) > 0 {
			t.Errorf("%s: %s", page.name, got)
		}
		if says := page.name == "its tool, called" || page.name == "its logs"; says && !seen.Shows {
			t.Errorf("%s does not show the hostile text", page.name)
		}
	}
}
