package webtest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/tests/chromium"
)

// asks is a command of bash in a sandbox that asks the proxy for a host that no rule allows.
const asks = `p=${HTTPS_PROXY#http://}; p=${p%/}; exec 3<>/dev/tcp/${p%:*}/${p##*:}; ` +
	`printf 'CONNECT denied.example:443 HTTP/1.1\r\nHost: denied.example:443\r\n\r\n' >&3; head -n 1 <&3`

// A sandbox is made on its page, which shows the pool, limits and use, runs a command, shows the file that it wrote, and
// what was refused of the network. axe finds nothing wrong with any view, in both themes, and the sandbox ends there.
func TestASandboxOnItsPage(t *testing.T) {
	axe, err := os.ReadFile(filepath.Join(tools(t).Dir, "node_modules", "axe-core", "axe.min.js"))
	check(t, err)
	cfg := settings(t)
	cfg.View.Modules = append(cfg.View.Modules, "sandbox")
	cfg.Modules.Sandbox.Network = true
	h := start(t, cfg)
	if got := h.call(h.token(), "/mcp", "sandbox_create", `{}`); !strings.Contains(got, "sandbox_id") {
		t.Skipf("no sandbox can be made here: %s", got)
	}
	b := chromium.New(t)
	p := h.administer(b, "#/sandboxes")
	p.Run(string(axe) + "; true")
	sound := func(view string) {
		t.Helper()
		for _, dark := range []bool{false, true} {
			p.Resize(1280, 900, dark)
			if got := play(p, `const r = await axe.run(document, { resultTypes: ["violations"] });
				return r.violations.map((v) => v.id + ": " + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200) + " " + n.failureSummary).join(" | ")).join("\n")`); got != "" {
				t.Errorf("%s, dark %v: %v", view, dark, got)
			}
		}
	}
	play(p, `await story.text("What holds here"); await story.until("a row", () => document.querySelector("tbody tr a"));`)
	sound("the list")
	id := play(p, `const before = location.hash; await story.press("New sandbox");
		await story.until("its page", () => location.hash !== before); await story.text("Limits");
		return location.hash.split("/")[2]`).(string)
	sound("limits and use")
	if got := h.call(h.token(), "/mcp", "sandbox_network",
		`{"sandbox_id":"`+id+`","action":"set","allow":["allowed.example"]}`); !strings.Contains(got, "allowed.example") {
		t.Fatalf("its network: %s", got)
	}
	run := func(command, says string) {
		t.Helper()
		p.Run(`window.command = ` + quoted(command) + `; 0`)
		play(p, `await story.press("Command", ".segments button"); const f = await story.find("form.row input");
			Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(f, command);
			f.dispatchEvent(new Event("input", { bubbles: true })); await new Promise((done) => setTimeout(done, 0)); f.form.requestSubmit();
			await story.until("its output", () => document.querySelector(".code pre")?.innerText.split("\n").some((l) => l.includes(`+quoted(says)+`) && !l.startsWith("$ ")));`)
	}
	run(`mkdir -p /tmp/notes && echo "6 times 7 is $((6*7))" | tee /tmp/notes/plan.txt`, "6 times 7 is 42")
	sound("a command")
	run("bash -c '"+strings.ReplaceAll(asks, "'", `'"'"'`)+"'", "403")
	play(p, `await story.press("Terminal", ".segments button"); await story.text("No terminal is open"); await story.press("New terminal");
		const input = await story.find(".xterm-helper-textarea"); input.focus();
		await story.until("a prompt", () => /[$#]/.test(document.querySelector(".xterm").innerText))`)
	for c := range strings.SplitSeq("cat /tmp/notes/plan.txt; tty", "") {
		p.Key(c, 0)
	}
	p.Key("Enter", 0)
	play(p, `await story.until("what it shows", () => /^6 times 7 is 42$/m.test(document.querySelector(".xterm").innerText) && /^.dev.pts.[0-9]/m.test(document.querySelector(".xterm").innerText))`)
	if !slices.ContainsFunc(b.Requested, func(at string) bool { return strings.Contains(at, "/ws?ticket=") }) {
		t.Error("the terminal does not use the WebSocket")
	}
	sound("a terminal")
	for c := range strings.SplitSeq("exit 3", "") {
		p.Key(c, 0)
	}
	p.Key("Enter", 0)
	play(p, `await story.until("the end", () => /ended with exit code 3/i.test(document.querySelector(".xterm").innerText))`)
	play(p, `await story.press("Files", ".segments button"); await story.press("tmp/", ".link"); await story.press("notes/", ".link");
		await story.press("plan.txt", ".link"); await story.text("6 times 7 is 42")`)
	sound("files")
	play(p, `await story.press("Network", ".segments button"); await story.text("denied.example:443"); await story.text("allowed.example")`)
	sound("the network")
	play(p, `await story.press("Destroy"); await story.until("the list", () => location.hash === "#/sandboxes");
		await story.until("one row", () => document.querySelectorAll("tbody tr").length === 1)`)
}

// quoted returns a text as a string of JavaScript.
func quoted(s string) string {
	b, _ := json.Marshal(s) // a string
	return string(b)
}
