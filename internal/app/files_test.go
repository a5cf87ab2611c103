package app

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/config"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/modules/file"
	"gatehouse/tool"
)

// clientOf returns a client of a new host with these settings, as a principal without roles.
func clientOf(t *testing.T, cfg config.Config) *tenant {
	t.Helper()
	a, err := New(t.Context(), cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return clientTo(t, a)
}

// clientTo runs a host until the test ends, and returns a client of it.
func clientTo(t *testing.T, a *App) *tenant {
	t.Helper()
	return clientAs(t, a, tool.Caller{Principal: "ann"})
}

// clientAs is clientTo for a given caller.
func clientAs(t *testing.T, a *App, who tool.Caller) *tenant {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	c := &tenant{t: t, in: make(chan json.RawMessage, 1000)}
	c.pipe = a.engine.Pipe(protocol.Caller{Caller: who}, func(m []byte) error {
		c.in <- slices.Clone(m)
		return nil
	})
	t.Cleanup(func() { c.pipe.Close(nil) })
	return c
}

func putFile(t *testing.T, text string, path ...string) {
	t.Helper()
	p := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// The settings of files hold for every module, in the folders of the host and in those of a context.
func TestSettingsOfFiles(t *testing.T) {
	cfg := settings(t)
	own := t.TempDir()
	cfg.Contexts = []config.Context{{Name: "main"}, {Name: "own", Roots: []string{own}}}
	cfg.Modules.File = file.Settings{
		Deny:    []string{"secrets/**", "write:*.lock"},
		Allow:   []string{".env.test"},
		MaxEdit: 100,
		MaxCopy: 200,
	}
	for _, dir := range []string{cfg.Roots.Folders[0], own} {
		for _, name := range []string{"secrets/plan", ".env", ".env.test", "go.lock"} {
			putFile(t, "text of it", dir, name)
		}
		putFile(t, strings.Repeat("long ", 30), dir, "long")
		putFile(t, strings.Repeat("long ", 60), dir, "longer")
	}
	c := clientOf(t, cfg)
	for _, in := range []string{"main", "own"} {
		for _, x := range []struct{ tool, args, want string }{
			{"file_read", `{"path":"secrets/plan"}`, "denied"},
			{"file_read", `{"path":".env"}`, "denied"},
			{"file_read", `{"path":".env.test"}`, "text of it"},
			{"file_read", `{"path":"go.lock"}`, "text of it"},
			{"file_write", `{"path":"go.lock","content":""}`, "denied"},
			{"file_copy", `{"oldPath":"secrets/plan","newPath":"plan"}`, "denied"},
			{"dir_create", `{"path":"secrets/more"}`, "denied"},
			{"file_edit", `{"path":"long","old_string":"nothing","new_string":"x"}`,
				"the largest file that can be edited has 100 bytes"},
			{"file_copy", `{"oldPath":"long","newPath":"long.copy"}`, `"size":150`},
			{"file_copy", `{"oldPath":"longer","newPath":"copy"}`, "the largest file that can be copied has 200 bytes"},
		} {
			if got := c.call(in, x.tool, x.args); !strings.Contains(got, x.want) {
				t.Errorf("%s: %s %s: got %s, want %q in it", in, x.tool, x.args, got, x.want)
			}
		}
	}
}

// Settings built in Go, without the checks of a file, are refused too.
func TestABrokenPatternOfNamesIsASettingError(t *testing.T) {
	cfg := settings(t)
	cfg.Modules.File.Deny = []string{"["}
	if _, err := New(context.Background(), cfg, Options{}); err == nil ||
		!strings.Contains(err.Error(), `"[" is not a pattern`) {
		t.Errorf("got %v", err)
	}
}
