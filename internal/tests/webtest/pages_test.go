package webtest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/tests/chromium"
	"gatehouse/tool"
)

// administer opens a page for the administrator of the host, without shared workers, as some browsers are.
func (h *host) administer(b *chromium.Browser, hash string) *chromium.Page {
	h.t.Helper()
	p := h.blank(b)
	p.Do("Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": "delete globalThis.SharedWorker"})
	p.Do("Network.setExtraHTTPHeaders", map[string]any{
		"headers": map[string]any{"Authorization": "Bearer " + h.token()},
	})
	p.Open(h.url + "/" + hash)
	return p
}

// token returns the local token, with which callers on this machine are administrators.
func (h *host) token() string {
	h.t.Helper()
	token, err := os.ReadFile(filepath.Join(h.cfg.Folders.State, "local-token"))
	check(h.t, err)
	return strings.TrimSpace(string(token))
}

// all are the pages, each with what shows when it has loaded.
var all = []struct{ hash, shows string }{
	{"#/now", "Machine"},
	{"#/approvals", "Nothing waits for you"},
	{"#/review", "Nothing to review"},
	{"#/ledger", "tools/call"},
	{"#/measures", "Time per call"},
	{"#/state", "serverInfo"},
	{"#/tools/t_order", "The same call"},
	{"#/packages", "No packages yet"},
	{"#/processes", "New terminal"},
	{"#/connect", "What to put into its settings"},
	{"#/contexts/default", "default sees"},
	{"#/people", "Users"},
	{"#/settings", "Only what is set"},
	{"#/doctor", "Check again"},
}

// Each page shows itself to an administrator, in both themes, and axe finds nothing wrong with it.
func TestEveryPageIsAccessible(t *testing.T) {
	axe, err := os.ReadFile(filepath.Join(tools(t).Dir, "node_modules", "axe-core", "axe.min.js"))
	check(t, err)
	cfg := settings(t)
	cfg.View.Modules = append(cfg.View.Modules, "package", "auth")
	h := start(t, cfg)
	b := chromium.New(t)
	p := h.administer(b, "#/tools/file_exists?args=%7B%22path%22%3A%22x%22%7D")
	play(p, `await story.press("Call"); await story.text("Succeeded"); `)
	p.Run(string(axe) + "; true")
	for _, dark := range []bool{false, true} {
		p.Resize(1280, 900, dark)
		for _, page := range all {
			shows := page.shows
			if page.hash == "#/ledger" {
				shows = "file_exists"
			}
			got := play(p, fmt.Sprintf(`story.go(%q); await story.text(%q);
				await new Promise((done) => setTimeout(done, 50));
				const r = await axe.run(document, { resultTypes: ["violations"] });
				return r.violations.map((v) => v.id + ": " + v.help + " " + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200) + " " + n.failureSummary).join(" | ")).join("\n")`, page.hash, shows))
			if got != "" {
				t.Errorf("%s, dark %v: %v", page.hash, dark, got)
			}
		}
	}
}

// No page needs more width than a phone has.
func TestPagesFitAPhone(t *testing.T) {
	cfg := settings(t)
	cfg.View.Modules = append(cfg.View.Modules, "package", "auth")
	h := start(t, cfg)
	p := h.administer(chromium.New(t), "#/now")
	p.Resize(360, 780, false)
	for _, page := range all {
		if page.hash == "#/ledger" {
			continue
		}
		got := play(p, fmt.Sprintf(`story.go(%q); await story.text(%q); await new Promise((done) => setTimeout(done, 50));
			return document.documentElement.scrollWidth + " " + document.querySelector(".body").scrollWidth`, page.hash, page.shows))
		if got != "360 360" {
			t.Errorf("%s is %v wide", page.hash, got)
		}
	}
}

