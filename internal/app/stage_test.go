package app

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/config"
	"gatehouse/internal/exec/overlay"
	"gatehouse/internal/files/stage"
	"gatehouse/internal/tests/editors"
)

// stagingHost returns a host whose context agent stages, a client of it, and the folder.
func stagingHost(t *testing.T, modules ...string) (*App, *tenant, string) {
	t.Helper()
	if err := overlay.Probe(filepath.Join(t.TempDir(), "probe"), false); err != nil {
		t.Skip(err)
	}
	return stagingOn(t, "", modules...)
}

func stagingOn(t *testing.T, layer string, modules ...string) (*App, *tenant, string) {
	t.Helper()
	cfg := settings(t)
	cfg.Stage.Layer = layer
	dir := t.TempDir()
	cfg.Roots.Folders = []string{dir}
	cfg.View.Modules = modules
	cfg.Contexts = []config.Context{{Name: "agent", Modules: modules, Stage: true}, {Name: "plain", Modules: modules}}
	if tools, ok := editorTools(t, modules); ok {
		cfg.Modules.LSP.Servers = tools
	}
	a, client := liveOn(t, cfg, Options{})
	return a, client("ann"), dir
}

func editorTools(t *testing.T, modules []string) ([]string, bool) {
	if slices.Contains(modules, "lsp") {
		return editors.Open(t).Servers(), true
	}
	return nil, false
}

// told calls a tool of the context agent and returns its text, in which each of want is.
func (c *tenant) told(name, args string, want ...string) string {
	c.t.Helper()
	var result struct {
		Result struct {
			IsError bool
			Content []struct{ Text string }
		}
	}
	got := c.call("agent", name, args)
	if err := json.Unmarshal([]byte(got), &result); err != nil {
		c.t.Fatalf("%s: %v: %s", name, err, got)
	}
	var text strings.Builder
	for _, b := range result.Result.Content {
		text.WriteString(b.Text + "\n")
	}
	for _, w := range want {
		if !strings.Contains(text.String(), w) {
			c.t.Errorf("%s %s: %q is missing in %s", name, args, w, got)
		}
	}
	return text.String()
}

// Language servers, searches and builds of a task see what its calls have changed, and a change of a language server is
// staged itself.
func TestEditorToolsSeeTheTask(t *testing.T) {
	a, ann, dir := stagingHost(t, "file", "shell", "lsp", "build")
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("go.mod", "module example.com/shop\n\ngo 1.25\n")
	put("shop.go", "package shop\n\nfunc Price(n int) int { return n * 3 }\n")

	ann.told("file_write", `{"path":"use.go","content":"package shop\n\nvar Cost = Price(1)\n"}`, "staged in task")
	ann.told("lsp_definition", `{"path":"use.go","line":3,"symbol":"Price"}`, "shop.go:3:6")
	ann.told("lsp_diagnostics", `{"path":"use.go"}`, "errors: 0")
	// A program of the task changes another file: the server learns of it.
	ann.told("shell_run", `{"command":"sed -i s/Price/Prize/ shop.go"}`, "staged in task")
	ann.told("lsp_diagnostics", `{"path":"use.go"}`, "undefined: Price")
	ann.told("shell_run", `{"command":"sed -i s/Prize/Price/ shop.go"}`, "staged in task")
	ann.told("lsp_rename", `{"path":"use.go","line":3,"symbol":"Price","new_name":"CostOf"}`, "files=2", "staged in task")
	ann.told("file_search", `{"pattern":"CostOf"}`, "shop.go", "use.go")
	ann.told("build_run", `{}`, "staged in task")

	if b, err := os.ReadFile(filepath.Join(dir, "shop.go")); err != nil || strings.Contains(string(b), "CostOf") {
		t.Errorf("the folder has %s, %v", b, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "use.go")); err == nil {
		t.Error("the folder has use.go")
	}
	list, err := a.stage.List(false)
	if err != nil || len(list) != 1 {
		t.Fatalf("tasks: %v, %v", list, err)
	}
	if r, err := a.stage.Accept(list[0].ID, stage.Choice{By: "ann"}); err != nil || len(r.Conflict) > 0 {
		t.Errorf("accepted %v, %v", r, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "use.go")); err != nil || !strings.Contains(string(b), "CostOf(1)") {
		t.Errorf("the folder has %s, %v", b, err)
	}
}

