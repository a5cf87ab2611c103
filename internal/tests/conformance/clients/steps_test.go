package clients

import (
	"fmt"
	"maps"
	"regexp"
	"strings"
)

// page is a file that an encoding could damage: it has quotes, backslashes, tabs, letters of several bytes, and a
// last line that looks like metadata.
const page = "package main\n\n// Größe: \"10\" \\ 東京 🏠\nfunc main() {\n\tprintln('needle')\n}\n" +
	"// [exit code 9] etag=none\n"

// tried is a step, and what the model must receive for it.
type tried struct {
	tool string
	args object
	from map[string]source // arguments that are known from earlier results

	// text means that the tool returns text without structured content. The results of other tools have structured
	// content.
	text    bool
	picture bool     // the tool returns an image, and facts
	fails   bool     // the tool answers with an error
	cut     bool     // the product is cut, by the host or by the client; only the facts are compared
	product string   // is in what the model is given, once; "" if the test cannot know it
	facts   []string // regular expressions: what a later call needs or the model acts on
}

// source is a part of what the model received for an earlier step.
type source struct {
	step string // the tool, and after a blank which of several
	find string // regular expression with one group
}

const (
	exit3  = `(?i)exit[ _]?code\W*3\b`
	exit0  = `(?i)exit[ _]?code\W*0\b`
	anyTag = `(?i)etag\W*"?[0-9a-z]`
)

// steps contains one call for each family of tools. They run in one conversation, in this order.
func steps() []tried {
	ref := func(role string) source { return source{"webview_snapshot", `\[(e\d+) ` + role + ` `} }
	id := func(step string) source { return source{step, `"(?:sandbox_|process_)?id"\s*:\s*"([^"]+)"`} }
	return []tried{
		{tool: "file_stat", args: object{"path": "page.go"}, facts: []string{anyTag}},
		{tool: "file_read", args: object{"path": "page.go"}, text: true, product: page, facts: []string{anyTag}},
		{
			tool: "file_read", args: object{"path": "long.txt", "limit": 20}, text: true,
			product: strings.Join(longLines(20), ""), facts: []string{`(?i)offset\W*\d+`},
		},
		{
			tool: "file_read", args: object{"path": "no.txt"}, text: true, fails: true, product: "no.txt",
		},
		{
			tool: "file_search", args: object{"pattern": "needle", "path": "page.go"}, text: true,
			product: "println('needle')", facts: []string{`\b1\W+hit`},
		},
		{
			tool: "file_search", args: object{"pattern": "line of", "path": "long.txt", "limit": 10}, text: true,
			product: "line of text number 001\n", facts: []string{`(?i)cursor\W*[0-9A-Za-z]`},
		},
		{
			tool: "file_edit", args: object{"path": "page.go", "old_string": "println('needle')",
				"new_string": "println('thread')"},
			text: true, product: "-\tprintln('needle')\n+\tprintln('thread')", facts: []string{anyTag},
		},
		{tool: "dir_list", args: object{"path": "."}, text: true, product: "long.txt"},
		{tool: "dir_list", args: object{"path": ".", "depth": 2}, text: true, product: "inner.txt"},
		{tool: "dir_size", args: object{"path": "."}, text: true, product: "long.txt"},
		{
			tool: "process_run", args: object{"command": "sh",
				"args": []string{"-c", "echo to out; echo to err >&2; exit 3"}},
			text: true, product: "to out\n", facts: []string{exit3, "to err"},
		},
		{
			tool: "process_run", args: object{"command": "seq", "args": []string{"1", "30000"}},
			text: true, cut: true, product: "6000\n",
			facts: []string{`process_output\b.*\bsince\W*\d|file_read\b.*\boffset\W*\d|gatehouse://`},
		},
		{tool: "process_start", args: object{"command": "sh", "args": []string{"-c", "echo started; exec sleep 600"}}},
		{
			tool: "process_output", args: object{"wait": "text", "match": "started"},
			from: map[string]source{"id": id("process_start")},
			text: true, product: "started\n", facts: []string{`(?i)(next|since)\W*8\b`},
		},
		{
			tool: "process_start",
			args: object{
				"command":  "sh",
				"args":     []string{"-c", "echo on the screen; exec sleep 600"},
				"terminal": true,
			},
		},
		{
			tool: "process_screen", args: object{"text": "on the screen"},
			from: map[string]source{"id": id("process_start 2")}, text: true, product: "on the screen",
		},
		{
			tool: "shell_run", args: object{"command": "cat page.go; echo to err >&2; exit 3"},
			text: true, product: strings.Replace(page, "needle", "thread", 1), facts: []string{exit3, "to err"},
		},
		{tool: "shell_run", args: object{"command": "true"}, text: true, facts: []string{exit0}},
		{tool: "shell_system", args: object{"command": "echo by bash"}, text: true, product: "by bash\n"},
		{
			tool: "sandbox_run", args: object{"language": "sh", "code": "echo in a sandbox; exit 3"},
			text: true, product: "in a sandbox\n", facts: []string{exit3},
		},
		{tool: "sandbox_create", args: object{}},
		{
			tool: "sandbox_exec", args: object{"command": "echo kept >kept.txt; echo done here"},
			from: map[string]source{
				"sandbox_id": id("sandbox_create"),
			}, text: true, product: "done here\n", facts: []string{exit0},
		},
		{
			tool: "sandbox_start", args: object{"command": "echo going on; exec sleep 600"},
			from: map[string]source{"sandbox_id": id("sandbox_create")},
		},
		{
			tool: "sandbox_output", args: object{"wait": 30},
			from: map[string]source{"sandbox_id": id("sandbox_create"), "process_id": id("sandbox_start")},
			text: true, product: "going on\n", facts: []string{`(?i)(next|since)\W*9\b`},
		},
		{
			tool: "sandbox_read", args: object{"path": "kept.txt"},
			from: map[string]source{"sandbox_id": id("sandbox_create")}, text: true, product: "kept\n",
		},
		{tool: "sandbox_list", args: object{}},
		{tool: "job_list", args: object{}},
		{tool: "lang_detect", args: object{"path": "page.go"}, facts: []string{`(?i)\bgo\b`}},
		{tool: "metrics_record", args: object{"type": "clients.tried"}},
		{tool: "metrics_query", args: object{}, facts: []string{`clients\.tried`}},
		{tool: "server_info", args: object{}},
		{tool: "rag_ingest", args: object{"path": ".", "glob": "*.md"}},
		{
			tool: "rag_query", args: object{"question": "How often does the pump need oil?"},
			text: true, product: "needs oil every 40 hours", facts: []string{`manual\.md:\d`},
		},
		{tool: "build_run", args: object{"dir": "below", "wait": 45}, facts: []string{`(?i)failed`, `inner\.txt`}},
		{tool: "build_list", args: object{}, facts: []string{`\bbelow\b`}},
		{tool: "ide_build_list", args: object{}, facts: []string{`\bbelow\b`}},
		{tool: "ide_dashboard_overview", args: object{}, facts: []string{`(?i)recentBuilds\W*1`}},
		{tool: "lsp_symbols", args: object{"path": "page.go"}, text: true, product: "main"},
		{tool: "brain_remember", args: object{"text": "the user prefers tabs to spaces"}},
		{tool: "brain_recall", args: object{"question": "tabs or spaces?"}, facts: []string{"prefers tabs to spaces"}},
		{
			tool: "code_run", args: object{"language": "python",
				"code": "found = tools.file_read(path='manual.md')\nprint(found['content'].upper())"},
			text: true, product: "THE RED PUMP NEEDS OIL", facts: []string{`file_read`},
		},
		{
			tool: "webview_render", args: object{"id": "form", "html": shownPage, "snapshot": "full"},
			text: true, product: `textbox "Größe"`, facts: []string{`# Pumps`},
		},
		{tool: "webview_snapshot", args: object{"mode": "interactive"}, text: true, product: `button "Order"`},
		{
			tool: "webview_type", args: object{"text": "10 \"東京\""}, from: map[string]source{"target": ref("textbox")},
			text: true, facts: []string{`success\W+true`},
		},
		{
			tool: "webview_click", args: object{"snapshot": "diff"}, from: map[string]source{"target": ref("button")},
			text: true, product: `ordered: 10 "東京"`, facts: []string{`\bok\b`},
		},
		{
			tool:  "webview_query",
			args:  object{"selector": "li", "all": true, "fields": []string{"text"}},
			facts: []string{"red pump"},
		},
		{tool: "webview_eval", args: object{"script": "document.title"}, text: true, product: `"Pumps"`},
		{tool: "webview_screenshot", args: object{}, text: true, picture: true, product: "image/jpeg, "},
		{tool: "webview_tabs", args: object{}, facts: []string{`\bt\d`}},
		{tool: "webview_disconnect", args: object{}},
	}
}

