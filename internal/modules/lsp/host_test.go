package lsp_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/files/roots"
	"gatehouse/internal/modules/file"
	"gatehouse/internal/modules/lsp"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
)

// host is a host with the modules file and lsp, whose folder is dir.
type host struct {
	t    *testing.T
	dir  string
	call func(name, args string) hosttest.Reply
}

func newHost(t *testing.T, dir string, cfg lsp.Config, files file.Config) *host {
	t.Helper()
	set, err := roots.Open([]roots.Dir{{Path: dir}}, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	h := hosttest.Harnesses()[1].Make(t, hosttest.Options{Roots: set, Modules: map[string]module.New{
		"lsp": lsp.New(cfg), "file": file.New(files),
	}})
	return &host{t, dir, func(name, args string) hosttest.Reply { return hosttest.Call(h, name, args, nil) }}
}

// text calls a tool and returns its text.
func (h *host) text(name string, args map[string]any) string {
	h.t.Helper()
	s, bad := h.try(name, args)
	if bad {
		h.t.Fatalf("%s %v: %s", name, args, s)
	}
	return s
}

func (h *host) try(name string, args map[string]any) (text string, bad bool) {
	h.t.Helper()
	b, err := json.Marshal(args)
	if err != nil {
		h.t.Fatal(err)
	}
	r := h.call(name, string(b))
	if r.Error != nil {
		h.t.Fatalf("%s: %v", name, r.Error)
	}
	var result struct {
		Content []struct{ Text string }
	}
	if err := json.Unmarshal(r.Result, &result); err != nil {
		h.t.Fatal(err)
	}
	for _, block := range result.Content {
		text += block.Text + "\n"
	}
	return text, r.IsError()
}

// write writes files below a new folder.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		put(t, filepath.Join(dir, name), content)
	}
	return dir
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func mustHave(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s: %q is missing in\n%s", what, p, text)
		}
	}
}