// With stage.unattended set to all, a caller whose client cannot ask a person is staged, and one whose client can is
// not; a rule that allows comes first, and what cannot be staged waits for an operator.
func TestUnattendedCallersAreStaged(t *testing.T) {
	cfg := settings(t)
	if err := overlay.Probe(filepath.Join(t.TempDir(), "probe"), false); err != nil {
		t.Skip(err)
	}
	cfg.Roots.Folders = []string{t.TempDir()}
	cfg.Stage.Unattended = config.UnattendedAll
	cfg.Contexts = []config.Context{{Name: "agent", Modules: []string{"file", "net"}}}
	cfg.Rules = []config.Rule{{Names: []string{"file_write"}, When: `args.path == "free.txt"`, Then: "allow"}}
	_, client := liveOn(t, cfg, Options{})
	ann := client("ann")
	ann.told("file_write", `{"path":"a.txt","content":"x"}`, "staged in task")
	ann.told("file_write", `{"path":"free.txt","content":"x"}`)
	if _, err := os.Stat(filepath.Join(cfg.Roots.Folders[0], "free.txt")); err != nil {
		t.Error(err)
	}
	if got := ann.call("agent", "net_forward_start", `{"target":"127.0.0.1:9"}`); !strings.Contains(got, "operator") {
		t.Errorf("what cannot be staged: %s", got)
	}
}

// A program of code_run is staged: each of its calls is, and what cannot be staged is refused to it.
func TestAProgramOfATask(t *testing.T) {
	_, ann, dir := stagingHost(t, "file", "code", "net")
	out := ann.told("code_run", `{"language":"python","code":"import os\ntools.file_write(path='made.txt', content='by a program')\n`+
		`try:\n    tools.net_forward_start(target='127.0.0.1:9')\n    print('it forwards')\nexcept BaseException:\n    pass\n`+
		`print(tools.file_read(path='made.txt'))"}`)
	if strings.Contains(out, "no sandbox") || strings.Contains(out, "cannot be used here") {
		t.Skip(out)
	}
	if strings.Contains(out, "it forwards") {
		t.Errorf("what cannot be staged was done: %s", out)
	}
	if !strings.Contains(out, "by a program") || !strings.Contains(out, "staged in task") {
		t.Errorf("got %s", out)
	}
	if _, err := os.Stat(filepath.Join(dir, "made.txt")); err == nil {
		t.Error("the folder has made.txt")
	}
	ann.told("file_read", `{"path":"made.txt"}`, "by a program")
}

