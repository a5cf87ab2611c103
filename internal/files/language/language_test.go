package language

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-enry/go-enry/v2/data"
)

func TestDetect(t *testing.T) {
	for _, c := range []struct{ name, head, id, method string }{
		{"main.go", "", "go", "name"},
		{"src/App.tsx", "", "typescript", "guess"},
		{"App.tsx", "import React from 'react'\n", "typescript", "content"},
		{"a.ts", "", "typescript", "guess"},
		{"a.ts", "<!DOCTYPE TS>\n<TS version='2.1'>", "xml", "content"},
		{"x.h", "", "c", "guess"},
		{"x.h", "#include <vector>\nclass A : public B {};\n", "cpp", "content"},
		{"x.h", "@interface A : NSObject\n@end\n", "objective-c", "content"},
		{"x.cc", "", "cpp", "name"},
		{"Program.cs", "namespace A;\n", "csharp", "content"},
		{"Dockerfile", "", "dockerfile", "name"},
		{"Dockerfile.dev", "", "dockerfile", "name"},
		{"Makefile", "", "makefile", "name"},
		{"README.MD", "", "markdown", "guess"},
		{"build.gradle.kts", "", "kotlin", "name"},
		{"install.bash", "", "shell", "name"},
		{"run", "#!/bin/sh\necho hi\n", "shell", "content"},
		{"run", "#!/usr/bin/env -S FOO=1 python3.12 -u\n", "python", "content"},
		{"conf", "# -*- mode: ruby -*-\n", "ruby", "content"},
		{"conf", "# vim: set ft=yaml :\n", "yaml", "content"},
		{"data", `{"a": 1}`, "json", "content"},
		{"page", "\xEF\xBB\xBF\n<!DOCTYPE html>", "html", "content"},
		{"notes.txt", "", "plaintext", "guess"},
		{"notes", "just words", "plaintext", "unknown"},
		{"", "", "plaintext", "unknown"},
		{"\xff\xfe", "\x00\x01", "plaintext", "unknown"},
	} {
		id, method := Detect(c.name, []byte(c.head))
		if id != c.id || method != c.method {
			t.Errorf("Detect(%q, %q) = %s by %s, want %s by %s", c.name, c.head, id, method, c.id, c.method)
		}
	}
}

