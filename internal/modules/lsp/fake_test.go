package lsp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/exec/rpc"
	"gatehouse/internal/exec/supervisor"
	"gatehouse/internal/modules/file"
	"gatehouse/internal/modules/lsp"
)

// A language server that fails on purpose is this test program, started with fakeServer and what it does.
const fakeServer = "fake-language-server"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == fakeServer {
		serveFake(os.Args[2])
		return
	}
	os.Exit(m.Run())
}

const manyReferences = 10_000

// serveFake serves on standard input. The first server of a folder does what how says; later ones work.
func serveFake(how string) {
	f, err := os.OpenFile("starts", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		f.WriteString("x")
		f.Close()
	}
	said := fmt.Sprint("it works: ", err)
	starts, _ := os.ReadFile("starts")
	fails := (len(starts) == 1 && how != "works") || how == "always"
	stop := make(chan struct{})
	stream := rpc.Headers(os.Stdin,
		func(_ context.Context, b []byte) error { _, err := os.Stdout.Write(b); return err }, 1<<20, os.Stdin.Close)
	rpc.New(stream, rpc.Handler{Request: func(_ context.Context, method string, params json.RawMessage) (any, error) {
		switch method {
		case "initialize":
			if !strings.Contains(string(params), `"processId":null`) {
				return nil, &rpc.Error{
					Code:    1,
					Message: "a confined server would look for a process that it cannot signal",
				}
			}
			return map[string]any{"capabilities": map[string]any{}}, nil
		case "textDocument/hover":
			return map[string]any{"contents": said}, nil
		case "textDocument/references":
			if fails {
				fail(how)
			}
			var p struct {
				TextDocument struct{ URI string }
			}
			json.Unmarshal(params, &p)
			var all []any
			for i := range manyReferences {
				all = append(all, map[string]any{"uri": p.TextDocument.URI, "range": map[string]any{
					"start": map[string]int{
						"line":      i,
						"character": 4,
					}, "end": map[string]int{"line": i, "character": 5},
				}})
			}
			return all, nil
		case "shutdown":
			close(stop)
			return nil, nil
		}
		return nil, rpc.NotFound(method)
	}})
	<-stop
}

func fail(how string) {
	switch how {
	case "hang":
		exec.Command("kill", "-STOP", strconv.Itoa(os.Getpid())).Run()
		select {}
	case "memory":
		b := make([]byte, 512<<20)
		for i := range b {
			b[i] = byte(i)
		}
		time.Sleep(time.Minute)
		runtime.KeepAlive(b)
	default:
		os.Exit(3)
	}
}

func fakeHost(t *testing.T, how string, s lsp.Settings) *host {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := write(
		t,
		map[string]string{
			"a.go": strings.Repeat("var x = 1 // the same line of some length, many times over\n", manyReferences),
		},
	)
	s.Servers = []string{"go=" + exe + " " + fakeServer + " " + how}
	return newHost(t, dir, lsp.Config{Settings: s}, file.Config{})
}

// A server cannot write into the folder that it serves.
func TestServersAreConfined(t *testing.T) {
	if err := supervisor.Available(t.Context()); err != nil {
		t.Skip(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs("testdata") // not among the folders for temporary files
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		dir, err = os.MkdirTemp(dir, "confined-")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(filepath.Dir(dir))
	defer os.RemoveAll(dir)
	put(t, filepath.Join(dir, "a.go"), "package a\n")
	h := newHost(t, dir,
		lsp.Config{Settings: lsp.Settings{Servers: []string{"go=" + exe + " " + fakeServer + " works"}}}, file.Config{})
	got := h.text("lsp_hover", map[string]any{"path": "a.go", "line": 1})
	mustHave(t, "hover", got, "it works: open starts: permission denied")
}

// A server that crashes, hangs or uses too much memory is replaced, and the call is answered.
func TestFailingServersAreReplaced(t *testing.T) {
	for _, how := range []string{"crash", "hang", "memory"} {
		t.Run(how, func(t *testing.T) {
			h := fakeHost(t, how, lsp.Settings{Memory: 256 << 20})
			h.text("lsp_hover", map[string]any{"path": "a.go", "line": 1, "column": 5}) // it has started
			began := time.Now()
			got := h.text("lsp_references", map[string]any{"path": "a.go", "line": 1, "column": 5})
			mustHave(t, "references", got, fmt.Sprintf("references: %d", manyReferences))
			if n := len(read(t, filepath.Join(h.dir, "starts"))); n != 2 {
				t.Errorf("%d servers were started, want 2", n)
			}
			t.Logf("answered after %v", time.Since(began))
		})
	}
}

func TestAServerThatAlwaysFailsIsGivenUp(t *testing.T) {
	h := fakeHost(t, "always", lsp.Settings{})
	got, bad := h.try("lsp_references", map[string]any{"path": "a.go", "line": 1, "column": 5})
	if !bad || !strings.HasPrefix(got, "unavailable: the language server failed") {
		t.Errorf("got %v %s", bad, got)
	}
	if n := len(read(t, filepath.Join(h.dir, "starts"))); n != 3 {
		t.Errorf("%d servers were started, want 3", n)
	}
	mustHave(t, "hover", h.text("lsp_hover", map[string]any{"path": "a.go", "line": 1, "column": 5}), "it works")
}

// 10,000 references are pages of at most 4 kB, which together have each of them once.
func TestReferencesArePaged(t *testing.T) {
	h := fakeHost(t, "works", lsp.Settings{})
	seen, cursor := map[string]bool{}, ""
	for pages := 1; ; pages++ {
		got := h.text("lsp_references", map[string]any{"path": "a.go", "line": 1, "column": 5, "cursor": cursor})
		if len(got) > 4000 {
			t.Fatalf("a page has %d bytes", len(got))
		}
		for line := range strings.Lines(got) {
			if at, text, ok := strings.Cut(line, ": "); ok && strings.HasPrefix(at, "a.go:") {
				if seen[at] || !strings.HasPrefix(text, "var x = 1") {
					t.Fatalf("twice or without its text: %s", line)
				}
				seen[at] = true
			}
		}
		_, rest, more := strings.Cut(got, "cursor=")
		if !more {
			break
		}
		cursor = rest[:strings.IndexAny(rest, "];\n")]
		if testing.Short() && pages == 20 {
			return
		}
	}
	if len(seen) != manyReferences {
		t.Errorf("%d references on all pages, want %d", len(seen), manyReferences)
	}
}