// Who may not administer sees nothing of it: neither the pages nor their data are there.
func TestWhatAPersonMayNotCallDoesNotShow(t *testing.T) {
	h := start(t, settings(t))
	b := chromium.New(t)
	p := h.visit(b, "#/ledger")
	got := play(p, `await story.text("Nothing found"); await story.text("Live"); return [...document.querySelectorAll("nav a[href^='#/']")].map((a) => a.innerText.trim()).join()`)
	if got != "Gatehouse,Now,State,Tools,Processes,Connect a client,Contexts" {
		t.Errorf("anonymous callers see %v", got)
	}
	for _, at := range b.Requested {
		if strings.Contains(at, "pages/ledger") {
			t.Errorf("the page of the ledger was loaded")
		}
	}
}

// hostile is text that would do something if it were anything but text.
const hostile = `<img src=x onerror="window.ran=1"><script>window.ran=1</script>` +
	"javascript:window.ran=1 \x1b[8mhid\x1b[0m \u202edeman\u202c z\u200bero {{7*7}} ${window.ran=1} а"

func hostileTools() []tool.Tool {
	answer := func(context.Context, *tool.Call, struct{}) (tool.Result, error) {
		return tool.Result{
			Content: []tool.Content{
				tool.Text(hostile), tool.Image(`image/svg+xml"onload="window.ran=1`, []byte("<svg onload='window.ran=1'/>")),
				tool.Link("javascript:window.ran=1", hostile, "text/html"), tool.TextResource("x:"+hostile, "text/html", hostile),
			},
		}, nil
	}
	ask := func(_ context.Context, c *tool.Call, _ struct{}) (tool.Result, error) {
		_, err := c.Peer.Ask(tool.ElicitURL("go", hostile, "javascript:window.ran=1"))
		return tool.Result{}, err
	}
	return []tool.Tool{
		tool.New(tool.Def{Name: "t_evil", Title: hostile, Description: hostile, Effects: tool.Reads}, answer),
		tool.New(tool.Def{Name: "t_ask", Title: hostile, Description: hostile, Effects: tool.Reads}, ask),
	}
}

// What tools and files say is text: nothing of it runs, and nothing of it hides.
//
//redteam:attack Pages show what others say as text: markup, scripts, control sequences and marks of direction in a real browser
func TestNothingRunsAndNothingHides(t *testing.T) {
	h := start(t, settings(t), hostileTools()...)
	name := "<img src=x onerror=window.ran=1>\u202etxt.exe"
	check(t, os.WriteFile(filepath.Join(h.cfg.Roots.Folders[0], name), []byte(hostile), 0o600))
	p := h.visit(chromium.New(t), "#/tools/t_evil")
	shown := play(p, `await story.press("Call"); await story.text("Succeeded");
		await story.press("Read"); return document.body.innerText`).(string)
	for _, want := range []string{`<img src=x onerror="window.ran=1">`, "<script>", "ESC", "U+202E", "U+200B"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the page does not show %q: %s", want, shown)
		}
	}
	shown = play(p, `story.go("#/tools/dir_list?args=" + encodeURIComponent('{"path":"."}')); await story.find("h2.tool-name", "dir_list"); await story.press("Call"); await story.text("Succeeded"); return document.body.innerText`).(string)
	if !strings.Contains(shown, "<img src=x onerror") {
		t.Errorf("the name of a file is not shown: %s", shown)
	}
	got := play(p, `story.go("#/tools/t_ask"); await story.find("h2.tool-name", "t_ask"); await story.press("Call"); await story.text("javascript:window.ran=1");
		const links = [...document.querySelectorAll("a")].filter((a) => /^javascript/i.test(a.href)).length;
		story.go("#/state"); await new Promise((done) => setTimeout(done, 300));
		return [links, window.ran, document.querySelectorAll("img").length, document.querySelectorAll("#app script").length].join()`)
	if got != "0,,0,0" {
		t.Errorf("links, runs, images and scripts: %v", got)
	}
}

// manyTools returns 5,000 tools.
func manyTools() (many []tool.Tool) {
	for i := range 5000 {
		many = append(many, tool.New(
			tool.Def{Name: fmt.Sprintf("t_many_%04d", i), Description: fmt.Sprintf("Number %d of many.", i), Effects: tool.Reads},
			func(context.Context, *tool.Call, struct{}) (tool.Result, error) { return tool.Result{}, nil }))
	}
	return many
}

