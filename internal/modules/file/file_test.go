package file

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/files/roots"
	"gatehouse/internal/mcp/schema"
	"gatehouse/module"
	"gatehouse/tool"
)

// fixture is the module with a workspace of two folders, called as the host
// calls it: with arguments checked against the schema and defaults filled in.
type fixture struct {
	t     testing.TB
	dir   string // of the first root
	other string // the second
	out   string // beside them, outside
	tools map[string]tool.Tool
	in    map[string]*schema.Schema
	roots tool.Roots

	owner  string  // who calls
	cfg    *Config // nil for none
	module module.Module
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	base := t.TempDir()
	h := &fixture{t: t, dir: base + "/w", other: base + "/other", out: base + "/out"}
	for _, d := range []string{h.dir, h.other, h.out} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	set, err := roots.Open([]roots.Dir{{Path: h.dir}, {Path: h.other}}, roots.Options{Home: h.other})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	h.use(set)
	return h
}

func (h *fixture) use(rs tool.Roots) {
	h.roots = rs
	h.tools, h.in = map[string]tool.Tool{}, map[string]*schema.Schema{}
	var cfg Config
	if h.cfg != nil {
		cfg = *h.cfg
	}
	m, err := New(cfg)(context.Background(), module.Deps{})
	if err != nil {
		h.t.Fatal(err)
	}
	h.module = m
	offer, err := m.Offer(context.Background(), module.Audience{})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, tl := range offer.Tools {
		raw, err := schema.For(tl.In)
		if err != nil {
			h.t.Fatal(err)
		}
		if h.in[tl.Name], err = schema.Compile(raw); err != nil {
			h.t.Fatal(err)
		}
		h.tools[tl.Name] = tl
	}
}

// args are names and values in turn.
func (h *fixture) result(name string, args ...any) (tool.Result, error) {
	h.t.Helper()
	m := make(map[string]any)
	for i := 0; i < len(args); i += 2 {
		m[args[i].(string)] = args[i+1]
	}
	raw, err := json.Marshal(m)
	if err != nil {
		h.t.Fatal(err)
	}
	if raw, err = h.in[name].Canonical(raw); err != nil {
		return tool.Result{}, &tool.Refusal{Code: "invalid_arguments", Message: err.Error()}
	}
	return h.tools[name].Run(
		context.Background(),
		&tool.Call{
			Name:   name,
			Args:   raw,
			Caller: tool.Caller{Owner: h.owner},
			Roots:  h.roots,
			Peer:   struct{ tool.Peer }{},
		},
	)
}

// call returns the structured output; a refusal is the code after an
// exclamation mark, under "error".
func (h *fixture) call(name string, args ...any) map[string]any {
	h.t.Helper()
	res, err := h.result(name, args...)
	if err != nil {
		r, ok := errors.AsType[*tool.Refusal](err)
		if !ok {
			h.t.Fatalf("%s %v: %v is no refusal", name, args, err)
		}
		if strings.Contains(r.Text(), h.out) && !strings.Contains(strings.Join(strs(args), " "), h.out) {
			h.t.Errorf("%s %v: %q tells of what is outside", name, args, r.Text())
		}
		return map[string]any{"error": "!" + string(r.Code), "message": r.Text()}
	}
	b, err := json.Marshal(res.Structured)
	if err != nil {
		h.t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(b, &out); err != nil {
		h.t.Fatal(err)
	}
	return out
}

// text calls a tool whose product is text and returns the product and the
// facts; a refusal is its code after an exclamation mark.
func (h *fixture) text(name string, args ...any) string {
	h.t.Helper()
	res, err := h.result(name, args...)
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return "!" + string(r.Code)
	}
	b, _ := json.Marshal(res.Structured)
	var out struct{ Content string }
	if err := json.Unmarshal(b, &out); err != nil {
		h.t.Fatal(err)
	}
	return out.Content + res.Facts
}

func strs(args []any) (s []string) {
	for _, a := range args {
		if v, ok := a.(string); ok {
			s = append(s, v)
		}
	}
	return s
}

func (h *fixture) put(name, content string) string {
	h.t.Helper()
	path := h.at(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		h.t.Fatal(err)
	}
	return path
}

func (h *fixture) at(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(h.dir, name)
}

func (h *fixture) get(name string) string {
	h.t.Helper()
	b, err := os.ReadFile(h.at(name))
	if err != nil {
		h.t.Fatal(err)
	}
	return string(b)
}

// noTemps fails if a temporary file was left anywhere.
func (h *fixture) noTemps() {
	h.t.Helper()
	filepath.WalkDir(filepath.Dir(h.dir), func(path string, _ fs.DirEntry, _ error) error {
		if strings.Contains(filepath.Base(path), ".gatehouse-") {
			h.t.Errorf("%s was left behind", path)
		}
		return nil
	})
}

func (h *fixture) want(out map[string]any, want map[string]any) {
	h.t.Helper()
	for k, v := range want {
		if n, ok := v.(int); ok {
			v = float64(n)
		}
		if out[k] != v {
			h.t.Errorf("%s: got %v, want %v (in %.200v)", k, out[k], v, out)
		}
	}
}