// shownPage is a page with a form, whose answer has quotes and letters of several bytes.
const shownPage = `<!doctype html><title>Pumps</title><h1>Pumps</h1><ul><li>red pump<li>blue pump</ul><label>Größe <input id=n></label>
<button onclick="out.textContent = 'ordered: ' + n.value">Order</button><p id=out></p>`

func longLines(n int) []string {
	var lines []string
	for i := range n {
		lines = append(lines, fmt.Sprintf("line of text number %03d\n", i+1))
	}
	return lines
}

// modelSteps converts the steps for a model. An argument that is not in what the model received is "missing", so
// that the call that needs it fails.
func modelSteps(all []tried) []Step {
	var script []Step
	for i, s := range all {
		script = append(script, Step{Tool: s.tool, Args: func(given []string) map[string]any {
			args := object{}
			maps.Copy(args, s.args)
			for name, from := range s.from {
				args[name] = "missing"
				if at := position(all[:i], from.step); at < len(given) {
					if m := regexp.MustCompile(from.find).FindStringSubmatch(plain(given[at])); m != nil {
						args[name] = m[1]
					}
				}
			}
			return args
		}})
	}
	return script
}

// position returns the index of "tool" or "tool 2" in steps.
func position(all []tried, name string) int {
	tool, which, _ := strings.Cut(name, " ")
	skip := 0
	if which == "2" {
		skip = 1
	}
	for i, s := range all {
		if s.tool == tool {
			if skip == 0 {
				return i
			}
			skip--
		}
	}
	return len(all)
}

// plain removes the escapes of JSON strings, so that an expression matches in every encoding of a client.
func plain(given string) string { return strings.ReplaceAll(given, `\`, "") }
