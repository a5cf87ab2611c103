package ide_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"gatehouse/internal/exec/idelink"
	"gatehouse/internal/exec/rpc"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/modules/file"
	"gatehouse/internal/modules/ide"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// editor is a strict fake of an editor with an extension for Claude Code, by the messages of claudecode.nvim: each answer
// is JSON in a text, and openDiff answers when the person has decided.
type editor struct {
	t    *testing.T
	file string // open, and dirty

	mu     sync.Mutex
	called []string
	said   []string // notifications
	agent  *rpc.Conn
}

func (e *editor) request(_ context.Context, method string, params json.RawMessage) (any, error) {
	text := func(texts ...string) (any, error) {
		var blocks []map[string]string
		for _, s := range texts {
			blocks = append(blocks, map[string]string{"type": "text", "text": s})
		}
		return map[string]any{"content": blocks}, nil
	}
	switch method {
	case "initialize":
		return map[string]any{
			"protocolVersion": "2024-11-05", "capabilities": map[string]any{"tools": map[string]bool{"listChanged": true}},
			"serverInfo": map[string]string{"name": "claudecode-neovim", "version": "0.2.0"},
		}, nil
	case "tools/list":
		var all []map[string]any
		for _, name := range []string{"openFile", "openDiff", "getOpenEditors", "getDiagnostics", "close_tab"} {
			all = append(all, map[string]any{"name": name, "inputSchema": map[string]string{"type": "object"}})
		}
		return map[string]any{"tools": all}, nil
	case "tools/call":
	default:
		return nil, rpc.NotFound(method)
	}
	var p struct {
		Name      string
		Arguments map[string]any
	}
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.called = append(e.called, p.Name)
	e.mu.Unlock()
	switch p.Name {
	case "getOpenEditors":
		list, err := json.Marshal(map[string]any{"tabs": []any{map[string]any{
			"uri": "file://" + e.file, "isActive": true, "isDirty": true, "label": filepath.Base(e.file), "languageId": "text",
			"fileName": e.file,
		}}})
		if err != nil {
			return nil, err
		}
		return text(string(list))
	case "getDiagnostics":
		return text(`[{"uri":"file://` + e.file + `","diagnostics":[{"message":"a word is missing","severity":"Warning",` +
			`"range":{"start":{"line":1,"character":2},"end":{"line":1,"character":4}},"source":"prose"}]}]`)
	case "openFile":
		if p.Arguments["filePath"] != e.file || p.Arguments["startText"] != "two" {
			e.t.Errorf("openFile: %v", p.Arguments)
		}
		return text("Opened file: " + e.file)
	case "openDiff":
		if p.Arguments["new_file_contents"] == "no\n" {
			return text("DIFF_REJECTED", p.Arguments["tab_name"].(string))
		}
		return text("FILE_SAVED", p.Arguments["new_file_contents"].(string)+"and the person's line\n")
	}
	return nil, &rpc.Error{Code: rpc.CodeInvalidParams, Message: "Tool not found: " + p.Name}
}

func (e *editor) notified(method string, _ json.RawMessage) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.said = append(e.said, method)
}

