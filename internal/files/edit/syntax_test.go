package edit

import (
	"strings"
	"testing"
)

func TestBroken(t *testing.T) {
	for _, c := range []struct{ name, before, after, want string }{
		{"a.go", "package a\n", "package a\nfunc f( {\n", "2:"},
		{"a.go", "package a\n", "package a\nfunc f() {}\n", ""},
		{"a.go", "not go", "still not", ""},
		{"a.GO", "package a\n", "package", "expected"},
		{"a.json", `{"a": 1}`, "{\n\"a\": 1,\n}", "3:"},
		{"a.json", `{"a": 1}`, `{"a": 2}`, ""},
		{"a.yaml", "a: 1\nb: 2\n", "a: 1\n b: [2\n", "["},
		{"a.yml", "a: 1\n", "a:\n  - 1\n", ""},
		{"a.toml", "a = 1\n", "a = \n", "line 1"},
		{"a.toml", "a = 1\n", "a = 2\n", ""},
		{"a.xml", "<a><b/></a>", "<a><b></a>", "line 1"},
		{"a.xml", bom + "<?xml version=\"1.0\" encoding=\"latin1\"?><a/>", "<a></a>", ""},
		{"a.txt", "x", "y", ""},
		{"Makefile", "x", "y", ""},
	} {
		got := Broken(c.name, []byte(c.before), []byte(c.after))
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s, %q: got %q, want %q in it", c.name, c.after, got, c.want)
		}
	}
	if got := Broken("a.json", []byte("1"), []byte(strings.Repeat("[", 2<<20))); got != "" {
		t.Errorf("a file that large is not looked at: %s", got)
	}
	for _, deep := range []string{strings.Repeat("[", 50_000), strings.Repeat("- ", 30_000),
		strings.Repeat("a", maxSlow) + ": ["} {
		for _, name := range []string{"a.yaml", "a.toml"} {
			if got := Broken(name, []byte("a = 1"), []byte(deep)); got != "" {
				t.Errorf("%s: what takes too long is looked at: %s", name, got)
			}
			if got := Broken(name, []byte(deep), []byte("a: [")); got != "" {
				t.Errorf("%s: parsed although the old text was too large: %s", name, got)
			}
		}
	}
	if got := Broken("a.json", []byte("1"), []byte(strings.Repeat("[", 200_000))); got == "" {
		t.Error("deep nesting passes")
	}
}