// Of 5,000 tools at most 200 are in the document, while they are searched and scrolled without a long task.
func TestLongListsStayShort(t *testing.T) {
	h := start(t, settings(t), manyTools()...)
	b := chromium.New(t)
	tasks := b.Trace()
	p := h.visit(b, "#/tools")
	rows := play(p, `await story.text("file_read");
		let most = 0;
		const box = document.querySelector(".rows");
		for (let i = 0; i < 40; i++) {
			box.scrollTop = i * 8000;
			await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
			most = Math.max(most, document.querySelectorAll(".rows-row").length);
		}
		await story.text("t_many_4");
		await story.fill("search", "many 4999");
		await story.until("one row", () => document.querySelectorAll(".rows-row").length === 1);
		return most`).(float64)
	if rows == 0 || rows > 200 {
		t.Errorf("%v rows are in the document", rows)
	}
	noLongTask(t, tasks())
}

// longest is how long a task of the main thread may use the processor. The time by the clock has that in which the
// machine runs something else, so it only shows in the log.
const longest = 50 * time.Millisecond

// noLongTask checks the tasks of a page, whose longest are in the log.
func noLongTask(t *testing.T, tasks []chromium.Task) {
	t.Helper()
	if len(tasks) < 10 {
		t.Fatalf("only %d tasks were recorded", len(tasks))
	}
	for i, task := range tasks[:min(len(tasks), 6)] {
		t.Logf("task %d used the processor for %v in %v: %q", i+1, task.CPU, task.Took, task.Ran)
	}
	if tasks[0].CPU > longest {
		t.Errorf("a task of the main thread takes %v, at most %v is allowed", tasks[0].CPU, longest)
	}
}

// A thousand changes of the state arrive, and the last of them shows.
func TestAThousandChanges(t *testing.T) {
	h := start(t, settings(t))
	p := h.visit(chromium.New(t), "#/state")
	play(p, `await story.text("serverInfo"); await story.text("Live")`)
	token := h.token()
	for i := range 1000 {
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"db_put_ui","arguments":{"pointer":"/n","value":%d},`+
			`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, i+1)
		r, err := http.NewRequestWithContext(t.Context(), "POST", h.url+"/mcp", strings.NewReader(body))
		check(t, err)
		for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
			"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "db_put_ui", "Authorization": "Bearer " + token} {
			r.Header.Set(k, v)
		}
		answer, err := http.DefaultClient.Do(r)
		check(t, err)
		answer.Body.Close()
		if answer.StatusCode != 200 {
			t.Fatalf("db_put_ui: %d", answer.StatusCode)
		}
	}
	play(p, `await story.until("the last value", () => [...document.querySelectorAll(".leaf")].some((e) => e.innerText.replace(/\s/g, "") === "n1000"))`)
}