func TestExists(t *testing.T) {
	h := newFixture(t)
	h.put("d/f", "x")
	os.Symlink("d/f", h.at("good"))
	os.Symlink("nowhere", h.at("dangling"))
	os.Symlink(h.out, h.at("out"))
	for path, want := range map[string]map[string]any{
		"d/f": {"exists": true, "isDir": false}, "d": {"exists": true, "isDir": true},
		".":       {"exists": true, "isDir": true},
		"missing": {"exists": false}, "d/f/x": {"exists": false}, "good": {"exists": true},
		"dangling": {"exists": false},
		"a\x00b":   {"exists": false}, strings.Repeat("n", 300): {"exists": false},
		"../out": {"error": "!outside_root"}, h.out: {"error": "!outside_root"}, "out": {"error": "!outside_root"},
	} {
		out := h.call("file_exists", "path", path)
		h.want(out, want)
		if out["error"] == nil && out["path"] != path {
			t.Errorf("path: got %v, want %s", out["path"], path)
		}
	}
}

func TestDelete(t *testing.T) {
	h := newFixture(t)
	h.put("f", "x")
	h.put("full/f", "x")
	h.put("kept", "x")
	os.Mkdir(h.at("empty"), 0o755)
	os.Symlink("kept", h.at("link"))
	os.Symlink(h.out, h.at("out"))
	for _, c := range []struct{ path, want string }{
		{"f", ""}, {"f", "!not_found"}, {"full", "!not_empty"}, {"empty", ""}, {"link", ""}, {"out", ""},
		{".", "!denied"}, {h.dir, "!denied"}, {"~", "!denied"}, {"..", "!outside_root"}, {h.out, "!outside_root"},
		{"../out", "!outside_root"},
	} {
		out := h.call("file_delete", "path", c.path)
		if e, _ := out["error"].(string); e != c.want {
			t.Errorf("%s: got %q, want %q", c.path, e, c.want)
		}
	}
	if h.get("kept") != "x" {
		t.Error("the target of a link is gone")
	}
	for _, path := range []string{h.out, h.dir, h.other} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

// A folder of the workspace is protected when it is reached through another.
func TestInnerRootStays(t *testing.T) {
	h := newFixture(t)
	os.MkdirAll(h.at("a/inner"), 0o755)
	set, err := roots.Open([]roots.Dir{{Path: h.dir}, {Path: h.at("a/inner")}}, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	h.use(set)
	h.want(h.call("file_delete", "path", "a/inner"), map[string]any{"error": "!denied"})
	h.want(h.call("file_rename", "oldPath", "a", "newPath", "b"), map[string]any{"error": "!denied"})
}

func TestHomeStays(t *testing.T) {
	h := newFixture(t)
	os.Mkdir(h.at("home"), 0o755)
	t.Setenv("HOME", h.at("home"))
	h.want(h.call("file_delete", "path", "home"), map[string]any{"error": "!denied"})
}

func TestRename(t *testing.T) {
	h := newFixture(t)
	h.put("f", "f")
	h.put("taken", "taken")
	h.put("d/in", "in")
	os.Mkdir(h.at("e"), 0o755)
	os.Symlink("taken", h.at("link"))
	os.Symlink("nowhere", h.at("dangling"))
	for _, c := range []struct{ from, to, want string }{
		{"f", "taken", "!exists"}, {"f", "e", "!exists"}, {"d", "e", "!exists"}, {"d", "taken", "!exists"},
		{"f", "dangling", "!exists"}, {"f", "f", "!exists"},
		{"f", "no/such", "!not_found"}, {"missing", "g", "!not_found"}, {"d", "d/x", "!invalid_arguments"},
		{"f", "g/", "!exists"},
		{"f", "../out/f", "!outside_root"}, {"../out", "x", "!outside_root"}, {"f", h.other + "/f", "!unsupported"},
		{".", "x", "!denied"},
		{"f", "e/g", ""}, {"link", "e/link", ""}, {"d", "e/d", ""},
	} {
		out := h.call("file_rename", "oldPath", c.from, "newPath", c.to)
		if e, _ := out["error"].(string); e != c.want {
			t.Errorf("%s to %s: got %v, want %q", c.from, c.to, out, c.want)
		}
	}
	if h.get("e/g") != "f" || h.get("taken") != "taken" || h.get("e/d/in") != "in" {
		t.Error("contents went astray")
	}
	if target, _ := os.Readlink(h.at("e/link")); target != "taken" {
		t.Errorf("the link leads to %q", target)
	}
	if _, err := os.Lstat(h.at("f")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old name: %v", err)
	}
}

func TestDefinitionsStayShort(t *testing.T) {
	h := newFixture(t)
	for name, tl := range h.tools {
		if tl.Help == "" || tl.Effects == 0 || strings.Count(tl.Description, ". ") > 1 {
			t.Errorf("%s: description %q, effects %v", name, tl.Description, tl.Effects)
		}
	}
}
