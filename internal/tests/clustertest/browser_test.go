package clustertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestABrowserByItsNameFromAnyNode opens a page in a browser of one node and uses it by way of the others. When the node
// has died, one call is told, and the name is free again.
func TestABrowserByItsNameFromAnyNode(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("without chromium:", err)
	}
	nodes := startNodes(t, "webview")
	home := nodes[0]
	page := filepath.Join(home.dir, "work", "page.html")
	if err := os.WriteFile(page, []byte(`<title>t</title><button>Press the first</button>`), 0o600); err != nil {
		t.Fatal(err)
	}
	opened := modernTool(t, home, "webview_navigate", map[string]any{"url": "file://" + page, "session": "mine"})
	if strings.Contains(opened, `"isError":true`) {
		t.Skipf("this machine starts no browser: %.400s", opened)
	}
	for _, n := range nodes {
		got := modernTool(t, n, "webview_snapshot", map[string]any{"session": "mine"})
		if !strings.Contains(got, "Press the first") {
			t.Errorf("a browser of another node: %.400s", got)
		}
		if got := modernTool(t, n, "webview_snapshot", map[string]any{"session": "none"}); !strings.Contains(got, "not_found") {
			t.Errorf("a browser that is open nowhere: %.400s", got)
		}
	}
	if got := modernTool(t, nodes[1], "webview_disconnect", map[string]any{"session": "mine"}); !strings.Contains(got, "closed") {
		t.Errorf("closing a browser of another node: %.400s", got)
	}
	if got := modernTool(t, home, "webview_snapshot", map[string]any{"session": "mine"}); !strings.Contains(got, "not_found") {
		t.Errorf("a browser that was closed: %.400s", got)
	}

	modernTool(t, home, "webview_navigate", map[string]any{"url": "file://" + page, "session": "mine"})
	home.cmd.Process.Kill()
	home.cmd.Wait()
	var got string
	eventually(t, "the browser is told as gone, and then as none", func() bool {
		last := got
		got = modernTool(t, nodes[1], "webview_snapshot", map[string]any{"session": "mine"})
		return strings.Contains(last, "gone") && strings.Contains(got, "not_found")
	})
}