// The pages say when the server is gone, and go on by themselves when it is back.
func TestTheServerGoesAndComesBack(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	at := ln.Addr().String()
	h := &host{t: t, cfg: settings(t)}
	h.run(ln, nil)
	p := h.visit(chromium.New(t), "#/state")
	play(p, `await story.text("Live")`)
	h.stop()
	play(p, `await story.text("The server cannot be reached.")`)
	for range 100 {
		if ln, err = net.Listen("tcp", at); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	check(t, err)
	h.run(ln, nil)
	play(p, `await story.gone("The server cannot be reached."); await story.text("Live")`)
}

// A terminal is typed into, and shows what the program prints.
func TestATerminal(t *testing.T) {
	h := start(t, settings(t))
	b := chromium.New(t)
	p := h.visit(b, "#/processes")
	play(p, `await story.press("New terminal"); await story.fill("program", "sh"); await story.press("Start");
		const input = await story.find(".xterm-helper-textarea"); input.focus();`)
	play(p, `await story.until("a prompt", () => /[$#]/.test(document.querySelector(".xterm").innerText))`)
	for c := range strings.SplitSeq("echo $((6*7))", "") {
		p.Key(c, 0)
	}
	p.Key("Enter", 0)
	play(p, `await story.until("the output", () => /^42$/m.test(document.querySelector(".xterm").innerText))`)
	if !slices.ContainsFunc(b.Requested, func(at string) bool { return strings.Contains(at, "/ws?ticket=") }) {
		t.Error("the terminal does not use the WebSocket")
	}
	checkStream(h, p)
	for c := range strings.SplitSeq("exit 7", "") {
		p.Key(c, 0)
	}
	p.Key("Enter", 0)
	play(p, `await story.until("the end", () => /ended/i.test(document.querySelector(".xterm").innerText))`)
}

// checkStream asks for the WebSocket of the terminal that a page shows: its ticket works once, for pages of this
// origin, and the bytes are those of the terminal.
func checkStream(h *host, p *chromium.Page) {
	h.t.Helper()
	ticket := func() string {
		path, _ := play(p, `const { run } = await import(document.querySelector("link[href$='/js/store.js']").href);
			return (await run("process_output", { id: location.hash.split("/")[2], socket: true })).socket`).(string)
		return path
	}
	open := func(path, origin string) int {
		r, err := http.NewRequestWithContext(h.t.Context(), "GET", h.url+path, nil)
		check(h.t, err)
		for k, v := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
			"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Origin": origin} {
			r.Header.Set(k, v)
		}
		answer, err := http.DefaultClient.Do(r)
		check(h.t, err)
		answer.Body.Close()
		return answer.StatusCode
	}
	if path := ticket(); path == "" {
		h.t.Error("there is no ticket")
	} else if status := open(path, "https://evil.example"); status != 403 {
		h.t.Errorf("a page of another origin: %d", status)
	}
	path := ticket()
	if first, second := open(path, h.url), open(path, h.url); first != 101 || second != 401 {
		h.t.Errorf("a ticket, twice: %d, %d", first, second)
	}
	if status := open("/ws?ticket=none", h.url); status != 401 {
		h.t.Errorf("a ticket that was never given: %d", status)
	}
}

// A ledger of 50,000 lines is read in pages while it is scrolled, of which at most 200 rows are in the document, and
// found in by a filter.
func TestALedgerOf50000Lines(t *testing.T) {
	lines := 50_000
	if os.Getenv("GATEHOUSE_TEST_ALL") == "" {
		lines = 2_000
	}
	h := start(t, settings(t))
	var callers sync.WaitGroup
	for of := range 8 {
		callers.Go(func() {
			for range lines / 8 { // a call that only reads is one line
				h.call(h.token(), "/mcp", "file_exists", fmt.Sprintf(`{"path":"%d"}`, of))
			}
		})
	}
	callers.Wait()
	b := chromium.New(t)
	tasks := b.Trace()
	p := h.administer(b, "#/ledger")
	play(p, `await story.text("file_exists");
		const field = document.getElementById("search"), style = getComputedStyle(field), pen = document.createElement("canvas").getContext("2d");
		pen.font = style.font;
		const room = field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight), needs = pen.measureText(field.placeholder).width;
		if (needs > room) throw new Error("the hint of the filter needs " + needs + " of " + room + " pixels")`)
	got := play(p, fmt.Sprintf(`
		let most = 0, high = 0;
		const box = document.querySelector(".rows"), end = Date.now() + 300000;
		const deep = () => document.querySelector(".rows-space").offsetHeight / 40;
		while (deep() < %d && Date.now() < end) {
			box.scrollTop = box.scrollHeight;
			await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
			most = Math.max(most, document.querySelectorAll(".rows-row").length);
		}
		high = deep();
		if (high < 100) throw new Error("only " + high + " lines, " + most + " rows");
		await story.fill("search", "tool:none_such"); await story.text("No lines");
		await story.fill("search", "tool:file_exists"); await story.text("file_exists");
		return [most, high].join()`, lines)).(string)
	var rows, deep float64
	fmt.Sscanf(got, "%f,%f", &rows, &deep)
	t.Logf("%d lines, %v read, %v rows at most", lines, deep, rows)
	noLongTask(t, tasks())
	if rows == 0 || rows > 200 || deep < float64(lines) {
		t.Errorf("%v rows are in the document, and %v lines were read", rows, deep)
	}
}
