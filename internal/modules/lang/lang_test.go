package lang

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gatehouse/internal/files/language"
	"gatehouse/internal/files/roots"
	"gatehouse/module"
	"gatehouse/tool"
)

func run(t *testing.T, rs tool.Roots, name string, args, out any) string {
	t.Helper()
	m, err := New(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	offer, _ := m.Offer(t.Context(), module.Audience{})
	tl := offer.Tools[slices.IndexFunc(offer.Tools, func(tl tool.Tool) bool { return tl.Name == name })]
	raw, _ := json.Marshal(args)
	res, err := tl.Run(t.Context(), &tool.Call{Name: name, Args: raw, Roots: rs, Peer: struct{ tool.Peer }{}})
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return string(r.Code)
	}
	if err != nil {
		t.Fatal(err)
	}
	b, _ := json.Marshal(res.Structured)
	if err := json.Unmarshal(b, out); err != nil {
		t.Fatal(err)
	}
	return ""
}

func TestDetect(t *testing.T) {
	dir := t.TempDir()
	set, err := roots.Open([]roots.Dir{{Path: dir}}, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	os.WriteFile(dir+"/vector.h", []byte("#include <vector>\ntemplate <class T> class A {};\n"), 0o644)
	os.WriteFile(dir+"/run", []byte("#!/usr/bin/env python3\n"), 0o644)
	os.WriteFile(dir+"/data", []byte("\x00\x01\x02"), 0o644)
	os.Mkdir(dir+"/d.go", 0o755)
	os.Symlink(filepath.Dir(dir), dir+"/out")
	syscall.Mkfifo(dir+"/pipe.rb", 0o644)
	for path, want := range map[string][2]string{
		"missing.go": {"go", "name"}, "missing.h": {"c", "guess"}, "vector.h": {"cpp", "content"},
		"run":  {"python", "content"},
		"data": {"plaintext", "unknown"}, "d.go": {"plaintext", "shares"}, "pipe.rb": {"ruby", "name"},
		"sub/Dockerfile": {"dockerfile", "name"}, ".": {"cpp", "shares"},
	} {
		var out detectOut
		if code := run(t, set, "lang_detect", detectIn{Path: path}, &out); code != "" || out.Language != want[0] ||
			out.Method != want[1] || out.Path != path {
			t.Errorf("%s: got %+v %s, want %v", path, out, code, want)
		}
	}
	for _, path := range []string{"../x.go", "/etc/passwd", "out/x.go"} {
		if code := run(t, set, "lang_detect", detectIn{Path: path}, nil); code != "outside_root" {
			t.Errorf("%s: got %q", path, code)
		}
	}
}

// The pages together are exactly what can be detected.
func TestListPages(t *testing.T) {
	var ids []string
	cursor := ""
	for {
		var out listOut
		run(t, nil, "lang_list", listIn{Cursor: cursor}, &out)
		for _, l := range out.Languages {
			ids = append(ids, l.ID)
		}
		if b, _ := json.Marshal(out); len(b) > 32<<10 || out.Total != len(language.All()) {
			t.Errorf("a page of %d bytes, total %d", len(b), out.Total)
		}
		if cursor = out.NextCursor; cursor == "" {
			break
		}
	}
	var want []string
	for _, l := range language.All() {
		want = append(want, l.ID)
	}
	if !slices.Equal(ids, want) {
		t.Errorf("got %d ids, want %d", len(ids), len(want))
	}
}

func TestListFilter(t *testing.T) {
	for filter, want := range map[string]string{".TSX": "typescript xml", "c++": "cpp objective-cpp",
		"typescript": "typescript", "no such thing": ""} {
		var out listOut
		run(t, nil, "lang_list", listIn{Filter: filter}, &out)
		var ids []string
		for _, l := range out.Languages {
			ids = append(ids, l.ID)
		}
		if got := strings.Join(ids, " "); got != want || out.Total != len(ids) || out.Languages == nil {
			t.Errorf("%s: got %q of %d, want %q", filter, got, out.Total, want)
		}
	}
}

// A directory is told by the bytes of its files, without what is ignored, empty
// or in no language.
func TestDetectDirectory(t *testing.T) {
	dir := t.TempDir()
	set, err := roots.Open([]roots.Dir{{Path: dir}}, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	os.MkdirAll(dir+"/p/ignored", 0o755)
	for name, text := range map[string]string{
		"p/a.go": strings.Repeat("x", 60), "p/b.go": strings.Repeat("x", 15),
		"p/run":         "#!/bin/sh\n" + strings.Repeat("x", 15),
		"p/picture.png": "\x89PNG\r\n\x1a\n\x00", "p/empty.rs": "", ".gitignore": "ignored/\n",
		"p/ignored/c.py": strings.Repeat("x", 999),
	} {
		os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)
	}
	var out struct {
		detectOut
		Shares []share `json:"shares"`
	}
	if code := run(t, set, "lang_detect", detectIn{Path: "p"}, &out); code != "" {
		t.Fatal(code)
	}
	want := []share{{"go", 75, 2, 0.75}, {"shell", 25, 1, 0.25}}
	if !slices.Equal(out.Shares, want) || out.Language != "go" || out.Method != "shares" || out.Confidence != 0.75 {
		t.Errorf("got %+v, want the shares %v", out, want)
	}
}

func TestDetectContent(t *testing.T) {
	var out detectOut
	if code := run(t, nil, "lang_detect", detectIn{Content: "package a\n\nfunc b() {}\n"}, &out); code != "" ||
		out.Language != "go" || out.Confidence < 0.9 || out.Method != "words" {
		t.Errorf("got %+v %s", out, code)
	}
	out = detectOut{}
	if run(t, nil, "lang_detect", detectIn{Content: "int x;\n", Path: "no/such.h"}, &out); out.Language != "c" ||
		out.Path != "no/such.h" {
		t.Errorf("got %+v", out)
	}
	if code := run(t, nil, "lang_detect", detectIn{}, nil); code != "invalid_arguments" {
		t.Errorf("nothing at all: %q", code)
	}
}