// Where no overlay can be mounted, file tools are staged as copies, each reading what the others wrote, and calls that
// start programs ask and say why.
func TestFileToolsAreStagedAsCopies(t *testing.T) {
	a, ann, dir := stagingOn(t, config.LayerCopies, "file", "dir", "shell", "filesystem", "lang", "webview")
	large := strings.Repeat("a line of a large file\n", 10_000)
	for name, content := range map[string]string{
		"a.go": "package old\n", "sub/b.go": "package sub\n", "sub/deep/c.txt": "c", "gone/d.txt": "d", "large.txt": large,
	} {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(content), 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	before := folderOf(t, dir)
	staged := "staged in task"
	ann.told("file_write", `{"path":"new/made.go","content":"package made\n"}`, staged)
	ann.told("file_edit", `{"path":"a.go","old_string":"package old","new_string":"package fresh"}`, staged)
	ann.told("file_edit", `{"path":"large.txt","old_string":"a line","new_string":"one line","replace_all":true}`, staged)
	const copied = "the task has a copy of the directory"
	ann.told("file_rename", `{"oldPath":"sub","newPath":"moving"}`, staged, copied)
	if got := ann.told("file_rename", `{"oldPath":"moving","newPath":"moved"}`, staged); strings.Contains(got, copied) {
		t.Errorf("a directory of the task is copied to move it: %s", got)
	}
	ann.told("file_write", `{"path":"moved/b.go","content":"package moved\n"}`, staged)
	ann.told("file_delete", `{"path":"gone","recursive":true}`, staged)
	ann.told("file_write", `{"path":"gone/again.txt","content":"again"}`, staged)
	ann.told("dir_create", `{"path":"empty"}`, staged)
	ann.told("filesystem_create_directory", `{"path":"preset"}`, staged)
	ann.told("filesystem_write_file", `{"path":"preset/w.txt","content":"by the preset"}`, staged)
	ann.told("filesystem_move_file", `{"source":"preset/w.txt","destination":"preset/v.txt"}`, staged)
	for _, call := range [][2]string{ // for models that get structured content alone
		{"filesystem_write_file", `{"path":"preset/e.txt","content":"x"}`},
		{"filesystem_edit_file", `{"path":"preset/e.txt","edits":[{"oldText":"x","newText":"y"}]}`},
		{"file_write", `{"path":"other.txt","content":"x"}`},
	} {
		var got struct {
			Result struct{ StructuredContent json.RawMessage }
		}
		answer := ann.call("agent", call[0], call[1])
		if err := json.Unmarshal([]byte(answer), &got); err != nil ||
			!strings.Contains(string(got.Result.StructuredContent), "in task st_") {
			t.Errorf("%s: %s, %v", call[0], answer, err)
		}
	}
	if after := folderOf(t, dir); after != before {
		t.Fatalf("the folder changed:\n%s\nwas\n%s", after, before)
	}
	ann.told("file_read", `{"path":"a.go"}`, "package fresh")
	ann.told("file_read", `{"path":"moved/deep/c.txt"}`, "c")
	ann.told("file_exists", `{"path":"sub"}`, "false")
	ann.told("dir_list", `{"path":".","depth":3}`, "made.go", "moved", "again.txt", "empty", "v.txt")
	if out := ann.told("dir_list", `{"path":"gone"}`, "again.txt"); strings.Contains(out, "d.txt") {
		t.Errorf("a deleted file is listed: %s", out)
	}
	if out := ann.told("file_search", `{"pattern":"^package"}`, "moved/b.go", "package moved", "made.go"); strings.Contains(out, "sub/") {
		t.Errorf("a moved file is found: %s", out)
	}
	ann.told("filesystem_list_directory", `{"path":"."}`, "[DIR] moved", "[DIR] preset")
	ann.told("filesystem_directory_tree", `{"path":"."}`, "again.txt", "v.txt")
	ann.told("filesystem_search_files", `{"path":".","pattern":"**/*.go"}`, "moved/b.go", "new/made.go")
	ann.told("filesystem_read_text_file", `{"path":"preset/v.txt"}`, "by the preset")
	ann.told("filesystem_get_file_info", `{"path":"moved/b.go"}`, "size: 14")
	ann.told("file_undo", `{"path":"moved/b.go"}`, staged)
	ann.told("file_read", `{"path":"moved/b.go"}`, "package sub")

	if got := ann.call("agent", "shell_run", `{"command":"echo x >y"}`); !strings.Contains(got, "only file tools are staged") {
		t.Errorf("a program: %s", got)
	}
	list, err := a.stage.List(false)
	if err != nil || len(list) != 1 || !list[0].Copies {
		t.Fatalf("tasks: %v, %v", list, err)
	}
	r, err := a.stage.Accept(list[0].ID, stage.Choice{By: "ann"})
	if err != nil || len(r.Conflict) > 0 {
		t.Fatalf("accepted %v, %v", r, err)
	}
	for name, want := range map[string]string{
		"a.go": "package fresh", "moved/b.go": "package sub", "moved/deep/c.txt": "c", "gone/again.txt": "again",
		"preset/v.txt": "by the preset", "sub/b.go": "", "gone/d.txt": "", "new/made.go": "package made",
	} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); (err == nil) != (want != "") || !strings.Contains(string(b), want) {
			t.Errorf("%s has %q, %v", name, b, err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "a.go")); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("a.go is %v, %v", info, err)
	}
	if u, err := a.stage.Undo(list[0].ID, "ann"); err != nil || len(u.Conflict) > 0 {
		t.Fatalf("undone %v, %v", u, err)
	}
	if after := folderOf(t, dir); after != before {
		t.Errorf("undone:\n%s\nwas\n%s", after, before)
	}
}

