package webtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/config"
	"gatehouse/internal/exec/overlay"
	"gatehouse/internal/tests/chromium"
	"gatehouse/tool"
)

// staged runs a host whose context agent stages, in which an agent of ann has made a task, and returns its folder.
func staged(t *testing.T) (h *host, folder string) {
	t.Helper()
	if err := overlay.Probe(filepath.Join(t.TempDir(), "probe"), false); err != nil {
		t.Skip(err)
	}
	cfg := settings(t)
	cfg.Auth.Required = true
	cfg.View.Modules = append(cfg.View.Modules, "shell")
	cfg.Contexts = []config.Context{{Name: "agent", Modules: []string{"file", "shell", "t"}, Stage: true,
		Env: map[string]string{"TOKEN": "${secret:DEPLOY}"}}}
	cfg.Rules = []config.Rule{{Names: []string{"t_send"}, Then: "allow"}}
	check(t, secret.In(cfg.Folders.Config, "").Set("DEPLOY", secret.New("correct horse battery")))
	folder = cfg.Roots.Folders[0]
	check(t, os.WriteFile(filepath.Join(folder, "old.txt"), []byte("first\nlast\n"), 0o600))
	check(t, os.WriteFile(filepath.Join(folder, "gone.txt"), []byte("gone"), 0o600))
	check(t, os.MkdirAll(filepath.Join(folder, ".git/objects"), 0o700))
	type in struct {
		URL string `json:"url"`
	}
	h = start(t, cfg, tool.New(tool.Def{Name: "t_send", Description: "Sends.", Effects: tool.Writes | tool.OpenWorld},
		func(context.Context, *tool.Call, in) (tool.Result, error) {
			return tool.Result{Content: []tool.Content{tool.Text("sent")}}, nil
		}))
	token, _, err := h.people().CreateToken(t.Context(), identity.Token{User: "ann"})
	check(t, err)
	for _, call := range [][2]string{
		{"file_write", `{"path":"notes.txt","content":"a <b>new</b> note\n"}`},
		{"shell_run", `{"command":"echo middle >>old.txt; chmod 644 old.txt; rm gone.txt; ln -s old.txt link; cd .git/objects; mkdir 3b; echo a >3b/1; echo b >3b/2"}`},
		{"t_send", `{"url":"https://outside.example/in"}`},
	} {
		if got := h.call(token, "/mcp/agent", call[0], call[1]); strings.Contains(got, `"isError":true`) ||
			strings.Contains(got, `"error"`) || strings.Contains(got, "staged in task") == (call[0] == "t_send") {
			t.Fatalf("%s: %s", call[0], got)
		}
	}
	return h, folder
}

// A person sees what an agent's task has changed, ran and used, accepts some, then the rest, and undoes it.
func TestAPersonReviewsATask(t *testing.T) {
	h, folder := staged(t)
	has := func(name, want string) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(folder, name))
		if errors.Is(err, fs.ErrNotExist) {
			b, err = []byte("none"), nil
		}
		if check(t, err); string(b) != want {
			t.Errorf("%s is %q, want %q", name, b, want)
		}
	}
	p := h.visit(chromium.New(t), "#/review")
	logIn(p, "ann")
	shown := play(p, `await story.press(undefined, "a.package"); await story.text("Files (7)"); return document.body.innerText`).(string)
	for _, want := range []string{"+a <b>new</b> note", "+middle", "file 0600 -> file 0644", "link to old.txt", "created", "deleted",
		"3 files and folders of git objects", "DEPLOY", "outside.example", "not staged", "echo middle >>old.txt", "ann/agent"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the page does not show %q: %s", want, shown)
		}
	}
	if strings.Contains(shown, "correct horse") {
		t.Error("the page shows a secret")
	}
	has("notes.txt", "none")
	has("gone.txt", "gone")

	play(p, fmt.Sprintf(`for (const name of ["gone.txt", "old.txt", "link", ".git/objects/"]) (await story.find("input", "Accept %s/" + name)).click();
		await story.press("Accept chosen (1)"); await story.text("Files (6)");`, folder))
	has("notes.txt", "a <b>new</b> note\n")
	has("gone.txt", "gone")
	has(".git/objects/3b/1", "none")
	play(p, `await story.press("Accept all"); await story.gone("Files (6)"); await story.text("Undo what was accepted")`)
	has("old.txt", "first\nlast\nmiddle\n")
	has("gone.txt", "none")
	has(".git/objects/3b/2", "b\n")
	check(t, os.WriteFile(filepath.Join(folder, "old.txt"), []byte("mine"), 0o600))
	play(p, `await story.press("Undo what was accepted"); await story.text("Left alone")`)
	has("notes.txt", "none")
	has("gone.txt", "gone")
	has("old.txt", "mine")

	// The ledger names the task on each line that belongs to it.
	said := play(p, `story.go("#/ledger?q=kind:task.accepted"); await story.text("task.accepted"); return document.body.innerText`).(string)
	if !strings.Contains(said, "ann") {
		t.Errorf("the ledger does not say who accepted: %s", said)
	}
}

// The page of a task fits a phone, and axe finds nothing wrong with it in both themes.
func TestTheReviewIsAccessible(t *testing.T) {
	axe, err := os.ReadFile(filepath.Join(tools(t).Dir, "node_modules", "axe-core", "axe.min.js"))
	check(t, err)
	h, _ := staged(t)
	p := h.visit(chromium.New(t), "#/review")
	logIn(p, "ann")
	p.Run(string(axe) + "; true")
	play(p, `await story.press(undefined, "a.package"); await story.text("Files (7)")`)
	for _, look := range []struct {
		width int
		dark  bool
	}{{1280, false}, {1280, true}, {360, true}} {
		p.Resize(look.width, 860, look.dark)
		got := play(p, `await new Promise((done) => setTimeout(done, 100));
			const r = await axe.run(document, { resultTypes: ["violations"] });
			return document.querySelector(".body").scrollWidth - document.querySelector(".body").clientWidth + " " +
				r.violations.map((v) => v.id + ": " + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200) + " " + n.failureSummary).join(" | ")).join("\n")`)
		if got != "0 " {
			t.Errorf("%+v: %v", look, got)
		}
		if to := os.Getenv("GATEHOUSE_SCREENSHOTS"); to != "" {
			check(t, os.WriteFile(filepath.Join(to, fmt.Sprintf("review-%d-%v.png", look.width, look.dark)), p.Screenshot(), 0o644))
		}
	}
}
