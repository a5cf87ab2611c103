package webtest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/tests/chromium"
	"gatehouse/internal/tests/conformance"
)

// TestScreenshots writes a picture of each page, in both themes and on a phone, to the folder
// GATEHOUSE_SCREENSHOTS; make screenshots sets it. The host is the program itself.
func TestScreenshots(t *testing.T) {
	folder := os.Getenv("GATEHOUSE_SCREENSHOTS")
	if folder == "" {
		t.Skip("make screenshots writes them")
	}
	check(t, os.MkdirAll(folder, 0o755))
	h := program(t)
	for i := range 30 {
		h.call(h.token(), "/mcp", "file_write", fmt.Sprintf(`{"path":"notes/%d.md","content":"# Note %d\n"}`, i, i))
		h.call(h.token(), "/mcp", "dir_list", `{"path":"notes"}`)
	}
	h.call(h.token(), "/mcp", "file_read", `{"path":"missing.md"}`)
	h.call(h.token(), "/mcp", "file_delete", `{"path":"notes/1.md"}`)
	h.call(h.token(), "/mcp", "process_start", `{"command":"sh","terminal":true}`)
	b := chromium.New(t)
	p := h.administer(b, "#/now")
	pages := append(
		all[:len(all):len(all)],
		struct{ hash, shows string }{"#/sandboxes", "What holds here"},
		struct{ hash, shows string }{`#/tools/dir_list?args=%7B%22path%22%3A%22notes%22%7D`, "The same call"},
	)
	for _, look := range []struct {
		name  string
		width int
		dark  bool
	}{{"light", 1280, false}, {"dark", 1280, true}, {"phone", 360, true}} {
		p.Resize(look.width, 860, look.dark)
		for _, page := range pages {
			shows := page.shows
			switch page.hash {
			case "#/tools/t_order":
				continue // only hosts of tests have it
			case "#/ledger":
				shows = "Follow"
			case "#/approvals":
				shows = "file_delete"
			}
			play(
				p,
				fmt.Sprintf(
					`story.go(%q); await story.text(%q); document.querySelector(".body").scrollTop = 0; await new Promise((done) => setTimeout(done, 700))`,
					page.hash,
					shows,
				),
			)
			name, _, _ := strings.Cut(strings.TrimPrefix(page.hash, "#/"), "?")
			check(
				t,
				os.WriteFile(filepath.Join(folder, strings.ReplaceAll(name, "/", "-")+"-"+look.name+".png"),
					p.Screenshot(), 0o644),
			)
		}
	}
}

// program builds the program and runs it as a host in folders of its own.
func program(t *testing.T) *host {
	t.Helper()
	top, err := conformance.Top()
	check(t, err)
	home := t.TempDir()
	bin := filepath.Join(home, "gatehouse")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./cmd/gatehouse")
	build.Dir = top
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	check(t, os.MkdirAll(filepath.Join(home, ".config", "gatehouse"), 0o700))
	check(t, os.MkdirAll(filepath.Join(home, "project"), 0o700))
	check(t, os.WriteFile(filepath.Join(home, ".config", "gatehouse", "gatehouse.yaml"), []byte(
		"rules:\n- name: deletions\n  names: [file_delete]\n  then: ask-operator\n"), 0o600))
	cmd := exec.Command(bin, "serve", "--http", "-p", "0", "-d", filepath.Join(home, "project"),
		"--modules", "file,dir,lang,process,server,db,package,auth,sandbox,notification")
	cmd.Env = []string{
		"HOME=" + home,
		"PATH=" + os.Getenv("PATH"),
		"TMPDIR=" + home,
		"XDG_RUNTIME_DIR=" + filepath.Join(home, "run"),
	}
	errors, err := cmd.StderrPipe()
	check(t, err)
	check(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
	})
	h := &host{t: t, cfg: settings(t)}
	h.cfg.Folders.State = filepath.Join(home, ".local", "state", "gatehouse")
	lines := bufio.NewScanner(errors)
	for lines.Scan() {
		if _, at, ok := strings.Cut(lines.Text(), "Listening on "); ok {
			h.url = strings.TrimSuffix(at, "/mcp")
			break
		}
	}
	if h.url == "" {
		t.Fatal("the program does not listen")
	}
	go func() {
		for lines.Scan() { // so that it never waits for a reader
		}
	}()
	return h
}