// folderOf describes a folder: names, modes, times of files, content.
func folderOf(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		fmt.Fprintf(&b, "%s %v", rel, info.Mode())
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %v %x", info.ModTime(), sha256.Sum256(content))
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Where tasks are copies, a language server of the task has what the task changed in other files, and that of another
// caller does not.
func TestLanguageServersHaveWhatCopiesChange(t *testing.T) {
	_, ann, dir := stagingOn(t, config.LayerCopies, "file", "lsp")
	for name, text := range map[string]string{
		"go.mod":       "module example.com/shop\n\ngo 1.25\n",
		"shop.go":      "package shop\n\nfunc Price(n int) int { return n * 3 }\n",
		"use.go":       "package shop\n\nvar Cost = Price(1)\n",
		"sub/other.go": "package sub\n",
	} {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	ann.told("lsp_diagnostics", `{"path":"use.go"}`, "errors: 0")
	ann.told("file_edit", `{"path":"shop.go","old_string":"Price","new_string":"Prize"}`, "staged in task")
	ann.told("lsp_diagnostics", `{"path":"use.go"}`, "undefined: Price")
	ann.told("file_write", `{"path":"more.go","content":"package shop\n\nfunc Price(n int) int { return n }\n"}`, "staged in task")
	ann.told("lsp_definition", `{"path":"use.go","line":3,"symbol":"Price"}`, "more.go:3:6")
	var got string
	if got = ann.call("plain", "lsp_definition", `{"path":"use.go","line":3,"symbol":"Price"}`); !strings.Contains(got, "shop.go:3:6") {
		t.Errorf("a context without the task has %s", got)
	}
}

// A line that names a program which cannot do its work where calls are staged asks, and says why; git without the
// network does not.
func TestLinesThatCannotBeStaged(t *testing.T) {
	_, ann, dir := stagingHost(t, "shell")
	for line, want := range map[string]string{
		"echo x >a; sudo -n id":                         "sudo gets no privileges where a call is staged",
		"git -C . push origin":                          "git push needs the network",
		"echo x | /usr/bin/curl -d @- http://localhost": "curl needs the network",
	} {
		args, err := json.Marshal(map[string]string{"command": line})
		if err != nil {
			t.Fatal(err)
		}
		if got := ann.call("agent", "shell_run", string(args)); !strings.Contains(got, want) || strings.Contains(got, "staged in task") {
			t.Errorf("%s: %s", line, got)
		}
	}
	ann.told("shell_run", `{"command":"git init -q . && git -c user.name=push status --short; git log push; :"}`, "staged in task")
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("the folder has %v, %v", names, err)
	}
}

// A process of a task changes its view alone, the listing says which calls are staged, and each line of the ledger
// names the task.
func TestProcessesListingsAndLinesOfATask(t *testing.T) {
	a, ann, dir := stagingHost(t, "file", "process")
	if list := ann.say("agent", "tools/list", ""); strings.Count(list, "Its calls are staged") < 2 {
		t.Errorf("the listing does not say what is staged: %.2000s", list)
	}
	ann.told("file_write", `{"path":"a.txt","content":"by a tool"}`, "staged in task")
	ann.told("process_start", `{"command":"sh","args":["-c","cat a.txt >b.txt; mkfifo pipe; ln -s a.txt link"]}`, "staged in task")
	eventually(t, "the process is done", func() bool {
		return strings.Contains(ann.told("file_read", `{"path":"b.txt"}`)+ann.told("file_exists", `{"path":"link"}`), "by a tool")
	})
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("the folder has %v, %v", names, err)
	}
	list, err := a.stage.List(false)
	if err != nil || len(list) != 1 {
		t.Fatalf("tasks: %v, %v", list, err)
	}
	if err := a.ledger.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	lines := 0
	for line, err := range a.ledger.Query(t.Context(), audit.Filter{Kind: "call"}) {
		if err != nil {
			t.Fatal(err)
		}
		if lines++; line.Task != list[0].ID {
			t.Errorf("the line of %s names the task %q", line.Tool, line.Task)
		}
	}
	if lines < 3 {
		t.Errorf("the ledger has %d lines", lines)
	}
}