// TestAnEditorIsUsed connects to an editor by its lock file: open files, selection, diagnostics, changes, and the files
// that it has not saved are those of the editor.
func TestAnEditorIsUsed(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "a.txt")
	if err := os.WriteFile(path, []byte("one\ntwo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := &editor{t: t, file: path}
	locks := filepath.Join(t.TempDir(), "ide")
	s := &idelink.Server{
		Accept: func(agent *rpc.Conn) func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.agent = agent
			return func() {}
		},
		Handler: func(func() *rpc.Conn) rpc.Handler { return rpc.Handler{Request: e.request, Notify: e.notified} },
	}
	s.Editor, s.Folders = "Neovim", []string{dir}
	if err := s.Listen(locks); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	set, err := roots.Open([]roots.Dir{{Path: dir}}, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var unsaved ide.Unsaved
	cfg := ide.Config{
		Settings: ide.Settings{Locks: locks}, Rules: func(tool.Caller) bool { return true },
		Editing: func(u ide.Unsaved) { unsaved = u },
	}
	h := hosttest.Harnesses()[1].Make(t, hosttest.Options{Roots: set, Modules: map[string]module.New{
		"ide": ide.New(cfg),
		"file": file.New(file.Config{
			Unsaved: func(ctx context.Context, c *tool.Call, path string) (*string, string, bool) {
				return unsaved(ctx, c, path)
			},
		}),
	}})
	t.Cleanup(func() {
		set.Close()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	p := &person{t, dir, h, nil}
	text := func(name, args string) string {
		t.Helper()
		r := hosttest.Call(h, name, args, nil)
		note, _ := rawjson.String(r.Get("content", 1, "text"))
		return r.Text() + note
	}

	var now struct {
		Editors []struct {
			Name, Source, Problem string
			Tabs                  []struct {
				Path          string
				Active, Dirty bool
			}
		}
	}
	p.call("ide_editor_state", nil, &now)
	if len(now.Editors) != 1 || now.Editors[0].Name != "Neovim" || now.Editors[0].Source != "live" ||
		len(now.Editors[0].Tabs) != 1 || now.Editors[0].Tabs[0].Path != path || !now.Editors[0].Tabs[0].Dirty {
		t.Fatalf("got %+v", now)
	}
	if got := text("file_read", `{"path":"a.txt"}`); !strings.Contains(got, "are not saved in the editor Neovim") {
		t.Errorf("a file that the editor has not saved is read without saying so: %s", got)
	}
	if got := text("file_read", `{"path":"a.txt","as":"unsaved"}`); !strings.Contains(got, "Neovim") || strings.HasPrefix(got, "one") {
		t.Errorf("got %s of a text that the protocol does not tell", got)
	}

	// A selection of the editor is passed on.
	e.mu.Lock()
	agent := e.agent
	e.mu.Unlock()
	if err := agent.Notify(t.Context(), "selection_changed", map[string]any{
		"text": "two", "filePath": path, "fileUrl": "file://" + path,
		"selection": map[string]any{"start": map[string]int{"line": 1, "character": 0}, "end": map[string]int{"line": 1, "character": 3}},
	}); err != nil {
		t.Fatal(err)
	}
	var selected struct {
		Selection *struct {
			Path, Text, Source string
			From, To           int
		}
	}
	eventually(t, "the selection arrives", func() bool {
		p.call("ide_editor_state", nil, &selected)
		return selected.Selection != nil
	})
	if got := *selected.Selection; got.Path != path || got.Text != "two" || got.From != 2 || got.To != 2 || got.Source != "live" {
		t.Errorf("got %+v", got)
	}

	var opened struct{ Opened bool }
	if p.call("ide_editor_open", map[string]any{"path": "a.txt", "text": "two"}, &opened); !opened.Opened {
		t.Errorf("got %+v", opened)
	}
	var found struct {
		Source   string
		Problems []struct {
			Line, Column      int
			Severity, Message string
		}
	}
	p.call("ide_editor_diagnostics", map[string]any{"path": "a.txt"}, &found)
	if len(found.Problems) != 1 || found.Source != "live" || found.Problems[0].Line != 2 || found.Problems[0].Column != 3 ||
		found.Problems[0].Message != "a word is missing" {
		t.Errorf("got %+v", found)
	}
	var d struct {
		Status, Source string
		Text           *string
	}
	p.call("ide_diff_open", map[string]any{"path": "a.txt", "text": "yes\n"}, &d)
	if d.Status != "saved" || d.Source != "Neovim" || d.Text == nil || *d.Text != "yes\nand the person's line\n" {
		t.Errorf("got %+v", d)
	}
	d.Text = nil
	if p.call("ide_diff_open", map[string]any{"path": "a.txt", "text": "no\n"}, &d); d.Status != "rejected" || d.Text != nil {
		t.Errorf("got %+v", d)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "one\ntwo\n" {
		t.Errorf("the file was written: %s %v", b, err)
	}

	// A text that a script told of is read as it is in the editor.
	var told struct{ Agents int }
	p.call("ide_editor_update", map[string]any{"unsaved": map[string]any{"path": "a.txt", "text": "one\ntwo\nthree\n"}}, &told)
	if got := text("file_read", `{"path":"a.txt","as":"unsaved"}`); !strings.HasPrefix(got, "one\ntwo\nthree\n") {
		t.Errorf("got %s", got)
	}
	p.call("ide_editor_update", map[string]any{"unsaved": map[string]any{"path": "a.txt"}}, &told)
	if got := text("file_read", `{"path":"a.txt"}`); !strings.HasPrefix(got, "one\ntwo\n") || strings.Contains(got, "three") {
		t.Errorf("got %s", got)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if got := strings.Join(e.said, " "); got != "notifications/initialized ide_connected" {
		t.Errorf("the editor was told %s", got)
	}
}
