package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/tiktoken-go/tokenizer"
)

// subject is an MCP server with a browser.
type subject struct {
	name    string
	command []string
	env     []string
	page    map[string]any // added to the arguments of each call
	open    string         // the tool that opens an address
	opening map[string]any // added to its arguments
	shown   bool           // opening shows the page as well
	read    string         // the tool that shows the page
	element string         // regular expression of an element in a page, with ROLE and NAME in it
	target  string         // the argument that names an element
	// do returns the call for a step of the form, and whether its result shows the page.
	do func(f field, ref string) (tool string, args map[string]any, shows bool)
	// many returns the call that sets several fields.
	many func(fields []field, refs []string) (tool string, args map[string]any)
}

type args = map[string]any

var roles = map[string]string{
	"text":   "textbox",
	"list":   "combobox",
	"box":    "checkbox",
	"choice": "radio",
	"button": "button",
}

func value(f field) string {
	if f.kind == "box" || f.kind == "choice" {
		return "true"
	}
	return f.value
}

func gatehouse(program string) subject {
	return subject{
		name: "gatehouse", command: []string{program, "serve", "webview"}, open: "webview_navigate", shown: true,
		opening: args{"snapshot": "full"}, read: "webview_snapshot", element: `\[(e\d+) ROLE "NAME"`, target: "target",
		env: []string{"GATEHOUSE_MODULES_WEBVIEW_NETWORK_SPECIAL=127.0.0.1:*"},
		do: func(f field, ref string) (string, args, bool) {
			switch f.kind {
			case "text":
				a := args{"target": ref, "text": f.value}
				if f.replace { // the two others always replace the text
					a["clear"] = true
				}
				return "webview_type", a, false
			case "list":
				return "webview_act", args{"action": "select", "target": ref, "values": []string{f.value}}, false
			}
			if f.then {
				return "webview_click", args{"target": ref, "snapshot": "diff"}, true
			}
			return "webview_click", args{"target": ref}, false
		},
		many: func(fields []field, refs []string) (string, args) {
			var all []args
			for i, f := range fields {
				all = append(all, args{"target": refs[i], "value": value(f)})
			}
			return "webview_fill", args{"fields": all}
		},
	}
}

func playwright(node, folder, chromium string) subject {
	return subject{
		name: "Playwright MCP", open: "browser_navigate", read: "browser_snapshot", target: "target",
		command: []string{
			node,
			folder + "/node_modules/@playwright/mcp/cli.js",
			"--headless",
			"--isolated",
			"--no-sandbox",
			"--executable-path",
			chromium,
		},
		element: `ROLE "NAME"[^\n]*\[ref=((?:f\d+)?e\d+)\]`,
		do: func(f field, ref string) (string, args, bool) {
			switch f.kind {
			case "text":
				return "browser_type", args{"target": ref, "text": f.value}, false
			case "list":
				return "browser_select_option", args{"target": ref, "values": []string{f.value}}, false
			}
			return "browser_click", args{"target": ref}, false
		},
		many: func(fields []field, refs []string) (string, args) {
			var all []args
			for i, f := range fields {
				all = append(all, args{"target": refs[i], "name": f.label, "type": roles[f.kind], "value": value(f)})
			}
			return "browser_fill_form", args{"fields": all}
		},
	}
}

func devtools(node, folder, chromium string) subject {
	return subject{
		name: "chrome-devtools-mcp", open: "navigate_page", read: "take_snapshot", target: "uid",
		page: args{"pageId": 1},
		command: []string{
			node,
			folder + "/node_modules/chrome-devtools-mcp/build/src/bin/chrome-devtools-mcp.js",
			"--headless",
			"--isolated",
			"--executablePath",
			chromium,
			"--chromeArg=--no-sandbox",
			"--no-usage-statistics",
			"--no-performance-crux",
			"--viewport",
			"1280x800",
		},
		element: `uid=(\d+_\d+) ROLE "NAME"`,
		do: func(f field, ref string) (string, args, bool) {
			if f.kind == "button" {
				return "click", args{"uid": ref, "includeSnapshot": f.then}, f.then
			}
			return "fill", args{"uid": ref, "value": value(f)}, false
		},
		many: func(fields []field, refs []string) (string, args) {
			var all []args
			for i, f := range fields {
				all = append(all, args{"uid": refs[i], "value": value(f)})
			}
			return "fill_form", args{"elements": all}
		},
	}
}

// ref returns the element of a role and name in a page.
func (s subject) ref(page, role, name string) (string, error) {
	e := strings.NewReplacer("ROLE", role, "NAME", regexp.QuoteMeta(name)).Replace(s.element)
	m := regexp.MustCompile(e).FindStringSubmatch(page)
	if m == nil {
		return "", fmt.Errorf("%s shows no %s %q in:\n%.3000s", s.name, role, name, page)
	}
	return m[1], nil
}

// run is a subject that runs.
type run struct {
	subject
	session *mcp.ClientSession
	codec   tokenizer.Codec
	tools   int // tokens of the list of tools
	tokens  int // of the calls and results since it was last set to 0
	folder  string
}

func start(ctx context.Context, s subject, codec tokenizer.Codec) (_ *run, err error) {
	r := &run{subject: s, codec: codec}
	if r.folder, err = os.MkdirTemp("", "browser"); err != nil {
		return nil, err
	}
	cmd := exec.Command(s.command[0], s.command[1:]...)
	cmd.Dir = r.folder
	cmd.Env = append(
		[]string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.folder, "TMPDIR=" + os.TempDir(), "CI=1"},
		s.env...)
	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	r.session, err = client.Connect(ctx, &mcp.CommandTransport{Command: cmd, TerminateDuration: 10 * time.Second}, nil)
	if err != nil {
		os.RemoveAll(r.folder)
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	return r, nil
}

func (r *run) stop() {
	r.session.Close()
	os.RemoveAll(r.folder)
}

// countTools counts the tokens of the list of tools as a model gets it: name, description and schema of each.
func (r *run) countTools(ctx context.Context) error {
	list, err := r.session.ListTools(ctx, nil)
	if err != nil {
		return err
	}
	for _, t := range list.Tools {
		b, err := json.Marshal(args{"name": t.Name, "description": t.Description, "input_schema": t.InputSchema})
		if err != nil {
			return err
		}
		r.tools += r.count(string(b))
	}
	return nil
}

func (r *run) count(text string) int {
	n, err := r.codec.Count(text)
	if err != nil {
		panic(err) // every text has tokens
	}
	return n
}

// call calls a tool, counts the tokens of its arguments and of its result, and returns the text of the result.
func (r *run) call(ctx context.Context, tool string, a args) (string, error) {
	with := args{}
	for _, part := range []args{r.page, a} {
		for k, v := range part {
			with[k] = v
		}
	}
	got, err := r.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: with})
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w", r.name, tool, err)
	}
	var text strings.Builder
	for _, c := range got.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			text.WriteString(t.Text + "\n")
		}
	}
	sent, err := json.Marshal(with)
	if err != nil {
		return "", err
	}
	r.tokens += r.count(string(sent)) + r.count(text.String())
	if got.IsError {
		return "", fmt.Errorf("%s: %s: %s", r.name, tool, text.String())
	}
	return text.String(), nil
}

// openAndRead opens an address and returns the page.
func (r *run) openAndRead(ctx context.Context, url string) (string, error) {
	a := args{"url": url}
	for k, v := range r.opening {
		a[k] = v
	}
	text, err := r.call(ctx, r.open, a)
	if err != nil || r.shown {
		return text, err
	}
	return r.call(ctx, r.read, args{})
}
