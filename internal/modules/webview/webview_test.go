package webview

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/modules/webview/chromium"
	"gatehouse/internal/modules/webview/page"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

func TestTheModuleKeepsTheContract(t *testing.T) {
	// Without a browser, which other tests have: the suite would start ten of them.
	moduletest.Run(t, New(Config{Settings: Settings{Program: "no-such-browser"}}), moduletest.Options{})
}

// A browser belongs to the caller who opened it, pages of files come from the caller's folders, and a secret is typed
// into password fields of its origins alone.
func TestABrowserBelongsToItsCaller(t *testing.T) {
	if _, err := chromium.FindProgram(""); err != nil {
		t.Skip("there is no chromium: make setup installs it")
	}
	mod, err := New(Config{
		Settings: Settings{Secrets: []Secret{{Name: "pass", Origins: []string{"https://shop.example.org"}}}},
		Secret: func(tool.Caller, string) (secret.Text, bool, error) {
			return secret.New("hunter2-hunter2"), true, nil
		},
	})(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	m := mod.(*manager)
	t.Cleanup(func() { m.Close(context.Background()) })
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.html"),
		[]byte("<h1>Mine</h1><input type=password aria-label=Pass>"), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := roots.Open([]roots.Dir{{Path: dir}}, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	ann := &tool.Call{Caller: tool.Caller{Principal: "ann", Owner: "ann/lab"}, Roots: set}
	ben := &tool.Call{Caller: tool.Caller{Principal: "ben", Owner: "ben/lab"}, Roots: set}
	here := place{Session: "default"}
	out, err := m.navigate(t.Context(), ann, navigateIn{
		place: here, URL: "file://" + filepath.Join(dir, "a.html"), showing: showing{Snapshot: "full"}, Timeout: 30,
	})
	if err != nil || !strings.Contains(out.Text, "# Mine") {
		t.Fatalf("got %+v %v", out, err)
	}
	if _, err := m.snapshot(t.Context(), ben, snapshotIn{place: here, Mode: page.ModeFull}); err == nil {
		t.Error("another caller reads the page")
	}
	if _, err := m.navigate(t.Context(), ann,
		navigateIn{place: here, URL: "file:///etc/passwd", Timeout: 30}); err == nil {
		t.Error("a file outside of the folders was opened")
	}
	_, err = m.navigate(
		t.Context(),
		ann,
		navigateIn{place: here, URL: "file://" + filepath.Join(dir, "a.html"), Timeout: 30},
	)
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.typeText(
		t.Context(),
		ann,
		typeIn{place: here, Target: `textbox "Pass"`, Secret: "pass", timed: timed{5}},
	)
	if err == nil || !strings.Contains(err.Error(), "may not be typed") {
		t.Errorf("got %v", err)
	}
}