// The 23 languages of the design these tools come from keep their ids.
func TestExtensionsOfTheDesign(t *testing.T) {
	for id, extensions := range map[string]string{
		"typescript": ".ts .tsx", "javascript": ".js .jsx", "go": ".go", "python": ".py", "rust": ".rs",
		"ruby": ".rb", "java": ".java", "php": ".php", "c": ".c .h", "cpp": ".cpp .hpp .cc .cxx",
		"csharp": ".cs", "html": ".html .htm", "css": ".css", "scss": ".scss", "json": ".json",
		"yaml": ".yaml .yml", "xml": ".xml", "markdown": ".md .markdown", "sql": ".sql",
		"shell": ".sh .bash", "swift": ".swift", "kotlin": ".kt .kts",
	} {
		for ext := range strings.FieldsSeq(extensions) {
			if got := ByName("file" + ext); got != id {
				t.Errorf("ByName(file%s) = %s, want %s", ext, got, id)
			}
		}
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct{ name, head, id, method string }{
		{"main.go", "", "go", "name"},
		{"", "package main\n\nfunc main() {\n}\n", "go", "words"},
		{"", "def f(x):\n    return x\n\nif __name__ == '__main__':\n    f(1)\n", "python", "words"},
		{"", "CREATE TABLE a (\n  id INT PRIMARY KEY\n);\nINSERT INTO a VALUES (1);\n", "sql", "words"},
		{"", "#include <stdio.h>\n\nint main(void) {\n\treturn 0;\n}\n", "c", "words"},
		{"", "#include <vector>\n\nnamespace a {\nclass B : public C {\npublic:\n  std::vector<int> v;\n};\n}\n",
			"cpp", "words"},
		{"", "name: x\non:\n  push:\n    branches: [main]\n", "yaml", "words"},
		{"x.h", "", "c", "guess"},
		{"", "#!/bin/sh\n", "shell", "content"},
		{"", "\x00\x01", "plaintext", "unknown"},
		{"", " \n", "plaintext", "unknown"},
	} {
		v := Judge(c.name, []byte(c.head))
		if v.ID != c.id || v.Method != c.method || (v.Confidence > 0) != (c.method != "unknown") {
			t.Errorf("Judge(%q, %q) = %+v, want %s by %s", c.name, c.head, v, c.id, c.method)
		}
	}
}

// Every clue is of a language that can be the answer.
func TestCluesNameLanguages(t *testing.T) {
	for _, list := range clueTable() {
		for _, c := range list {
			if load().named[c.language] == nil || !slices.Contains(words().names, c.language) || c.worth <= 0 {
				t.Errorf("%+v speaks for nobody", c)
			}
		}
	}
}

// What is listed can be detected, and what is detected is listed.
func TestListEqualsDetect(t *testing.T) {
	listed := make(map[string]bool)
	for _, l := range All() {
		if listed[l.ID] || l.ID == "" || l.Name == "" {
			t.Errorf("%+v is listed twice or has no id or name", l)
		}
		listed[l.ID] = true
	}
	reachable := make(map[string]bool)
	for _, index := range []map[string][]*entry{load().extension, load().filename, load().interpreter} {
		for _, candidates := range index {
			for _, l := range candidates {
				reachable[l.id] = true
			}
		}
	}
	for id := range reachable {
		if !listed[id] {
			t.Errorf("%s can be detected and is not listed", id)
		}
	}
	if len(listed) != len(reachable) {
		t.Errorf("%d are listed, %d can be detected", len(listed), len(reachable))
	}
	for _, id := range []string{"typescript", "cpp", "csharp", "plaintext", "dockerfile", "shell", "c", "scss",
		"objective-cpp", "fsharp"} {
		if !listed[id] {
			t.Errorf("%s is not listed", id)
		}
	}
}

// No two of Linguist's languages share an id unless merged on purpose.
func TestIDsAreUnique(t *testing.T) {
	seen := make(map[string]string)
	for name := range load().named {
		id := idOf(name)
		if other, ok := seen[id]; ok && merged[name] == "" && merged[other] == "" {
			t.Errorf("%s and %s are both %s", name, other, id)
		}
		seen[id] = name
	}
}

// The copied names answer as the originals do.
func TestNamesAgreeWithSource(t *testing.T) {
	for ext, want := range data.LanguagesByExtension {
		var names []string
		for _, l := range load().extension[ext] {
			names = append(names, l.name)
		}
		slices.Sort(names)
		if want = slices.Sorted(slices.Values(want)); !slices.Equal(names, want) {
			t.Errorf("%s: %q, source says %q", ext, names, want)
		}
	}
	for name, want := range data.LanguagesByFilename {
		if got := load().filename[name]; len(got) != len(want) {
			t.Errorf("%s: %d languages, source says %q", name, len(got), want)
		}
	}
}

// The copied rules answer as the originals do, on whatever text there is.
func TestRulesAgreeWithSource(t *testing.T) {
	var texts [][]byte
	for _, pattern := range []string{"*.md", "*.go", "../../../tool/*.go", "../../../go.*"} {
		paths, _ := filepath.Glob(pattern)
		for _, p := range paths {
			if b, err := os.ReadFile(p); err == nil && len(texts) < 8 {
				texts = append(texts, b[:min(len(b), 1500)])
			}
		}
	}
	texts = append(
		texts,
		[]byte("@interface X\n#import <a>\n"),
		[]byte("<?xml version='1.0'?>\n"),
		[]byte("use v6;\nmy $x;\n"),
		[]byte(
			"#include <vector>\n",
		),
		[]byte("CREATE OR REPLACE PACKAGE x\n"),
		[]byte("%% Matlab\nfunction x = f(y)\nend\n"),
		[]byte(".TH A 1\n.SH B\n"),
	)
	for ext, hs := range data.ContentHeuristics {
		for _, b := range texts {
			var got []string
			for _, l := range load().heuristic("x"+ext, b) {
				got = append(got, l.name)
			}
			want := hs.Match(b)
			want = slices.DeleteFunc(want, func(l string) bool { return load().named[l] == nil })
			if !slices.Equal(got, want) {
				t.Errorf("%s on %.30q: %q, source says %q", ext, b, got, want)
			}
		}
	}
}

// Linking the package must not cost the process anything at its start.
func TestNothingAtStart(t *testing.T) {
	for _, file := range []string{"language.go", "tables.go", "content.go", "id.go", "classify.go", "clues.go",
		"tokens.go", "judge.go", "choose.go"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "go-enry/go-enry/v2\"") || strings.Contains(string(b), "func init()") {
			t.Errorf("%s does its work when the process starts", file)
		}
	}
}

func FuzzDetect(f *testing.F) {
	f.Add("a.h", []byte("#include <vector>"))
	f.Add("x", []byte("#!/usr/bin/env"))
	f.Add(".", []byte("-*- -*-"))
	listed := make(map[string]bool)
	for _, l := range All() {
		listed[l.ID] = true
	}
	f.Fuzz(func(t *testing.T, name string, head []byte) {
		if id, _ := Detect(name, head); !listed[id] {
			t.Errorf("%q is not listed", id)
		}
	})
}

func BenchmarkByName(b *testing.B) {
	for b.Loop() {
		ByName("internal/modules/file/file_read.go")
	}
}

func BenchmarkDetectAmbiguous(b *testing.B) {
	head := []byte(strings.Repeat("extern int a_function_of_c(const char *name, int length);\n", 300))
	for b.Loop() {
		Detect("plain.h", head)
	}
}
